"""What a recording has of an incident's quantities, up to the verdict. Bounded, whatever the length of the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, MonoNs
from governor.core.events.inputs import Step
from governor.core.events.step_parts import TIME_FIELDS
from governor.core.rules.trigger import is_step_time
from governor.core.rules.triggers.data_starvation import waited_of
from governor.core.rules.triggers.straggler import is_between, own_s_of
from governor.core.runs.own_time import StepEnds
from governor.reports.incident.judged import GIB, NODE_WIDE, SPEND, judged_of, number, own_gpu, own_rank
from governor.text.binned import Column, Line
from governor.text.moments import Snapshot

CLOSE_MAX: Final = 400  # Records before the verdict that are shown one by one.
SLACK_NS: Final = 60 * NS_PER_S  # The wall clock may be set between the segment's head and the halt.
_TIME_NS_MAX: Final = 2**63
_AS_JUDGED: Final = frozenset({"steps_per_s", "tokens_per_s", "data_frac", "own_s"})
_NO_NUMBERS: Final = frozenset({"nan", "inf", "-inf"})


@dataclass(slots=True)
class Quantity:
    """Times are seconds on the recording's clock, from its begin. `close`: the last records, none merged."""

    whole: Line = field(default_factory=Line)
    close: deque[Column] = field(default_factory=lambda: deque(maxlen=CLOSE_MAX))
    records: int = 0

    def add(self, at_s: float, value: float, piece: int) -> None:
        self.records += 1
        self.whole.add(at_s, value, piece)
        is_finite = math.isfinite(value)
        low, high = (value, value) if is_finite else (math.inf, -math.inf)
        self.close.append(Column(at_s, low, high, not is_finite, piece))


