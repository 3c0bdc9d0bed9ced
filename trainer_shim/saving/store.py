"""The key-value store through which the ranks of one job talk beside their collectives.

With several ranks it is a connection of our own to the TCPStore that torch.distributed runs already: a wait on a shared
connection would block the training thread. With one rank it is a dictionary.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Dict, Optional, Protocol, Tuple

from trainer_shim.connection.starts import this_start

_MEETINGS: Dict[str, int] = {}  # By subject, in this turn of this process.
_TURN = [0]  # As attach() has agreed on with the other ranks; 0: a watcher without attach().


class StoreLostError(Exception):
    """The store does not answer any more: the process that hosts it is gone."""


class KeyStore(Protocol):
    """What the agreement needs. No method waits for a key. Raises StoreLostError."""

    def get(self, key: str) -> Optional[str]:
        """Return the value now, or None."""

    def set(self, key: str, value: str) -> None:
        """Write, last writer wins."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter atomically and return its new value; 0 reads it."""

    def settle(self, key: str, value: str) -> str:
        """Write once: the first non-empty value stays for ever. Return the one that stays."""


class MemoryStore:
    """The store of a single process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Dict[str, str] = {}
        self._counts: Dict[str, int] = {}

    def get(self, key: str) -> Optional[str]:
        with self._lock:
            return self._values.get(key)

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount
            return self._counts[key]

    def settle(self, key: str, value: str) -> str:
        with self._lock:
            return self._values.setdefault(key, value)


class TorchStore:
    """A torch.distributed store under a key prefix. Polls with check(): a timed-out wait() prints C++ warnings."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix + "/"

    def get(self, key: str) -> Optional[str]:
        key = self._prefix + key
        try:
            return str(self._store.get(key).decode()) if self._store.check([key]) else None
        except (RuntimeError, OSError) as error:  # torch raises RuntimeError and its subclasses.
            raise StoreLostError(_first_line(error)) from error

    def set(self, key: str, value: str) -> None:
        try:
            self._store.set(self._prefix + key, value)
        except (RuntimeError, OSError) as error:
            raise StoreLostError(_first_line(error)) from error

    def add(self, key: str, amount: int) -> int:
        try:
            return int(self._store.add(self._prefix + key, amount))
        except (RuntimeError, OSError) as error:
            raise StoreLostError(_first_line(error)) from error

    def settle(self, key: str, value: str) -> str:
        try:
            return str(self._store.compare_set(self._prefix + key, "", value).decode())
        except (RuntimeError, OSError) as error:
            raise StoreLostError(_first_line(error)) from error


def polls_s(world_size: int) -> Tuple[float, float]:
    """Return how long a rank waits between two polls, while a round is open and while none is.

    The one store serves every rank: at most 5,000 polls per second in all, and 1,000 while there is nothing to do.
    """
    return max(0.005, 0.0002 * world_size), max(0.05, 0.001 * world_size)


def begin_turn(number: int) -> None:
    """Count the meetings anew: this rank and whoever is in turn `number` of the job with it have had none yet."""
    _TURN[0] = number
    _MEETINGS.clear()


def next_meeting(subject: str) -> str:
    """Name where the ranks of this start meet about `subject`: in one turn every rank asks as often as the others.

    The count keeps an earlier one's keys apart, the turn those of an earlier training of the process.
    """
    _MEETINGS[subject] = _MEETINGS.get(subject, 0) + 1
    return "%s/%d/%d" % (subject, _TURN[0], _MEETINGS[subject])


def connect(world_size: int, prefix: str, meeting: str) -> Optional[KeyStore]:
    """Return this job's store, or None while torch.distributed is not initialised. Raises StoreLostError.

    `prefix` is where this rank would keep its keys. The first rank's prefix counts for all of this start, under the key
    `meeting`: ranks that attached before their process group existed may have named the attempt differently.
    """
    if world_size <= 1:
        return MemoryStore()
    dist = sys.modules.get("torch.distributed")  # The trainer has imported it, or there is no job.
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        own = _own_connection(dist)
    except (RuntimeError, OSError, AttributeError, ValueError) as error:  # ValueError: the group is being destroyed.
        raise StoreLostError(_first_line(error)) from error
    shared = TorchStore(own, "costgov")
    start = this_start(shared)
    return TorchStore(own, "%s/%d" % (shared.settle("%d/%s" % (start, meeting), prefix), start))


def _own_connection(dist: Any) -> Any:
    store = dist.distributed_c10d._get_default_store()
    if hasattr(store, "clone"):
        return store.clone()
    # Before torch 2.5 stores cannot be cloned: open the same server once more.
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
