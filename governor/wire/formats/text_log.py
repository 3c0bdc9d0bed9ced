"""Makes the records of one text log, a line at a time, with the names that wire.jsonl knows.

A dialect reads what one framework prints. What they share is here: prefixes and dates, lines that several processes of
a job print of the same step, and how samples and rates of one GPU become tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, ClassVar, Final, Protocol

from governor.core.base.units import MonoNs
from governor.wire.formats.line import Line, clean, parts
from governor.wire.formats.pauses import Pauses
from governor.wire.jsonl import RecordClock

# Keys of a dialect's record that are no fields of a step: they are made into tokens, and removed.
SAMPLES_TOTAL: Final = "samples_total"  # Of the run so far.
BATCH: Final = "batch_samples"  # In each step, of all GPUs.
GPU_RATE: Final = "gpu_tokens_per_second"
# Keys of a record's time, the best first. A log without any has the sum of what its steps took.
_CLOCKS: Final = ("asctime", "timestamp", "elapsed_s")
_BY_STEPS: Final = "steps"
_NOT_OF_START: Final = ("checkpoint", "train")
# Processes of a job may stop printing, and others go on: after so many records for each process known.
OTHERS_FACTOR: Final = 4
VOICES_MAX: Final = 64
TOOK_KEPT: Final = 15


@dataclass(slots=True)
class Facts:
    """What a log says of itself before its first step. Absent is not known."""

    sequence_length: int | None = None
    batch_tokens: int | None = None  # In each step, of all GPUs.
    batch_samples: int | None = None
    date: str | None = None  # Of the line that is read.


class LineFormat(Protocol):
    """Reads the lines of one log, in their order. Each log has its own instance."""

    name: str

    def record(self, line: str) -> dict[str, Any] | list[str] | None:
        """The record that RecordReader reads, its faults, or None: most lines of a console are no record."""
        ...

    def new_launch(self) -> None:
        """What comes next is another process's."""
        ...

    def missing(self) -> str | None:
        """One line: what the log does not say, and who reads it may pass. None if it lacks nothing so far."""
        ...


class Dialect(ABC):
    """What one framework prints. `facts` is the log's: whatever a line says of all steps is put there."""

    # A line's time is its last step's. Else it is the mean of its steps.
    TIMES_LAST_STEP: ClassVar[bool] = False
    # What is named before a step is in that step's time. Else the line's time tells whether it is.
    HAS_PAUSES: ClassVar[bool] = False

    def __init__(self) -> None:
        self.facts = Facts()

    @abstractmethod
    def read(self, text: str) -> dict[str, Any] | list[str] | None:
        """The record of a line without prefixes, its faults, or None."""

    def new_launch(self) -> None:  # noqa: B027 - most remember nothing of the process before.
        """What comes next is another process's."""

    def lacks(self) -> str | None:
        """What its records lack, in words. None mostly."""
        return None


