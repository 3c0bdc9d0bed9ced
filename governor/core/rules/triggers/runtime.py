"""The run, or its present attempt, has taken longer than it may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events.inputs import Event, Tick
from governor.core.rules.trigger import Key, Trigger
from governor.core.runs.state import Run


@dataclass(slots=True)
class _State:
    run_age_ns: int = 0
    attempt_age_ns: int = 0
    boot: int | None = None  # The boot of the last tick.


class Runtime(Trigger):
    """Time since the run was first seen (`run`), or since its present attempt began (`attempt`), pauses included.

    For jobs that should be over by then: a forgotten debug run, an evaluation, a reservation that ends. (`budget`
    covers money.) The clock includes time while the machine is suspended. The run's time continues between its attempts
    and while the governor restarts. It does not grow over a reboot of the machine (the length of that gap is unknown),
    nor while costgov has forgotten the run. The attempt's time resets at each attempt.
    """

    KIND: ClassVar[str] = "runtime"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("run", "duration", "0s", "Fires when the run is this old, over all its attempts; 0s: however old."),
        Key("attempt", "duration", "0s", "Fires when the attempt is this old; 0s: however old."),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({Tick})
    MEANING: ClassVar[tuple[str, ...]] = (
        "the run is older than {run}, or its attempt older than {attempt} (0: however old)",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._run_ns: DurationNs = params["run"]
        self._attempt_ns: DurationNs = params["attempt"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> None:
        if isinstance(event, Tick):
            # Before the first tick the run may already have existed for some time.
            state = self._state
            passed = max(0, event.at - run.attempt_at if state.boot is None else event.boot - state.boot)
            state.boot = event.boot
            state.run_age_ns += passed
            state.attempt_age_ns += passed

    def judge(self, at: MonoNs, run: Run) -> Finding:
        state = self._state
        if state.boot is None:
            return unknown("not_seen_yet")
        if self._run_ns and state.run_age_ns >= self._run_ns:
            return self._overdue("run", state.run_age_ns, self._run_ns)
        if self._attempt_ns and state.attempt_age_ns >= self._attempt_ns:
            return self._overdue("attempt", state.attempt_age_ns, self._attempt_ns)
        return QUIET

    def _overdue(self, what: str, age_ns: int, limit_ns: int) -> Finding:
        return firing(
            f"{what}_overdue",
            f"the {what} is {format_duration(age_ns)} old (limit {format_duration(limit_ns)})",
            {"age_s": age_ns / NS_PER_S, "limit_s": limit_ns / NS_PER_S},
        )

    def new_attempt(self, run: Run) -> None:
        self._state.attempt_age_ns = 0
