"""A log that wrote record after record has stopped, by its own rhythm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.printable import after_step
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.events.inputs import Event, PhaseChange, Step, Tick
from governor.core.rules import log_rhythm
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.runs.state import Run

_NO_LOG: Final = unknown("no_log")
_WARMING_UP: Final = unknown("warming_up")


@dataclass(slots=True)
class _State(log_rhythm.LogPauses):
    """Since when the governor has looked is not stored: silence while it is down is no evidence."""

    records: int = field(default=0)  # That came at different times, up to `armed_after`.


class LogStalled(Trigger):
    """No record has come for far longer than this log has ever paused.

    For runs that are known by their log only. `hang` gives every such log 35 minutes, because some unknown logs have
    needed 33. This trigger knows the log after `armed_after` records (steps and marks) that came at different times.
    Its limit is the longer of `min` and `pause_times` the longest pause that ended well, with evaluations and saves.
    That is also `pause_times` the log's usual rhythm or more, so a sparse log has a long limit. After a mark in the log
    that it evaluates, saves or starts, the limit of that phase holds at least. GPU samples are no records: what writes
    them goes on while the training hangs.

    None of 973 healthy wall-clock logs reached its limit. The nearest pause of 688 language-model logs had 25 % of it,
    that of 98 translation and speech logs 63 %. The same logs, cut at a random record, are found after a median of 10
    minutes instead of 35. Those cut before `armed_after` records are left to `hang`, and so are sparse ones.

    False alarms: a first evaluation, save or preparation of data that takes longer than `min` and has no mark. So the
    packaged policies observe by this rule, and leave the halt to `hang`.

    QUIET for runs with ranks, which `hang` judges. UNKNOWN before `armed_after` records and while a log cannot be read.
    Time in which the governor itself did not run is not counted, and is no pause of the log. Resets at each attempt.
    """

    KIND: ClassVar[str] = "log_stalled"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("min", "duration", "10m", "Fires after at least this time without a record.", "1s"),
        Key("pause_times", "number", 10, "And after at least so many times the longest pause that ended well.", 1),
        Key("armed_after", "count", 10, "Records of an attempt, at different times, before it may fire.", 2),
        Key("eval_limit", "duration", "75m", "At least this after a mark of an evaluation.", "1s"),
        Key("checkpoint_limit", "duration", "35m", "At least this after a mark of a save.", "1s"),
        Key("start_limit_without_beats", "duration", "3h", "At least this after a mark of a start.", "1s"),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, PhaseChange, Tick})
    LIMITS: ClassVar[tuple[str, ...]] = ("min", "pause_times")
    MEANING: ClassVar[tuple[str, ...]] = (
        "a log without ranks has no new record for {pause_times} times the longest of its pauses that ended well, and "
        "for {min} at least",
        "It may fire after {armed_after} records that came at different times. After a mark in the log the limit is at "
        "least {eval_limit} for an evaluation, {checkpoint_limit} for a save and {start_limit_without_beats} for a "
        "start.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._ns: dict[str, int] = {key.name: params[key.name] for key in self.KEYS if key.kind == "duration"}
        self._pause_times: float = params["pause_times"]
        self._armed_after: int = params["armed_after"]
        self._watch = log_rhythm.Watch()
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> bool | None:
        state = self._state
        if isinstance(event, Step | PhaseChange):
            if event.connection is None:
                if state.records < self._armed_after and event.at != state.log_at:
                    state.records += 1
                state.see_record(event.at, run)
            return False  # Silence is counted at ticks.
        if isinstance(event, Tick) and self._watch.see(event):
            state.log_at = None  # The gap is not the log's.
        return None

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if not run.alive:
            return QUIET
        if not run.jsonl_only:
            return QUIET if run.ranks else _NO_LOG
        if run.stream.lost_at is not None:
            return unknown("log_unreadable")
        state = self._state
        if state.records < self._armed_after:
            return _WARMING_UP
        silent_ns, limit_ns = at - log_rhythm.silent_since(run, self._watch.since), self._limit_ns(run)
        if silent_ns < limit_ns:
            return QUIET
        return firing(
            "log_stalled",
            f"the log has no new record for {format_duration(silent_ns)} {after_step(run.step)} "
            f"(limit {format_duration(limit_ns)}; its longest pause was {format_duration(state.log_pause_ns)})",
            {
                "silent_s": round(silent_ns / NS_PER_S, 3),
                "limit_s": round(limit_ns / NS_PER_S, 3),
                "longest_pause_s": round(state.log_pause_ns / NS_PER_S, 3),
                "phase": run.stream.phase,
            },
        )

    def _limit_ns(self, run: Run) -> int:
        pauses_ns = int(self._pause_times * self._state.log_pause_ns)
        return max(self._ns["min"], pauses_ns, log_rhythm.mark_limit_ns(run, self._ns))

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """Only a record, a mark or a lost log changes the limit."""
        if not run.alive or not run.jsonl_only or run.stream.lost_at is not None:
            return FOREVER
        if self._state.records < self._armed_after:
            return FOREVER
        stalled_at = log_rhythm.silent_since(run, self._watch.since) + self._limit_ns(run)
        return MonoNs(stalled_at) if at < stalled_at < FOREVER else FOREVER
