"""What is known of a run before it is told: its row, its halts, its recording, and the peak of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from governor.reports.run.series import RunSeries

FLOPS_PER_PARAMETER: Final = 6  # Forward and backward of a token; recomputation is no work of the model's.


class Peak(NamedTuple):
    """The dense peak of a GPU in bf16, from the package's table."""

    gpu: str
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run. `told`: its row as `status --json` has it; `time` in it is its account."""

    run: str
    told: Mapping[str, Any]
    ended: str | None  # How; None while it lives.
    as_of: str | None = None
    node: str | None = None
    node_usd_per_hour: float | None = None  # Of the node, as it was priced last.
    halts: Sequence[Mapping[str, Any]] = ()  # Incidents.
    failures: Sequence[Mapping[str, Any]] = ()  # at, what, text.
    series: RunSeries | None = None  # None: there is no recording.
    unread: Sequence[str] = ()  # What could not be read, a line each.
    peak: Peak | None = None


def mfu_of(facts: RunFacts) -> float | None:
    """Model FLOP/s while it steps over the GPUs' dense peak. None where one of its figures is not honest."""
    mfu = mfu_told(facts)
    return mfu if mfu is not None and mfu <= 1 else None


def mfu_told(facts: RunFacts) -> float | None:
    """The same by what is told, which may be more than any GPU does."""
    series, peak = facts.series, facts.peak
    if series is None or peak is None or not series.has_gpus or not series.world_size:
        return None
    if series.tokens_per_s is None or not series.parameters:
        return None
    return FLOPS_PER_PARAMETER * series.parameters * series.tokens_per_s / (series.world_size * peak.flops_per_s)
