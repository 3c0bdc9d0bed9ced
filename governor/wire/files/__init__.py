"""Formats of log files that are no lines of JSON: tables, TensorBoard's event files, W&B's local runs.

Each is cut into records while its writer appends to it, and each record is given as a line of JSON, so that whatever
reads JSONL reads these as well.
"""

from __future__ import annotations

from typing import Final

CSV: Final = "csv"
TENSORBOARD: Final = "tensorboard"
WANDB: Final = "wandb"
NAMES: Final = (CSV, TENSORBOARD, WANDB)
# Of these, a path may be a directory: each launch writes a file of its own there.
IN_DIRECTORIES: Final = (TENSORBOARD, WANDB)
