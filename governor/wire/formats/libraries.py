"""Lines of libraries that print a step's name and figures: torchtitan, torchtune, DeepSpeed."""

from __future__ import annotations

import re
from typing import Any, Final

from governor.wire.formats.line import count, figure
from governor.wire.formats.pauses import SAVES, TRAINS, deepspeed_save
from governor.wire.formats.text_log import BATCH, GPU_RATE, Dialect

GIB: Final = 2**30


class Torchtitan(Dialect):
    """`step: 10  loss: 7.0218  grad_norm: 1.2  memory: 42.1GiB(53.2%)  tps: 7,234  tflops: 419.4  mfu: 42.4%`.

    Versions of 2024 say wps for tps. Both are of one GPU. The loss is 0-dimensional and printed whatever it is.
    Each save is told before and behind it, with its seconds (torchtitan/components/checkpoint.py).
    """

    _STEP: Final = re.compile(r"(validate )?step: {0,8}([0-9]{1,15}) +loss: {0,8}([-+0-9A-Za-z.]{1,40}) +(.*)")
    _FIGURE: Final = re.compile(r"\b([a-z_]{1,20}): {0,8}([-+0-9A-Za-z.,]{1,40})")
    _BATCH: Final = re.compile(r"global batch size ([0-9]{1,12})\b.{0,80}? sequence length ([0-9]{1,12})\b")

    _SAVE: Final = re.compile(
        r"Saving (?:the checkpoint(?: \(or staging if async is enabled\))?\.$"
        r"|a (?:full|model only|model weights only) checkpoint (?:in \S{1,40} )?at (?:last step, )?step [0-9]{1,15})"
    )
    _SAVED: Final = re.compile(
        r"Finished saving the checkpoint(?: \(or staging if async is enabled\))? ?in ([0-9]{1,9}\.[0-9]{2}) seconds"
    )

    def read(self, text: str) -> dict[str, Any] | None:
        if text.startswith("Train"):
            found = self._BATCH.search(text[:400])
            if found is not None:
                self.facts.batch_tokens = int(found[1]) * int(found[2]) or None
            return None
        found = self._STEP.match(text)
        if found is None:
            return _save(text, self._SAVE, self._SAVED)
        values = dict(self._FIGURE.findall(found[4][:400]))
        rate, loss = figure(values.get("tps", values.get("wps"))), figure(found[3])
        if loss is None or (rate is None and "memory" not in values):
            return None
        if found[1]:
            return {"step": int(found[2]), "val_loss": loss}
        record: dict[str, Any] = {"step": int(found[2]), "loss": loss, GPU_RATE: rate}
        for field in ("grad_norm", "lr"):
            if (value := figure(values.get(field))) is not None:
                record[field] = value
        memory = figure(values.get("memory", "").removesuffix("GiB"))
        if memory is not None and 0 <= memory < 1e6:
            record["mem_reserved_bytes"] = round(memory * GIB)
        return record


class Torchtune(Dialect):
    """`Step 12 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 `, of its file and its console alike.

    The console has saves, too (torchtune/training/checkpointing/_checkpoint_client.py, and each recipe before it).
    """

    _STEP: Final = re.compile(r"Step ([0-9]{1,15}) \| (.*)")
    _FIGURE: Final = re.compile(r"([A-Za-z_][\w/]{0,60}):([-+0-9A-Za-z.]{1,40})(?: |$)")
    _SAVE: Final = re.compile(r"Saving checkpoint\. This may take some time\. Retrieving full model state dict\.\.\.$")
    _SAVED: Final = re.compile(r"Saving checkpoint took ([0-9]{1,9}\.[0-9]{2}) secs$")

    def read(self, text: str) -> dict[str, Any] | None:
        found = self._STEP.match(text)
        if found is None:
            return _save(text, self._SAVE, self._SAVED)
        values = dict(self._FIGURE.findall(found[2][:2_000]))
        step = int(found[1])
        aside = next((name for name in values if name.startswith("val")), None)
        loss = figure(values.get("loss"))
        if loss is None:
            value = figure(values[aside]) if aside is not None else None
            return {"step": step, "val_loss": value} if value is not None else None
        record: dict[str, Any] = {"step": step, "loss": loss}
        names = (("lr", "lr"), ("grad_norm", "grad_norm"), (GPU_RATE, "tokens_per_second_per_gpu"))
        for field, name in names:
            if (value := figure(values.get(name))) is not None:
                record[field] = value
        return record


class DeepSpeed(Dialect):
    """Two kinds of lines, of which a log has one or both.

    The pipeline engine prints `steps: 10 loss: 3.2 iter time (s): 0.5 samples/sec: 16.0`, every engine
    `step=10, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]`. The second one stands before the first, and has no loss.
    """

    _STEPS: Final = re.compile(
        r"(?:\[\^\^\] )?steps?: {0,8}([0-9]{1,15})(?: / {0,8}[0-9]{1,15})? loss: ([-+0-9A-Za-z.]{1,40}) (.{0,400}?)"
        r"iter time \(s\): ([0-9.]{1,40}) samples/sec: ([0-9.]{1,40})"
    )
    _STEP: Final = re.compile(
        r"step=([0-9]{1,15}), skipped=([0-9]{1,15}), lr=\[([-+0-9.e]{1,40})(?:,[^\]]{0,4000})?\], mom=\["
    )

    def __init__(self) -> None:
        super().__init__()
        self._tells_loss = False
        self._beside: dict[str, Any] = {}  # What the line before said of the same step.

    def new_launch(self) -> None:
        self._beside = {}

    def read(self, text: str) -> dict[str, Any] | None:
        if (found := self._STEP.match(text)) is not None:
            record: dict[str, Any] = {"step": int(found[1]), "skipped_steps": int(found[2])}
            lr = figure(found[3])
            if lr is not None:
                record["lr"] = lr
            self._beside = record if self.facts.date is None else {**record, "asctime": self.facts.date}
            return None if self._tells_loss else dict(record)
        found = self._STEPS.match(text)
        if found is None:
            return deepspeed_save(text)
        step, loss, took, rate = int(found[1]), figure(found[2]), figure(found[4]), figure(found[5])
        if loss is None:
            return None
        self._tells_loss = True
        record = {**(self._beside if self._beside.get("step") == step else {}), "step": step, "loss": loss}
        if took is not None and rate is not None and took > 0:
            record["step_s"] = took
            record[BATCH] = count(f"{took * rate:.0f}") or None
        return record


def _save(text: str, begun: re.Pattern[str], done: re.Pattern[str]) -> dict[str, Any] | None:
    """A line that a save begins with, or ends with, which tells its seconds."""
    if begun.match(text) is not None:
        return dict(SAVES)
    found = done.match(text)
    return None if found is None else {**TRAINS, "checkpoint_s": float(found[1])}
