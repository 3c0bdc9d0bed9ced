"""Which of the formats a file is read as, or looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from governor.wire.files import CSV, NAMES, TENSORBOARD, WANDB
from governor.wire.files.cutter import Cutter, Known
from governor.wire.files.events import Events
from governor.wire.files.rows import Rows, is_header
from governor.wire.files.runs import Runs

_CUTTERS: Final[Mapping[str, Callable[[Mapping[str, Sequence[str]]], Cutter]]] = {
    CSV: lambda _fields: Rows(),
    TENSORBOARD: lambda fields: Events(Known(fields)),
    WANDB: lambda fields: Runs(Known(fields)),
}
assert set(_CUTTERS) == set(NAMES), "each format has its cutter"


def named(name: str, fields: Mapping[str, Sequence[str]]) -> Cutter:
    """A new cutter of one log of that format. KeyError for a name that is not in NAMES.

    `fields`: as wire.jsonl.field_map returns them. What is under no name of them is no news of training.
    """
    return _CUTTERS[name](fields)


def recognise(first: str) -> str | None:
    """The format of a file by its first line, of which binary parts may be missing. None for another one."""
    if first.startswith(":W&B"):
        return WANDB
    if "brain.Event:" in first:
        return TENSORBOARD
    return CSV if "," in first and is_header([cell.strip() for cell in first.split(",")]) else None
