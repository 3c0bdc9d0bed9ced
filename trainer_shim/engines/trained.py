"""What the optimizers train, and whether a checkpoint will have it: by identity, else by where the values lie.

A loss head, or the fp32 masters of a bf16 model, may be in no module that a checkpoint is made of. A resumed run would
go on with these as the script makes them anew.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from trainer_shim.guard import attempt, guarded, print_line
from trainer_shim.launch import is_required
from trainer_shim.saving.store import KeyStore, connect, next_meeting

from .base import innermost

SCHEDULE_LOST = (
    "an LR scheduler drives the optimizer, and no checkpoint has it: a resumed run would begin its schedule anew; %s"
)
_FRAMEWORKS = ("torch", "transformers", "lightning", "pytorch_lightning", "builtins")
_SAMPLED_MAX = 256  # Tensors; a rank's sample of all is 16 KB.
_VALUES_MAX = 8
_UNLIKE = 1e-4  # Of the squares. Copies that each rank updates by the same gradients drift by rounding alone.
_DEPTH_MAX = 8  # A state_dict() has its tensors three levels down.
_MAKES_STATE = "_init_optim_state"  # Of torch.distributed.checkpoint.state_dict.
_FRAMES_MAX = 8  # From a hook up to who calls step(): the hook's caller, wrappers of a profiler and of a scheduler.


def makes_state(optimizer: Any) -> bool:
    """Whether its step() trains nothing: torch makes an empty state by one without gradients and with a lr of 0.

    get_state_dict() does so, in a save or before a load.
    """
    lr = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(lr, (int, float)) and lr != 0:
        return False
    frame = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        if frame is None or frame.f_code.co_name == _MAKES_STATE:
            return frame is not None
        frame = frame.f_back  # type: ignore[assignment]
    return False


def is_whole(tensor: Any) -> bool:
    """Whether this rank has all of it."""
    return not hasattr(tensor, "to_local")


def rank_of(torch: Any) -> Tuple[int, int]:
    """Return rank and number of ranks."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return int(distributed.get_rank()), int(distributed.get_world_size())


def is_first_rank(torch: Any) -> bool:
    """Whether this rank writes, and speaks, for all."""
    return rank_of(torch)[0] == 0


def gather_shards(items: Iterable[Any]) -> None:
    """Give the first rank the state that torch's ZeroRedundancyOptimizer has in parts. Every rank has to call this."""
    for item in items:
        gather = getattr(item, "consolidate_state_dict", None)
        if callable(gather):
            gather(to=0)


def trained_by(optimizers: Iterable[Any]) -> Dict[str, Any]:
    """Return each tensor that they hold, once, by its place: optimizer, group, index."""
    found: Dict[str, Any] = {}
    seen = set()
    for number, optimizer in enumerate(optimizers):
        for group, values in enumerate(getattr(optimizer, "param_groups", ())):
            for index, tensor in enumerate(values["params"]):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found["%d.%d.%d" % (number, group, index)] = tensor
    return found


def moved_by(optimizers: Sequence[Any]) -> Dict[str, Any]:
    """Return those of trained_by() that may have changed: in a group that an optimizer keeps state of, these alone."""
    states = {id(tensor): kept for one in optimizers for tensor, kept in dict(getattr(one, "state", {})).items()}
    groups: Dict[str, Dict[str, Any]] = {}
    for place, tensor in trained_by(optimizers).items():
        groups.setdefault(place.rpartition(".")[0], {})[place] = tensor
    found: Dict[str, Any] = {}
    for group in groups.values():
        stated = {place: tensor for place, tensor in group.items() if id(tensor) in states}
        first = next(iter(group))
        is_shared = list(stated) == [first] and _is_of_more(group[first], states[id(group[first])])
        found.update(stated if stated and not is_shared else group)
    return found


def _is_of_more(tensor: Any, state: Any) -> bool:
    """Whether the state at a group's first tensor may be the whole group's, as LBFGS keeps it."""
    sizes = {int(one.numel()) for one in tensors_in(state)}
    own = int(tensor.numel())
    return bool(state) and (own not in sizes or max(sizes) > own)


def outside(trained: Mapping[str, Any], tensors: Iterable[Any]) -> Dict[str, Any]:
    """Return those of which none of `tensors` has the values."""
    kept = list(tensors)
    ids = {id(tensor) for tensor in kept}
    bytes_at: Dict[Any, int] = {}
    for place, size in filter(None, map(_span, kept)):
        bytes_at[place] = max(size, bytes_at.get(place, 0))
    found = {}
    for name, tensor in trained.items():
        span = _span(tensor)
        if id(tensor) not in ids and tensor.numel() and (span is None or bytes_at.get(span[0], 0) < span[1]):
            found[name] = tensor
    return found


def parameters_of(items: Iterable[Any]) -> Iterator[Any]:
    """Return parameters and buffers of those that are modules."""
    for item in items:
        for name in ("parameters", "buffers"):
            listed, _ = attempt(getattr(item, name, tuple))
            yield from listed or ()


def covers(module: Any, other: Any) -> bool:
    """Whether `module` has all that `other` has."""
    wanted = {str(index): tensor for index, tensor in enumerate(parameters_of([other]))}
    return module is other or (bool(wanted) and not outside(wanted, parameters_of([module])))


