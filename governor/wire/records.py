"""One parsed record of a metrics log → events, for the daemon's streams and for replay.

A record is one of our own frames or any flat object with a field map. A reader remembers a little of its log, because
one record does not tell three things: whether a bare "tokens" counts one step or is a running total (log_tokens.py),
how many steps an overflow count covers, and what kind of record each set of keys is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from governor.core.base.units import COUNT_MAX, NS_PER_S, TOKENS_OF_A_STEP_MAX, MonoNs
from governor.core.events.inputs import Event, PhaseChange, Step
from governor.core.events.machine import GpuSample, SourceTrouble
from governor.core.events.step_parts import SECONDS_MAX
from governor.wire.formats.line import text_of
from governor.wire.formats.pauses import PAUSES
from governor.wire.formats.text_log import LineFormat
from governor.wire.formats.values import as_duration, as_number, as_whole, busy_fracs, reader_of
from governor.wire.jsonl import (
    DEFAULT_FIELDS,
    EPOCH_KEYS,
    SAMPLED,
    TIMES,
    Epochs,
    RecordClock,
    Samples,
    clock_keys,
    parse_line,
    timed,
    value_at,
    written_at,
)
from governor.wire.log_tokens import LogTokens
from governor.wire.recorded import is_frame
from governor.wire.step_values import derive, leave_out_absurd, step_values
from trainer_shim.wire import FRAMES, PHASES, faults

Events = tuple[Event, ...]
Faults = list[str]

KEYS_MAX: Final = 256  # The largest set of keys that is remembered.
# Sets of keys remembered. A log has a handful; further sets are examined at every record.
SHAPES_MAX: Final = 256

_INVOLVED = frozenset(("overflow", "tokens", "tokens_per_second"))
_EVALUATED = ("eval", "train")
_TRAINS = ("train",)
_PAUSES: Final = {field: phase for phase, field in PAUSES.items()}
_DONE = ("_stop", "_end", "_done")
_MARKS: Mapping[str, tuple[str, ...]] = {
    **{phase: (phase,) for phase in PHASES},
    **{phase + begin: (phase,) for phase in PHASES for begin in ("_start", "_begin")},
    # The end of a phase implies that there was one, even if its beginning was not logged. Training follows it.
    **{phase + end: (phase, "train") for phase in PHASES for end in _DONE},
    # MLPerf logs: a result, often the only sign of the evaluation.
    "eval_value": _EVALUATED,
    "run_start": ("init",),
    "run_stop": ("finish",),
}
_ABSENT: Final = object()
_ALWAYS = frozenset((*TIMES, *EPOCH_KEYS, *DEFAULT_FIELDS["step"]))  # They say nothing of how it trains.
_OF_ONE_STEP = frozenset(("tokens_per_step", "step_tokens", "batch_tokens"))  # However many a line stands for.
_ASIDE = ("val", "eval", "test")  # Keys of records that validate and do not train.


_Value = tuple[str, str, Callable[[Any], Any]]  # Field, key, reader.


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a record with one set of keys holds: the field of each key, and how its value is read."""

    step: str | None
    # Fields for which a finite float from 0 up is used as it is. Most values are of this kind.
    figures: tuple[_Value, ...]
    counts: tuple[_Value, ...]  # Fields whose reader must examine every value.
    phase: str | None
    gpu: str | None
    # It has a validation value and no loss.
    is_aside: bool
    # Validation keys beside a loss key: a table has every key in every row.
    asides: tuple[str, ...]
    is_bare: bool  # Its tokens are under that word, which may be a total. Every other name says that it is a step's.
    is_of_one_step: bool  # Its tokens are, by their name.
    is_plain: bool  # It has a step only.
    is_involved: bool  # One of its values cannot be read alone.
    is_sampled: bool  # Its step counts samples.
    clocks: tuple[str, ...]
    epoch: str | None
    pauses: Mapping[str, _Value]  # What it tells of a save's seconds and of an evaluation's, by phase.
    fields: frozenset[str]  # All of them that the record has a key for.

    @property
    def is_empty(self) -> bool:
        return not self.figures and not self.counts


