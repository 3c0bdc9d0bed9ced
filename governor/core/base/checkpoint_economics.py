"""How often to save: what saves cost against what a failure loses.

A save of `save_s` every `interval_s` stops training for `save_s / interval_s` of the time; a failure, one in `mtbf_s`
on average, loses half an interval and the restart. The interval that loses least is Young's sqrt(2 d M) (J. W. Young,
"A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974) with the higher-order terms of
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from governor.core.base.units import UsdMicros


@dataclass(frozen=True, slots=True)
class CheckpointEconomics:
    """Shares are of node time; the saving is per hour at the run's spend rate."""

    interval_s: float
    save_s: float
    best_interval_s: float
    lost_share: float  # To saves, lost work and restarts, at the present interval.
    best_lost_share: float
    saved_usd_micros_per_hour: UsdMicros | None  # By going over to the best interval; None: the price is unknown.


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

    Daly's model with failures at any moment, also inside a save or a restart: of the time
    M e^(R/M) (e^((t+d)/M) - 1) that an interval takes on average, t is work.
    """
    assert interval_s > 0
    exponent = (interval_s + save_s) / mtbf_s
    if exponent > 700 or restart_s / mtbf_s > 700:  # Beyond a float: such a run ends no interval in this universe.
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
    return CheckpointEconomics(interval_s, save_s, best_s, now, best, saved)
