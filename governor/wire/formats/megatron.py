"""Megatron-LM and what prints as it does: Megatron-DeepSpeed, GPT-NeoX, Megatron-Bridge, Primus, MindSpeed.

iteration      100/    1000 | consumed samples:        12800 | elapsed time per iteration (ms): 412.5 | … |
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from governor.wire.formats.line import count, figure
from governor.wire.formats.pauses import EVALUATES, SAVES, TRAINS
from governor.wire.formats.text_log import BATCH, GPU_RATE, SAMPLES_TOTAL, Dialect

_STEP: Final = re.compile(
    r"(?:samples/sec: [^|]{1,40}\| |episode [0-9]{1,15} \| )?"
    r"iteration +([0-9]{1,15})/ *(?:[0-9]{1,15}|infinity) *\|(.*)"
)
_EVALUATION: Final = re.compile(
    r"validation loss at (?:iteration ([0-9]{1,15})|[^|]{1,120}?)(?: on [^|]{1,60})? *\|(.*)"
)
# Since 2019: megatron/checkpointing.py, megatron/training/checkpointing.py, and those that print as they do.
_SAVE: Final = re.compile(
    r"(?:(?:global )?rank [0-9]{1,9} is )?saving checkpoint at iteration +[0-9]{1,15} to \S"
    r"|(?P<done>successfully saved checkpoint (?:at|from) iteration +[0-9]{1,15}(?: to \S|$)"
    r"|scheduled an async checkpoint save at iteration +[0-9]{1,15} to \S)"
)
_EVALUATES: Final = re.compile(r"Evaluating iter [0-9]{1,12}/[0-9]{1,12}$")
# What its timers say after each: (min, max) of the ranks, the max alone, and before 2022 on one line.
_TOOK: Final = re.compile(
    r"(?:time \(ms\) \| )?(save-checkpoint|evaluate)(?:-non-persistent)?(?: \.{2,60})?: "
    r"(?:\([0-9.]{1,20}, (?P<most>[0-9]{1,12}\.[0-9]{2})\)|(?P<one>[0-9]{1,12}\.[0-9]{2}))$"
)
_LENGTH: Final = re.compile(r"(?:seq_length|seq_len) \.{2,80} ([0-9]{1,12})\b|seq_length: ([0-9]{1,12})$")
# Old versions have no colon: "learning rate 1.000E-04".
_SEGMENT: Final = re.compile(r" *([A-Za-z][^:|]{0,80}): *([-+0-9A-Za-z.,]{1,40})")
_OLD_SEGMENT: Final = re.compile(r" *([A-Za-z][^:|0-9]{0,80}?) +([-+]?[0-9.][-+0-9eE.]{0,40}|[-+]?nan|[-+]?inf) *$")
# In order of preference: the run's own loss, before what a mixture of experts or a head adds.
LOSSES: Final = ("lm loss", "lm_loss", "loss", "mlm loss", "total loss", "total_loss", "reduced_train_loss")
# A line is Megatron's if it has one of these. They stand in every version since 2019.
_KNOWN: Final = ("elapsed time per iteration (ms)", "elapsed time per iteration (s)")
_SKIPPED: Final = "number of skipped iterations"
_NAN: Final = "number of nan iterations"
_RATES: Final = (
    "tokens per gpu (tokens/s/gpu)", "tokens/s/gpu inst/harmonic mean", "tokens/s/gpu",
    "tokens per gpu per second (tgs)",
)  # fmt: skip


class Megatron(Dialect):
    """A loss that is not above 0 is left out of its line, so also NaN, and its count of NaN iterations stays 0.

    That count is of updates alone that fp16 skipped. So a line that lacks the loss of an update that was applied has
    one that is not a number. Beside a finite gradient norm it may be 0, and is told as one that is due and missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loss: str | None = None  # The name of the last loss.
        self._step: int | None = None
        self._skipped = 0

    def new_launch(self) -> None:
        self._step = None

    def read(self, text: str) -> dict[str, Any] | None:
        if "iteration" not in text and "validation" not in text:
            if "seq_len" in text and (found := _LENGTH.match(text)) is not None:
                self.facts.sequence_length = int(found[1] or found[2]) or None
            return _pause(text)
        found = _STEP.match(text)
        if found is not None:
            return self._read_step(int(found[1]), _segments(found[2]))
        found = _EVALUATION.match(text)
        return _evaluation(found) if found is not None else _pause(text)

    def _read_step(self, step: int, values: Mapping[str, str]) -> dict[str, Any] | None:
        took = next((name for name in _KNOWN if name in values), None)
        if took is None:
            return None
        record: dict[str, Any] = {"step": step}
        self._put_loss(record, step, values)
        _put(record, "step_s" if took.endswith("(s)") else "step_ms", figure(values[took]))
        for field, name in (("grad_norm", "grad norm"), ("lr", "learning rate"), ("loss_scale", "loss scale")):
            _put(record, field, figure(values.get(name)))
        _put(record, "tokens_total", count(values.get("consumed tokens")))
        _put(record, SAMPLES_TOTAL, count(values.get("consumed samples")))
        _put(record, BATCH, count(values.get("global batch size")))
        _put(record, GPU_RATE, next((figure(values[name]) for name in _RATES if name in values), None))
        self._step = step
        return record

    def _put_loss(self, record: dict[str, Any], step: int, values: Mapping[str, str]) -> None:
        """The loss, and whether one is due. The counts of an interval stand behind the loss."""
        name = next((name for name in LOSSES if name in values), None)
        loss = figure(values.get(name)) if name is not None else None
        skipped, nans = count(values.get(_SKIPPED)), count(values.get(_NAN))
        if skipped is not None:
            self._skipped += skipped
            record["skipped_steps"] = self._skipped
        if loss is not None:
            self._loss = name
            record["loss"] = math.nan if nans else loss
        elif nans:
            record["loss"] = math.nan
        elif skipped is not None or nans is not None:
            # Before the first line of a launch an interval is not known: one update skipped may be all of them.
            interval = step - self._step if self._step is not None and step > self._step else 1
            if skipped is not None and skipped >= interval:
                record["loss_expected"] = False
            elif self._loss is not None:
                norm = figure(values.get("grad norm"))
                record["loss"] = math.nan if norm is not None and not math.isfinite(norm) else None


