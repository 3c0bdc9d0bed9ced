"""What is known of a run before it is told: its row, its halts, its recording, and the peak of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.model_speed import NO_NAME, SLICED, ModelSpeed, Peak, model_speed, peak_of_names
from governor.reports.run.series import RunSeries


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
    peak: Peak | None = None  # Of the GPU that the user names.
    peaks: Mapping[str, Peak] = field(default_factory=dict)  # By the names that drivers have for GPUs.


def speed_of(facts: RunFacts) -> ModelSpeed:
    """While it steps, over the whole recording; `costgov status` tells the same of the last steps."""
    series = facts.series
    if series is None:
        return ModelSpeed()
    named = peak_of_names(frozenset(series.gpu_names), facts.peaks)
    peak = facts.peak or (f"{NO_NAME}; name it with --gpu" if named == NO_NAME else named)
    if facts.peak is None and series.has_slices:
        peak = SLICED
    return model_speed(series.tokens_per_s, series.parameters, series.ranks_usual if series.has_gpus else None, peak)


def peak_used(facts: RunFacts) -> Peak | None:
    """The peak that the MFU is of: of the GPU that the user names, else of those that the recording names."""
    if facts.peak is not None or facts.series is None or facts.series.has_slices:
        return facts.peak
    named = peak_of_names(frozenset(facts.series.gpu_names), facts.peaks)
    return None if isinstance(named, str) else named
