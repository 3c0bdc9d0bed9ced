"""Are the weights finite that are about to be saved? All that an optimizer holds, on the training thread.

It waits for the device once, as the save does next, and reads what that will read and write. A loss that is still
finite says nothing of the weights after the update: the next step's would, when the save has cost the last finite
checkpoint. Of what is seldom used (an expert, a word) many steps' losses say nothing. What is not finite before the
first step, as a clamp's bound that begins at +inf, is meant so, and no checkpoint is withheld for it.
"""

from __future__ import annotations

import math
import os
from typing import AbstractSet, Any, Callable, Dict, Iterable, List, Optional, Tuple

from trainer_shim.guard import guarded, print_line
from trainer_shim.progress import Progress

Named = Iterable[Tuple[str, Any]]
# The first byte from which on it is +inf or NaN, and the first one that is NaN with the sign set.
_EIGHT_BITS = {"torch.float8_e4m3fn": (0x7F, 0xFF), "torch.float8_e5m2": (0x7C, 0xFD)}
_PIECE = 1 << 20  # Elements of other kinds that are held in full precision at once.
_WRAPPERS = ("module", "_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@guarded()
def look_at_start(progress: Progress, trained: Callable[[], Named]) -> None:
    """Call once the model is there: what is not finite before the first step no step has harmed."""
    if progress.attempt_step:
        return
    found = harmed_in(trained())
    added = [name for name in found if _bare(name) not in progress.meant_nonfinite]
    progress.saw_start(frozenset(map(_bare, found)))
    if added and os.environ.get("RANK", "0") == "0":
        more = " and %d more" % (len(added) - 1) if len(added) > 1 else ""
        print_line(
            "parameter %s%s: not finite before the first step, so taken as meant: checkpoints are not judged by it"
            % (added[0], more)
        )


@guarded()
def look(progress: Progress, trained: Callable[[], Named]) -> None:
    """Call before the framework saves by itself: what is saved of broken weights is no good checkpoint."""
    progress.saw_weights(None)  # Also where they cannot be looked into.
    harmed = first_harmed(trained(), progress.meant_nonfinite)
    progress.saw_weights(None if harmed is None else not harmed)
    if harmed:
        print_line(
            "rank %s, step %d: parameter %s is not finite: what is saved here is no good checkpoint"
            % (os.environ.get("RANK", "0"), progress.step, harmed)
        )


def first_harmed(named: Named, meant: AbstractSet[str] = frozenset()) -> Optional[str]:
    """Return the first one with a NaN or +inf in this rank's part that is not `meant`, "" where all are finite.

    None where nobody knows: there are none, or some have no values here.
    """
    known = list(named)
    harmed = next((name for name in harmed_in(known) if _bare(name) not in meant), None)
    if harmed is None and known and all(has_values(parameter) for _, parameter in known):
        return ""
    return harmed


def harmed_in(named: Named) -> List[str]:
    """Return the names of those with a NaN or +inf in this rank's part. -inf may be meant."""
    import torch

    harmed: List[str] = []
    largest: Dict[Any, List[Tuple[str, Any]]] = {}
    with torch.no_grad():
        for name, parameter in named:
            value = local_part(parameter)
            if value.numel() and value.is_floating_point() and has_values(parameter):
                largest.setdefault(value.device, []).append((name, _largest(torch, value)))
        for found in largest.values():
            values = torch.stack([value for _, value in found]).tolist()
            for (name, _), value in zip(found, values):  # noqa: B905  (strict= is not in Python 3.9)
                if math.isnan(value) or value == math.inf:
                    harmed.append(name)
    return harmed


def _largest(torch: Any, value: Any) -> Any:
    """The largest element, or NaN. For numbers of eight bits, which have no order here: +inf, or what is finite."""
    if value.element_size() > 1:
        return value.amax().float()
    limits = _EIGHT_BITS.get(str(value.dtype))
    if limits is None:
        return torch.stack([piece.float().amax() for piece in value.reshape(-1).split(_PIECE)]).amax()
    positive, negative = value.view(torch.int8).amax(), value.view(torch.uint8).amax()
    return positive.float().masked_fill((positive >= limits[0]) | (negative >= limits[1]), math.inf)


def _bare(name: str) -> str:
    """The name without those of wrappers, which come after attach()."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def local_part(parameter: Any) -> Any:
    """This rank's part, as ZeRO-3 or FSDP has it."""
    part = getattr(parameter, "ds_tensor", None)
    if part is not None:
        return part.detach().reshape(-1)[: _filled(parameter, part)]
    value = parameter.detach()
    return value.to_local() if hasattr(value, "to_local") else value


def has_values(parameter: Any) -> bool:
    """Whether this rank's part is in memory: not on the meta device, nor where ZeRO-Infinity swaps to a disk."""
    part = getattr(parameter, "ds_tensor", None)
    if part is not None and part.numel() < getattr(part, "ds_numel", 0):  # One number stands for what is swapped out.
        return False
    return bool((parameter if part is None else part).device.type != "meta")


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
