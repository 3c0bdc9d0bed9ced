"""What Hugging Face's Trainer prints, and so TRL, Axolotl, LLaMA-Factory and ms-swift: Python's dicts.

    {'loss': 0.58, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': 0.49}

They have no step. It stands in the progress bar before them, which is not always drawn anew before a line.
At level info it says of evaluations and saves before they begin (transformers/trainer.py); DeepSpeed says so always.
"""

from __future__ import annotations

import re
from typing import Any, Final

from governor.wire.formats.bars import bar_of, behind_bar
from governor.wire.formats.line import count, figure
from governor.wire.formats.pauses import EVALUATES, SAVES, deepspeed_save
from governor.wire.formats.text_log import GPU_RATE, Dialect

DICT_CHARS_MAX: Final = 8_000
_ITEM: Final = re.compile(
    r"'([^'\\]{1,128})': {0,2}(?:'([^'\\]{0,200})'|\"([^\"\\]{0,200})\"|([-+0-9A-Za-z_.]{1,64}))(?=, |\})"
)
_SAVE: Final = re.compile(r"Saving model checkpoint to \S{1,4000}$")
_EVALUATION: Final = "***** Running Evaluation *****"
_NAMES: Final = (
    ("loss", ("loss",)), ("grad_norm", ("grad_norm",)), ("lr", ("learning_rate",)),
    ("tokens_total", ("num_input_tokens_seen", "num_tokens")), (GPU_RATE, ("tokens_per_second_per_gpu",)),
)  # fmt: skip
_STEPS: Final = ("global_step/max_steps", "iteration", "step", "global_step")
_STEPS_SET: Final = frozenset(_STEPS)
_SUMMARY: Final = "train_runtime"
LACKS_STEP: Final = "its lines have no step and no progress bar: a step is a line (logging_steps)"


class HuggingFace(Dialect):
    """A step is that of the bar before its line, where that has moved on, else one stride after the last."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: tuple[int, int] | None = None  # The last bar of training: at, of how many.
        self._since_s: int | None = None
        self._seen: tuple[int, int, int] | None = None  # Any other bar before a line: at, of, since.
        self._step: int | None = None  # Of the last line.
        self._bar_at_line: int | None = None
        self._stride = 1
        self._is_counted = False

    def new_launch(self) -> None:
        self._bar = self._seen = self._since_s = self._step = self._bar_at_line = None

    def lacks(self) -> str | None:
        return LACKS_STEP if self._is_counted else None

    def read(self, text: str) -> dict[str, Any] | None:
        begins = text.find("{'")
        head = text if begins < 0 else text[:begins]
        if "|" in head:
            self._see_bar(head)
        if begins < 0:
            return _pause(text)
        body = text[begins : begins + DICT_CHARS_MAX]
        if not body.endswith("}"):
            return None
        values = {found[1]: found[2] or found[3] or found[4] or "" for found in _ITEM.finditer(body)}
        if _SUMMARY in values or ("epoch" not in values and _STEPS_SET.isdisjoint(values)):
            return None
        if "loss" in values:
            return self._line(values)
        value = figure(values.get("eval_loss"))
        if value is None:
            return None
        record: dict[str, Any] = {"val_loss": value}
        if (took_s := figure(values.get("eval_runtime"))) is not None:
            record["eval_s"] = took_s
        return record if self._step is None else {**record, "step": self._step}

    def _see_bar(self, text: str) -> None:
        bar = bar_of(text)
        if bar is None or bar.about or bar.of is None:
            return
        self._seen = bar.at, bar.of, bar.since_s
        if self._bar is not None and self._bar[1] == bar.of:
            self._take(bar.at, bar.of, bar.since_s)

    def _take(self, at: int, of: int, since_s: int) -> None:
        if self._bar is not None and at < self._bar[0]:
            self._step = self._bar_at_line = None  # Another launch.
        self._bar, self._since_s = (at, of), since_s

    def _line(self, values: dict[str, str]) -> dict[str, Any] | None:
        loss = figure(values["loss"])
        if loss is None:
            return None
        if self._bar is None and self._seen is not None:  # Training's is the one that stands before its first line.
            self._take(*self._seen)
        step = next((count(values[name].partition("/")[0]) for name in _STEPS if name in values), None)
        step = self._next_step() if step is None else step
        if self._step is not None and step > self._step:
            self._stride = step - self._step
        self._step = step
        self._bar_at_line = self._bar[0] if self._bar is not None else None
        record: dict[str, Any] = {"step": step}
        for field, names in _NAMES:
            text = next((values[name] for name in names if name in values), None)
            value = count(text) if field == "tokens_total" else figure(text)
            if value is not None:
                record[field] = value
        if self._since_s is not None:
            record["elapsed_s"] = self._since_s
        return record

    def _next_step(self) -> int:
        last, at = self._step, self._bar[0] if self._bar is not None else None
        if at is None:
            self._is_counted = True
            return 1 if last is None else last + 1
        if last is None:
            return max(1, at)
        return at if at > last else last + self._stride


def _pause(text: str) -> dict[str, Any] | None:
    if text == _EVALUATION:
        return dict(EVALUATES)
    if "heckpoint " not in text and "heckpoint:" not in text:
        return None
    said = behind_bar(text)
    return dict(SAVES) if _SAVE.match(said) is not None else deepspeed_save(said)