class RecordReader:
    """Reads the records of one log, in their order."""

    def __init__(
        self, run: str, fields: Mapping[str, Sequence[str]] = DEFAULT_FIELDS, text: LineFormat | None = None
    ) -> None:
        self.run = run
        self._text = text  # Makes records of a console's lines. None: each is a JSON object.
        self._fields = fields
        # Names with dots may lead into objects within a record. Only users give such names.
        self._nested = tuple(name for names in fields.values() for name in names if "." in name)
        self._times = fields["t"]
        self.fields_seen: set[str] = set()  # For which a record of this log had a key.
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self.tokens = LogTokens(named=fields["tokens"] is not DEFAULT_FIELDS["tokens"])
        # A rate alone gives tokens if the user has named it. Under a usual name it may be of one GPU.
        is_given = fields["tokens_per_second"] is not DEFAULT_FIELDS["tokens_per_second"]
        self._clock = RecordClock() if is_given else None
        self._samples = Samples()
        self.epochs = Epochs(are_the_epochs=text is not None)  # No console format tells steps of the run with an epoch.
        self._step: int | None = None
        self._with_loss: Mapping[str, Any] = {}  # The last record that had one.
        # Overflows that the log counts over intervals of several steps.
        self._overflows = 0
        self._notice: SourceTrouble | None = None  # What is still to be told of its tokens.

    def new_launch(self) -> None:
        """The next record is of another process."""
        if self._clock is not None:
            self._clock.new_launch()
        if self._text is not None:
            self._text.new_launch()

    def end(self, at: MonoNs) -> Events:
        """The log goes on no further: what is still held of its tokens, by the best reading there is."""
        settled, text = self.tokens.end(self.run, at)
        told = () if text is None else (SourceTrouble(at, self.run, "tokens_read", text),)
        return told if settled is None else (settled, *told)

    def read_line(self, line: bytes, at: MonoNs) -> Events | Faults:
        """Read one line's bytes; see `read`. A blank line holds no events, nor does one of a console that is none."""
        record = parse_line(line) if self._text is None else self._text.record(text_of(line))
        if record is None:
            return ()
        return record if isinstance(record, list) else self.read(record, at)

    def read(self, record: dict[str, Any], at: MonoNs) -> Events | Faults:
        """The record's events, or its faults. A record without news of training (metadata) has no events."""
        events = self._read(record, at)
        if self._notice is not None and not isinstance(events, list):
            events, self._notice = (*events, self._notice), None
        return events

    def _read(self, record: dict[str, Any], at: MonoNs) -> Events | Faults:
        if "v" in record and is_frame(record):
            return _own(record, at, self.run)
        if self._times:
            record = timed(record, self._times)
        if self._nested:
            record = _unfolded(record, self._nested)
        keys = tuple(record)
        shape = self._shapes.get(keys)
        if shape is None:
            shape = _shape(record, self._fields)
            self.fields_seen |= shape.fields
            if len(self._shapes) < SHAPES_MAX and len(keys) <= KEYS_MAX:
                self._shapes[keys] = shape
        step = record[shape.step] if shape.step is not None else None
        if type(step) is not int or not 0 <= step <= COUNT_MAX:
            step = as_whole(step)
            if step is not None and step > COUNT_MAX:
                return ["step is more than any run has"]
        if shape.is_sampled and step is not None and step >= 0:
            step = self._samples.step(step)
        elif (shape.epoch is not None or self.epochs.before) and step is not None and step >= 0:
            epoch = record[shape.epoch] if shape.epoch is not None else None
            step = self.epochs.step(step, epoch, trains=not shape.is_aside)
        if shape.is_plain and step is not None and step >= 0:
            read = self._read_step(record, shape, step, at)
            if shape.asides and _is_evaluation(read, record, shape):
                return self._told(record, shape, self._phases(_evaluated(shape), step, at))
            return (read,)
        events = self._of_training(record, shape, step, at)
        if shape.gpu is None or isinstance(events, list):
            return events
        return (GpuSample(at, self.run, busy_fracs(record[shape.gpu])), *events)

    def _of_training(self, record: dict[str, Any], shape: _Shape, step: int | None, at: MonoNs) -> Events | Faults:
        word = record[shape.phase] if shape.phase is not None else None
        phases = _MARKS.get(word, ()) if isinstance(word, str) else ()
        if shape.is_aside and not phases:
            phases = _evaluated(shape)
        if step is None and not phases and shape.pauses and len(shape.figures) + len(shape.counts) == len(shape.pauses):
            phases = (*shape.pauses, "train")  # Its seconds alone, and no step.
        if phases and (phases != _TRAINS or shape.is_empty):
            return self._told(record, shape, self._phases(phases, step, at))
        if step is None or (word is not None and shape.is_empty):
            return ()  # An unknown mark is not a step.
        if step < 0:
            return ["step is negative"]
        return (*self._phases(phases, step, at), self._read_step(record, shape, step, at))

    def _phases(self, phases: Sequence[str], step: int | None, at: MonoNs) -> tuple[PhaseChange, ...]:
        return tuple(PhaseChange(at, None, self.run, 0, phase, step=step) for phase in phases)

    def _told(self, record: dict[str, Any], shape: _Shape, phases: Sequence[PhaseChange]) -> Events:
        """Phases that are over, with the seconds that their record tells of them."""
        if len(phases) < 2 or phases[-1].phase != "train":
            return tuple(phases)
        found, ends = list(phases), phases[-1].at
        for place in range(len(phases) - 2, -1, -1):
            _, name, read = shape.pauses.get(phases[place].phase, (None, None, None))
            lasted_s = read(record[name]) if read is not None and name is not None else None
            if lasted_s is not None and lasted_s <= SECONDS_MAX:  # A log without times has no moment before its first.
                ends = MonoNs(ends - round(lasted_s * NS_PER_S))
                found[place] = replace(phases[place], since=ends)
        return tuple(found)

    def _read_step(self, record: dict[str, Any], shape: _Shape, step: int, at: MonoNs) -> Step:
        values: dict[str, Any] = {}
        for field, name, read in shape.figures:
            value = record[name]
            if type(value) is not float or not 0.0 <= value < math.inf:
                value = read(value)
                if value is None:
                    # The key is present without a value: NaN was written as null.
                    if field == "loss":
                        values["loss_expected"] = True
                    continue
            values[field] = value
        for field, name, read in shape.counts:
            value = read(record[name])
            if value is not None:
                values[field] = value
                if value > COUNT_MAX:
                    leave_out_absurd(values, field)
        if shape.is_involved:
            if "overflow" in values:
                self._see_overflow(values, step)
            if "tokens" in values:
                self._see_tokens(values, shape, step, at)
                if values.get("tokens", 0) > TOKENS_OF_A_STEP_MAX:
                    leave_out_absurd(values, "tokens")
            if "tokens_per_second" in values:
                derive(values, self._clock.since_last(record, step, at) if self._clock is not None else None)
        if shape.clocks and (written := written_at(record, shape.clocks)) is not None:
            values["written"] = written
        self._step = step
        self._with_loss = record if "loss" in values else self._with_loss
        stripped = None if "loss" in values or self._text is not None else self._is_stripped(record)
        return Step(at, None, self.run, 0, step, stripped=stripped, **values)

    def _is_stripped(self, record: dict[str, Any]) -> bool:
        told = self._with_loss
        return all(value is None or told.get(name) is not None or name in _ALWAYS for name, value in record.items())

    def _see_tokens(self, values: dict[str, Any], shape: _Shape, step: int, at: MonoNs) -> None:
        if shape.is_of_one_step:
            values.setdefault("line_steps", 1)
        if shape.is_bare and (text := self.tokens.settle(values, step)) is not None:
            self._notice = SourceTrouble(at, self.run, "tokens_read", text)

    def _see_overflow(self, values: dict[str, Any], step: int) -> None:
        count = values.pop("overflow")
        if not count:
            return
        stride = step if self._step is None else step - self._step
        strides = self._step is not None and stride > 1
        if count == 1 and not strides:
            values["applied"] = False
        # That many updates of this interval were skipped. A count beyond the interval is a total.
        elif 1 <= count <= stride:
            self._overflows += int(count)
            values.setdefault("skipped_steps", self._overflows)


