"""torch's DataLoader, whoever iterates it: each wait for a batch is timed, and a beat says that one lasts, since when.

All its iterators inherit one `__next__`, which is wrapped while somebody is attached. So it does not matter which
framework holds the loader, nor whether the loader was made before attach(). Loaders are not touched: they are pickled
and copied as before.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, List, Tuple
from weakref import ref

from trainer_shim.engines import hooks
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter

_DATA_SETS_MAX = 8  # Training, evaluation, and some: of more, the oldest is forgotten.


class _Starts:
    """How often a loader was started for each data set. Another data set says nothing of how this one starts."""

    def __init__(self) -> None:
        self._known: List[Tuple[Callable[[], Any], int]] = []

    @guarded(fallback=0)
    def next_of(self, iterator: Any) -> int:
        """Return how often one was started before for the data set of `iterator`, which starts now."""
        data_set = getattr(iterator, "_dataset", None)
        before = next((count for known, count in self._known if known() is data_set), 0)
        others = [item for item in self._known if item[0]() is not data_set and item[0]() is not None]
        try:
            known = ref(data_set)
        except TypeError:  # A list: another one may be at its address tomorrow.
            return 0
        self._known = [*others[1 - _DATA_SETS_MAX :], (known, before + 1)]
        return before


@guarded()
def watch(meter: StepMeter, undo: hooks.Undo) -> None:
    """Wrap the iterators' `__next__` until `undo`. Where torch is not loaded, nobody has such a loader."""
    if "torch" not in sys.modules:
        return
    import torch
    import torch.utils.data.dataloader as loading

    compiler = getattr(torch, "compiler", None)
    make = _make_next(meter, getattr(compiler, "is_compiling", _never))
    hooks.replace(undo, loading._BaseDataLoaderIter, "__next__", make)
    if hasattr(loading, "DataLoader"):
        hooks.replace(undo, loading.DataLoader, "__iter__", _make_iter(meter))  # It starts the workers.


def _make_next(
    meter: StepMeter, is_compiling: Callable[[], bool]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    progress, starts = meter.progress, _Starts()
    thread, get_ident, clock = progress.main_thread_id, threading.get_ident, meter.clock
    enter_fetch, leave_fetch = progress.enter_fetch, progress.leave_fetch
    enter_load, exit_load = meter.enter_load, meter.exit_load

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_batch(iterator: Any) -> Any:
            # In a fetch already: wrap_loader() or data() is around it. A thread of the script may prefetch.
            if is_compiling() or progress.fetch_ns or get_ident() != thread:
                return original(iterator)
            part = enter_load()
            enter_fetch(clock.since_ns, None if getattr(iterator, "_num_yielded", 0) else starts.next_of(iterator))
            has_batch = False
            try:
                batch = original(iterator)
                has_batch = True
                return batch
            finally:
                exit_load(part, has_batch)
                leave_fetch(clock.since_ns)

        return next_batch

    return make


def _make_iter(meter: StepMeter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    progress, thread, get_ident = meter.progress, meter.progress.main_thread_id, threading.get_ident

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(loader: Any) -> Any:
            if progress.fetch_ns or get_ident() != thread:
                return original(loader)
            part = meter.enter_load()
            try:
                return original(loader)
            finally:
                meter.exit_load(part, False)

        return start

    return make


def _never() -> bool:
    return False
