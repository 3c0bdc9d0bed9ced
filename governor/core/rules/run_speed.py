"""Triggers that hold the speed of a run's last steps against a baseline: its own, or the plan's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.inputs import Beat, Event, PhaseChange, Step
from governor.core.rules.trigger import STEP_S_MAX, STEP_S_MIN, Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.intake import PAUSES
from governor.core.runs.state import Run

TOKENS_PER_S = "tokens/s"
STEPS_PER_S = "steps/s"
_WARMING_UP: Final = unknown("warming_up")
_NO_STEP_TIMES: Final = unknown("no_step_times")


@dataclass(slots=True)
class _State:
    unit: str
    baseline: float | None
    steps_seen: int
    first_at: MonoNs | None
    recent: Reservoir
    early: Reservoir
    lead: int | None = field(default=None, metadata=UNKEPT)
    floor: float | None = field(default=None, metadata=UNKEPT)  # The limit: a part of the baseline, in its unit.
    # The lead rank's last step. Not stored: the gap across a restart of the governor was not observed.
    last: Step | None = field(default=None, metadata=UNKEPT)
    paused: bool = field(default=False, metadata=UNKEPT)  # The lead rank paused since its last step.


class RunSpeed(Trigger):
    """The median speed of the last `window_steps` steps is below a part of a baseline.

    The lead rank is measured, in tokens/s where tokens are known, else in steps/s.
    """

    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Beat, PhaseChange})
    REASON: ClassVar[str]
    WHOSE: ClassVar[str]  # The baseline.

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._floor_frac = {TOKENS_PER_S: params["floor_frac"], STEPS_PER_S: params["floor_frac_steps"]}
        self._warmup_steps: int = params["warmup_steps"]
        self._warmup_ns: DurationNs = params["warmup_time"]
        self._baseline_steps: int = params["baseline_steps"]
        self._window_steps: int = params["window_steps"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(STEPS_PER_S, None, 0, None, Reservoir(self._window_steps), Reservoir(self._baseline_steps))

    def _restored(self) -> None:
        self._stand(self._state.baseline)

    def observe(self, event: Event, run: Run) -> bool | None:
        if isinstance(event, Step):
            return (event.rank == self._state.lead or self._takes_lead(event.rank, run)) and self._see(event, run)
        if isinstance(event, Beat | PhaseChange) and event.rank == self._state.lead and event.phase in PAUSES:
            self._state.paused = True
        return None

    def _takes_lead(self, rank: int, run: Run) -> bool:
        """The lead is the lowest connected rank. When it is lost, the next rank that reports takes over."""
        state = self._state
        if state.lead is not None and rank > state.lead:
            lead = run.ranks.get(state.lead)
            if lead is not None and lead.connected:
                return False
        state.lead, state.last = rank, None
        return True

    def _see(self, event: Step, run: Run) -> bool:
        """Take the step's speed; return whether it may have pulled the median below the floor."""
        state = self._state
        last = state.last
        if last is None or event.at != last.at:  # Of records that arrive together the first counts.
            state.last = event
        if state.first_at is None:
            state.first_at = event.at
        if state.paused:
            state.paused = False
            return False
        step_s = event.training_s
        if step_s is None and last is not None and event.step > last.step:
            # No step time in the record: by arrival.
            step_s = (event.at - last.at) / NS_PER_S / (event.step - last.step)
        if step_s is None or not STEP_S_MIN <= step_s <= STEP_S_MAX:  # NaN fails too.
            return False
        state.steps_seen += 1
        floor = state.floor
        if floor is None:
            self._measure(event, last, step_s, run)
            return False
        if state.unit == STEPS_PER_S:
            speed = 1 / step_s
        else:
            tokens = tokens_of(event, last, run)
            if tokens is None:
                return False
            speed = tokens / step_s
        return not state.recent.add(speed) or speed < floor

    def _measure(self, event: Step, last: Step | None, step_s: float, run: Run) -> None:
        """Add a step to the baseline, once the warm-up is over."""
        state = self._state
        if self._is_warming_up(event):
            return
        tokens = tokens_of(event, last, run)
        if tokens is None:
            if state.unit == TOKENS_PER_S:
                return
            speed = 1 / step_s
        else:
            if state.unit == STEPS_PER_S:
                state.unit = TOKENS_PER_S  # Tokens became known while the baseline was measured.
                state.early.clear()
            speed = tokens / step_s
        state.early.add(speed)
        if len(state.early) == self._baseline_steps:
            self._stand(state.early.median())

    def _is_warming_up(self, event: Step) -> bool:
        state = self._state
        assert state.first_at is not None
        return state.steps_seen <= self._warmup_steps or event.at - state.first_at < self._warmup_ns

    def _stand(self, baseline: float | None) -> None:
        state = self._state
        state.baseline = baseline
        state.floor = None if baseline is None else baseline * self._floor_frac[state.unit]

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if run.is_cut_off():
            return unknown("no_connection")
        state = self._state
        floor = state.floor
        if state.baseline is None or floor is None or len(state.recent) < state.recent.size:
            return _WARMING_UP if state.steps_seen else _NO_STEP_TIMES
        recent = state.recent.median()
        assert recent is not None
        if recent >= floor:
            return QUIET
        return firing(
            self.REASON,
            f"{_round(recent)} {state.unit} over the last {state.recent.size} steps, "
            f"{recent / state.baseline:.0%} of {self.WHOSE} {_round(state.baseline)}",
            {
                "recent": recent,
                "baseline": state.baseline,
                "unit": state.unit,
                "recent_frac": recent / state.baseline,
                "floor_frac": self._floor_frac[state.unit],
                "window_steps": state.recent.size,
            },
        )


def _round(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def tokens_of(event: Step, last: Step | None, run: Run) -> float | None:
    """Tokens per step, of the global batch."""
    if event.tokens is not None and event.tokens > 0:
        return event.tokens / max(1, event.line_steps or 1)
    if event.tokens_total is not None and last is not None and last.tokens_total is not None and event.step > last.step:
        grown = event.tokens_total - last.tokens_total
        return grown / (event.step - last.step) if grown > 0 else None
    return run.tokens_per_step
