"""Since when all GPUs of a run stand idle, from the samples of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.machine import GpuSample
from governor.core.rules.trigger_state import UNKEPT

STALE_NS: Final = DurationNs(120 * NS_PER_S)  # Loggers sample every 2 to 60 s: two of the slowest missed.


@dataclass(slots=True)
class GpusIdleSince:
    """Samples that are missing are no idleness: after a gap it is counted anew. What nobody watched is no evidence."""

    frac: float = field(metadata=UNKEPT)  # Idle: every GPU is busy for no more than this part of the time.
    sampled_at: MonoNs | None = field(default=None, metadata=UNKEPT)
    since: MonoNs | None = field(default=None, metadata=UNKEPT)

    def observe(self, sample: GpuSample) -> None:
        fracs = [frac for frac in sample.busy_frac if frac is not None and 0 <= frac <= 1]  # NaN fails too.
        if not fracs or len(fracs) < len(sample.busy_frac):
            self.sampled_at = self.since = None  # One that is not told may be busy: this is no sample of all of them.
            return
        last, self.sampled_at = self.sampled_at, sample.at
        if last is None or sample.at - last > STALE_NS or max(fracs) > self.frac:
            self.since = None
        if self.since is None and max(fracs) <= self.frac:
            self.since = sample.at

    def is_known(self, at: MonoNs) -> bool:
        return self.sampled_at is not None and at - self.sampled_at <= STALE_NS

    def idle_ns(self, at: MonoNs) -> DurationNs:
        """For how long they had stood idle when last seen; 0 while one works, or nobody knows."""
        if self.since is None or self.sampled_at is None or not self.is_known(at):
            return DurationNs(0)
        return DurationNs(self.sampled_at - self.since)
