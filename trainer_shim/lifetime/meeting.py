"""Which turn is at hand in all ranks of a job, from what each of them sees alone at its attach().

The turns are numbered in the ranks' own store. A rank that comes to attach() takes part in the newest turn that it was
not in, else it opens the next. So ranks that have attached unlike are together again at the next turn, or, where they
meet in resume(), there: who is behind begins the newest one. A count of one's own calls would stay apart for ever.

A turn is decided once. "Over" comes from the first rank that sees its former training over: that one waits for nobody,
and whoever comes to the turn later goes by it. "Goes on" is said when all have come and nobody saw that, or no more
came in time. It closes that turn alone: who sees more later opens the next, and in resume() the others learn it.

One store serves all ranks. So each counts itself into its turn, and no rank asks for every other by its name.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from enum import Enum
from typing import Callable, NamedTuple, Optional, Tuple

from trainer_shim.guard import attempt, print_line
from trainer_shim.saving.store import KeyStore, connect

TOLD_S = 20.0
MET_S = 30.0  # So long a rank that has attached may take to count itself, once the ranks have met.
TURNS_MAX = 1_000  # Opened by other ranks since this one came last. Past that it opens one of its own.
_POLL_S = 0.02
_POLL_PER_RANK_S = 0.0002  # One store serves them all.
NAMES_MAX = 16  # So many ranks are asked for by name to say who is absent.
_VAIN_MAX = 30  # Halved so often, a wait is none.
_POLLS_PER_LOOK = 8  # One poll reads one counter. A look whether anybody will never come reads more.
_OVER, _GOES_ON = "over", "goes on"
_IN, _OUT = "in", "out"


class Waits(NamedTuple):
    """How long a rank waits for the others."""

    answer_s: float = 5.0  # From the first rank's attach() to the last one's, where the first sees a training go on.
    vain_s: float = 1.0  # Likewise, in all, for a rank that has waited in vain since this training began.
    late_s: float = 10.0  # In resume(), where the others may yet come to attach() and see that it is over.
    resume_s: float = 300.0  # As saving/resuming.py: a rank that prepares data alone has not attached yet.


class Where(Enum):
    """Where the other ranks are when one comes to resume()."""

    TOGETHER = "in this turn"
    AHEAD = "in a later turn"
    APART = "in none with this one"


_WAITS = Waits()


class Ranks:
    """What the ranks of one job know of each other. Raises StoreLostError."""

    def __init__(self, store: KeyStore, rank: int, world_size: int, poll_s: float = 0.0) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.poll_s = poll_s or max(_POLL_S, _POLL_PER_RANK_S * world_size)

    def settle_in(self, turn: int) -> None:
        """This rank is watched in that turn, and no longer in the one before."""
        before = self._place_of(self.rank)
        token = "%d %d" % (threading.get_ident(), time.monotonic_ns())
        if before >= turn or self.store.settle("counts/%d/%d" % (turn, self.rank), token) != token:
            return  # Or another thread of this rank is about to.
        if before:
            self.store.add("there/%d" % before, -1)
        self.store.settle("first/%d" % turn, str(self.rank))
        self.store.add("there/%d" % turn, 1)
        self.store.set("at/%d" % self.rank, str(turn))

    def stay_apart(self, turn: int) -> None:
        """Nobody may wait for this rank until it begins a turn after that one."""
        if self.store.get("apart/%d" % self.rank) == str(turn):
            return
        self.store.set("apart/%d" % self.rank, str(turn))
        place = self.store.add("aparts/%d" % turn, 1)
        self.store.set("aparts/%d/%d" % (turn, place), str(self.rank))

    def missing(self, turn: int) -> int:
        """Return how many ranks are not watched in that turn, or no longer."""
        return self.world_size - self.store.add("there/%d" % turn, 0)

    def told_missing(self, turn: int) -> str:
        """Say who is one of them."""
        return self._named(lambda other: self._place_of(other) != turn)

    def come_to_resume(self, turn: int, call: int) -> None:
        """This rank is in its resume() of that turn, the so manieth there."""
        place = "%d/%d" % (turn, call)
        if self.store.get("resumes/%d" % self.rank) != place:
            self.store.add("resuming/" + place, 1)
            self.store.set("resumes/%d" % self.rank, place)

    def missing_in_resume(self, turn: int, call: int) -> int:
        """Return how many ranks have not come there."""
        return self.world_size - self.store.add("resuming/%d/%d" % (turn, call), 0)

    def told_missing_in_resume(self, turn: int, call: int) -> str:
        """Say who is one of them."""
        return self._named(lambda other: self.store.get("resumes/%d" % other) != "%d/%d" % (turn, call))

    def _named(self, lacks: Callable[[int], bool]) -> str:
        """Say who is one of those: by its name where it is among the first."""
        for other in range(min(self.world_size, NAMES_MAX)):
            if lacks(other):
                return "rank %d" % other
        return "one of the ranks from %d on" % NAMES_MAX

    def ahead_of(self, turn: int) -> Optional[int]:
        """Return a rank that was watched in a later turn."""
        for later in range(turn + 1, turn + TURNS_MAX):
            first = self.store.get("first/%d" % later)
            if first is not None:
                return int(first)
            if self.store.get("open/%d" % later) is None:
                break
        return None

    def apart_from(self, turn: int) -> Optional[int]:
        """Return a rank that is not in that turn, and said just before it, or later, that nobody may wait for it."""
        for said_in in range(turn - 1, turn + TURNS_MAX):
            said = self.store.add("aparts/%d" % said_in, 0)
            for place in range(said, max(0, said - NAMES_MAX), -1):
                other = int(self.store.get("aparts/%d/%d" % (said_in, place)) or self.rank)
                is_apart = int(self.store.get("apart/%d" % other) or -1) >= turn - 1
                if is_apart and self._place_of(other) < turn:
                    return other
            if said_in > turn and self.store.get("open/%d" % said_in) is None:
                break
        return None

    def _place_of(self, rank: int) -> int:
        """Return the turn in which that rank is watched; 0: it has not said."""
        return int(self.store.get("at/%d" % rank) or 0)

    def all_came(self, turn: int) -> bool:
        """Whether every rank came to that turn and saw its training go on."""
        return self.store.add("asked/%d" % turn, 0) >= self.world_size


def of_job() -> Optional[Ranks]:
    """Return the ranks of this job, None where there is one or they have not met yet. Raises StoreLostError."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    world_size = int(dist.get_world_size())
    store = connect(world_size, "costgov/turns", "turns")
    return None if store is None else Ranks(store, int(dist.get_rank()), world_size)