class Seen:
    """Pass each record to `read` until it returns False. Values that are none of ours are left out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.judged = judged_of(snapshot)
        self.rank, self.gpu = own_rank(snapshot), own_gpu(snapshot)
        self.quantities: dict[str, Quantity] = {}
        self._incident, self._opened_ns = str(snapshot["incident_id"]), int(snapshot["opened_wall_ns"])
        self._wanted = {one.name for one in self.judged}
        self._began_ns: int | None = None
        self._ahead_ns = 0
        self._verdict_ns: int | None = None
        self._piece = 0
        self._last_step: int | None = None
        self._tokens_total: int | None = None
        self._tokens_per_step: float | None = None
        self._stepped_s: float | None = None
        self._without_comm: dict[int, int] = {}
        self._ends = StepEnds()
        self._told_s = 0.0

    @property
    def verdict_s(self) -> float:
        """The verdict, as the times of the quantities are: as the recording notes it, else by the wall clock."""
        at = self._verdict_ns if self._verdict_ns is not None else self._opened_ns - self._ahead_ns
        return (at - (self._began_ns if self._began_ns is not None else at)) / NS_PER_S

    def read(self, record: Mapping[str, Any], wall_ahead_ns: int) -> bool:
        """`wall_ahead_ns`: the wall clock minus the recording's. False: it is of a time after the verdict."""
        kind, at = record.get("kind"), record.get("at_ns", record.get("mono_ns"))
        if type(at) is not int or not 0 <= at < _TIME_NS_MAX:
            return True
        if at + wall_ahead_ns > self._opened_ns + SLACK_NS:
            return False
        self._ahead_ns = wall_ahead_ns
        if self._began_ns is None:
            self._began_ns = at
        at_s = (at - self._began_ns) / NS_PER_S
        if kind == "step":
            self._step(record, self._ended_s(record, MonoNs(at)))
        elif kind == "note":
            return self._note(record, at, at_s)
        elif kind == "hello":
            self._hello(record)
        return True

    def _ended_s(self, step: Mapping[str, Any], at: MonoNs) -> float:
        """On the clock of the quantities, which take their times in order, whichever rank tells."""
        rank, told = step.get("rank"), step.get("mono_ns")
        known = type(rank) is int and type(told) is int
        ended = self._ends.of(rank, told, at) if known else at  # type: ignore[arg-type]
        self._told_s = max((ended - (self._began_ns or 0)) / NS_PER_S, self._told_s)
        return self._told_s

    def end(self) -> None:
        """After the last record: how long it had been silent at the verdict."""
        if "silence_s" in self._wanted and self._stepped_s is not None and self.verdict_s > self._stepped_s:
            self._add("silence_s", self._stepped_s, 0.0)
            self._add("silence_s", self.verdict_s, self.verdict_s - self._stepped_s)

    def spend(self, charges: Sequence[tuple[int, int, int]], at_verdict_usd_micros: int | None) -> None:
        """(from, to, micro-dollars) of the run's charges, oldest first, in wall time. Ends at the verdict's spend."""
        if SPEND not in self._wanted or at_verdict_usd_micros is None:
            return
        ahead = self._ahead_ns + (self._began_ns or 0)
        points = [(self._opened_ns, at_verdict_usd_micros)]
        left = at_verdict_usd_micros
        for begin, end, usd_micros in reversed(charges):
            if begin >= self._opened_ns or end <= begin:
                continue
            length = min(end, self._opened_ns) - begin
            left -= usd_micros * length // (end - begin)
            if left < 0:
                break  # Of an earlier run of the name.
            points.append((begin, left))
        for wall_ns, micros in reversed(points):
            self._add(SPEND, (wall_ns - ahead) / NS_PER_S, micros / MICROS_PER_USD)

    def _hello(self, hello: Mapping[str, Any]) -> None:
        if hello.get("again") is not True:
            self._piece += 1
            if type(hello.get("rank")) is int:
                self._ends.begin(hello["rank"])
            self._tokens_total = None
            self._without_comm.clear()
        self._tokens_per_step = number(hello.get("tokens_per_step")) or self._tokens_per_step

    def _note(self, note: Mapping[str, Any], at: int, at_s: float) -> bool:
        what = note.get("note")
        if what == "halted":
            if note.get("incident") == self._incident:
                self._verdict_ns = at
                return False
            self._piece += 1
        elif what == "gap":
            self._piece += 1
        elif what == "gpus" and "gpu_busy" in self._wanted:
            busy = _busy(note, self.gpu)
            if busy is not None:
                self._add("gpu_busy", at_s, busy)
        elif what == "memory" and "host_left_gib" in self._wanted:
            left = number(note.get("available_bytes"))
            if left is not None:
                self._add("host_left_gib", at_s, left / GIB)
        return True

    def _step(self, record: Mapping[str, Any], at_s: float) -> None:
        rank, step = record.get("rank"), record.get("step")
        if type(rank) is not int or type(step) is not int:
            return
        if "silence_s" in self._wanted:
            if self._stepped_s is not None and at_s > self._stepped_s:
                self._add("silence_s", at_s, at_s - self._stepped_s)
            self._stepped_s = at_s
        if self.rank is None:
            self.rank = rank
        if rank != self.rank:
            return
        if self._last_step is not None and step <= self._last_step:
            self._piece += 1
        for name, value in self._told(record, step):
            if name in self._wanted:
                self._add(name, at_s, value)
        self._last_step = step

    def _told(self, record: Mapping[str, Any], step: int) -> Iterator[tuple[str, float]]:
        yield "step", float(step)
        for name in ("loss", "grad_norm", "loss_scale", "step_s"):
            value = _figure(record.get(name))
            if value is not None:
                yield name, value
        tokens = self._tokens(record, step)
        if not self._wanted.isdisjoint(_AS_JUDGED):
            yield from self._as_judged(_times(record, step), tokens)
        memory = number(record.get("mem_allocated_bytes"))
        if memory is not None:
            yield "gpu_memory_gib", memory / GIB

    def _as_judged(self, step: Step, tokens: float | None) -> Iterator[tuple[str, float]]:
        """What the rules make of a step's times: without saves, holds and evaluations."""
        training_s = step.training_s
        if training_s is not None and is_step_time(training_s):
            yield "steps_per_s", 1 / training_s
            if tokens is not None:
                yield "tokens_per_s", tokens / training_s
        if (waited := waited_of(step)) is not None:
            yield "data_frac", waited[0] / waited[1]
        own_s = own_s_of(step)
        if own_s is not None and not is_between(step, self._without_comm):
            yield "own_s", own_s

    def _tokens(self, record: Mapping[str, Any], step: int) -> float | None:
        """Of this step, as the speed's triggers count them."""
        tokens, total, before = number(record.get("tokens")), number(record.get("tokens_total")), self._tokens_total
        self._tokens_total = int(total) if total is not None else None
        if tokens:
            return tokens
        if total is not None and before is not None and self._last_step is not None and step > self._last_step:
            return (total - before) / (step - self._last_step) if total > before else None
        return self._tokens_per_step

    def _add(self, name: str, at_s: float, value: float) -> None:
        piece = 0 if name in NODE_WIDE else self._piece
        self.quantities.setdefault(name, Quantity()).add(at_s, value, piece)


def _times(record: Mapping[str, Any], step: int) -> Step:
    """The step with its times alone."""
    told: dict[str, Any] = {
        name: value for name in TIME_FIELDS if (value := number(record.get(name))) is not None and value >= 0
    }
    return Step(MonoNs(0), None, "", 0, step, **told)


def _figure(value: object) -> float | None:
    """A number, or one of the words that stand for none."""
    if isinstance(value, str):
        return float(value) if value in _NO_NUMBERS else None
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return number(value)


def _busy(note: Mapping[str, Any], gpu: str | None) -> float | None:
    busy, uuids = note.get("busy_frac"), note.get("uuids")
    if not isinstance(busy, list):
        return None
    if gpu is not None and isinstance(uuids, list) and gpu in uuids[: len(busy)]:
        return number(busy[uuids.index(gpu)])
    known = [one for value in busy if (one := number(value)) is not None]
    return sum(known) / len(known) if known else None
