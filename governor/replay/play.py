"""What policies would have decided on a recorded log: the daemon's own `engine.step` on the log's clock.

A replay only observes. A halt ends nothing, so every rule judges the log to its end. Verdicts after the first halt are
reported too. The first halt is the one that counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

from governor.core.base.policy import Policy, PolicySet
from governor.core.base.units import NS_PER_S, TICK_NS, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.events.effects import Effect, Record
from governor.core.events.inputs import Event, Step, Tick
from governor.core.events.streams import StreamOpened, StreamState
from governor.replay.sight import Sight
from governor.replay.trace import Trace
from governor.wire.jsonl import (
    DEFAULT_FIELDS,
    EPOCH_MIN_S,
    GAP_FACTOR,
    GAP_MIN_S,
    INTERVALS,
    SECONDS_BOUND,
    time_of,
    timed,
)
from governor.wire.recorded import RecordedRanks, is_frame, is_gap, is_halt, is_note
from governor.wire.records import Events, Faults, RecordReader

RUN: Final = "log"  # Each log is the only run on its own node.
# While records come. A quarter of the daemon's ticks, and all of its steps.
TICK_PERIOD_NS: Final = NS_PER_S
USUAL_FADES: Final = 64  # The longest pause halves after about this many quicker records.
# In a silence, a tick comes each time the silence has grown by this part. Delays are exact to 1 %.
SILENCE_PARTS: Final = 100
# A longer pause means a broken clock. The record's time is then ignored.
GAP_MAX_S: Final = 30 * 24 * 3600.0
# A first time within it is believed to be the time that the start took. A later one is of a clock that began elsewhere:
# of 1,346 healthy language-model runs one in a hundred took 45 minutes to its first line.
START_MAX_S: Final = 3600.0
# Records of threads overtake one another by less. A larger step back means a restarted clock.
BACK_MAX_S: Final = 1.0
BACKS_MAX: Final = 16  # Set back more often without being set right, it is no clock.
NO_TIME: Final = "its records have no time"
NOT_JUDGED: Final = "nothing in it was judged: no frame is of a step"


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """One verdict: what a rule would have done. `mode` is the rule's own: in observe mode it would not have acted."""

    policy: str
    rule: str
    trigger: str
    response: str
    mode: str
    step: int | None
    t: float | None  # Seconds on the log's own clock, or since its start. None for a log without times.
    reason: str
    text: str
    evidence: Mapping[str, Any]


class LogClock:
    """Turns the times of a log into a clock that never goes back.

    A clock of 1970 that goes back was set: what passed meanwhile is as usual between two records. When it is set right
    again the leap is no time either. Any other clock that goes back is of another process, and goes on from here.
    """

    def __init__(self) -> None:
        self.now = MonoNs(0)
        self.is_timed = False
        self.began = MonoNs(0)  # The clock at the start of the log.
        self.first_s = 0.0  # What the log's own clock showed then.
        self.went_back = 0  # Times.
        self._zero_s = 0.0
        self._last_s = 0.0
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._behind_s: deque[float] = deque(maxlen=BACKS_MAX)  # By how much it was set back, and is not yet right.

    @property
    def is_wall(self) -> bool:
        return self._last_s >= EPOCH_MIN_S

    def read(self, record: Mapping[str, Any]) -> str | None:
        """Advance to the record's time, if it has one. Returns what is wrong with it."""
        seconds = record.get("t")
        if (
            type(seconds) is float and self.is_timed and not self._behind_s
            and 0 <= seconds - self._last_s <= GAP_MAX_S
        ):  # fmt: skip
            self._intervals.append(seconds - self._last_s)
            self._last_s = seconds
            self.now = MonoNs(int((seconds - self._zero_s) * NS_PER_S + 0.5))
            return None
        return self._read_any(record)

    def _read_any(self, record: Mapping[str, Any]) -> str | None:
        """`read` for the uncommon records: without a time, the first, far apart, or going back."""
        seconds = time_of(record)
        if seconds is None:
            return None
        if not abs(seconds) < SECONDS_BOUND:
            return f"its time is {'not finite' if not math.isfinite(seconds) else f'{seconds:.4g} s'}"
        if not self.is_timed:
            self.first_s = self._zero_s = self._last_s = 0.0 if 0 <= seconds <= START_MAX_S else seconds
        if seconds - self._last_s > GAP_MAX_S:
            return f"its time is {seconds - self._last_s:.4g} s after the last record's"
        passed_s = seconds - self._last_s
        if -passed_s > BACK_MAX_S:
            self._go_back(passed_s)
        elif seconds < self._last_s:
            seconds = self._last_s
        elif (leap_s := self._set_right(passed_s)) is not None:
            self._zero_s += leap_s
        elif self.is_timed:
            self._intervals.append(passed_s)
        self.is_timed, self._last_s = True, seconds
        self.now = MonoNs(round((seconds - self._zero_s) * NS_PER_S))
        return None

    def _go_back(self, passed_s: float) -> None:
        self.went_back += 1
        usual_s = self._usual_s if self.is_wall else 0.0
        self._zero_s -= usual_s - passed_s
        if self.is_wall:
            self._behind_s.append(usual_s - passed_s)

    def _set_right(self, passed_s: float) -> float | None:
        """The leap of a clock that was set back before and is now set right. None of any other record."""
        late_s = max(GAP_MIN_S, GAP_FACTOR * self._usual_s)
        # The last one, or all of them at once.
        for count in (1, len(self._behind_s)) if self._behind_s else ():
            leap_s = sum(list(self._behind_s)[-count:])
            if -BACK_MAX_S <= passed_s - leap_s <= late_s:
                for _ in range(count):
                    self._behind_s.pop()
                return min(leap_s, passed_s)
        return None

    @property
    def _usual_s(self) -> float:
        """Between two records. 0: there were no two."""
        return median(self._intervals) if self._intervals else 0.0

    def own_s(self, at: MonoNs) -> float:
        """The log's own clock at a time of ours. A clock that counts from 1970, or below 0, counts from the start."""
        since_s = (at - self.began) / NS_PER_S
        return since_s + self.first_s if 0 < self.first_s < EPOCH_MIN_S else since_s

    def read_frame(self, frame: Mapping[str, Any]) -> str | None:
        """Advance to the time at which a frame was received or sent. Other times in the frame are of the same clock.

        Frames of different ranks may be out of order.
        """
        # Only recordings have it: the governor's clock when it judged the frame.
        mono_ns = frame.get("at_ns")
        if mono_ns is None:
            mono_ns = frame.get("mono_ns")
        if type(mono_ns) is not int or not 0 <= mono_ns < 2**63:
            return "its mono_ns is no time"
        if not self.is_timed:
            self.is_timed, self.began = True, MonoNs(mono_ns)
        elif mono_ns - self.now > GAP_MAX_S * NS_PER_S:
            return f"its time is {(mono_ns - self.now) // NS_PER_S} s after the last frame's"
        self.now = MonoNs(max(self.now, mono_ns))
        return None