def kept_in(states: Mapping[str, Any], items: Mapping[str, Any]) -> Iterator[Any]:
    """Return the tensors of these states, and the parameters that a module's state has by name, perhaps as copies."""
    yield from tensors_in(states)
    for key, item in items.items():
        state = states.get(key)
        named, _ = attempt(getattr(item, "named_parameters", tuple))
        if isinstance(state, Mapping):
            yield from (tensor for name, tensor in named or () if name in state)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return what is a tensor in nested mappings and lists."""
    if hasattr(value, "data_ptr"):
        yield value
    elif depth < _DEPTH_MAX and isinstance(value, (Mapping, list, tuple)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(one, depth + 1)


def worded(tensors: Mapping[str, Any]) -> str:
    """Say how many these are, and of what shape the first ones."""
    shapes = ["x".join(map(str, tensor.shape)) or "1" for tensor in tensors.values()]
    elements = sum(int(tensor.numel()) for tensor in tensors.values())
    more = ", ..." if len(shapes) > 3 else ""
    noun = "tensor" if len(shapes) == 1 else "tensors"
    return "%d %s (%s%s: %s elements)" % (len(shapes), noun, ", ".join(shapes[:3]), more, format(elements, ","))


def sampled(tensors: Mapping[str, Any]) -> Dict[str, Any]:
    """Return shape and a few values of each, by place: enough to tell a copy from another tensor."""
    found: Dict[str, Any] = {}
    places = list(tensors)
    for place in places[:: len(places) // _SAMPLED_MAX + 1]:
        flat = tensors[place].detach().reshape(-1)
        values = flat[:: max(1, int(flat.numel()) // _VALUES_MAX)][:_VALUES_MAX].double().tolist()
        finite = [float("%.6g" % value) if math.isfinite(value) else None for value in values]
        found[place] = [list(tensors[place].shape), finite]
    return found


def unlike(samples: Mapping[str, Any], others: Mapping[str, Any]) -> List[str]:
    """Return the places of both at which there is another tensor, not a copy of the same."""
    return [place for place, sample in samples.items() if place in others and _is_unlike(sample, others[place])]


def _is_unlike(sample: Any, other: Any) -> bool:
    if sample[0] != other[0]:
        return True
    pairs = [pair for pair in zip(sample[1], other[1]) if None not in pair]  # noqa: B905  (Python 3.9)
    return bool(sum((a - b) ** 2 for a, b in pairs) > _UNLIKE * sum(a * a + b * b for a, b in pairs))


def unlike_ranks(store: KeyStore, rank: int, world_size: int, samples: Mapping[str, Any]) -> List[str]:
    """Post this rank's sample. The rank that posts last returns what is not the same on all; nobody waits."""
    store.set("sample/%d" % rank, json.dumps(samples))
    if store.add("samples", 1) != world_size:
        return []
    posted = [json.loads(store.get("sample/%d" % other) or "{}") for other in range(world_size)]
    return sorted({place for other in posted[1:] for place in unlike(other, posted[0])})


@guarded(fallback=[])
def unlike_on_ranks(kept: Dict[str, Any]) -> List[str]:
    """Return what is not the same on every rank, on the rank that learns it. Every rank has to call this."""
    import torch

    rank, world_size = rank_of(torch)
    if world_size < 2:
        return []
    meeting = next_meeting("outside")
    store = connect(world_size, "costgov/" + meeting, meeting)
    return [] if store is None else unlike_ranks(store, rank, world_size, sampled(kept))


def warn_lost(lost: Mapping[str, Any], holder: str, remedy: str, is_first: bool) -> None:
    """Say which tensors no checkpoint will have."""
    if lost:
        told = (worded(lost), holder, remedy)
        warn_unsaved("the optimizer trains %s outside of %s: a resumed run begins with new ones; %s" % told, is_first)


def warn_unsaved(what: str, is_first: bool) -> None:
    """Say what no checkpoint will have. With COSTGOV_REQUIRED=1 the process ends: its work could not be resumed."""
    if is_first:
        print_line("NOT SAVED: %s" % what)
    if is_required(os.environ):
        sys.exit("costgov: COSTGOV_REQUIRED=1 refuses to train what no checkpoint has")


def lacks_schedule(optimizers: Sequence[Any], items: Iterable[Any]) -> bool:
    """Whether a scheduler of torch's drives one of these, and none of `items` is it or has it."""
    kept = list(items)
    return any(_is_scheduled(one) and not any(_drives(item, one) for item in kept) for one in optimizers)


def is_own(item: Any, *names: str) -> bool:
    """Whether a class of the script's has one of these methods, before those of frameworks do."""
    for one in type(item).__mro__:
        if one.__module__.split(".")[0] in _FRAMEWORKS:
            return False
        if any(name in vars(one) for name in names):
            return True
    return False


def _is_scheduled(optimizer: Any) -> bool:
    step = getattr(optimizer, "step", None)
    return hasattr(step, "_wrapped_by_lr_sched") or hasattr(step, "_with_counter")  # The latter until torch 2.4.


def _drives(item: Any, optimizer: Any, depth: int = 0) -> bool:
    if hasattr(item, "optimizer") and innermost(item) is optimizer:
        return True
    if depth > 2 or hasattr(item, "parameters"):
        return False
    inside: List[Any] = list(item) if isinstance(item, (list, tuple)) else list(getattr(item, "__dict__", {}).values())
    return any(_drives(one, optimizer, depth + 1) for one in inside)


def _span(tensor: Any) -> Optional[Tuple[Any, int]]:
    """Return device and address of the values and how many bytes there are. None: nobody knows."""
    address, _ = attempt(tensor.data_ptr)
    if not address:  # On the meta device, or of a subclass that has no storage of its own.
        return None
    return (str(getattr(tensor, "device", "")), address), int(tensor.numel()) * int(tensor.element_size())
