"""Wraps a data loader: times its waits and knows its position. In all else it is the wrapped loader."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Dict, Generic, Iterable, Iterator, List, NamedTuple, Optional, TypeVar
from weakref import WeakSet

from .guard import attempt, print_line
from .phases import CURRENT
from .saving import loader_state, rng

Batch = TypeVar("Batch")

# Loaders whose position belongs into the checkpoint, in the order in which the script wrapped them.
_LOADERS: WeakSet[Any] = WeakSet()
_WRAPPED_TOTAL = [0]
_LIGHTNINGS_LOOK = "_check_dataloader_iterable"  # Of what is no torch DataLoader: it takes no batch.


class _Made(NamedTuple):
    """An iterator of the loader's own, and what its order is drawn by, as it was before."""

    iterator: Iterator[Any]
    rng: Dict[str, Any]
    own: Optional[Dict[str, Any]]
    loaded: int  # How many positions had been loaded: behind the next one it is not of this order.


class WrappedLoader(Generic[Batch]):
    """The loader with timed waits and a known position. Made by wrap_loader()."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self._loader = loader
        self.epoch = 0  # Epochs begun before the current one.
        self.batches = 0  # Handed out in the current epoch.
        self._held_back: Callable[[], int] = _none
        self._is_over: Optional[bool] = None
        self._is_asked = False  # Since a position was loaded an iterator was made, and nothing was taken from it.
        self.starts = 0  # Of the loader's own iterator, in this process.
        self._begun = False
        self._epoch_rng: Optional[Dict[str, Any]] = None  # As it was before the epoch's order was drawn.
        self._epoch_own: Optional[Dict[str, Any]] = None  # Likewise, of the loader's own: see loader_state.
        self._resume: Optional[Dict[str, Any]] = None
        self._loaded = 0
        self._is_untaken = False  # Since a position was loaded nothing was taken.
        self._index = _WRAPPED_TOTAL[0]  # The last one of ours: see __setattr__.
        _WRAPPED_TOTAL[0] += 1
        _LOADERS.add(self)

    def __iter__(self) -> Iterator[Batch]:
        if self._resume is not None and self._is_over is not None:
            if self._is_asked:
                self._pass_over()
            self._is_asked = True
        iterator = _TimedIterator(self)
        # A DataLoader draws a seed for each iterator, taken from or not: so does this one, at the same moment. Behind a
        # position that was loaded the process's own generators are perhaps not back yet.
        if not self._is_untaken and sys._getframe(1).f_code.co_name != _LIGHTNINGS_LOOK:
            iterator.make()
        return iterator

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)  # This object is half-built, e.g. while it is unpickled.
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is not ours is the loader's: Lightning forgets its workers so, and samplers are exchanged."""
        if "_index" in vars(self) and name not in vars(self):
            setattr(self._loader, name, value)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            object.__delattr__(self, name)
        else:
            delattr(self._loader, name)

    def prepare(self, make: Callable[[Any], Any]) -> None:
        """Put `make(loader)` in the wrapped loader's place: a framework gives each rank a sampler of its own."""
        self._loader = make(self._loader)

    def hold_back(self, how_many: Callable[[], int]) -> None:
        """Ask `how_many` of the batches that were handed out a framework has fetched ahead of training."""
        self._held_back = how_many

    def count_epochs(self, is_over: bool) -> None:
        """A framework counts epochs by itself, and may be through with the one of the position that is loaded next.

        `is_over`: it is. Else a second iterator, with nothing taken from the first one, says so.
        """
        self._is_over = is_over

    def state_dict(self) -> Dict[str, Any]:
        """Return the position: epoch, batches trained on in it, and the random state that drew its order."""
        if self._resume is not None:
            return dict(self._resume)
        held, _ = attempt(self._held_back)
        own, _ = attempt(loader_state.capture, self._loader)
        batches = max(0, self.batches - (held or 0))
        state = {"epoch": self.epoch, "batches": batches, "epoch_rng": self._epoch_rng}
        return {**state, "epoch_own": self._epoch_own, "own": own}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continue from `state`: the next batch handed out, by a running iterator too, is the one after it."""
        self.epoch = int(state["epoch"])
        self.batches = int(state["batches"])
        self._resume, self._is_asked = dict(state), False
        self._loaded += 1
        self._is_untaken = True
        if self._is_over:
            self._pass_over()

    def _pass_over(self) -> None:
        """What comes next begins the epoch behind the loaded position."""
        resume, self._resume, self._begun = self._resume, None, True
        own = (resume or {}).get("own") or {}
        now = rng.capture()
        self._start_workers(own)
        rng.restore(now)
        attempt(loader_state.restore_generators, self._loader, own)

    def make(self) -> _Made:
        """Make an iterator. Until a batch is taken from it no epoch begins: Lightning makes some that it drops."""
        drawn_by, (own, _) = rng.capture(), attempt(loader_state.capture, self._loader)
        return _Made(iter(self._loader), drawn_by, own, self._loaded)

    def start_epoch(self, made: Optional[_Made] = None) -> Iterator[Batch]:
        """Return the loader's iterator at the position to start from. `made`: for an epoch from its beginning."""
        begun, self._begun = self._begun, True
        self._is_untaken = False
        resume, self._resume = self._resume, None
        if resume is None:
            self.starts += 1
            self.epoch += begun
            self.batches = 0
            if made is None or made.loaded != self._loaded:
                made = self.make()
            self._epoch_rng, self._epoch_own = made.rng, made.own
            return made.iterator
        # Drawing the order again takes random numbers that the interrupted run had taken long before.
        now = rng.capture()
        self._epoch_rng, self._epoch_own = resume.get("epoch_rng"), resume.get("epoch_own")
        self._begin_resumed(self._epoch_own or {})
        self.starts += 1
        iterator = iter(self._loader)
        for _ in range(int(resume["batches"])):
            if next(iterator, iterator) is iterator:
                break  # The data set became shorter, and the epoch ends here.
        rng.restore(now)
        return iterator

    def _begin_resumed(self, own: Dict[str, Any]) -> None:
        """Put back what the order of the resumed epoch was drawn by."""
        loader = self._loader
        told, _ = attempt(loader_state.restore_counts, loader, own)
        for said, known in told or ():
            print_line(
                "set_epoch(%d) was called, and the data goes on in epoch %d: begin the loop at loader.epoch, "
                "or the order of the next epochs differs" % (said, known)
            )
        self._start_workers(own)
        attempt(loader_state.restore_generators, loader, own)
        if self._epoch_rng is not None:
            rng.restore(self._epoch_rng)

    def _start_workers(self, own: Dict[str, Any]) -> None:
        """Let those that had lived on live before an epoch begins: it draws no seed for them then."""
        loader = self._loader
        if own.get("goes_on") and not (self.starts and loader_state.goes_on(loader)):
            print_line(
                "workers of persistent_workers=True begin anew: what they draw themselves (augmentation) differs"
            )
        if own.get("goes_on") and not loader_state.goes_on(loader):
            iter(loader)  # It starts them, and draws a seed for them, which a later epoch does not.
            if not loader_state.goes_on(loader):
                print_line("%s starts its workers with the first batch: the order differs" % type(loader).__name__)

    @property
    def repositioned(self) -> bool:
        """True while a loaded position waits for its first batch."""
        return self._resume is not None


