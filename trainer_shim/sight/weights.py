"""Are the weights finite that are about to be saved? All trained parameters, on the training thread.

It waits for the device once, as the save does next, and reads what that will read and write. A loss that is still
finite says nothing of the weights after the update: the next step's would, when the save has cost the last finite
checkpoint. Of what is seldom used (an expert, a word) many steps' losses say nothing.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Iterable, List, Optional, Tuple

from trainer_shim.guard import guarded, print_line
from trainer_shim.progress import Progress


@guarded()
def look(progress: Progress, *models: Any) -> None:
    """Call before the framework saves by itself: what is saved of broken weights is no good checkpoint."""
    progress.saw_weights(None)  # Also where they cannot be looked into.
    named = [one for model in models if model is not None for one in model.named_parameters() if one[1].requires_grad]
    if not named:
        return
    harmed = first_harmed(named)
    progress.saw_weights(harmed is None)
    if harmed is not None:
        print_line(
            "rank %s, step %d: parameter %s is not finite: what is saved here is no good checkpoint"
            % (os.environ.get("RANK", "0"), progress.step, harmed)
        )


def first_harmed(named: Iterable[Tuple[str, Any]]) -> Optional[str]:
    """Return the first trained parameter with a NaN or +inf in this rank's part, None for none. -inf may be meant."""
    import torch

    largest: Dict[Any, List[Tuple[str, Any]]] = {}
    with torch.no_grad():
        for name, parameter in named:
            value = local_part(parameter) if parameter.requires_grad else None
            if value is not None and value.numel() and value.is_floating_point() and value.device.type != "meta":
                value = value if value.element_size() > 1 else value.float()  # Of eight bits there is no order.
                largest.setdefault(value.device, []).append((name, value.amax().float()))
        for found in largest.values():
            values = torch.stack([value for _, value in found]).tolist()
            for (name, _), value in zip(found, values):  # noqa: B905  (strict= is not in Python 3.9)
                if math.isnan(value) or value == math.inf:
                    return name
    return None


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
