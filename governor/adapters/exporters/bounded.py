"""What a scrape may hold: few runs, and short printable labels, all distinct."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from governor.adapters.exporters.metric import clean
from governor.core.base.units import UsdMicros
from governor.core.money.token_price import TokenPrices
from governor.core.money.waste import WASTE
from governor.core.views.metrics import MetricsSnapshot, RunReading

RUNS_SHOWN_MAX: Final = 32  # A node holds a handful. 32 x 30 series is still a small scrape.
OTHER_RUNS: Final = "_other"  # Holds the sums of runs beyond RUNS_SHOWN_MAX.


def shown(snapshot: MetricsSnapshot) -> MetricsSnapshot:
    """Bound and clean the labels: few runs, short printable names, all distinct.

    A scraper refuses the whole page if two samples have the same labels, so a run that would collide is summed.
    """
    kept: dict[str, RunReading] = {}
    others: list[RunReading] = []
    for run in snapshot.runs:
        label = clean(run.run)
        if label in kept or label == OTHER_RUNS or len(kept) == RUNS_SHOWN_MAX:
            others.append(run)
        else:
            kept[label] = run
    runs = [*kept.values(), *([_summed(others)] if others else [])]
    return replace(snapshot, runs=tuple(runs))


def _summed(others: list[RunReading]) -> RunReading:
    return RunReading(
        run=OTHER_RUNS,
        spend_usd_micros=UsdMicros(sum(run.spend_usd_micros for run in others)),
        tokens_total=sum(run.tokens_total or 0 for run in others),
        tokens_nonpad=sum(run.tokens_nonpad or 0 for run in others),
        tokens_wasted=sum(run.tokens_wasted or 0 for run in others),
        wasted_usd_micros={
            cause.value: sum((run.wasted_usd_micros or {}).get(cause.value, 0) for run in others) for cause in WASTE
        },
        time={cause: _added(others, cause) for cause in sorted({cause for run in others for cause in run.time})},
        prices=TokenPrices(unpriced_ns=sum(run.prices.unpriced_ns for run in others)),
        ranks_connected=sum(run.ranks_connected for run in others),
        world_size=sum(run.world_size for run in others),
        incidents_total=sum(run.incidents_total for run in others),
        alive=any(run.alive for run in others),
        watched=all(run.watched is not False for run in others),
    )


def _added(others: list[RunReading], cause: str) -> tuple[int, int]:
    amounts = [run.time.get(cause, (0, 0)) for run in others]
    return sum(ns for ns, _ in amounts), sum(micros for _, micros in amounts)
