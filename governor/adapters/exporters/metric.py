"""What one metric is, and what a label and a value may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from governor.core.views.metrics import MetricsSnapshot

LABEL_CHARS_MAX: Final = 128

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """`samples` yields label values in the order of `labels`. The collector makes a histogram's samples."""

    name: str
    type: str  # gauge | counter | histogram
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[MetricsSnapshot], Iterable[Sample]]


def clean(label: str) -> str:
    """Return a label value that every exposition can carry: valid UTF-8 and bounded."""
    return label[:LABEL_CHARS_MAX].encode("utf-8", "replace").decode()


def number(value: float) -> float:
    """Return a float, also for an integer that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
