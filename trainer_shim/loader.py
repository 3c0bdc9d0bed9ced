"""Wraps a data loader: times its waits and knows its position. In all else it is the wrapped loader.

Each name of the wrapped loader stays the script's: ours stand in an object of their own.
"""

from __future__ import annotations

import sys
import threading
import time
from types import GeneratorType
from typing import Any, Callable, Dict, Generic, Iterable, Iterator, List, Optional, Tuple, TypeVar
from weakref import WeakSet

from .guard import print_line
from .phases import CURRENT
from .saving.loader_position import Made, Position, is_of_ours

Batch = TypeVar("Batch")

# Loaders whose position belongs into the checkpoint.
_LOADERS: WeakSet[Any] = WeakSet()
_WRAPPED_TOTAL = [0]
_LIGHTNINGS_LOOK = "_check_dataloader_iterable"  # Of what is no torch DataLoader: it takes no batch.
_OWN_STATE = (
    "a wrapped loader was given its own state. A later shim.resume() does not know that place: "
    "give it that state again behind shim.resume()"
)


class WrappedLoader(Generic[Batch]):
    """The loader with timed waits and a known position. Made by wrap_loader()."""

    _costgov: Position

    def __init__(self, loader: Iterable[Batch]) -> None:
        vars(self)["_costgov"] = Position(loader, _WRAPPED_TOTAL[0])
        _WRAPPED_TOTAL[0] += 1
        _LOADERS.add(self)

    def __iter__(self) -> Iterator[Batch]:
        position = self._costgov
        if position.running is not None and isinstance(position.loader, GeneratorType):
            return position.running  # It goes on where it is.
        position.ask()
        # A DataLoader draws a seed for each iterator, taken from or not: so does this one, at the same moment. Behind a
        # position that was loaded the process's own generators are perhaps not back yet.
        is_made = not position.is_untaken and sys._getframe(1).f_code.co_name != _LIGHTNINGS_LOOK
        iterator: Iterator[Batch] = _timed(position, _make(position) if is_made else None)
        if hasattr(type(position.loader), "__next__"):
            position.note_running(iterator)
        return iterator

    def __getattr__(self, name: str) -> Any:
        if name == "_costgov":
            raise AttributeError(name)  # This object is half-built, e.g. while it is unpickled.
        loader = self._costgov.loader
        return getattr(loader, name, self._costgov.epoch) if name == "epoch" else getattr(loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Lightning forgets its workers so, and samplers are exchanged."""
        setattr(self._costgov.loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._costgov.loader, name)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _copied, (self._costgov,)

    def state_dict(self) -> Dict[str, Any]:
        """Return the position: epoch, batches trained on in it, and the random state that drew its order."""
        return self._costgov.state()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continue from `state`: the next batch handed out, by a running iterator too, is the one after it.

        What state_dict() has not returned is the loader's own.
        """
        position = self._costgov
        if is_of_ours(state):
            position.load(state)
            return
        position.loader.load_state_dict(state)
        position.give_up()
        print_line(_OWN_STATE)


def _next(self: Any) -> Any:
    """Of a loader that is an iterator itself."""
    if self._costgov.running is None:
        iter(self)
    return next(self._costgov.running)


# What Python asks of a type alone. A wrapped loader has those that the loader's type has.
_ASKED_OF_TYPES: Dict[str, Callable[..., Any]] = {
    "__len__": lambda self: len(self._costgov.loader),
    "__bool__": lambda self: bool(self._costgov.loader),
    "__length_hint__": lambda self: self._costgov.loader.__length_hint__(),
    "__getitem__": lambda self, key: self._costgov.loader[key],
    "__contains__": lambda self, item: item in self._costgov.loader,
    "__reversed__": lambda self: reversed(self._costgov.loader),
    "__next__": _next,
}
_KINDS: Dict[Tuple[str, ...], Any] = {}


def _kind_for(loader: Any) -> Any:
    names = tuple(name for name in _ASKED_OF_TYPES if hasattr(type(loader), name))
    if names not in _KINDS:
        methods = {"__module__": __name__, **{name: _ASKED_OF_TYPES[name] for name in names}}
        _KINDS[names] = type("WrappedLoader", (WrappedLoader,), methods)
    return _KINDS[names]


def _copied(position: Position) -> Any:
    """Return a copy that no checkpoint has: the script has wrapped the first one."""
    wrapped = WrappedLoader.__new__(_kind_for(position.loader))
    vars(wrapped)["_costgov"] = position
    return wrapped


class _TimedIterator(Iterator[Batch]):
    __slots__ = ("_iterator", "_made", "_owner")
    _owner: Position
    _iterator: Optional[Iterator[Batch]]
    _made: Optional[Made]

    def __init__(self, owner: Position, made: Optional[Made]) -> None:
        for name, value in (("_owner", owner), ("_iterator", None), ("_made", made)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        inner = None if name in _TimedIterator.__slots__ else self._inner()
        if inner is None:
            raise AttributeError(name)
        return getattr(inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _TimedIterator.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner(), name, value)

    def _inner(self) -> Optional[Iterator[Batch]]:
        """Return the loader's own iterator, as far as there is one."""
        return self._iterator if self._made is None else self._made.iterator

    def __next__(self) -> Batch:
        meter = CURRENT.meter
        # A thread of the script may prefetch: that is not the training thread's time.
        if meter is None or meter.progress.main_thread_id != threading.get_ident():
            return self._fetch()
        part = meter.enter_fetch()
        progress, has_batch = meter.progress, False
        try:
            if self._iterator is None or self._owner.repositioned:
                starts = self._owner.starts
                progress.enter_fetch(meter.clock.since_ns, starts)
                self._start()
                # Batches that were skipped on resume do not show how long one takes.
                progress.enter_fetch(time.monotonic_ns(), starts)
            else:
                progress.enter_fetch(meter.clock.since_ns, None)
            batch = self._fetch()
            has_batch = True
            return batch
        finally:
            meter.exit_fetch(part, has_batch)
            progress.leave_fetch(meter.clock.since_ns)

    def _fetch(self) -> Batch:
        owner = self._owner
        iterator = self._start() if self._iterator is None or owner.repositioned else self._iterator
        batch = next(iterator)
        owner.count_batch()
        return batch

    def _start(self) -> Iterator[Batch]:
        made, self._made = self._made, None
        self._iterator = self._owner.start_epoch(made)
        return self._iterator


class _SizedTimedIterator(_TimedIterator[Batch]):
    """That of a DataLoader has a length."""

    __slots__ = ()

    def __len__(self) -> int:
        inner: Any = self._inner()
        return len(inner if hasattr(type(inner), "__len__") else self._owner.loader)


def _timed(position: Position, made: Optional[Made]) -> Any:
    sized = position.loader if made is None else made.iterator
    return (_SizedTimedIterator if hasattr(type(sized), "__len__") else _TimedIterator)(position, made)


def _make(position: Position) -> Made:
    """Make the loader's own iterator, which starts its workers: the time is a fetch's."""
    meter = CURRENT.meter
    if meter is None or meter.progress.main_thread_id != threading.get_ident():
        return position.make()
    part = meter.enter_fetch()
    meter.progress.enter_fetch(meter.clock.since_ns, position.starts)
    try:
        return position.make()
    finally:
        meter.exit_fetch(part, False)
        meter.progress.leave_fetch(meter.clock.since_ns)


def wrap_loader(loader: Iterable[Batch]) -> WrappedLoader[Batch]:
    """Return `loader` with its waits timed exactly and its position kept in checkpoints.

    Iteration, len() and attributes are the loader's own. On resume the batches already trained on are skipped, with
    the epoch's order drawn from the same random state. `epoch` tells how many epochs were begun before this one, unless
    the loader has an `epoch` of its own.
    """
    if isinstance(loader, WrappedLoader):
        return loader
    wrapped: WrappedLoader[Batch] = _kind_for(loader)(loader)
    return wrapped


def position_of(wrapped: WrappedLoader[Any]) -> Position:
    """Return where it is."""
    return wrapped._costgov


def prepare(wrapped: WrappedLoader[Any], make: Callable[[Any], Any]) -> None:
    """Put `make(loader)` in the wrapped loader's place: a framework gives each rank a sampler of its own."""
    position = wrapped._costgov
    position.exchange(make(position.loader))
    object.__setattr__(wrapped, "__class__", _kind_for(position.loader))


def loader_states() -> List[Dict[str, Any]]:
    """Return the positions of all living wrapped loaders, in the order of wrapping."""
    return [loader.state_dict() for loader in sorted(_LOADERS, key=lambda item: item._costgov.index)]


def load_loader_states(states: List[Dict[str, Any]]) -> None:
    """Give the positions back, in the order of wrapping. Another number of loaders is reported, and none is moved."""
    loaders = sorted(_LOADERS, key=lambda item: item._costgov.index)
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