class Way:
    """What attach() asks: this process's way through the turns. Where the store is gone each goes by what it sees."""

    def __init__(self, find_ranks: Callable[[], Optional[Ranks]] = of_job) -> None:
        self._find_ranks = find_ranks
        self._steps = Steps()
        self._told = 0  # The turn of which a line says who is not in it.

    @property
    def number(self) -> int:
        """Return the turn of what is watched."""
        return self._steps.number

    def number_for(self, is_over: bool) -> Optional[int]:
        """As Steps.arrive()."""
        ranks, _ = attempt(self._find_ranks)
        number, error = attempt(self._steps.arrive, ranks, is_over)
        return number if error is None else self._steps.arrive(None, is_over)

    def late_number(self) -> Optional[int]:
        """As Steps.arrive_late()."""
        ranks, _ = attempt(self._find_ranks)
        return None if ranks is None else attempt(self._steps.arrive_late, ranks)[0]

    def settle_in(self) -> None:
        """This rank is watched in the turn that it has taken."""
        ranks, _ = attempt(self._find_ranks)
        attempt(self._steps.settle_in, ranks)

    def stay_apart(self) -> None:
        """Nobody may wait for this rank."""
        ranks, _ = attempt(self._find_ranks)
        attempt(self._steps.stay_apart, ranks)

    def gather(self) -> Tuple[Where, int]:
        """As Steps.gather(). Where nobody can be asked, whoever loads learns it."""
        ranks, _ = attempt(self._find_ranks)
        found, error = (None, None) if ranks is None else attempt(self._steps.gather, ranks)
        if isinstance(error, TimeoutError):
            raise error
        return found or (Where.TOGETHER, 0)

    def presence(self) -> "Presence":
        """Return who can be asked whether all ranks are in the turn of what is watched."""
        return Presence(self._find_ranks, self.number)


