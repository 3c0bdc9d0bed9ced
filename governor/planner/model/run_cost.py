"""From tokens per second to hours and dollars: the steady state, and the calendar with all interruptions.

A plan is an estimate, so dollars are floats and the output rounds them. Unknown prices stay unknown (None).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final, NamedTuple

from governor.core.base.save_interval import best_interval_s, lost_share, mtbf_s

HOUR_S: Final = 3600.0
MTOK: Final = 1e6
# Bytes of a checkpoint: bf16 weights, and fp32 master weights and two Adam moments (Rajbhandari et al. 2020, §3.1).
CHECKPOINT_BYTES_PER_PARAM: Final = 14
# GB/s that one node writes to shared storage. Rule of thumb, between a network volume (0.1-1) and a parallel file
# system (Llama 3's sustained 2 TB/s over 2,000 nodes: arXiv 2407.21783 §3.3.1).
NODE_WRITE_GBPS: Final = 1.0
# Time to notice, schedule, load and compile again. Rule of thumb: MegaScale (arXiv 2402.15627) recovers within 15
# minutes.
RESTART_S: Final = 900.0
# Not only machines fail. A loss spike, a bug or an operator should cost no more work than this.
INTERVAL_MAX_S: Final = 2 * HOUR_S
# In-loop evaluations, as a share of training. Rule of thumb: 1-3 %.
EVALUATION_SHARE: Final = 0.02
# Hours until a spot machine is taken away. Rule of thumb: AWS shows most GPU types at over 20 % a month or without a
# figure; a day is the usual planning figure where interruptions are frequent.
SPOT_HOURS_PER_LOSS: Final = 24.0
# GPU hours of finished public runs (model cards and reports) over what this planner names of their published set-ups:
# steady state, saves, failures, evaluations. tests/unit/planner/test_whole_runs.py has the set-ups and checks this
# table against them. The ratio contains stages of long context, small initial batches, slower software, work thrown
# away, and the error of the prediction.
FINISHED_RUNS: Final[Mapping[str, float]] = {
    "DeepSeek-V3": 0.85,
    "LLaMA-65B": 0.92,
    "Llama-2-70B": 0.94,
    "IBM 7B": 1.02,
    "Llama-2-7B": 1.08,
    "Llama-3.1-405B": 1.08,
    "BLOOM": 1.12,
    "Llama-2-13B": 1.17,
    "Llama-3-70B": 1.23,
    "Llama-3-8B": 2.64,
}
_LOGS: Final = [math.log(ratio) for ratio in FINISHED_RUNS.values()]
REST_USUAL: Final = math.exp(fmean(_LOGS))  # 1.14
REST_SIGMA: Final = stdev(_LOGS)  # 0.32, of the logarithm
_BETWEEN: Final = f"{min(FINISHED_RUNS.values())} to {max(FINISHED_RUNS.values())}"
# An interval of 80 % has a tenth of the cases above it. A limit is held where a fifth would be above: P80.
HIGH: Final = 0.9
HELD: Final = 0.8
_NORMAL: Final = NormalDist()


def width_of(sigma: float, share: float) -> float:
    """The factor over the median below which `share` of a log-normal's cases lie."""
    return math.exp(_NORMAL.inv_cdf(share) * sigma)


def chance_above(limit: float, median: float, sigma: float) -> float:
    """How probable it is that a log-normal's case lies above the limit."""
    if sigma <= 0:
        return float(median > limit)
    return _NORMAL.cdf(math.log(median / limit) / sigma)


def calendar_sigma(speed_sigma: float) -> float:
    """The standard deviation of the logarithm of calendar hours: the speed's doubt and the finished runs'."""
    return math.hypot(speed_sigma, REST_SIGMA)


class Spread(NamedTuple):
    """An estimate with the ends of its 80 % interval."""

    low: float
    mid: float
    high: float

    def times(self, factor: float) -> Spread:
        return Spread(self.low * factor, self.mid * factor, self.high * factor)

    def under(self, numerator: float) -> Spread:
        """`numerator / self`: the fastest costs the least."""
        return Spread(numerator / self.high, numerator / self.mid, numerator / self.low)

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.high / self.low) / (2 * _NORMAL.inv_cdf(HIGH))


@dataclass(frozen=True, slots=True)
class Saving:
    """How a run saves: the training time that one save costs, and the time between two saves."""

    save_s: float
    interval_s: float
    is_assumed: bool  # Neither value was stated.


@dataclass(frozen=True, slots=True)
class Part:
    """One reason why the calendar takes longer than the steady state."""

    name: str
    hours: float
    basis: str  # modelled, rule of thumb or measured, with its source


