"""JSON lines: training_metrics and performance_metrics by step, gpu_metrics by sample, causes, and events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from governor.core.base.units import utc_fine_text
from governor.exports.form import Of, Written
from governor.exports.owned import OwnFiles, own_files
from governor.exports.series import (
    OF_FRAMES,
    OTHER_S,
    SPEND,
    STEPS_PER_S,
    TOKENS_PER_S,
    USD_PER_MTOK,
    Causes,
    Gpu,
    Happened,
    Item,
    Phase,
    Point,
)
from governor.wire.cause_series import amounts_of
from trainer_shim.wire import worded

NAME: Final = "jsonl"
TARGET: Final = "DIR"
MEANING: Final = (
    "Files training_metrics, performance_metrics, gpu_metrics, causes and events, all .jsonl, one object a line."
)

FILES: Final = tuple(
    f"{name}.jsonl" for name in ("training_metrics", "performance_metrics", "gpu_metrics", "causes", "events")
)
TRAINING, PERFORMANCE, GPUS, CAUSES, EVENTS = FILES
_TIME, _STEP, _PHASE, _GPU, _UUID, _EVENT, _TEXT = "timestamp", "step", "phase", "gpu", "uuid", "event", "text"
# A series -> its key. Those that are not here have their own name without its group.
KEYS: Final[Mapping[str, str]] = {
    "speed/steps_per_s": "steps_per_second",
    "speed/tokens_per_s": "tokens_per_second",
    "train/lr": "learning_rate",
}
_OF_STEPS: Final = frozenset(
    KEYS.get(name, name.partition("/")[2])
    for name in (*OF_FRAMES.values(), OTHER_S, STEPS_PER_S, TOKENS_PER_S, SPEND, USD_PER_MTOK)
) | {_PHASE}
_HEAD: Final = (_TIME, _STEP)
TIMELESS: Final = (GPUS, EVENTS)  # Their lines tell nothing of what time went to.
# training_metrics also has the pace, by which its readers reckon what remains.
IN_TRAINING: Final = ("train/", "speed/steps_per_s", "cost/spend_usd")


class Files:
    """`forms.Form`."""

    def __init__(self, own: OwnFiles) -> None:
        self._own = own

    def put(self, item: Item) -> None:
        head: dict[str, Any] = {_TIME: utc_fine_text(item.wall), _STEP: item.step}
        match item:
            case Point():
                of_training = {name: v for name, v in item.values.items() if name.startswith(IN_TRAINING)}
                of_speed = {name: v for name, v in item.values.items() if not name.startswith("train/")}
                if item.step is not None:
                    self._line(TRAINING, head | _keyed(of_training))
                self._line(PERFORMANCE, head | _keyed(of_speed))
            case Gpu():
                known = {name: getattr(item, name) for name in ("busy_frac", "memory_used_bytes", "memory_total_bytes")}
                sample = {name: value for name, value in known.items() if value is not None}
                self._line(GPUS, head | {_GPU: item.index, _UUID: item.uuid, **sample, **item.figures})
            case Causes():
                self._line(CAUSES, head | _keyed(item.values()))
            case Phase():
                self._line(PERFORMANCE, head | {_PHASE: item.name})
            case Happened():
                self._line(EVENTS, head | {_EVENT: item.name, _TEXT: item.text})

    def _line(self, name: str, record: Mapping[str, Any]) -> None:
        self._own.files[name].write(json.dumps(worded(record), separators=(",", ":")).encode() + b"\n")

    def finish(self, summary: Mapping[str, Any]) -> Written:
        return self._own.commit()


def _keyed(values: Mapping[str, float]) -> dict[str, float]:
    return {KEYS.get(name, name.partition("/")[2]): value for name, value in values.items()}


def is_line(name: str, record: Mapping[str, Any]) -> bool:
    """Whether this may be a line of our file of this name: it has what such a line has, and nothing else."""
    if tuple(record)[: len(_HEAD)] != _HEAD or not isinstance(record[_TIME], str):
        return False
    keys = record.keys() - set(_HEAD)
    if name == CAUSES:
        return not isinstance(amounts_of(record, ""), str)
    if name == EVENTS:
        return keys == {_EVENT, _TEXT}
    return keys >= {_GPU, _UUID} if name == GPUS else keys <= _OF_STEPS


@contextmanager
def open(target: str, of: Of) -> Iterator[Files]:  # noqa: A001 - what every form calls it.
    with own_files(Path(target), of.run, FILES) as own:
        yield Files(own)
