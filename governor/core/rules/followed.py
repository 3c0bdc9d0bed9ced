"""What triggers have in common that judge the records of one rank: whom they follow, and what they answer meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from governor.core.base.findings import Finding, unknown
from governor.core.base.units import MonoNs
from governor.core.events.events import Disconnected, Event
from governor.core.runs.run_state import Run

WARMING_UP: Final = unknown("warming_up")
_CUT_OFF: Final = unknown("no_connection")


class Followed(ABC):
    """One rank is followed: under data parallelism each sees a loss of its own, and mixing them would double the noise.

    It is the first that reports the number in question. The answer is what its last record led to, or that nobody is
    connected. A trigger gives NONE_SEEN and `_begin`, which sets `_step` and `_finding` and drops all that it holds.
    """

    NONE_SEEN: ClassVar[Finding]

    _rank: int | None
    _step: int
    _finding: Finding

    @abstractmethod
    def _begin(self) -> None: ...

    def _see_other(self, event: Event, run: Run) -> bool:
        """Whatever is no step."""
        if isinstance(event, Disconnected) and run.is_cut_off():
            self._finding = _CUT_OFF
        return False

    def _takes_over(self, rank: int, run: Run) -> bool:
        """Whether `rank`, which reports the number, is followed from now on in place of the one until now."""
        known = run.ranks.get(self._rank) if self._rank is not None else None
        if known is not None and known.connection is not None:
            return False
        # A log has no connections: its lowest rank. Else we are back, and that one has not said hello.
        if known is None and self._rank is not None and run.jsonl_only and rank > self._rank:
            return False
        self._rank = rank
        return True

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return self._finding

    def new_attempt(self, run: Run) -> None:
        self._rank = None
        self._begin()
