"""Progress of PyTorch Lightning and of NeMo, which is built on it: bars with figures behind them, and lines."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

from governor.wire.formats.line import clean, count, figure
from governor.wire.formats.pauses import SAVES
from governor.wire.formats.text_log import BATCH, GPU_RATE, SAMPLES_TOTAL, Dialect

NEMO_LOSS: Final = "reduced_train_loss"
TIMING: Final = "train_step_timing in s"
GPU_RATES: Final = ("tokens_per_sec_per_gpu", "tokens_per_second_per_gpu")
_BAR: Final = re.compile(
    r"(?P<about>[^|%]{0,80}?)[: ]{0,4}(?:[0-9]{1,3}%)? {0,2}\|[^|]{0,400}\| {0,2}"
    r"(?P<at>[0-9]{1,12})/(?P<of>[0-9]{1,12}|\?) \[(?P<since>[0-9]{1,4}(?::[0-9]{2}){1,2})<[^,\]]{1,20}"
    r"(?:, {0,8}[^,=\]]{1,30})?(?:, (?P<figures>[^\]]{1,8000}))?\]"
)
# ModelCheckpoint of PyTorch Lightning (callbacks/model_checkpoint.py), of those that keep the best.
_SAVE: Final = re.compile(
    r"Epoch [0-9]{1,9}, global step [0-9]{1,15}: \S{1,400} reached [-+0-9A-Za-z.]{1,40} \(best [-+0-9A-Za-z.]{1,40}\), "
    r"saving model to [^\n]{1,4000} as top [0-9]{1,6}$"
)
_EPOCH: Final = re.compile(r"Epoch ([0-9]{1,9})")


class Bar(NamedTuple):
    """A bar as tqdm draws it."""

    about: str
    at: int
    of: int | None
    since_s: int  # Since the bar began.
    figures: str


def bar_of(text: str) -> Bar | None:
    """The first bar in the text. None if there is none."""
    found = _BAR.match(text)
    if found is None:
        return None
    since_s = 0
    for part in found["since"].split(":"):
        since_s = since_s * 60 + int(part)
    of = None if found["of"] == "?" else int(found["of"])
    return Bar(found["about"].strip(), int(found["at"]), of, since_s, found["figures"] or "")


def behind_bar(text: str) -> str:
    """What was written behind a bar, without its prefixes: a bar ends no line. All of the text where there is none."""
    found = _BAR.match(text)
    return text if found is None else clean(text[found.end() :]).text


class _Progress(Dialect):
    """A bar of an epoch: `Epoch 0:  10%|█ | 10/100 [00:05<00:45, 2.0it/s, v_num=0, train_loss=2.3]`."""

    def read(self, text: str) -> dict[str, Any] | None:
        found = self._read(text)
        is_save = found is None and " saving model to " in text and _SAVE.match(behind_bar(text)) is not None
        return dict(SAVES) if is_save else found

    @abstractmethod
    def _read(self, text: str) -> dict[str, Any] | None:
        """The record of a line that tells of no save."""

    def _epoch_bar(self, text: str) -> tuple[dict[str, Any], dict[str, str]] | None:
        """The step, epoch and clock of a training bar, and its figures by name. Step 0: nothing was trained by then."""
        if "[" not in text or "Epoch " not in text:
            return None
        bar = bar_of(text)
        epoch = _EPOCH.match(bar.about) if bar is not None else None
        if bar is None or epoch is None:
            return None
        pairs = (pair.split("=", 1) for pair in bar.figures.split(", ") if "=" in pair)
        return {"step": bar.at, "epoch": int(epoch[1]), "elapsed_s": bar.since_s}, dict(pairs)


class Lightning(_Progress):
    """The loss is under the name that the module has logged it with. Its progress has three digits."""

    def __init__(self) -> None:
        super().__init__()
        self._at: tuple[int, int] | None = None  # Epoch and count of the last bar, and its figures.
        self._figures = ""
        self._was_ahead = self._is_drawn_once = False

    LOSSES: Final = ("train_loss", "train_loss_step", "train/loss", "train/loss_step", "loss", "loss_step")

    def _read(self, text: str) -> dict[str, Any] | None:
        if text.startswith("Validation") and bar_of(text) is not None:
            return {"phase": "eval"}
        found = self._epoch_bar(text)
        if found is None or NEMO_LOSS in found[1]:
            return None
        record, figures = found
        if self._is_ahead((record["epoch"], record["step"]), str(figures)):
            return None
        if record["step"] < 1:
            return None
        loss = next((figure(figures[name]) for name in self.LOSSES if name in figures), None)
        return {**record, "loss": loss} if loss is not None else None

    def _is_ahead(self, at: tuple[int, int], figures: str) -> bool:
        """Whether this bar has a new count beside the figures of the one before. It is drawn again with its own ones.

        A bar that is never drawn twice for a count has its own figures, whatever they are.
        """
        is_again, is_same = at == self._at, figures == self._figures
        if is_again and not is_same:
            self._is_drawn_once = False
        elif not is_again and self._was_ahead and self._at is not None and at[0] == self._at[0]:
            self._is_drawn_once = True
        # Before an epoch's first count, and before its evaluation, the bar is drawn with the figures that are known.
        self._was_ahead = is_same and not is_again and not self._is_drawn_once and at[1] > 0
        self._at, self._figures = at, figures
        return self._was_ahead


class Nemo(_Progress):
    """`Training epoch 0, iteration 17/99 | lr: 1e-05 | global_step: 17 | reduced_train_loss: 11.03 | …`, or a bar.

    A val_loss stands in every line after an evaluation, so it is none.
    """

    TIMES_LAST_STEP: ClassVar[bool] = True
    _STEP: Final = re.compile(r"Training epoch ([0-9]{1,9}), iteration ([0-9]{1,15})/[0-9]{1,15} \|(.*)")
    _EVALUATION: Final = re.compile(r"Validation: iteration [0-9]{1,15}/[0-9]{1,15}$")

    def _read(self, text: str) -> dict[str, Any] | None:
        found = self._STEP.match(text)
        if found is not None:
            pairs = (segment.split(":", 1) for segment in found[3][:4_000].split("|") if ":" in segment)
            values = {name.strip(): value.strip() for name, value in pairs}
            # The step of the run, where it is told: the iteration is the epoch's.
            step = count(values.get("global_step"))
            where = {"step": step} if step is not None else {"step": int(found[2]), "epoch": int(found[1])}
            return self._record(where, values)
        if self._EVALUATION.match(text) is not None:
            return {"phase": "eval"}
        bar = self._epoch_bar(text)
        return self._record(*bar) if bar is not None and bar[0]["step"] > 0 and NEMO_LOSS in bar[1] else None

    def _record(self, record: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any] | None:
        loss = figure(values.get(NEMO_LOSS))
        if loss is None:
            return None
        record["loss"] = loss
        names = (("lr", "lr"), ("grad_norm", "grad_norm"), ("grad_norm", "gradient_norm"), ("step_s", TIMING))
        for field, name in names:
            if (value := figure(values.get(name))) is not None:
                record[field] = value
        for field, name in ((SAMPLES_TOTAL, "consumed_samples"), (BATCH, "global_batch_size")):
            if (whole := count(values.get(name))) is not None:
                record[field] = whole
        rate = next((figure(values[name]) for name in GPU_RATES if name in values), None)
        if rate is not None:
            record[GPU_RATE] = rate
        return record
