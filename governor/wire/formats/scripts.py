"""Lines of the small trainers that many copy: nanoGPT, llm.c, modded-nanogpt."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from governor.wire.formats.line import figure
from governor.wire.formats.pauses import SAVES
from governor.wire.formats.text_log import Dialect

_NUMBER: Final = r"([-+0-9A-Za-z.]{1,40})"


class NanoGpt(Dialect):
    """`iter 10: loss 3.1234, time 123.45ms, mfu 12.34%`; `step 250: train loss 4.1, val loss 4.2` is an evaluation.

    `saving checkpoint to out` stands behind that (nanoGPT's train.py). The next step's time has both in it.
    """

    TIMES_LAST_STEP: ClassVar[bool] = True
    HAS_PAUSES: ClassVar[bool] = True
    _STEP: Final = re.compile(r"iter ([0-9]{1,15}): loss " + _NUMBER + r",? (.*)")
    _TIME: Final = re.compile(r"time:? {0,2}([0-9.]{1,40}) ?(ms|s)\b")
    _OTHER: Final = re.compile(r"\b(lr|gradnorm|grad_norm|grad norm|norm):? " + _NUMBER)
    _EVALUATION: Final = re.compile(r"step ([0-9]{1,15}): train loss [-+0-9A-Za-z.]{1,40}, val loss " + _NUMBER)
    _SAVE: Final = re.compile(r"saving checkpoint to \S{1,4000}$")
    _BATCH: Final = re.compile(r"[Tt]okens per iteration will be: ([0-9,]{1,20})$")

    def read(self, text: str) -> dict[str, Any] | None:
        if (found := self._BATCH.match(text)) is not None:
            self.facts.batch_tokens = int(found[1].replace(",", "") or 0) or None
            return None
        if (found := self._EVALUATION.match(text)) is not None:
            loss = figure(found[2])
            return {"step": int(found[1]), "val_loss": loss} if loss is not None else None
        found = self._STEP.match(text)
        if found is None:
            return dict(SAVES) if self._SAVE.match(text) is not None else None
        rest = found[3][:400]
        loss, took = figure(found[2]), self._TIME.search(rest)
        if loss is None or took is None:
            return None
        record: dict[str, Any] = {"step": int(found[1]), "loss": loss}
        if (value := figure(took[1])) is not None:
            record["step_ms" if took[2] == "ms" else "step_s"] = value
        for name, text_of in self._OTHER.findall(rest):
            if (value := figure(text_of)) is not None:
                record["lr" if name == "lr" else "grad_norm"] = value
        return record


class LlmC(Dialect):
    """`step    1/21479 | loss 11.007906 (+nanz)| norm 16.3235 (+nanz)| lr 2.86e-06 | 2734.72 ms | 39.7% bf16 MFU | …`.

    The figures in brackets are z-scores: +nanz until there are enough of them. Before a save it prints
    `Writing checkpoint at step 5000`, and older ones the files alone (train_gpt2.cu).
    """

    _STEP: Final = re.compile(r"step +([0-9]{1,15})/([0-9]{1,15}) \|(.*)")
    _FIGURE: Final = re.compile(r" *(train loss|loss|norm|lr) {1,8}" + _NUMBER)
    _RATE: Final = re.compile(r" *\(?" + _NUMBER + r" (ms|tok/s)\b")
    _EVALUATION: Final = re.compile(r"val loss " + _NUMBER + r"(?: \||$)")
    _SAVE: Final = re.compile(r"Writing (?:checkpoint at step [0-9]{1,15}|(?:model|state) to \S{1,4000})$")
    _BATCH: Final = re.compile(r".{0,200}?total[ _]batch[ _]size *[=|] *([0-9]{1,15})\b")

    def __init__(self) -> None:
        super().__init__()
        self._step: int | None = None

    def new_launch(self) -> None:
        self._step = None

    def read(self, text: str) -> dict[str, Any] | None:
        if "batch" in text and (found := self._BATCH.match(text)) is not None:
            self.facts.batch_tokens = int(found[1]) or self.facts.batch_tokens
            return None
        if (found := self._EVALUATION.match(text)) is not None:
            loss = figure(found[1])
            step = {} if self._step is None else {"step": self._step}
            return {**step, "val_loss": loss} if loss is not None else None
        found = self._STEP.match(text)
        if found is None:
            return dict(SAVES) if self._SAVE.match(text) is not None else None
        record: dict[str, Any] = {"step": int(found[1])}
        for segment in found[3][:1_000].split("|"):
            self._put(record, segment)
        if "loss" not in record or "step_ms" not in record or "tokens_per_second" not in record:
            return None
        if self.facts.batch_tokens is not None:
            del record["tokens_per_second"]  # A mean of some steps. The batch is exact.
        self._step = record["step"]
        return record

    def _put(self, record: dict[str, Any], segment: str) -> None:
        if (found := self._FIGURE.match(segment)) is not None:
            field = {"norm": "grad_norm", "lr": "lr"}.get(found[1], "loss")
            value = figure(found[2])
        elif (found := self._RATE.match(segment)) is not None:
            field = "step_ms" if found[2] == "ms" else "tokens_per_second"
            value = figure(found[1])
        else:
            return
        if value is not None:
            record[field] = value


class ModdedNanoGpt(Dialect):
    """`step:10/1750 train_loss:4.2 train_time:1234ms step_avg:123.4ms`; newer ones print no loss but `val_loss:`.

    The time is of training alone, since the start: it is the log's clock.
    """

    _STEP: Final = re.compile(r"step:([0-9]{1,15})/([0-9]{1,15}) (.*)")
    _FIGURE: Final = re.compile(r"([a-z_]{1,40}):([-+0-9A-Za-z.]{1,40})")
    _TIME: Final = re.compile(r"([0-9.]{1,40})(ms|s)")

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[int, float] | None = None  # Step, and seconds of training.

    def new_launch(self) -> None:
        self._last = None

    def read(self, text: str) -> dict[str, Any] | None:
        found = self._STEP.match(text)
        if found is None:
            return None
        values = dict(self._FIGURE.findall(found[3][:1_000]))
        time = self._TIME.fullmatch(values.get("train_time", ""))
        took = figure(time[1]) if time is not None else None
        if time is None or took is None:
            return None
        step, trained_s = int(found[1]), took / 1_000 if time[2] == "ms" else took
        record: dict[str, Any] = {"step": step, "elapsed_s": trained_s}
        if (loss := figure(values.get("val_loss"))) is not None:
            return {**record, "val_loss": loss}
        if (loss := figure(values.get("train_loss"))) is not None:
            record["loss"] = loss
        last, self._last = self._last, (step, trained_s)
        if last is not None and step > last[0] and trained_s > last[1]:
            record["step_s"] = (trained_s - last[1]) / (step - last[0])
        return record
