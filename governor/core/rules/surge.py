"""A number of the steps far above the level that it kept to: what `loss_spike` and `grad_norm` have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.events.events import Event, Step
from governor.core.rules.followed import WARMING_UP, Followed
from governor.core.rules.levels import Level
from governor.core.runs.run_state import Run


class Surge(Followed):
    """Follows one number. A trigger names the number, and has keys of these names and its own defaults:
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
        self._not_finite = unknown(f"{self.FIELD}_not_finite")
        self._rank = None
        self._begin()

    def _begin(self) -> None:
        self._level.clear()
        self._step = -1
        self._finding = self.NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        value = self._value_of(event)
        if value is None:
            return False
        if event.rank != self._rank and not self._takes_over(event.rank, run):
            return False
        step = event.step
        if step < self._step:
            self._begin()
        self._step = step
        if not math.isfinite(value):
            self._finding = self._not_finite
            return False
        level = self._level
        if level.stands_out(value):
            self._finding = self._high(value)
            return True
        self._finding = QUIET if level.mean is not None else WARMING_UP
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

    def snapshot(self) -> Mapping[str, Any]:
        return {"rank": self._rank, "step": self._step, "level": self._level.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._level.restore(snapshot["level"])
        # Until the next value: whether the last one stood out is not known any more.
        self._finding = self.NONE_SEEN if self._rank is None else WARMING_UP
