"""How stably a run trains: overflows, the loss scale's path, gradient norms and spikes. Bounded for any length."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.events.inputs import Step
from governor.wire.recordings.speaker import AHEAD_MAX

# A spike is above the median of so many values before it, by so many times their usual spread.
USUAL_OF: Final = 100
USUAL_MIN: Final = 20
SPREADS: Final = 6.0
# A normal distribution's quartiles lie so many standard deviations apart.
_QUARTILES_APART: Final = 1.349
LEAST_FRAC: Final = 0.05  # Of a smooth loss every ripple is many spreads high.
APART_STEPS: Final = 10  # Nearer spikes are one.
SPIKES_MAX: Final = 50  # More are counted, and not named.
CHANGES_MAX: Final = 100  # Of the loss scale: so many of the first ones, and of the last ones.
PER_OCTAVE: Final = 64  # Quantiles are exact to 1 %.


@dataclass(slots=True)
class Spike:
    step: int
    value: float
    usual: float


@dataclass(slots=True)
class Spikes:
    """Of one figure that should be smooth."""

    count: int = 0
    largest: list[Spike] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_OF))
    _ordered: list[float] = field(default_factory=list)
    _last_step: int | None = None

    def see(self, step: int, value: float) -> None:
        """Take a finite value."""
        ordered, count = self._ordered, len(self._ordered)
        if count >= USUAL_MIN:
            usual = ordered[count // 2]
            spread = (ordered[3 * count // 4] - ordered[count // 4]) / _QUARTILES_APART
            if value > usual + max(SPREADS * spread, LEAST_FRAC * abs(usual)):
                self._note(Spike(step, value, usual))
        if len(self._recent) == USUAL_OF:
            del ordered[bisect_left(ordered, self._recent[0])]
        self._recent.append(value)
        insort(ordered, value)

    def _note(self, spike: Spike) -> None:
        is_same = self._last_step is not None and 0 <= spike.step - self._last_step <= APART_STEPS
        self._last_step = spike.step
        if is_same:
            if self.largest and spike.value > self.largest[-1].value:
                self.largest[-1].value = spike.value
            return
        self.count += 1
        if len(self.largest) < SPIKES_MAX:
            self.largest.append(spike)


@dataclass(slots=True)
class Spread:
    """The statistics of values above zero, in buckets of equal ratio."""

    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Take a finite value."""
        self.count += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)
        place = math.floor(math.log2(value) * PER_OCTAVE) if value > 0 else -(2**31)
        self._buckets[place] = self._buckets.get(place, 0) + 1

    def quantile(self, share: float) -> float:
        """The nearest rank, to 1 %: of fewer than 100 values the 99th percentile is the largest. There is a value."""
        wanted, seen = math.ceil(share * self.count - 1e-9) - 1, 0
        for place in sorted(self._buckets):
            seen += self._buckets[place]
            if seen > wanted:
                middle = 2 ** ((place + 0.5) / PER_OCTAVE) if place > -(2**31) else 0.0
                return min(max(middle, self.low), self.high)
        return self.high

    def row(self) -> dict[str, Any] | None:
        if not self.count:
            return None
        return {
            "count": self.count, "mean": self.total / self.count, "min": self.low, "median": self.quantile(0.5),
            "p95": self.quantile(0.95), "p99": self.quantile(0.99), "max": self.high,
        }  # fmt: skip


@dataclass(slots=True)
class LossScale:
    """Its path: each change. A scale that falls again and again says that gradients overflow."""

    first: float | None = None
    last: float | None = None
    low: float = math.inf
    high: float = -math.inf
    raised: int = 0
    lowered: int = 0
    begin: list[tuple[int, float]] = field(default_factory=list)
    end: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))

    def see(self, step: int, scale: float) -> None:
        if not math.isfinite(scale):
            return
        self.low, self.high = min(self.low, scale), max(self.high, scale)
        if scale == self.last:
            return
        if self.last is None:
            self.first = scale
        else:
            self.raised += scale > self.last
            self.lowered += scale < self.last
        self.last = scale
        kept = self.begin if len(self.begin) < CHANGES_MAX else self.end
        kept.append((step, scale))

    def row(self) -> dict[str, Any] | None:
        if self.first is None:
            return None
        return {
            "first": self.first, "last": self.last, "min": self.low, "max": self.high, "raised": self.raised,
            "lowered": self.lowered, "changes": [list(one) for one in (*self.begin, *self.end)],
        }  # fmt: skip