@dataclass(frozen=True, slots=True)
class RunCost:
    """`steady` is uninterrupted training at the usual speed. `calendar` is the time that the machines are paid for.

    Of a stated speed the calendar is no interval of 80 %: it goes from its named parts to these with the usual rest.
    """

    tokens: float
    gpus: int
    gpu_hour_usd: float | None
    steady_hours: Spread
    calendar_hours: Spread
    held_hours: float  # of the calendar. Four runs of five take no longer (P80): limits apply to it.
    parts: tuple[Part, ...]  # of calendar_hours.mid, beyond steady_hours.mid
    saving: Saving
    is_measured: bool = False

    @property
    def hour_usd(self) -> float | None:
        return None if self.gpu_hour_usd is None else self.gpus * self.gpu_hour_usd

    @property
    def steady_usd(self) -> Spread | None:
        return None if self.hour_usd is None else self.steady_hours.times(self.hour_usd)

    @property
    def calendar_usd(self) -> Spread | None:
        return None if self.hour_usd is None else self.calendar_hours.times(self.hour_usd)

    @property
    def held_usd(self) -> float | None:
        return None if self.hour_usd is None else self.held_hours * self.hour_usd

    @property
    def mtok_usd(self) -> Spread | None:
        """Dollars per million tokens in the steady state."""
        return None if self.steady_usd is None else self.steady_usd.times(MTOK / self.tokens)


def failures_mtbf_s(gpus: int, nodes: int, *, is_spot: bool) -> float:
    """Mean time between interruptions of the whole job."""
    failing = mtbf_s(gpus)
    return 1 / (1 / failing + nodes / (SPOT_HOURS_PER_LOSS * HOUR_S)) if is_spot else failing


def best_saving_s(save_s: float, mtbf: float) -> float:
    """The time between two saves that loses the least (Daly 2006), within bounds."""
    return min(max(best_interval_s(save_s, mtbf), save_s), max(INTERVAL_MAX_S, save_s))


def saving_of(
    params: float, nodes: int, mtbf: float, save_s: float | None = None, interval_s: float | None = None
) -> Saving:
    """The stated values; else the time to write a checkpoint's bytes, and the interval that loses the least (Daly)."""
    took = (
        save_s
        if save_s is not None
        else max(CHECKPOINT_BYTES_PER_PARAM * params / (nodes * NODE_WRITE_GBPS * 1e9), 1.0)
    )
    every = interval_s if interval_s is not None else best_saving_s(took, mtbf)
    return Saving(took, every, save_s is None and interval_s is None)


def lost_to_failures(saving: Saving, mtbf: float) -> float:
    """The share of the time that saves, lost work and restarts take. Nearly 1 when no interval ever ends."""
    return min(lost_share(saving.interval_s, saving.save_s, mtbf, RESTART_S), 0.99)


def named_factor(saving: Saving, mtbf: float) -> float:
    """Hours of steady state, evaluations, saves and failures over hours of steady state."""
    return (1 + EVALUATION_SHARE) / (1 - lost_to_failures(saving, mtbf))


def calendar_usual(saving: Saving, mtbf: float) -> float:
    """The usual calendar hours over steady hours: the named parts, and over them the usual rest of finished runs."""
    return REST_USUAL * named_factor(saving, mtbf)


def run_cost(
    tokens: float,
    tokens_per_s: Spread,
    gpus: int,
    gpu_hour_usd: float | None,
    saving: Saving,
    mtbf: float,
    *,
    is_measured: bool = False,
) -> RunCost:
    """The cost of a run. `tokens_per_s` is for the whole run.

    Over the named parts comes the rest of finished runs: its usual factor, and its doubt beside the speed's. A measured
    speed already contains its software and its loader: the rest then applies to the upper end only.
    """
    steady = tokens_per_s.under(tokens / HOUR_S)
    named = named_factor(saving, mtbf) * steady.mid
    evaluations = steady.mid * EVALUATION_SHARE
    if is_measured:
        calendar, held = Spread(named, named, named * REST_USUAL), named * REST_USUAL
    else:
        usual, sigma = named * REST_USUAL, calendar_sigma(steady.sigma)
        width, held = width_of(sigma, HIGH), usual * width_of(sigma, HELD)
        calendar = Spread(usual / width, usual, usual * width)
    how = f"a save of {saving.save_s:.0f} s every {saving.interval_s / 60:.0f} min, a failure in {mtbf / HOUR_S:,.0f} h"
    parts: tuple[Part, ...] = (
        Part("saves, failures, restarts", named - steady.mid - evaluations, f"modelled: {how}"),
        Part("evaluations", evaluations, f"rule of thumb: {EVALUATION_SHARE:.0%} of training"),
        Part(
            "the rest of what finished runs took",
            calendar.mid - named,
            f"measured: {len(FINISHED_RUNS)} public runs took {_BETWEEN} times the rows above",
        ),
    )
    parts = parts[:2] if is_measured else parts
    return RunCost(tokens, gpus, gpu_hour_usd, steady, calendar, held, parts, saving, is_measured)