def _unfolded(record: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The record with the values that these names lead to, such as "train.ce" to {"train": {"ce": 2.0}}."""
    found = dict(record)
    for name in names:
        value = value_at(record, name, _ABSENT)
        if value is not _ABSENT:
            found.setdefault(name, value)
    return found


def _own(frame: dict[str, Any], at: MonoNs, run: str) -> Events | Faults:
    found = faults(frame, FRAMES)
    if found:
        return found
    if frame["kind"] == "step":
        if frame["step"] < 0 or frame["rank"] < 0:
            return ["step or rank is negative"]
        if frame["step"] > COUNT_MAX:
            return ["step is more than any run has"]
        return (Step(at=at, connection=None, run=run, rank=frame["rank"], step=frame["step"], **step_values(frame)),)
    if frame["kind"] == "phase" and frame["phase"] in PHASES:
        return (PhaseChange(at=at, connection=None, run=run, rank=frame["rank"], phase=frame["phase"]),)
    # Heartbeats, hellos and acks mean something only on a connection.
    return ()


def _shape(record: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> _Shape:
    found: dict[str, str] = {}
    for field, names in fields.items():
        if field == "t":
            continue  # It is the record's, not the step's.
        name = next((name for name in names if name in record), None)
        if name is not None:
            found[field] = name
    if found.get("tokens") == found.get("tokens_total"):
        found.pop("tokens", None)  # The user says that it is the total.
    held = frozenset(found)
    step, phase, gpu = (found.pop(name, None) for name in ("step", "phase", "gpu_util"))
    # A step tells its evaluation beside its length.
    told = {found.get(name) for name in ("eval_s", "eval_bound")} if "step_s" in found else set[str | None]()
    asides = tuple(name for name in record if is_aside(name) and name not in told)
    aside = "loss" not in found and bool(asides)
    sampled = any(name.startswith(SAMPLED) for name in record)
    values = [(field, name, reader_of(field, name)) for field, name in found.items()]
    figures = tuple(value for value in values if value[2] in (as_number, as_duration))
    counts = tuple(value for value in values if value[2] not in (as_number, as_duration))
    pauses = {_PAUSES[value[0]]: value for value in values if value[0] in _PAUSES}
    is_plain = phase is None and gpu is None and not aside
    is_involved = not _INVOLVED.isdisjoint(found)
    clocks, epoch = clock_keys(record), next((name for name in EPOCH_KEYS if name in record), None)
    is_bare, is_of_one_step = found.get("tokens") == "tokens", found.get("tokens") in _OF_ONE_STEP
    return _Shape(
        step, figures, counts, phase, gpu, aside, asides, is_bare, is_of_one_step, is_plain, is_involved, sampled,
        clocks, epoch, pauses, held,
    )  # fmt: skip


def _evaluated(shape: _Shape) -> tuple[str, ...]:
    """A record of validation: that it is over, and a save that it tells the seconds of."""
    return tuple(dict.fromkeys(("eval", *shape.pauses, "train")))


def is_aside(name: str) -> bool:
    """Whether a key is of validation: `eval/loss`, or Megatron's `lm loss validation`."""
    return name.removeprefix(SAMPLED).startswith(_ASIDE) or "validation" in name


def _is_evaluation(read: Step, record: Mapping[str, Any], shape: _Shape) -> bool:
    """Whether a table's row is of validation alone. A critic's `value_loss` also appears in training rows."""
    is_of_training = read.loss is not None or read.reports_training
    return not is_of_training and any(record[name] is not None for name in shape.asides)
