"""How often to save: the cost of saves against the loss at a failure.

A save of `save_s` every `interval_s` stops training for `save_s / interval_s` of the time. A failure, one per `mtbf_s`
on average, loses half an interval and the restart. The interval that loses least is Young's sqrt(2 d M) (J. W. Young,
"A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974) with the higher-order terms of J. T.
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.reservoir import Reservoir
from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros


@dataclass(frozen=True, slots=True)
class CheckpointEconomics:
    """Shares are of node time; the saving is per hour at the run's spend rate."""

    interval_s: float
    save_s: float
    best_interval_s: float
    # Lost to saves, lost work and restarts, at the present interval.
    lost_share: float
    # The saving of the best interval; None: the price is unknown.
    saved_usd_micros_per_hour: UsdMicros | None


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return Daly's optimum between the end of one save and the begin of the next, in seconds."""
    assert save_s > 0
    assert mtbf_s > 0
    if save_s >= 2 * mtbf_s:
        return mtbf_s  # A save hardly ever succeeds: Daly's bound.
    ratio = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def lost_share(interval_s: float, save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Return the expected share of time that goes to saves, lost work and restarts; 1.0 = no progress at all.

    Daly's model, with failures at any moment, also inside a save or a restart. An interval takes M e^(R/M) (e^((t+d)/M)
    - 1) on average; t of it is work.
    """
    assert interval_s > 0
    exponent = (interval_s + save_s) / mtbf_s
    if exponent > 700 or restart_s / mtbf_s > 700:  # Beyond a float: such a run never ends an interval.
        return 1.0
    expected_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent)
    return 1 - interval_s / expected_s


def economics(
    *,
    interval_s: float,
    save_s: float,
    mtbf_s: float,
    restart_s: float,
    rate_usd_micros_per_hour: UsdMicros | None,
) -> CheckpointEconomics:
    """Compare the present interval with the best one."""
    best_s = best_interval_s(save_s, mtbf_s)
    now, best = (lost_share(one, save_s, mtbf_s, restart_s) for one in (interval_s, best_s))
    gained = max(0.0, now - best)
    saved = None if rate_usd_micros_per_hour is None else UsdMicros(int(rate_usd_micros_per_hour * gained))
    return CheckpointEconomics(interval_s, save_s, best_s, now, saved)


# The advice: how often a run saves and how long that takes, from its own steps, and what another interval would save.
# Every save that stops the trainer is in a step's checkpoint time, whoever requested it. One run does not show its
# failure rate. HOURS_PER_FAILURE is assumed, for machines alone, and named wherever a figure rests on it. A spot
# machine is lost more often.


# The median of eight ignores one or two odd ones, and forgets yesterday's rhythm.
SAVES_REMEMBERED: Final = 8
SAVE_S_MIN: Final = 0.01  # A shorter save writes nothing that a restart could use.
SAVE_S_MAX: Final = 24 * 3600.0  # A longer one is a broken clock or a hostile frame.
# GPU hours per unexpected interruption: 419 in 54 days on 16,384 H100 (Meta, "The Llama 3 Herd of Models", 2024, on
# reliability and operational challenges).
HOURS_PER_FAILURE: Final = 54 * 24 * 16_384 / 419


@dataclass(slots=True)
class Saves:
    """The saves of one run. `between_s` runs from the end of one save to the begin of the next.

    `rhythm_ns` runs from one state of the run that is saved to the next, however little time a save takes.
    """

    took_s: Reservoir = field(default_factory=lambda: Reservoir(SAVES_REMEMBERED))
    between_s: Reservoir = field(default_factory=lambda: Reservoir(SAVES_REMEMBERED))
    ended_at: MonoNs | None = None  # The end of the last save of this attempt.
    rhythm_ns: Reservoir = field(default_factory=lambda: Reservoir(SAVES_REMEMBERED))
    state_at: MonoNs | None = None  # When the work was done that was saved last in this attempt.

    def new_attempt(self) -> None:
        """Forget the last save: the time since it was not all training."""
        self.ended_at = self.state_at = None

    def keep(self, state_at: MonoNs) -> None:
        """Enter that the work up to this moment is saved."""
        if self.state_at is not None and state_at > self.state_at:
            self.rhythm_ns.add(state_at - self.state_at)
        self.state_at = max(state_at, self.state_at or state_at)

    def observe(self, at: MonoNs, checkpoint_s: float | None) -> None:
        """Enter a step that saves stopped for `checkpoint_s`."""
        if checkpoint_s is None or not SAVE_S_MIN <= checkpoint_s <= SAVE_S_MAX:
            return
        if self.ended_at is not None:
            between_s = (at - self.ended_at) / NS_PER_S - checkpoint_s
            if between_s > 0:
                self.between_s.add(between_s)
        self.ended_at = at
        self.took_s.add(checkpoint_s)


def mtbf_s(gpus: int) -> float:
    """The assumed mean time between failures of a job on so many GPUs."""
    return HOURS_PER_FAILURE * 3600 / max(1, gpus)


def advice(
    saves: Saves, *, gpus: int, restart_s: float, rate_usd_micros_per_hour: UsdMicros | None
) -> CheckpointEconomics | None:
    """None until two saves were seen."""
    took_s, between_s = saves.took_s.median(), saves.between_s.median()
    if took_s is None or between_s is None:
        return None
    return economics(
        interval_s=between_s,
        save_s=took_s,
        mtbf_s=mtbf_s(gpus),
        restart_s=restart_s,
        rate_usd_micros_per_hour=rate_usd_micros_per_hour,
    )
