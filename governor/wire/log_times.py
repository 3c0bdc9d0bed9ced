"""When a record of a log happened: its time as a number, or written out as a date with a time of day."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

TIME_KEYS: Final = ("t", "elapsed_s", "_runtime", "_timestamp", "timestamp")
# Here only a date is a clock: a number under these names may as well be how long a step took.
DATE_KEYS: Final = ("time", "asctime", "ts", "@timestamp")
EPOCH_BOUND_S: Final = 1e11  # The year 5138: from here on it is milliseconds since 1970, or micro-, or nanoseconds.
SUBUNITS: Final = 3
SECONDS_BOUND: Final = 1e20  # Above the nanoseconds of today: no time at all.


def time_of(record: Mapping[str, Any]) -> float | None:
    """A record's time in seconds, since whenever its clock began or since 1970; None where it has none."""
    for key in TIME_KEYS:
        value = record.get(key)
        if value is not None:
            return date_seconds(value) if isinstance(value, str) and ":" in value else seconds_of(value)
    for key in DATE_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            return date_seconds(value)
    return None


def seconds_of(time: object) -> float | None:
    """A number of seconds, also one in words; None for anything else."""
    if isinstance(time, bool) or not isinstance(time, int | float | str):
        return None
    try:
        seconds = float(time)
    except ValueError:
        return None
    except OverflowError:  # An integer beyond every float.
        return math.inf
    for _ in range(SUBUNITS):
        if not EPOCH_BOUND_S <= seconds < SECONDS_BOUND:
            break
        seconds /= 1_000
    return seconds


def date_seconds(text: str) -> float | None:
    """Seconds since 1970 of ISO 8601, also as Python's logging writes it; None for anything else. A day alone is no
    clock: it stands still for a day, and then leaps."""
    if ":" not in text:
        return None
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    # Where it names no zone, any will do: only differences count.
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
