"""Who speaks for a run, of the ranks in its recording: one rank's steps are shown, as all ranks have the same ones.

The rule is the engine's (core.runs.intake.is_lead): the lowest connected rank. Every launch may number a node's ranks
anew, and a connection may be lost while the others train on.

Ranks send what is healthy four times a second (docs/adr/0011), and nothing is recorded behind a verdict. So the lead's
last steps may be missing where the recording has another rank's. Steps of the others are kept until the lead has told
them, and are theirs where it can tell them no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from governor.core.runs.state import RANKS_MAX

AHEAD_MAX: Final = 256  # Of one rank: a quarter of a second of steps of a millisecond.

Kept = TypeVar("Kept")


@dataclass(slots=True)
class Speaker(Generic[Kept]):
    """Tell it hellos, steps, lost connections, gaps and halts in the order of the recording. Bounded.

    A step is told with what its reader keeps of it. What a method returns of these is to be shown now, in this order.
    """

    attempt: str | None = None
    is_over: bool = False  # This attempt, by a verdict or the ranks' exit: until a hello nothing is missed.
    lead: int | None = None  # None: no rank is known to be connected. Then each speaks, and a step is told once.
    _connections: dict[int, int | None] = field(default_factory=dict)  # By rank. None: a plain log names none.
    _told: int | None = None  # This attempt's last step that was shown.
    _kept: dict[int, deque[tuple[int, Kept]]] = field(default_factory=dict)  # By rank: steps, with their numbers.
    _newest: tuple[int, int] | None = None  # Which rank told the last step, and when that was read.

    def leads(self, rank: int | None) -> bool:
        """Whether what this rank tells is the run's. None: it is told of no rank."""
        return self.lead is None or rank in (self.lead, None)

    def hello(self, attempt: str, rank: int, connection: int | None) -> list[Kept]:
        """Returns steps of before: the last ones of an attempt that this one ends, or of the next rank to speak."""
        found, self.is_over = [], False
        if attempt != self.attempt:
            found = self.break_off()
            self.attempt, self._told = attempt, None
        for other in self._of(connection):
            del self._connections[other]  # One connection is one process: it has another rank now.
        if rank in self._connections or len(self._connections) < RANKS_MAX:
            self._connections[rank] = connection
        return found + self._elect()

    def step(self, rank: int, number: int, at: int, kept: Kept) -> bool:
        """Whether it is to be shown: it is the lead's, and new. `number`: within its attempt."""
        self._newest = rank, at
        if not self._is_new(number):
            return False
        if self.leads(rank):
            self._told = number
            return True
        if rank in self._kept or len(self._kept) < RANKS_MAX:
            self._kept.setdefault(rank, deque(maxlen=AHEAD_MAX)).append((number, kept))
        return False

    def lost(self, connection: int) -> list[Kept]:
        """A connection has ended. Where it was the lead's, the next rank speaks, from the last step shown on."""
        for rank in self._of(connection):
            del self._connections[rank]
        return self._elect()

    def break_off(self) -> list[Kept]:
        """Nobody was heard from here on, until the next hello: what the lead would have told yet is unknown."""
        self._connections.clear()
        self.lead = None
        return self._take(tuple(self._kept))

    def exited(self) -> None:
        """The run's ranks were seen to be gone."""
        self.is_over = True

    def verdict(self, at: int) -> list[Kept]:
        """The run's halt was decided. Where another rank's step is the reason: it, and those before that are new.

        The others' are dropped: as the engine counts, the run was not there yet.
        """
        found = self._take((self._newest[0],)) if self._newest is not None and self._newest[1] == at else []
        self._kept.clear()
        self.break_off()
        self.is_over = True
        return found

    def _of(self, connection: int | None) -> list[int]:
        return [rank for rank, own in self._connections.items() if own == connection] if connection is not None else []

    def _elect(self) -> list[Kept]:
        """The lowest connected rank speaks. Returns what a new one has told and the one before it had not."""
        self.lead = min(self._connections, default=None)
        return self._take(tuple(self._kept) if self.lead is None else (self.lead,))

    def _take(self, ranks: Collection[int]) -> list[Kept]:
        """The new steps of these ranks in their order, each one once: the lowest rank's."""
        told = [(number, rank, kept) for rank in ranks for number, kept in self._kept.pop(rank, ())]
        found = []
        for number, _, kept in sorted(told, key=lambda one: one[:2]):
            if self._is_new(number):
                self._told = number
                found.append(kept)
        return found

    def _is_new(self, number: int) -> bool:
        return self._told is None or number > self._told
