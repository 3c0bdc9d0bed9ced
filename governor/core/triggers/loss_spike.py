"""A loss far above the level that it kept to: one bad batch, or the first moment of a divergence."""

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

_NO_LOSS = unknown("no_loss_seen")
_WARMING_UP = unknown("warming_up")
_NOT_FINITE = unknown("loss_not_finite")
_CUT_OFF = unknown("no_connection")


class LossSpike:
    """The newest loss is above `factor` times its own running mean, and above it by `noise` times its usual range.

    Healthy runs spike to eight times their mean and finish well, so one spike is something to know, not to halt for;
    hundredfold for two losses running is another matter, and two rules may say both. A spike does not enter the mean
    that judges it, unless it stays for `adopt_records` losses: then it is the new level, and `loss_divergence`'s
    business. A loss that is not finite is no spike (`nonfinite` has it) and leaves the mean alone. Judged is the loss
    of one rank, the first that reports any. UNKNOWN before `warmup_records` losses and while no rank is connected. What
    it misses: a slow rise, and spikes of losses so near 0 that they stay below the floor. Starts anew with each
    attempt, and where the steps go back.
    """

    KIND: ClassVar[str] = "loss_spike"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Of 694 healthy language-model and speech logs, after ten losses, one reached 15 times the median of the last
        # 50, four more 2.7 to 15 times, the rest stayed below 1.9. None of them fires.
        Key("factor", "number", 3.0, "Fires above so many times the running mean.", 1.01),
        Key(
            "noise",
            "number",
            4.0,
            "And so many times their usual range (of five in a row) above it: small batches are noisy.",
        ),
        Key("floor", "number", 0.1, "The mean counts as at least this: near 0 every ratio is large."),
        Key("floor_frac", "number", 0.1, "And as at least this part of the first losses, whatever their unit."),
        Key("mean_records", "count", 50, "Losses that the running mean remembers.", 1),
        Key("warmup_records", "count", 30, "Losses before anything is judged: first ones are wild.", 2),
        Key("adopt_records", "count", 100, "After so many in a row it is a level, not a spike.", 2),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Disconnected})
    LIMITS: ClassVar[tuple[str, ...]] = ("factor",)
    SAYS: ClassVar[tuple[str, ...]] = (
        "the loss is above {factor} times its own running mean, and above it by {noise} times its usual range",
        "The mean is of {mean_records} losses, none of them a spike unless {adopt_records} come in a row; it counts as "
        "{floor} at least, and as {floor_frac} of the first losses. Nothing is judged before {warmup_records} losses.",
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
        self._finding = _NO_LOSS

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            if isinstance(event, Disconnected) and run.is_cut_off():
                self._finding = _CUT_OFF
            return False
        loss = event.loss
        if loss is None:
            return False
        if event.rank != self._rank:
            if not takes_over(event.rank, self._rank, run):
                return False
            self._rank = event.rank
        if event.step < self._step:
            self._level.clear()
        self._step = event.step
        if not -math.inf < loss < math.inf:  # NaN fails too.
            self._finding = _NOT_FINITE
            return False
        level = self._level
        if level.stands_out(loss):
            self._finding = self._spike(loss)
            return True
        self._finding = QUIET if level.mean is not None else _WARMING_UP
        return False

    def _spike(self, loss: float) -> Finding:
        mean = self._level.mean
        return Finding(
            Reading.FIRING,
            "loss_spiked",
            f"loss {loss:.4g} at step {self._step}; its running mean is {mean:.4g}, the limit {self._level.limit:.4g}",
            {
                "rank": self._rank,
                "step": self._step,
                "loss": loss,
                "mean": mean,
                "limit": self._level.limit,
                "factor": self._factor,
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return self._finding

    def new_attempt(self, run: Run) -> None:
        self._level.clear()
        self._rank, self._step, self._finding = None, -1, _NO_LOSS

    def snapshot(self) -> Mapping[str, Any]:
        return {"rank": self._rank, "step": self._step, "level": self._level.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._level.restore(snapshot["level"])
        # Until the next loss: whether the last one stood out is not known any more.
        self._finding = _NO_LOSS if self._rank is None else _WARMING_UP
