"""What draws a loader's order beside the process's own generators: generators given to it, and epochs that it is told.

A DataLoader may have a generator, and so may its sampler. A DistributedSampler draws by the epoch of set_epoch(),
Accelerate's samplers count it themselves. Found by attribute, so that no framework is imported.
"""

from __future__ import annotations

import base64
from typing import Any, Dict, Iterator, List, Tuple

_INNER = ("sampler", "batch_sampler", "base_dataloader")
_COUNTS = ("epoch", "iteration")  # Accelerate's loaders count in `iteration`, and tell their samplers.
_GENERATORS = ("generator", "synchronized_generator")
_DEPTH_MAX = 5


def capture(loader: Any) -> Dict[str, Any]:
    """Return plain values. Call before the iterator of an epoch is made, or when its order has been drawn."""
    state: Dict[str, Any] = {"generators": {}, "counts": {}, "goes_on": goes_on(loader)}
    for name, one in _parts(loader):
        for attribute, generator in _generators_of(one):
            raw = bytes(generator.get_state().numpy().tobytes())
            state["generators"][name + attribute] = base64.b64encode(raw).decode("ascii")
        state["counts"].update({name + attribute: count for attribute, count in _counts_of(one)})
    return state


def restore_generators(loader: Any, state: Dict[str, Any]) -> None:
    """Put back what is known of generators. One that is not there now is left out."""
    for name, one in _parts(loader):
        for attribute, generator in _generators_of(one):
            text = state.get("generators", {}).get(name + attribute)
            if text is not None:
                blank = generator.get_state()
                raw = base64.b64decode(text)
                if len(raw) == blank.numel():
                    blank.numpy()[:] = memoryview(raw)
                    generator.set_state(blank)


def restore_counts(loader: Any, state: Dict[str, Any]) -> List[Tuple[int, int]]:
    """Put back the epochs. Return those that were told otherwise: (told, restored).

    The loader's own epoch was put back when the position was loaded: who has set another one is the script.
    """
    told: List[Tuple[int, int]] = []
    counts_itself = isinstance(getattr(loader, "iteration", None), int)
    for name, one in _parts(loader):
        for attribute, count in _counts_of(one):
            known = state.get("counts", {}).get(name + attribute)
            if not isinstance(known, int) or known == count:
                continue
            setattr(one, attribute, known)
            if not counts_itself and (hasattr(one, "set_epoch") or one is loader):
                told.append((count, known))
    return told


def goes_on(loader: Any) -> bool:
    """Whether the next epoch is one more of workers that live on: it draws no seed for them, and they go on drawing."""
    return bool(getattr(loader, "persistent_workers", False)) and getattr(loader, "_iterator", None) is not None


def _parts(loader: Any) -> Iterator[Tuple[str, Any]]:
    """Return the loader and what it draws its order by, each once, by a name that is the same in each process."""
    seen: List[Any] = []
    waiting: List[Tuple[str, Any]] = [("", loader)]
    while waiting:
        name, one = waiting.pop(0)
        if any(one is other for other in seen) or name.count(".") > _DEPTH_MAX:
            continue
        seen.append(one)
        yield name, one
        inner = ((name + attribute + ".", getattr(one, attribute, None)) for attribute in _INNER)
        waiting += [(longer, found) for longer, found in inner if found is not None]


def _generators_of(one: Any) -> Iterator[Tuple[str, Any]]:
    for attribute in _GENERATORS:
        generator = getattr(one, attribute, None)
        if hasattr(generator, "get_state") and hasattr(generator, "set_state"):
            yield attribute, generator


def _counts_of(one: Any) -> Iterator[Tuple[str, int]]:
    for attribute in _COUNTS:
        count = getattr(one, attribute, None)
        if type(count) is int:
            yield attribute, count