def _none() -> int:
    return 0


class SizedWrappedLoader(WrappedLoader[Batch]):
    """A wrapped loader with a length. A class of its own: bool() and len() act as on the loader itself."""

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # Chosen because the loader's type has it.


class _TimedIterator(Iterator[Batch]):
    __slots__ = ("_iterator", "_made", "_owner")

    def __init__(self, owner: WrappedLoader[Batch]) -> None:
        self._owner = owner
        self._iterator: Optional[Iterator[Batch]] = None
        self._made: Optional[_Made] = None

    def make(self) -> None:
        """Make the loader's own iterator, which starts its workers: the time is a fetch's."""
        meter = CURRENT.meter
        if meter is None or meter.progress.main_thread_id != threading.get_ident():
            self._made = self._owner.make()
            return
        part = meter.enter_fetch()
        meter.progress.enter_fetch(meter.clock.since_ns, self._owner.starts)
        try:
            self._made = self._owner.make()
        finally:
            meter.exit_fetch(part)
            meter.progress.leave_fetch(meter.clock.since_ns)

    def __next__(self) -> Batch:
        meter = CURRENT.meter
        # A thread of the script may prefetch: that is not the training thread's time.
        if meter is None or meter.progress.main_thread_id != threading.get_ident():
            return self._fetch()
        part = meter.enter_fetch()
        progress = meter.progress
        try:
            if self._iterator is None or self._owner.repositioned:
                starts = self._owner.starts
                progress.enter_fetch(meter.clock.since_ns, starts)
                self._start()
                # Batches that were skipped on resume do not show how long one takes.
                progress.enter_fetch(time.monotonic_ns(), starts)
            else:
                progress.enter_fetch(meter.clock.since_ns, None)
            return self._fetch()
        finally:
            meter.exit_fetch(part)
            progress.leave_fetch(meter.clock.since_ns)

    def _fetch(self) -> Batch:
        owner = self._owner
        iterator = self._start() if self._iterator is None or owner.repositioned else self._iterator
        batch = next(iterator)
        owner.batches += 1
        return batch

    def _start(self) -> Iterator[Batch]:
        made, self._made = self._made, None
        self._iterator = self._owner.start_epoch(made)
        return self._iterator


def wrap_loader(loader: Iterable[Batch]) -> WrappedLoader[Batch]:
    """Return `loader` with its waits timed exactly and its position kept in checkpoints.

    Iteration, len() and attributes are the loader's own. On resume the batches already trained on are skipped, with
    the epoch's order drawn from the same random state; `epoch` tells how many epochs were begun before this one.
    """
    if isinstance(loader, WrappedLoader):
        return loader
    return SizedWrappedLoader(loader) if hasattr(type(loader), "__len__") else WrappedLoader(loader)


def loader_states() -> List[Dict[str, Any]]:
    """Return the positions of all living wrapped loaders, in the order of wrapping."""
    return [loader.state_dict() for loader in sorted(_LOADERS, key=lambda item: item._index)]


def load_loader_states(states: List[Dict[str, Any]]) -> None:
    """Give the positions back, in the order of wrapping. Another number of loaders is reported, and none is moved."""
    loaders = sorted(_LOADERS, key=lambda item: item._index)
    if not states:
        return
    if len(states) != len(loaders):
        print_line(
            "the checkpoint knows %d wrapped loaders, this process has %d: data position not restored"
            % (len(states), len(loaders))
        )
        return
    for loader, state in zip(loaders, states):  # noqa: B905  (strict= is not in Python 3.9; the lengths are equal)
        loader.load_state_dict(state)