class _Judge:
    """One policy on its own node."""

    def __init__(self, policy: Policy, price: UsdMicros | None, at: MonoNs) -> None:
        self.policy = policy
        # The policy judges the log even when it does not match the run.
        policies = PolicySet((replace(policy, match={}),), digest="")
        facts = NodeFacts("replay", "replay", price, "command line" if price is not None else None, observe=True)
        self._modes = {rule.name: rule.mode.value for rule in policy.rules}
        self.node: Node = new_node(facts, policies, BootNs(at), WallNs(at))

    def verdicts_of(self, effects: Sequence[Effect], t: float | None) -> list[ReplayVerdict]:
        """The verdicts among the engine's effects."""
        return [
            self._verdict(effect.data, t)
            for effect in effects
            if isinstance(effect, Record) and effect.kind == "verdict"
        ]

    def _verdict(self, data: Mapping[str, Any], t: float | None) -> ReplayVerdict:
        return ReplayVerdict(
            policy=self.policy.name,
            rule=data["rule"],
            trigger=data["trigger"],
            response=data["response"],
            mode=self._modes.get(data["rule"], "enforce"),
            step=data["step"],
            t=t,
            reason=data["reason"],
            text=data["text"],
            evidence=data["evidence"],
        )


@dataclass
class Replay:
    """One log under one or more policies. Feed its records in order, then call `end`."""

    policies: Sequence[Policy]
    price: UsdMicros | None = None  # Of the node, in micro-dollars per hour.
    trace: Trace | None = None  # Receives every step, for a drawing.
    # The field map, as for a stream.
    fields: Mapping[str, Sequence[str]] = field(default_factory=lambda: DEFAULT_FIELDS)
    verdicts: list[ReplayVerdict] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
    records: int = 0

    def __post_init__(self) -> None:
        self.clock = LogClock()
        # The clock needs a record's time before the reader does: _of_stream() puts it in its place.
        self._reader = RecordReader(RUN, {**self.fields, "t": ()})
        self._ranks: RecordedRanks | None = None
        self._judges: list[_Judge] = []
        self._tick_at = MonoNs(0)
        # The longest recent pause, decaying. A pause that is not longer is no silence.
        self._usual_ns = 0
        self._is_timed = True  # The last state that the judges received.
        self.sight = Sight(self.fields)
        self._is_stream = False  # It has records that are none of our frames, under names of their own.
        self._mute = 0  # Records that said nothing about training.
        self._is_broken_off = False  # The recorder stopped after the last record.

    def read(self, record: dict[str, Any]) -> str | None:
        """Judge one record. Returns what is wrong with it; it then counts as missing data, as in a stream."""
        if not self._judges:
            meta = record.get("meta")
            if isinstance(meta, dict) and not self.records and not self.meta:
                self.meta = meta
                return None
        self.records += 1
        clock = self.clock
        before = clock.now
        own = "v" in record and (is_frame(record) or is_note(record))
        record = record if own else self._of_stream(record)
        fault = clock.read_frame(record) if own else clock.read(record)
        if not self._judges:
            self._open(record)
            before = clock.began
        now = clock.now
        if self._is_broken_off:
            # Nothing listened during the gap, so it is no silence.
            self._tick(MonoNs(max(self._tick_at, now - 1)), unbroken=False)
        elif now - before > self._usual_ns:
            self._pause(before, now)
        elif now != before:
            self._usual_ns -= self._usual_ns // USUAL_FADES
        if now - self._tick_at >= TICK_PERIOD_NS:
            # Just before the record: whatever the record ends has lasted until now.
            self._tick(MonoNs(now - 1))
        if clock.is_timed is not self._is_timed:
            self._say_timed()
        self._is_broken_off = own and is_gap(record)
        if self._ranks is not None and own and is_halt(record):
            self._tick(now)  # The tick that decided this halt, if time decided it.
        reader = self._reader if self._ranks is None or not own else self._ranks
        events: Events | Faults = reader.read(record, now)
        if isinstance(events, list):
            self._mute += 1
            return "; ".join(events)
        if not events:
            self._mute += 1
        for event in events:
            self._feed(event)
        return fault

    def _of_stream(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record that is none of our frames, with its time as `t`."""
        self._is_stream = True
        self.sight.see(record)
        return timed(record, self.fields["t"]) if self.fields["t"] else record

    def end(self, run_on_ns: int = 0) -> None:
        """The log has ended. `run_on_ns` lets its clock run on, as if the trainer were alive and silent."""
        if not self._judges:
            self._open({})
        for event in self._reader.end(self.clock.now):
            self._feed(event)
        if run_on_ns and self.clock.is_timed:
            before = self.clock.now
            self.clock.now = MonoNs(before + run_on_ns)
            self._silence(before, self.clock.now, 0)
            self._tick(self.clock.now)

    def not_understood(self) -> str | None:
        """Why this log says nothing about a policy. None: it says something."""
        if not self.records:
            return None
        if not self._is_stream:
            return None if self.is_judged else NOT_JUDGED
        return self.sight.fault(self._reader.fields_seen, is_judged=self.is_judged, is_timed=self.clock.is_timed)

    @property
    def is_judged(self) -> bool:
        """Whether any record says something about training."""
        return self._mute < self.records

    def lacks(self) -> str | None:
        """What an understood log cannot be judged for, in one line."""
        if not self._is_stream:
            return None
        return self.sight.lacks(self._reader.fields_seen, is_timed=self.clock.is_timed)

    @property
    def t(self) -> float | None:
        return self.clock.own_s(self.clock.now) if self.clock.is_timed else None

    @property
    def length_ns(self) -> int:
        """The time that the log's clock has counted so far."""
        return self.clock.now - self.clock.began

    def _open(self, first: Mapping[str, Any]) -> None:
        """Frames that begin with a hello are from connections. Anything else is a stream."""
        self._tick_at = self.clock.began
        self._judges = [_Judge(policy, self.price, self.clock.began) for policy in self.policies]
        run = first.get("run") if first.get("kind") == "hello" else self.meta.get("run")
        if isinstance(run, str) and (first.get("kind") == "hello" or "recording" in self.meta):
            self._ranks = RecordedRanks(run)
            return
        stage, labels = self.meta.get("stage"), self.meta.get("labels")
        labels = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
        self._feed(StreamOpened(self.clock.began, RUN, 0, stage if isinstance(stage, str) else None, labels))

    def _say_timed(self) -> None:
        """Data without times cannot be late: every condition that waits for time answers UNKNOWN."""
        self._is_timed = self.clock.is_timed
        self._feed(StreamState(self.clock.now, RUN, None if self._is_timed else NO_TIME))

    def _pause(self, before: MonoNs, now: MonoNs) -> None:
        gap_ns = now - before
        if gap_ns > TICK_PERIOD_NS:
            self._silence(before, now, self._usual_ns)
        self._usual_ns = gap_ns

    def _silence(self, before: MonoNs, now: MonoNs, usual_ns: int) -> None:
        """Ticks in a pause that is longer than usual. Delays are exact to 1 %, and an hour takes some hundred ticks."""
        silent_ns = max(usual_ns, TICK_NS)
        while before + silent_ns < now:
            self._tick(MonoNs(before + silent_ns))
            silent_ns += max(TICK_NS, silent_ns // SILENCE_PARTS)

    def _tick(self, at: MonoNs, *, unbroken: bool = True) -> None:
        self._tick_at = at
        tick = Tick(at, BootNs(at), WallNs(at), unbroken=unbroken)
        for judge in self._judges:
            # A replay does not store what the daemon persists every ten seconds.
            judge.node.note_persisted(at)
            effects = engine.step(judge.node, tick)
            if effects:
                self.verdicts += judge.verdicts_of(effects, self.clock.own_s(at))

    def _feed(self, event: Event) -> None:
        if self.trace is not None and isinstance(event, Step):
            self.trace.see(event, self.t)
        for judge in self._judges:
            effects = engine.step(judge.node, event)
            if effects:
                self.verdicts += judge.verdicts_of(effects, self.t)
