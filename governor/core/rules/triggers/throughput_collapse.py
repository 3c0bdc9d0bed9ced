"""The run has become much slower than it was itself after warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.inputs import Beat, Event, PhaseChange, Step
from governor.core.rules.triggers.base import STEP_S_MAX, STEP_S_MIN, Key
from governor.core.runs.state import Run

_PAUSES = frozenset({"init", "compile", "eval", "checkpoint", "agree"})
TOKENS_PER_S = "tokens/s"
STEPS_PER_S = "steps/s"
_WARMING_UP: Final = unknown("warming_up")
_NO_STEP_TIMES: Final = unknown("no_step_times")


class ThroughputCollapse:
    """The median speed of the last `window_steps` steps is below a part of the run's own baseline.

    Speed is tokens/s where tokens are known, else steps/s. Batch and sequence schedules make healthy steps up to 3.8
    times longer by design, which tokens/s mostly sees through and steps/s does not: hence two limits, `floor_frac`
    and `floor_frac_steps`. The baseline is the median over `baseline_steps` steps, begun only after `warmup_steps`
    steps *and* `warmup_time`: first steps compile (hundreds of times slower) or run on prefetched data (ten times
    faster than what follows). Measured on the lead rank, without time spent saving or agreeing and without the steps
    around evaluation and compilation. A log without step times is timed by its arrival. UNKNOWN until the baseline
    stands and while no rank is connected. Starts anew with each attempt.
    """

    KIND: ClassVar[str] = "throughput_collapse"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("floor_frac", "frac", 0.3, "Fires below this part of the baseline in tokens/s."),
        Key("floor_frac_steps", "frac", 0.2, "Fires below this part of the baseline in steps/s, tokens being unknown."),
        Key("window_steps", "count", 20, "Steps whose median is compared: one slow step means nothing.", 1),
        Key("warmup_steps", "count", 30, "Steps left out before the baseline."),
        Key("warmup_time", "duration", "60s", "Time left out before the baseline; both must have passed."),
        Key("baseline_steps", "count", 50, "Steps whose median is the baseline.", 1),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Beat, PhaseChange})
    LIMITS: ClassVar[tuple[str, ...]] = ("floor_frac", "floor_frac_steps")
    SAYS: ClassVar[tuple[str, ...]] = (
        "the median speed of the last {window_steps} steps is below {floor_frac} of the run's own in tokens/s, or "
        "where tokens are unknown below {floor_frac_steps} in steps/s",
        "Its own speed is the median of {baseline_steps} steps, after {warmup_steps} steps and {warmup_time}.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._floor_frac = {TOKENS_PER_S: params["floor_frac"], STEPS_PER_S: params["floor_frac_steps"]}
        self._warmup_steps: int = params["warmup_steps"]
        self._warmup_ns: DurationNs = params["warmup_time"]
        self._baseline_steps: int = params["baseline_steps"]
        self._recent = Reservoir(params["window_steps"])
        self._early = Reservoir(params["baseline_steps"])
        self._start()

    def _start(self) -> None:
        self._lead: int | None = None
        self._unit = STEPS_PER_S
        self._baseline: float | None = None
        self._floor: float | None = None  # Of the baseline, in its unit.
        self._steps_seen = 0
        self._first_at: MonoNs | None = None
        self._last: Step | None = None  # The lead rank's last arrival.
        self._paused = False  # The lead rank did something else since its last step.
        self._recent.clear()
        self._early.clear()

    def observe(self, event: Event, run: Run) -> bool | None:
        if isinstance(event, Step):
            return (event.rank == self._lead or self._takes_lead(event.rank, run)) and self._see(event, run)
        if isinstance(event, Beat | PhaseChange) and event.rank == self._lead and event.phase in _PAUSES:
            self._paused = True
        return None

    def _takes_lead(self, rank: int, run: Run) -> bool:
        """The lead is the lowest rank that is connected; when it is lost the next to speak takes over."""
        if self._lead is not None and rank > self._lead:
            lead = run.ranks.get(self._lead)
            if lead is not None and lead.connected:
                return False
        self._lead, self._last = rank, None
        return True

    def _see(self, event: Step, run: Run) -> bool:
        """Take the step's speed; return whether it can have pulled the median below the floor."""
        last = self._last
        if last is None or event.at != last.at:  # Of records that come together, out of a buffer, the first counts.
            self._last = event
        if self._first_at is None:
            self._first_at = event.at
        if self._paused:
            self._paused = False
            return False
        step_s = event.step_s
        if step_s is not None:
            step_s = step_s - (event.checkpoint_s or 0.0) - (event.hold_s or 0.0)
        elif last is not None and event.step > last.step:
            step_s = (event.at - last.at) / NS_PER_S / (event.step - last.step)  # The record does not say: by arrival.
        else:
            return False
        if not STEP_S_MIN <= step_s <= STEP_S_MAX:  # NaN fails too.
            return False
        self._steps_seen += 1
        floor = self._floor
        if floor is None:
            self._measure(event, last, step_s, run)
            return False
        if self._unit == STEPS_PER_S:
            speed = 1 / step_s
        else:
            tokens = _tokens(event, last, run)
            if tokens is None:
                return False
            speed = tokens / step_s
        return not self._recent.add(speed) or speed < floor

    def _measure(self, event: Step, last: Step | None, step_s: float, run: Run) -> None:
        """One more step of the baseline, once the warm-up is over."""
        assert self._first_at is not None
        if self._steps_seen <= self._warmup_steps or event.at - self._first_at < self._warmup_ns:
            return
        tokens = _tokens(event, last, run)
        if tokens is None:
            if self._unit == TOKENS_PER_S:
                return
            speed = 1 / step_s
        else:
            if self._unit == STEPS_PER_S:
                self._unit = TOKENS_PER_S  # Tokens have become known while the baseline is still being measured.
                self._early.clear()
            speed = tokens / step_s
        self._early.add(speed)
        if len(self._early) == self._baseline_steps:
            self._stand(self._early.median())

    def _stand(self, baseline: float | None) -> None:
        self._baseline = baseline
        self._floor = None if baseline is None else baseline * self._floor_frac[self._unit]

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if run.is_cut_off():
            return unknown("no_connection")
        floor = self._floor
        if self._baseline is None or floor is None or len(self._recent) < self._recent.size:
            return _WARMING_UP if self._steps_seen else _NO_STEP_TIMES
        recent = self._recent.median()
        assert recent is not None
        if recent >= floor:
            return QUIET
        return Finding(
            Reading.FIRING,
            "throughput_collapsed",
            f"{_round(recent)} {self._unit} over the last {self._recent.size} steps, "
            f"{recent / self._baseline:.0%} of this run's own {_round(self._baseline)}",
            {
                "recent": recent,
                "baseline": self._baseline,
                "unit": self._unit,
                "recent_frac": recent / self._baseline,
                "floor_frac": self._floor_frac[self._unit],
                "window_steps": self._recent.size,
            },
        )

    def new_attempt(self, run: Run) -> None:
        self._start()

    def snapshot(self) -> Mapping[str, Any]:
        # Not the last record: between it and the next one nobody watched.
        return {
            "unit": self._unit,
            "baseline": self._baseline,
            "steps_seen": self._steps_seen,
            "first_at": self._first_at,
            "recent": list(self._recent),
            "early": list(self._early),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._start()
        self._unit = TOKENS_PER_S if snapshot["unit"] == TOKENS_PER_S else STEPS_PER_S
        self._stand(snapshot["baseline"])
        self._steps_seen = snapshot["steps_seen"]
        self._first_at = snapshot["first_at"]
        for speed in snapshot["recent"]:
            self._recent.add(speed)
        for speed in snapshot["early"]:
            self._early.add(speed)


def _round(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _tokens(event: Step, last: Step | None, run: Run) -> float | None:
    """Tokens per step, of the whole global batch."""
    if event.tokens is not None and event.tokens > 0:
        return event.tokens
    if event.tokens_total is not None and last is not None and last.tokens_total is not None and event.step > last.step:
        grown = event.tokens_total - last.tokens_total
        return grown / (event.step - last.step) if grown > 0 else None
    return run.tokens_per_step
