"""MLPerf's logs: `:::MLLOG {"time_ms": 1696565401886, "key": "train_loss", "value": 2.3, "metadata": {…}}`.

Training's place is a count of samples mostly, under a name that changes from benchmark to benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from governor.wire.formats.text_log import SAMPLES_TOTAL, Dialect
from governor.wire.jsonl import Samples

MARK: Final = ":::MLLOG "
LOSS: Final = "train_loss"
STATS: Final = "tracked_stats"
_STATS_LOSS: Final = ("reduced_train_loss", "train_loss", "loss")
_RESULTS: Final = ("eval_accuracy", "eval_error", "eval_loss", "eval_mean_loss")
_PHASES: Final = ("init_start", "init_stop", "run_start", "run_stop", "eval_start", "eval_stop")


class Mllog(Dialect):
    """Steps are samples divided by the global batch size where the log says that, else the counts that it has had."""

    def __init__(self) -> None:
        super().__init__()
        self._samples = Samples()
        self._has_loss = False

    def read(self, text: str) -> dict[str, Any] | list[str] | None:
        begins = text.find(MARK, 0, 400)
        if begins < 0:
            return None
        try:
            said = json.loads(text[begins + len(MARK) :])
        except (ValueError, RecursionError):
            return ["no JSON after :::MLLOG"]
        if not isinstance(said, dict) or not isinstance(said.get("key"), str):
            return ["no key after :::MLLOG"]
        found = self._record(said["key"], said.get("value"), said.get("metadata"))
        time_ms = said.get("time_ms")
        if found is not None and isinstance(time_ms, int | float) and 0 <= time_ms < 1e15:
            found["timestamp"] = time_ms / 1000
        return found

    def _record(self, key: str, value: Any, metadata: Any) -> dict[str, Any] | None:
        about: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
        if key == "global_batch_size":
            self.facts.batch_samples = _whole(value) or self.facts.batch_samples
        elif key in ("max_sequence_length", "seq_length", "sequence_length"):
            self.facts.sequence_length = _whole(value) or self.facts.sequence_length
        elif key == LOSS:
            self._has_loss = True
            return self._training(value.get("value") if isinstance(value, dict) else value, about)
        elif key == STATS and isinstance(value, dict):
            return self._stats(value, about)
        elif key in _RESULTS and _number(value) is not None:
            samples = _samples_of(about, "step")
            step = (
                {} if samples is None or not self.facts.batch_samples else {"step": samples // self.facts.batch_samples}
            )
            return {**step, "val_loss": _number(value)}
        elif key in _PHASES:
            return {"phase": key}
        return None

    def _training(self, loss: Any, about: Mapping[str, Any]) -> dict[str, Any] | None:
        number = _number(loss)
        if number is None:
            return None
        step = _whole(about.get("step_num", about.get("step")))
        record: dict[str, Any] = {"loss": number}
        samples = _samples_of(about)
        if samples is not None:
            record[SAMPLES_TOTAL] = samples
            step = samples // self.facts.batch_samples if self.facts.batch_samples else self._samples.step(samples)
        if step is None:
            return None
        lr = _number(about.get("lr"))
        return {"step": step, **record, **({"lr": lr} if lr is not None else {})}

    def _stats(self, value: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any] | None:
        """A line of some steps' means. Where others have the loss, it is of none."""
        if self._has_loss:
            return None
        loss = next((value[name] for name in _STATS_LOSS if name in value), None)
        samples = _samples_of(about, "step")
        if loss is None or samples is None:
            return None
        record = self._training(loss, {**about, "samples_count": samples})
        took = _number(value.get("train_step_time"))
        if record is not None and took is not None:
            record["step_s"] = took
        return record


def _samples_of(about: Mapping[str, Any], *others: str) -> int | None:
    """Samples of the run so far. NVIDIA's benchmarks count them as "step" where they have statistics."""
    return next((_whole(about[name]) for name in ("samples_count", *others) if name in about), None)


def _whole(value: Any) -> int | None:
    if type(value) is float and value == value and abs(value) < 2.0**53 and value == int(value):
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**53 else None


def _number(value: Any) -> float | None:
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        return None
