"""The run is launched again and again and gets nowhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events.inputs import Bye, Event, Hello, Step
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.rules.trigger_state import ADDED
from governor.core.runs.state import Run

# The most that the key accepts, and so the most that is remembered.
ATTEMPTS_MAX: Final = 1_000


@dataclass(slots=True)
class _State:
    furthest: int | None = None  # The highest step of the attempts before this one.
    first: int | None = None  # First and last step of the present attempt.
    reached: int = -1
    is_complete: bool = False
    began_at: MonoNs | None = None  # None: no event yet.
    # When the last counted attempt began. A command that goes on without a rank goes on with it: it counts once.
    counted: MonoNs | None = field(default=None, metadata=ADDED)
    # When each of the last attempts in a row without progress began.
    barren: deque[MonoNs] = field(default_factory=deque)


class RestartLoop(Trigger):
    """So many attempts in a row have ended without progress, and the present one has made none yet.

    Progress is `progress_steps` steps beyond the highest step of any earlier attempt: steps that are trained again
    after a resume do not count. An attempt whose rank reported that it trained to the end needs none. The first attempt
    counts from its own first step. An attempt's failure is forgotten `within` after it began. The rule fires when the
    next attempt begins, so a halt also ends the launcher: torchrun with `--max-restarts`, a requeued job, a crashing
    pod. It also fires for a person who repairs a run and launches it again under the same name, until they wait, hold
    (`costgov hold RUN 30m --reason …`) or the run makes progress.

    Trainings that follow each other in one process are one launch: only the last of them counts, from its own first
    step. The state holds across attempts and across restarts of the governor. Attempts that began and ended while the
    governor was down are not counted. UNKNOWN before the first event of the run. In a log without launches every step
    belongs to one attempt.
    """

    KIND: ClassVar[str] = "restart_loop"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("attempts", "count", 3, "Fires after so many attempts without progress: torchrun users often allow 3.", 1),
        Key("progress_steps", "count", 10, "Steps beyond the furthest reached so far that are progress.", 1),
        Key("within", "duration", "6h", "Attempts that began longer ago than this do not count.", "1m"),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, Hello, Bye})
    LIMITS: ClassVar[tuple[str, ...]] = ("attempts",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "{attempts} attempts in a row, all begun within {within}, ended less than {progress_steps} steps beyond the "
        "furthest step reached before, and the present attempt has not got there either",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._attempts: int = min(params["attempts"], ATTEMPTS_MAX)
        self._progress_steps: int = params["progress_steps"]
        self._within_ns: DurationNs = params["within"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(barren=deque(maxlen=self._attempts))

    def observe(self, event: Event, run: Run) -> bool:
        if isinstance(event, Step):
            state = self._state
            if event.step > state.reached:
                state.reached = event.step
            if state.first is None:
                self._see(run)
                state.first = event.step
        elif isinstance(event, Hello):
            self._see(run)
        elif isinstance(event, Bye) and event.completed:
            self._state.is_complete = True
        return False  # The end of an attempt fires; a step can only prevent that.

    def _see(self, run: Run) -> None:
        if self._state.first is None:  # A command is launched before its first rank says when it began.
            self._state.began_at = run.attempt_at

    def _has_progressed(self) -> bool:
        state = self._state
        if state.first is None:
            return False
        before = state.first - 1 if state.furthest is None else state.furthest
        return state.reached - before >= self._progress_steps

    def judge(self, at: MonoNs, run: Run) -> Finding:
        state = self._state
        if state.began_at is None:
            return unknown("no_attempt")
        if len(state.barren) < self._attempts or state.began_at == state.counted:
            return QUIET
        barren = [began for began in state.barren if 0 <= at - began <= self._within_ns]
        if len(barren) < self._attempts or self._has_progressed():
            return QUIET
        where = f"step {state.furthest}" if state.furthest is not None else "its first step"
        return firing(
            "restart_loop",
            f"{len(barren)} attempts in a row, the first {format_duration(at - barren[0])} ago, got less than "
            f"{self._progress_steps} steps beyond {where}",
            {
                "attempts": len(barren),
                "furthest_step": state.furthest,
                "progress_steps": self._progress_steps,
                "began_s_ago": [round((at - began) / NS_PER_S, 3) for began in barren],
            },
        )

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        return FOREVER if len(self._state.barren) < self._attempts else at

    def new_attempt(self, run: Run) -> None:
        """The previous attempt is over: count it if it made no progress."""
        state = self._state
        if run.trains_again:
            state.first = state.furthest = None
        elif state.began_at is not None and state.began_at != state.counted:
            state.counted = state.began_at
            if state.is_complete or self._has_progressed():
                state.barren.clear()
            else:
                state.barren.append(state.began_at)
        if state.first is not None:
            state.furthest = max(state.reached, state.furthest if state.furthest is not None else state.reached)
        state.first, state.reached, state.is_complete, state.began_at = None, -1, False, run.attempt_at
