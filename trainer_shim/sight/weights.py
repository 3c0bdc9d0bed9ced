"""Are the weights finite that a framework is about to save? A sample of them, on the training thread.

It waits for the device once, as the save does next. A loss that is still finite says nothing of the weights after the
update: the next step's would, when the save has cost the last finite checkpoint.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Iterable, List, Optional, Tuple

from trainer_shim.guard import guarded, print_line
from trainer_shim.progress import Progress

TENSORS_MAX = 1_024
ELEMENTS = 1_024  # Of each tensor, from all over it. In all 4 MB.


@guarded()
def look(progress: Progress, *models: Any) -> None:
    """Call before the framework saves by itself: what is saved of broken weights is no good checkpoint."""
    progress.saw_weights(None)
    progress.saw_weights(are_finite(one for model in models if model is not None for one in model.parameters()))
    if not progress.weights_finite and os.environ.get("RANK", "0") == "0":
        print_line("step %d: the weights are not finite: what is saved here is no good checkpoint" % progress.step)


def are_finite(parameters: Iterable[Any]) -> Optional[bool]:
    """Whether no sampled element of a trained parameter is NaN or +inf, in this rank's part. -inf may be meant.

    None: it has none.
    """
    trained = [one for one in parameters if one.requires_grad]
    if not trained:
        return None
    import torch

    samples: Dict[Tuple[Any, Any], List[Any]] = {}
    with torch.no_grad():
        for parameter in trained[:: -(-len(trained) // TENSORS_MAX) or 1]:
            value = local_part(parameter)
            if value.numel() and value.is_floating_point() and value.device.type != "meta":
                samples.setdefault((value.device, value.dtype), []).append(_sample(value))
        largest = [float(torch.cat(values).float().max()) for values in samples.values()]
    return all(not math.isnan(one) and one != math.inf for one in largest) if largest else None


def local_part(parameter: Any) -> Any:
    """This rank's part, as ZeRO-3 or FSDP has it."""
    part = getattr(parameter, "ds_tensor", None)
    if part is not None:
        return part.detach().reshape(-1)[: _filled(parameter, part)]
    value = parameter.detach()
    return value.to_local() if hasattr(value, "to_local") else value


def _filled(parameter: Any, part: Any) -> int:
    """How many elements of ZeRO-3's equally long parts are the parameter's. The last ranks' end is never written."""
    whole, size = getattr(parameter, "ds_numel", None), part.numel()
    rank = getattr(parameter, "ds_zero_partition_rank", None)
    if rank is None and hasattr(parameter, "ds_process_group"):  # Of older versions.
        import torch

        rank = torch.distributed.get_rank(group=parameter.ds_process_group)
    if whole is None or rank is None:
        return int(size)
    return int(max(0, min(size, whole - rank * getattr(part, "ds_numel", size))))


def _sample(value: Any) -> Any:
    while not value.is_contiguous():
        value = value[0]
    flat = value.reshape(-1)
    return flat[:: -(-flat.numel() // ELEMENTS)]