@dataclass(slots=True)
class Stability:
    """Of the run's steps, in their order. A loss that is no number counts of any rank."""

    steps: int = 0
    skipped: int = 0  # Updates that the optimizer left out.
    nonfinite_loss: int = 0
    nonfinite_norm: int = 0
    first_nonfinite: int | None = None
    vanished: int = 0  # Steps that should have had a loss, and had none.
    norms: Spread = field(default_factory=Spread)
    scale: LossScale = field(default_factory=LossScale)
    loss_spikes: Spikes = field(default_factory=Spikes)
    norm_spikes: Spikes = field(default_factory=Spikes)
    told: set[str] = field(default_factory=set)
    _skipped_before: int = 0
    # This attempt's last ones, of any rank: one may tell some steps before the others do.
    _broken: deque[int] = field(default_factory=lambda: deque(maxlen=AHEAD_MAX))

    def see(self, step: Step) -> None:
        self.steps += 1
        if step.loss is not None:
            self.told.add("loss")
            if math.isfinite(step.loss):
                self.loss_spikes.see(step.step, step.loss)
            elif self._is_first_broken(step.step):
                self.nonfinite_loss += 1
        elif step.loss_expected:
            self.vanished += 1
        if step.grad_norm is not None:
            self.told.add("grad_norm")
            if math.isfinite(step.grad_norm):
                self.norms.add(step.grad_norm)
                self.norm_spikes.see(step.step, step.grad_norm)
            else:
                self.nonfinite_norm += 1
                self._note_broken(step.step)
        if step.loss_scale is not None:
            self.told.add("loss_scale")
            self.scale.see(step.step, step.loss_scale)
        self._see_skipped(step)

    def see_broken(self, step: int) -> None:
        """Another rank's loss was no number: it counts, whoever has it."""
        if self._is_first_broken(step):
            self.nonfinite_loss += 1
            self.told.add("loss")

    def new_attempt(self) -> None:
        """Its count of skipped steps begins anew, and so do its steps."""
        self._skipped_before = 0
        self._broken.clear()

    def _see_skipped(self, step: Step) -> None:
        if step.skipped_steps is not None:
            self.told.add("skipped")
            self.skipped += max(0, step.skipped_steps - self._skipped_before)
            self._skipped_before = step.skipped_steps
        elif step.applied is not None:
            self.told.add("skipped")
            self.skipped += not step.applied

    def _is_first_broken(self, step: int) -> bool:
        """Whether no rank has told of a loss that is no number at this step."""
        is_first = step not in self._broken
        if is_first:
            self._broken.append(step)
        self._note_broken(step)
        return is_first

    def _note_broken(self, step: int) -> None:
        if self.first_nonfinite is None:
            self.first_nonfinite = step

    def row(self) -> dict[str, Any]:
        """Plain JSON. None is untold."""
        return {
            "steps": self.steps,
            "skipped_steps": self.skipped if "skipped" in self.told else None,
            "nonfinite_loss_steps": self.nonfinite_loss if "loss" in self.told else None,
            "nonfinite_grad_norm_steps": self.nonfinite_norm if "grad_norm" in self.told else None,
            "first_nonfinite_step": self.first_nonfinite,
            "vanished_loss_steps": self.vanished,
            "loss_scale": self.scale.row(),
            "grad_norm": self.norms.row(),
            "loss_spikes": _spikes_row(self.loss_spikes) if "loss" in self.told else None,
            "grad_norm_spikes": _spikes_row(self.norm_spikes) if "grad_norm" in self.told else None,
        }


def _spikes_row(spikes: Spikes) -> dict[str, Any]:
    found = [{"step": one.step, "value": one.value, "usual": one.usual} for one in spikes.largest]
    return {"count": spikes.count, "named": found}
