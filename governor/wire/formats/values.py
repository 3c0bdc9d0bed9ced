"""Values of a log's record, as anybody may have written them, read as what their field wants. None: it is no such."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from governor.core.base.units import read_float
from governor.wire.jsonl import ELAPSED
from trainer_shim.wire import number

GPUS_MAX: Final = 64  # In one record of a log: more than any node has.

_WHOLE = frozenset((
    "step", "attempt_step", "line_steps", "skipped_steps", "tokens", "tokens_total",
    "mem_allocated_bytes", "mem_reserved_bytes", "rss_bytes",
))  # fmt: skip
_FLAGS = frozenset(("loss_expected", "checkpoint_bound", "eval_bound"))
_NUMBERS = frozenset(("loss", "grad_norm", "lr", "loss_scale", "tokens_per_second"))
_WORDS = {"nan": math.nan, "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "-inf": -math.inf}


def reader_of(field: str, name: str) -> Callable[[Any], Any]:
    if field in _WHOLE:
        return _count
    if field == "overflow":
        return _flag_or_number
    if field in _FLAGS:
        return _flag
    if field in _NUMBERS:
        return as_number
    return _milliseconds if name.endswith("_ms") or name.startswith(ELAPSED) else as_duration


def as_number(value: Any) -> float | None:
    """A number, NaN and infinities included, because they matter. None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, bool):
        return None
    try:
        if isinstance(value, str):
            word = _WORDS.get(value.strip().lower())
            return word if word is not None else read_float(value)
        value = number(value)
        return None if value is None else float(value)
    except (ValueError, OverflowError):  # Not a number, or an integer beyond every float.
        return None


def as_duration(value: Any) -> float | None:
    """Seconds. None if negative or not finite: one bad clock must not cost the loss beside it."""
    seconds = value if type(value) is float else as_number(value)
    return seconds if seconds is not None and 0 <= seconds < math.inf else None


def _milliseconds(value: Any) -> float | None:
    milliseconds = as_duration(value)
    return None if milliseconds is None else milliseconds / 1000


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _flag_or_number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else as_number(value)


def as_whole(value: Any) -> int | None:
    """An integer that fits the wire, also one written as a float. None for anything else."""
    if type(value) is not int:
        value = as_number(value)
        if value is None or not math.isfinite(value) or value != int(value):
            return None
        value = int(value)
    return value if -(2**63) < value < 2**63 else None


def _count(value: Any) -> int | None:
    count = as_whole(value)
    return count if count is not None and count >= 0 else None


def busy_fracs(percent: Any) -> tuple[float | None, ...]:
    """Busy fractions from percentages. None for a value that is not one."""
    values = percent[:GPUS_MAX] if isinstance(percent, list) else [percent]
    figures = [as_number(value) for value in values]
    return tuple(figure / 100 if figure is not None and 0 <= figure <= 100 else None for figure in figures)
