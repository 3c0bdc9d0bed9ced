"""Since when all GPUs of a run have been idle, by their samples; the base of the triggers that judge by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.inputs import Event
from governor.core.events.machine import GpuSample
from governor.core.rules.trigger import FOREVER, Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import Run

# Loggers sample every 2 to 60 s, so two samples of the slowest logger are missing.
STALE_NS: Final = DurationNs(120 * NS_PER_S)


@dataclass(slots=True)
class GpusIdleSince:
    """Counts idle time from zero after a gap: missing samples, or a governor that was down, are no evidence."""

    # A GPU is idle if it is busy for no more than this part of the time.
    frac: float = field(metadata=UNKEPT)
    sampled_at: MonoNs | None = field(default=None, metadata=UNKEPT)
    since: MonoNs | None = field(default=None, metadata=UNKEPT)

    def observe(self, sample: GpuSample) -> None:
        # One that has fallen off the bus computes nothing: the others tell.
        all_fracs = [frac for place, frac in enumerate(sample.busy_frac) if not sample.is_lost(place)]
        fracs = [frac for frac in all_fracs if frac is not None and 0 <= frac <= 1]  # NaN fails too.
        if not fracs or len(fracs) < len(all_fracs):
            # A GPU without a value may be busy, so this sample does not cover all of them.
            self.sampled_at = self.since = None
            return
        last, self.sampled_at = self.sampled_at, sample.at
        if last is None or sample.at - last > STALE_NS or max(fracs) > self.frac:
            self.since = None
        if self.since is None and max(fracs) <= self.frac:
            self.since = sample.at

    def is_known(self, at: MonoNs) -> bool:
        return self.sampled_at is not None and at - self.sampled_at <= STALE_NS

    def idle_ns(self, at: MonoNs) -> DurationNs:
        """How long all GPUs had been idle at the last sample; 0 while one works, or when that is unknown."""
        if self.since is None or self.sampled_at is None or not self.is_known(at):
            return DurationNs(0)
        return DurationNs(self.sampled_at - self.since)


class GpuIdleTrigger(Trigger):
    """Follows the idle time of the run's GPUs. A trigger has the keys `after` and `idle_frac`, and judges."""

    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({GpuSample})
    LIMITS: ClassVar[tuple[str, ...]] = ("after",)

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._after_ns: DurationNs = params["after"]
        self._idle_frac: float = params["idle_frac"]
        self._state: GpusIdleSince = self._fresh()

    def _fresh(self) -> GpusIdleSince:
        return GpusIdleSince(self._idle_frac)

    def observe(self, event: Event, run: Run) -> None:
        if isinstance(event, GpuSample):
            self._state.observe(event)

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """A sample holds until it is stale."""
        sampled_at = self._state.sampled_at
        return MonoNs(sampled_at + STALE_NS) if sampled_at is not None and self._state.is_known(at) else FOREVER