class TextLog:
    """A LineFormat of one dialect. What the user passes is believed before what the log says."""

    def __init__(
        self, name: str, dialect: Dialect, *, sequence_length: int | None = None, gpus: int | None = None
    ) -> None:
        self.name = name
        self._dialect = dialect
        self._sequence_length = sequence_length
        self._gpus = gpus
        self._clock = RecordClock()
        self._last: tuple[int, int] | None = None  # Epoch, where the steps are the epoch's, and step.
        self._last_broken = self._last_has_loss = False
        self._stride = 1
        self._clock_is: str | None = None  # What the log's first record had: the others are of the same clock.
        self._trained_s = 0.0
        self._took: deque[float] = deque(maxlen=TOOK_KEPT)  # The last lines' step times, without pauses.
        self._pauses = Pauses(are_in_steps=dialect.HAS_PAUSES)
        self._voice: str | None = None
        self._voices: set[str] = set()
        self._others = 0  # Records of others in a row.
        self._has_tokens = False
        self._lacks: set[str] = set()

    def record(self, line: str) -> dict[str, Any] | list[str] | None:
        found: dict[str, Any] | list[str] | None = None
        for part in parts(line):
            found = self.read(clean(part)) or found
        return found

    def new_launch(self) -> None:
        self._last = self._voice = None
        self._others = 0
        self._clock.new_launch()
        self._pauses.new_launch()
        self._dialect.new_launch()

    def missing(self) -> str | None:
        lacks = self._dialect.lacks()
        told = [] if lacks is None else [lacks]
        if not self._has_tokens and self._lacks:
            how = {
                "samples": "--sequence-length (sequence_length of a [[log]]), for its lines count samples",
                "rate": "--gpus (gpus of a [[log]]), for its lines have the tokens a second of one GPU",
            }
            ways = ", or ".join(how[lack] for lack in sorted(self._lacks, reverse=True))
            told.append(f"no tokens are counted: give {ways}")
        return "; ".join(told) or None

    def state(self) -> dict[str, Any]:
        """What its first lines have said, as plain JSON: who goes on in the middle of the log does not read them."""
        facts = self._dialect.facts
        return {
            "sequence_length": facts.sequence_length,
            "batch_tokens": facts.batch_tokens,
            "batch_samples": facts.batch_samples,
            "stride": self._stride,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`. What is none changes nothing."""
        known = {name: value for name, value in state.items() if type(value) is int and value > 0}
        facts = self._dialect.facts
        facts.sequence_length = known.get("sequence_length", facts.sequence_length)
        facts.batch_tokens = known.get("batch_tokens", facts.batch_tokens)
        facts.batch_samples = known.get("batch_samples", facts.batch_samples)
        self._stride = known.get("stride", self._stride)

    def read(self, line: Line) -> dict[str, Any] | list[str] | None:
        """`record` of one part of a line, without prefixes."""
        if not line.text:
            return None
        self._dialect.facts.date = line.date
        record = self._dialect.read(line.text)
        if not isinstance(record, dict):
            return record
        is_step = type(record.get("step")) is int and "val_loss" not in record and "phase" not in record
        if record.get("phase") in _NOT_OF_START and self._last is None:
            return None  # What comes before the first step is the start's.
        if not is_step:
            self._pauses.see(record, line.voice)
        self._put_time(record, line.date)
        if not is_step:
            return record
        step: int = record["step"]
        return self._step(record, step, line.voice)

    def _put_time(self, record: dict[str, Any], date: str | None) -> None:
        """The time of the first kind that the log has: dates, its own count, or what its steps took."""
        if date is not None and "timestamp" not in record:
            record["asctime"] = date
        kind = next((name for name in _CLOCKS if name in record), _BY_STEPS)
        self._clock_is = self._clock_is or kind
        for name in _CLOCKS:
            if name != self._clock_is:
                record.pop(name, None)

    def _step(self, record: dict[str, Any], step: int, voice: str | None) -> dict[str, Any] | None:
        """The record of a step with its tokens. None if it has been told already, by this process or another one."""
        epoch = record.get("epoch")
        now = (epoch if type(epoch) is int else 0, step)
        broken = _is_broken(record.get("loss"))
        if self._last is not None and now <= self._last and self._is_told(now, voice):
            # A loss that has come after its step, or one that is worse than that of the process which told first.
            is_news = broken and not self._last_broken
            if not is_news and (now != self._last or self._last_has_loss or record.get("loss") is None):
                return None
            self._last_broken, self._last_has_loss = broken, True
            return {name: value for name, value in record.items() if name not in (SAMPLES_TOTAL, BATCH, GPU_RATE)}
        self._speaks(voice)
        last, self._last = self._last, now
        self._last_broken, self._last_has_loss = broken, record.get("loss") is not None
        if last is not None and last[0] == now[0] and step > last[1]:
            self._stride = step - last[1]
        self._count(record, step)
        took, steps = _seconds(record), self._stride if last is not None else 1
        told_of = 1 if self._dialect.TIMES_LAST_STEP else steps
        paused = self._pauses.of_line(took, told_of, is_first=last is None)
        record.update(paused.fields)
        if self._clock_is == _BY_STEPS and took is not None:
            self._trained_s += self._line_s(took, paused.own_s, steps) + paused.beside_s
            record["elapsed_s"] = self._trained_s
        return record

    def _line_s(self, took_s: float, own_s: float | None, steps: int) -> float:
        """What the steps of a line took. Where it has the time of its last step alone, an evaluation may be in that.

        `own_s`: of that step without pauses. Where no line has told that yet, the other steps' time is not known: 0.
        """
        if not self._dialect.TIMES_LAST_STEP:
            return took_s * steps
        if own_s is not None:
            self._took.append(own_s)
        usual_s = median(self._took) if self._took else 0.0
        return took_s + (steps - 1) * (usual_s if own_s is None else min(own_s, usual_s))

    def _is_told(self, now: tuple[int, int], voice: str | None) -> bool:
        """Whether that step was told before. A step that goes back is a return, unless another process lags behind."""
        if now == self._last:
            return True
        if voice is None or voice == self._voice:
            return False
        if len(self._voices) < VOICES_MAX:
            self._voices.add(voice)
        self._others += 1
        return self._others <= OTHERS_FACTOR * (len(self._voices) + 1)

    def _speaks(self, voice: str | None) -> None:
        self._others = 0
        self._voice = voice
        if voice is not None and len(self._voices) < VOICES_MAX:
            self._voices.add(voice)

    def _count(self, record: dict[str, Any], step: int) -> None:
        samples, batch = record.pop(SAMPLES_TOTAL, None), record.pop(BATCH, None)
        rate = record.pop(GPU_RATE, None)
        since = self._clock.since_last(record, step, MonoNs(0)) if rate is not None else None
        facts = self._dialect.facts
        if self._sequence_length is not None:
            facts = replace(facts, sequence_length=self._sequence_length)
        length = facts.sequence_length
        if samples is not None and length:
            record.setdefault("tokens_total", samples * length)
        each = facts.batch_tokens or (batch * length if batch and length else None)
        if each:
            self._tell(record, each * self._stride)
        elif "tokens_total" not in record:
            self._count_rate(record, rate, since)
            if samples is not None or batch is not None:
                self._lacks.add("samples")
        self._has_tokens = self._has_tokens or not _TOKENS.isdisjoint(record)

    def _tell(self, record: dict[str, Any], tokens: int) -> None:
        """The tokens of all steps since the line before."""
        record["step_tokens"] = tokens
        if self._stride > 1:
            record["line_steps"] = self._stride

    def _count_rate(self, record: dict[str, Any], rate: float | None, since_s: float | None) -> None:
        if rate is None or not 0 < rate < math.inf:
            return
        if self._gpus is None:
            self._lacks.add("rate")
            return
        each_s = _seconds(record)
        took_s = each_s * self._stride if each_s is not None else since_s
        if took_s is not None and (tokens := rate * self._gpus * took_s) < 2.0**53:
            self._tell(record, round(tokens))


def _seconds(record: Mapping[str, Any]) -> float | None:
    """What one of its steps took."""
    took: float | None = record["step_ms"] / 1_000 if "step_ms" in record else record.get("step_s")
    return took if took is not None and 0 <= took < 1e9 else None


_TOKENS: Final = frozenset(("step_tokens", "tokens_total", "tokens_per_second"))


def _is_broken(loss: object) -> bool:
    return isinstance(loss, float) and not math.isfinite(loss)
