"""A number of the steps far above the level that it kept to: what `loss_spike` and `grad_norm` have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

from governor.core.events import Disconnected, Event, Step
from governor.core.findings import QUIET, Finding, Reading, unknown
from governor.core.levels import Level, takes_over
from governor.core.run_state import Run
from governor.core.units import MonoNs

_WARMING_UP = unknown("warming_up")
_CUT_OFF = unknown("no_connection")


class Surge:
    """Follows one number of one rank. A trigger names the number, and has keys of these names and its own defaults:
    factor, noise, floor, floor_frac, mean_records, warmup_records, adopt_records.
    """

    FIELD: ClassVar[str]  # Of a Step; the name of the value in the evidence, too.
    NAME: ClassVar[str]  # As a sentence says it.
    REASON: ClassVar[str]

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._factor: float = params["factor"]
        self._level = Level(
            rise=self._factor - 1,
            noise=params["noise"],
            floor=params["floor"],
            floor_frac=params["floor_frac"],
            warmup=params["warmup_records"],
            memory=params["mean_records"],
            adopt=params["adopt_records"],
        )
        self._value_of = attrgetter(self.FIELD)
        self._none_seen = unknown(f"no_{self.FIELD}_seen")
        self._not_finite = unknown(f"{self.FIELD}_not_finite")
        self._rank: int | None = None
        self._step = -1
        self._finding = self._none_seen

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            if isinstance(event, Disconnected) and run.is_cut_off():
                self._finding = _CUT_OFF
            return False
        value = self._value_of(event)
        if value is None:
            return False
        if event.rank != self._rank:
            if not takes_over(event.rank, self._rank, run):
                return False
            self._rank = event.rank
        if event.step < self._step:
            self._level.clear()
        self._step = event.step
        if not -math.inf < value < math.inf:  # NaN fails too.
            self._finding = self._not_finite
            return False
        level = self._level
        if level.stands_out(value):
            self._finding = self._high(value)
            return True
        self._finding = QUIET if level.mean is not None else _WARMING_UP
        return False

    def _high(self, value: float) -> Finding:
        mean, limit = self._level.mean, self._level.limit
        return Finding(
            Reading.FIRING,
            self.REASON,
            f"{self.NAME} {value:.4g} at step {self._step}; its running mean is {mean:.4g}, the limit {limit:.4g}",
            {
                "rank": self._rank,
                "step": self._step,
                self.FIELD: value,
                "mean": mean,
                "limit": limit,
                "factor": self._factor,
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return self._finding

    def new_attempt(self, run: Run) -> None:
        self._level.clear()
        self._rank, self._step, self._finding = None, -1, self._none_seen

    def snapshot(self) -> Mapping[str, Any]:
        return {"rank": self._rank, "step": self._step, "level": self._level.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._level.restore(snapshot["level"])
        # Until the next value: whether the last one stood out is not known any more.
        self._finding = self._none_seen if self._rank is None else _WARMING_UP
