"""Steps that other ranks have told and the lead has not, as the run is halted.

One rank speaks for a run in what shows its steps: all have the same ones. A rank sends a broken step at once and
healthy ones four times a second (docs/adr/0011), and nothing is recorded behind a verdict. So the lead's last steps
may be missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from governor.core.runs.state import RANKS_MAX

AHEAD_MAX: Final = 64  # Steps of one rank.

Kept = TypeVar("Kept")


@dataclass(slots=True)
class StepsAhead(Generic[Kept]):
    """Tell it each step in the order of the recording. Bounded. `number`: the step's, within its attempt."""

    _told: int | None = None  # The last one that the lead has told, or that was taken for it.
    _kept: dict[int, deque[tuple[int, Kept]]] = field(default_factory=dict)  # By rank.
    _newest: tuple[int, int] | None = None  # Which rank told the last step, and when that was read.

    def begin(self) -> None:
        """Begin an attempt."""
        self._told, self._newest = None, None
        self._kept.clear()

    def lead(self, rank: int, number: int, at: int) -> bool:
        """Note a step of the lead. False: it was told before."""
        self._newest = rank, at
        is_new = self._is_new(number)
        if is_new:
            self._told = number
        return is_new

    def other(self, rank: int, number: int, at: int, kept: Kept) -> None:
        """Keep a step of another rank, unless the lead has told it."""
        self._newest = rank, at
        if self._is_new(number) and (rank in self._kept or len(self._kept) < RANKS_MAX):
            self._kept.setdefault(rank, deque(maxlen=AHEAD_MAX)).append((number, kept))

    def till_verdict(self, at: int) -> list[Kept]:
        """Where another rank's step is the reason for a halt at this time: it, and those that the lead lacks before."""
        if self._newest is None or self._newest[1] != at:
            return []
        found = []
        for number, kept in self._kept.pop(self._newest[0], ()):
            if self._is_new(number):
                self._told = number
                found.append(kept)
        return found

    def _is_new(self, number: int) -> bool:
        return self._told is None or number > self._told
