"""The gradient norm is far above the level that it kept to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.events import Disconnected, Event, Step
from governor.core.findings import QUIET, Finding, Reading, unknown
from governor.core.levels import Level, takes_over
from governor.core.run_state import Run
from governor.core.triggers.base import Key
from governor.core.units import MonoNs

_NONE_SEEN = unknown("no_grad_norm_seen")
_WARMING_UP = unknown("warming_up")
_NOT_FINITE = unknown("grad_norm_not_finite")
_CUT_OFF = unknown("no_connection")


class GradNorm:
    """The newest gradient norm is above `factor` times its own running mean, and above it by `noise` times its usual
    range.

    Alone it means nothing: healthy runs exceed ten times their median and finish well, and clipping bounds what one
    such step can do. It is worth a line in the record, or a place beside a loss trigger in one rule. A norm that stands
    out does not enter the mean that judges it, unless it stays for `adopt_records` norms; one that is not finite is
    left out (fp16 overflows: `nonfinite` and `overflow_storm` count those). Judged is one rank, the first that reports
    any. UNKNOWN before `warmup_records` norms and while no rank is connected. What it misses: norms that engines report
    stale or after clipping. Starts anew with each attempt, and where the steps go back.
    """

    KIND: ClassVar[str] = "grad_norm"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("factor", "number", 10.0, "Fires above so many times the running mean.", 1.01),
        Key("noise", "number", 4.0, "And so many times their usual range (of five in a row) above it."),
        Key("floor", "number", 0.01, "The mean counts as at least this: near 0 every ratio is large."),
        Key("floor_frac", "number", 0.01, "And as at least this part of the first norms, whatever their unit."),
        Key("mean_records", "count", 50, "Norms that the running mean remembers.", 1),
        Key("warmup_records", "count", 20, "Norms before anything is judged.", 2),
        Key("adopt_records", "count", 100, "After so many in a row it is a level, not a spike.", 2),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("factor",)
    SAYS: ClassVar[tuple[str, ...]] = (
        "the gradient norm is above {factor} times its own running mean, and above it by {noise} times its usual range",
        "The mean is of {mean_records} norms, none of them standing out unless {adopt_records} do in a row; it counts "
        "as {floor} at least, and as {floor_frac} of the first norms. Nothing is judged before {warmup_records} norms.",
    )

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
        self._rank: int | None = None
        self._step = -1
        self._finding = _NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            if isinstance(event, Disconnected) and run.is_cut_off():
                self._finding = _CUT_OFF
            return False
        norm = event.grad_norm
        if norm is None:
            return False
        if event.rank != self._rank:
            if not takes_over(event.rank, self._rank, run):
                return False
            self._rank = event.rank
        if event.step < self._step:
            self._level.clear()
        self._step = event.step
        if not -math.inf < norm < math.inf:  # NaN fails too.
            self._finding = _NOT_FINITE
            return False
        level = self._level
        if level.stands_out(norm):
            self._finding = self._high(norm)
            return True
        self._finding = QUIET if level.mean is not None else _WARMING_UP
        return False

    def _high(self, norm: float) -> Finding:
        mean = self._level.mean
        return Finding(
            Reading.FIRING,
            "grad_norm_high",
            f"gradient norm {norm:.4g} at step {self._step}; its running mean is {mean:.4g}, "
            f"the limit {self._level.limit:.4g}",
            {
                "rank": self._rank,
                "step": self._step,
                "grad_norm": norm,
                "mean": mean,
                "limit": self._level.limit,
                "factor": self._factor,
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return self._finding

    def new_attempt(self, run: Run) -> None:
        self._level.clear()
        self._rank, self._step, self._finding = None, -1, _NONE_SEEN

    def snapshot(self) -> Mapping[str, Any]:
        return {"rank": self._rank, "step": self._step, "level": self._level.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._level.restore(snapshot["level"])
        # Until the next norm: whether the last one stood out is not known any more.
        self._finding = _NONE_SEEN if self._rank is None else _WARMING_UP
