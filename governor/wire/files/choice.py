"""Which of the formats a file is read as, or looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from governor.wire.files import CSV, NAMES, TENSORBOARD, WANDB
from governor.wire.files.cutter import Cutter, Known
from governor.wire.files.events import Events
from governor.wire.files.rows import Rows, is_header
from governor.wire.files.runs import Runs


def named(name: str, fields: Mapping[str, Sequence[str]]) -> Cutter:
    """A new cutter of one log of that format. KeyError for a name that is not in NAMES.

    `fields`: as wire.jsonl.field_map returns them. What is under no name of them is no news of training.
    """
    if name == CSV:
        return Rows()
    if name not in NAMES:
        raise KeyError(name)
    return Events(Known(fields)) if name == TENSORBOARD else Runs(Known(fields))


def recognise(first: str) -> str | None:
    """The format of a file by its first line, of which binary parts may be missing. None for another one."""
    if first.startswith(":W&B"):
        return WANDB
    if "brain.Event:" in first:
        return TENSORBOARD
    return CSV if "," in first and is_header([cell.strip() for cell in first.split(",")]) else None
