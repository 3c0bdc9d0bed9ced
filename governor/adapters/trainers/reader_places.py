"""Who may have a reader of checkpoints now: fair shares by user, and nobody keeps a place that another one waits for.

Whoever has waited least often for a reader so far comes first, a halt's own checkpoint before the look whether an old
one is still there. Where all places are taken, the one that has read longest is wanted back: its reader stops hashing
and says how many hashes it has compared. So a checkpoint of terabytes costs others half a minute, not a quarter of an
hour.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# So many readers with all the memory that each may have (192 MiB) stay within the service's MemoryMax=1G.
READERS_MAX: Final = 4
# A user's second reader begins only while half of the places are free.
READERS_PER_USER_MAX: Final = 2
# As many runs of one user end at once when a node of eight GPUs reaches its budget.
WAITING_PER_USER_MAX: Final = 8
# Each that waits is a thread of the governor's. From so many on, each user may have one.
WAITING_MAX: Final = 24
# Readers in uninterruptible sleep, on a file system that is gone: nothing ends them, and whose they are has no further
# one. They cost others nothing up to these bounds. 64 runs live at once, with two readers each, and the service may
# have 256 tasks; its MemoryMax=1G leaves so much beside four readers and the governor.
HUNG_MAX: Final = 128
HUNG_BYTES_MAX: Final = 192 << 20
# Beyond that, a reader goes only to who has had an answer lately, and so can lose two more at most: 192 hang in all.
ANSWERED_MAX: Final = 32
WAIT_MAX_S: Final = 300.0
# Nobody is sent away sooner. Most disks give all of a checkpoint's sizes in this time, and 40 GB of hashes.
FAIR_S: Final = 20.0
_USERS_REMEMBERED: Final = 1_000

Reader = subprocess.Popen[bytes]


@dataclass(slots=True, eq=False)
class Seat:
    """A place that is taken."""

    uid: int
    since: float
    is_wanted: bool = False  # Others wait: the reader shall say what it has.
    has_answered: bool = False  # The reader has said what it found.


@dataclass(frozen=True, slots=True)
class Hung:
    """A reader that not even SIGKILL ends, and the memory that it keeps."""

    reader: Reader
    bytes: int


@dataclass(slots=True, eq=False)
class Turn:
    """Somebody who waits."""

    uid: int
    is_urgent: bool
    arrival: int


class Places:
    """The places and the line for them. Safe from any thread."""

    def __init__(self, wait_max_s: float = WAIT_MAX_S, fair_s: float = FAIR_S) -> None:
        self._wait_max_s = wait_max_s
        self._fair_s = fair_s
        self._change = threading.Condition()
        self._seats: list[Seat] = []
        self._line: list[Turn] = []
        self._served: dict[int, int] = {}  # By uid: when last, as a count. The latest are last.
        self._count = itertools.count(1)
        self._hung: list[tuple[int, Hung]] = []
        self._answered: dict[int, None] = {}  # Uids whose readers have had an answer, the latest last.

    def enter(self, uid: int, *, is_urgent: bool = True) -> Seat | str:
        """Wait for a place, or return why there is none. With a seat, the caller calls `leave`."""
        with self._change:
            if (crowd := self.crowd(uid)) is not None:
                return crowd
            with self._waiting(uid, is_urgent) as turn:
                until = time.monotonic() + self._wait_max_s
                while (refusal := self._refusal(uid)) is None and not self._is_next(turn):
                    left = until - time.monotonic()
                    if left <= 0:
                        return f"no reader was free within {self._wait_max_s:.0f} s"
                    self._change.wait(min(left, self._want_one_back(turn)))
            if refusal is not None:
                return refusal
            self._served.pop(uid, None)
            self._served[uid] = next(self._count)
            while len(self._served) > _USERS_REMEMBERED:
                del self._served[next(iter(self._served))]
            seat = Seat(uid, time.monotonic())
            self._seats.append(seat)
            return seat

    def crowd(self, uid: int) -> str | None:
        """Why nobody of this user may wait any more."""
        own, total = sum(turn.uid == uid for turn in self._line), len(self._line)
        if own < (WAITING_PER_USER_MAX if total < WAITING_MAX else 1):
            return None
        return f"{own} checkpoints of uid {uid} wait for a reader already"

    def leave(self, seat: Seat, hung: Hung | None) -> None:
        """Give the place back. `hung`: the reader, if it could not be ended."""
        with self._change:
            self._seats.remove(seat)
            if hung is not None:
                self._hung.append((seat.uid, hung))
            elif seat.has_answered:
                self._answered.pop(seat.uid, None)
                self._answered[seat.uid] = None
                while len(self._answered) > ANSWERED_MAX:
                    del self._answered[next(iter(self._answered))]
            self._change.notify_all()

    @contextlib.contextmanager
    def _waiting(self, uid: int, is_urgent: bool) -> Iterator[Turn]:
        turn = Turn(uid, is_urgent, next(self._count))
        self._line.append(turn)
        try:
            yield turn
        finally:
            self._line.remove(turn)
            self._change.notify_all()  # Somebody else is next.

    def _is_next(self, turn: Turn) -> bool:
        if not self._is_free(turn.uid):
            return False
        return turn is min((one for one in self._line if self._is_free(one.uid)), key=self._rank)

    def _rank(self, turn: Turn) -> tuple[bool, int, int]:
        return not turn.is_urgent, self._served.get(turn.uid, 0), turn.arrival

    def _want_one_back(self, turn: Turn) -> float:
        """Want as many places back as users wait who have none. Returns in how many seconds to look again."""
        now, held = time.monotonic(), Counter(seat.uid for seat in self._seats)
        if len(self._seats) < READERS_MAX or held[turn.uid]:
            return self._wait_max_s
        wanted = sum(seat.is_wanted for seat in self._seats)
        without = len({one.uid for one in self._line} - held.keys())
        keep = sorted((s for s in self._seats if not s.is_wanted), key=lambda s: (-held[s.uid], s.since))
        for seat in keep[: max(0, without - wanted)]:
            if now - seat.since < self._fair_s:
                return seat.since + self._fair_s - now
            seat.is_wanted = True
        return self._wait_max_s

    def _refusal(self, uid: int) -> str | None:
        self._hung = [(whose, hung) for whose, hung in self._hung if hung.reader.poll() is None]
        of_user = sum(whose == uid for whose, _ in self._hung)
        if of_user:
            return f"{_hang(of_user)} on files of uid {uid}, and nothing ends {'it' if of_user == 1 else 'them'}"
        held = sum(hung.bytes for _, hung in self._hung)
        if (len(self._hung) >= HUNG_MAX or held >= HUNG_BYTES_MAX) and uid not in self._answered:
            return (
                f"{_hang(len(self._hung))} on file systems that do not answer, with {held >> 20} MiB, and no "
                f"checkpoint of uid {uid} was read lately"
            )
        return None

    def _is_free(self, uid: int) -> bool:
        total, own = len(self._seats), sum(seat.uid == uid for seat in self._seats)
        if own == 0:
            return total < READERS_MAX
        return own < READERS_PER_USER_MAX and total < READERS_MAX // 2


def _hang(count: int) -> str:
    return "1 reader hangs" if count == 1 else f"{count} readers hang"