def _segments(text: str) -> dict[str, str]:
    """The values of a line by name. The last one counts if it is closed: a torn number is another number."""
    *closed, last = text.split("|")
    if last.strip() and _NAN in last:
        closed.append(last)  # Some versions close no line.
    values: dict[str, str] = {}
    for segment in closed:
        found = _SEGMENT.match(segment) or _OLD_SEGMENT.match(segment)
        if found is not None:
            values.setdefault(found[1].strip().lower(), found[2])
    return values


def _evaluation(found: re.Match[str]) -> dict[str, Any] | None:
    values = _segments(found[2] + "|")
    loss = next((figure(values[name]) for name in values if name.endswith((" value", "loss"))), None)
    if loss is None:
        return None
    record: dict[str, Any] = {"val_loss": loss}
    if found[1]:
        record["step"] = int(found[1])
    return record


def _pause(text: str) -> dict[str, Any] | None:
    if (found := _SAVE.match(text)) is not None:
        return dict(TRAINS if found["done"] else SAVES)
    if _EVALUATES.match(text) is not None:
        return dict(EVALUATES)
    found = _TOOK.match(text)
    if found is None:
        return None
    field = "checkpoint_s" if found[1] == "save-checkpoint" else "eval_s"
    return {**TRAINS, field: float(found["most"] or found["one"]) / 1_000}


def _put(record: dict[str, Any], field: str, value: float | None) -> None:
    if value is not None:
        record[field] = value
