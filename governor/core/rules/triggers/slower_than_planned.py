"""The run is much slower than its plan says, from its first step on or since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from governor.core.base.findings import Finding, unknown
from governor.core.base.policy import Expected
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Step
from governor.core.rules.run_speed import TOKENS_PER_S, RunSpeed, tokens_of
from governor.core.rules.trigger import Key
from governor.core.runs.state import Run

_NOTHING_EXPECTED: Final = unknown("nothing_expected")


class SlowerThanPlanned(RunSpeed):
    """The median speed of the last `window_steps` steps is below a part of the policy's `[expected] tokens_per_s`.

    `throughput_collapse` holds a run against itself, so it cannot see one that was slow from its first step: its
    baseline is slow too. This trigger holds it against the plan, in tokens/s of the whole run, and measures steps as
    that trigger does. `warmup_steps` steps *and* `warmup_time` are left out. A run on half of the planned GPUs is half
    as fast by design: state its own plan.

    UNKNOWN without `[expected] tokens_per_s`, while tokens are not reported, during the warm-up and while no rank is
    connected. Resets at each attempt.
    """

    KIND: ClassVar[str] = "slower_than_planned"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("floor_frac", "frac", 0.5, "Fires below this part of the planned tokens/s."),
        Key("window_steps", "count", 20, "Steps whose median is compared: one slow step means nothing.", 1),
        Key("warmup_steps", "count", 30, "Steps left out at the start."),
        Key("warmup_time", "duration", "60s", "Time left out at the start; both must have passed."),
    )
    PLANNED: ClassVar[bool] = True
    LIMITS: ClassVar[tuple[str, ...]] = ("floor_frac",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "the median speed of the last {window_steps} steps is below {floor_frac} of the tokens/s that the policy "
        "expects",
        "The first {warmup_steps} steps and {warmup_time} are left out.",
    )
    REASON: ClassVar[str] = "slower_than_planned"
    WHOSE: ClassVar[str] = "the planned"

    def __init__(self, params: Mapping[str, Any]) -> None:
        expected: Expected = params["expected"]
        self._planned = expected.tokens_per_s
        super().__init__({**params, "floor_frac_steps": params["floor_frac"], "baseline_steps": 1})

    def _restored(self) -> None:
        """The plan may be another one than when the state was stored."""
        self._stand(None if self._state.baseline is None else self._planned)

    def _measure(self, event: Step, last: Step | None, step_s: float, run: Run) -> None:
        """Take the plan for the baseline once the warm-up is over and the run has told of tokens."""
        if self._planned is None or self._is_warming_up(event) or tokens_of(event, last, run) is None:
            return
        self._state.unit = TOKENS_PER_S
        self._stand(self._planned)

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return _NOTHING_EXPECTED if self._planned is None else super().judge(at, run)