class Presence:
    """Whether all ranks would save what the script asks for. It asks the store: on the agreement's thread alone."""

    def __init__(
        self,
        find_ranks: Callable[[], Optional[Ranks]],
        turn: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_ranks = find_ranks
        self._turn = turn
        self._clock = clock
        self._is_counted = False
        self._since: Optional[float] = None  # A rank is missing.
        self._missing = 0
        self._told = ""  # Who is one of so many.

    def absent(self) -> Optional[str]:
        """Say that a rank is in another turn than this one; None where all are in it, "" where one may not have met.

        The first call counts this rank, which may have attached before the ranks had met.
        """
        ranks, _ = attempt(self._find_ranks)
        return None if ranks is None else attempt(self._look, ranks)[0]

    def _look(self, ranks: Ranks) -> Optional[str]:
        if not self._is_counted:
            ranks.settle_in(self._turn)
            self._is_counted = True
        missing = ranks.missing(self._turn)
        if missing <= 0:
            self._missing, self._since = 0, None
            return None
        self._since = self._clock() if self._since is None else self._since
        ahead = ranks.ahead_of(1) if self._turn == 1 else None
        if self._turn == 1 and ahead is None and self._clock() - self._since < MET_S:
            return ""
        if missing != self._missing:
            self._missing = missing
            self._told = ranks.told_missing(self._turn) if ahead is None else "rank %d" % ahead
        return "%s trains something else, or has not attached this" % self._told


class Steps:
    """One rank's way through the turns of its job. `last`: the newest it came to. `number`: of what is watched."""

    def __init__(self, waits: Waits = _WAITS) -> None:
        self.waits = waits
        self.last = self.number = 0
        self._in_vain = 0  # Times, since this training began.
        self._resumes = 0  # In turn `number`: calls of resume() to which all ranks have come.

    def arrive(self, ranks: Optional[Ranks], is_over: bool) -> Optional[int]:
        """Return the number of the turn that begins, None: the former training goes on, and nothing is watched beside.

        `is_over`: what this rank sees of its former training.
        """
        if ranks is None:
            self.last += is_over
            return self._take(self.last) if is_over else None
        while True:
            self._go_to_newest(ranks)
            decided, is_stale = self._decided(ranks, is_over)
            if decided == _OVER:
                ranks.store.set("apart/%d" % ranks.rank, "")
                if ranks.store.settle("in/%d/%d" % (self.last, ranks.rank), _IN) == _IN:
                    return self._take(self.last)
            elif not is_over and not is_stale:
                return None

    def arrive_late(self, ranks: Ranks) -> Optional[int]:
        """In resume() of what is not watched: as arrive(), once another rank has come to attach() after this one."""
        until = time.monotonic() + self.waits.late_s
        while not ranks.all_came(self.last) and time.monotonic() < until:
            if self._newest(ranks) > self.last:
                return self.arrive(ranks, False)
            time.sleep(ranks.poll_s)
        if self._newest(ranks) > self.last:
            return self.arrive(ranks, False)
        self.stay_apart(ranks)
        return None

    def stay_apart(self, ranks: Optional[Ranks]) -> None:
        """Nobody may wait for this rank until it begins another turn."""
        if ranks is not None:
            ranks.stay_apart(self.last)

    def settle_in(self, ranks: Optional[Ranks]) -> None:
        """This rank is watched in the turn that it has taken."""
        if ranks is not None:
            ranks.settle_in(self.number)

    def gather(self, ranks: Ranks) -> Tuple[Where, int]:
        """Wait until all ranks are in resume() of this turn; return where they are, and the rank that is elsewhere.

        That they were watched in this turn is not enough: one may be about to begin the next, and would be waited for
        in a resume() to which it never comes. Raises TimeoutError where one does not come.
        """
        self.settle_in(ranks)  # It may have attached before the ranks had met.
        turn, call = self.number, self._resumes + 1
        ranks.come_to_resume(turn, call)
        start, is_told, elsewhere = time.monotonic(), False, _Elsewhere(ranks, turn, self.waits.answer_s)
        for poll in itertools.count():
            if ranks.missing_in_resume(turn, call) <= 0:
                break
            now = time.monotonic()
            found = elsewhere.look(now) if poll % _POLLS_PER_LOOK == 0 else None
            if found is not None:
                if found[0] is Where.APART:
                    self.stay_apart(ranks)
                return found
            if now - start > TOLD_S and not is_told:
                is_told = True
                told = ranks.told_missing_in_resume(turn, call)
                print_line("resume(): waits for %s, which has not come to resume() in this training" % told)
            if now - start > self.waits.resume_s:
                self.stay_apart(ranks)
                told = ranks.told_missing_in_resume(turn, call)
                raise TimeoutError("resume(): %s did not join within %d s" % (told, self.waits.resume_s))
            time.sleep(ranks.poll_s)
        self._resumes = call
        return Where.TOGETHER, ranks.rank

    def _take(self, number: int) -> int:
        self._in_vain = 0
        self._resumes = 0
        self.number = number
        return number

    def _newest(self, ranks: Ranks) -> int:
        newest = max(self.last, int(ranks.store.settle("base", str(self.last))))  # A group made anew has a new store.
        for _ in range(TURNS_MAX):
            if ranks.store.get("open/%d" % (newest + 1)) is None:
                break
            newest += 1
        return newest

    def _go_to_newest(self, ranks: Ranks) -> None:
        newest = self._newest(ranks)
        if newest == self.last or ranks.store.get("open/%d" % newest) is None:
            newest += 1
            ranks.store.settle("open/%d" % newest, "1")
        self.last = newest

    def _decided(self, ranks: Ranks, is_over: bool) -> Tuple[str, bool]:
        """Return what is decided in the last turn, and whether it was before this rank came."""
        key = "turn/%d" % self.last
        if is_over:
            return ranks.store.settle(key, _OVER), False
        said = ranks.store.get(key)
        if said is not None:
            return said, said == _GOES_ON
        ranks.store.add("asked/%d" % self.last, 1)
        until = time.monotonic() + (self.waits.vain_s * 0.5**self._in_vain if self._in_vain else self.waits.answer_s)
        while ranks.store.get(key) is None and not ranks.all_came(self.last) and time.monotonic() < until:
            time.sleep(ranks.poll_s)
        self._in_vain = 0 if ranks.all_came(self.last) else min(self._in_vain + 1, _VAIN_MAX)
        return ranks.store.settle(key, _GOES_ON), False


class _Elsewhere:
    """Who will not come to the turn that the others wait in."""

    def __init__(self, ranks: Ranks, turn: int, patience_s: float) -> None:
        self._ranks = ranks
        self._turn = turn
        self._patience_s = patience_s
        self._apart: Tuple[Optional[int], float] = (None, 0.0)  # Since when.

    def look(self, now: float) -> Optional[Tuple[Where, int]]:
        """Return a rank that is ahead, or that has been apart for so long."""
        ahead = self._ranks.ahead_of(self._turn)
        if ahead is not None:
            return Where.AHEAD, ahead
        apart, (before, since) = self._ranks.apart_from(self._turn), self._apart
        if apart is None or apart != before:
            self._apart = (apart, now)
        elif now - since > self._patience_s:
            # It may be about to come: one word counts for all who wait, and for itself.
            self._ranks.store.settle("in/%d/%d" % (self._turn, apart), _OUT)
            return Where.APART, apart
        return None
