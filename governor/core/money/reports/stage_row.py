"""A row of the table by stage, and all rows as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from governor.core.money.waste import SpentOn


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage, or the total. None is unknown: no windows, no plan, no ceiling, or no meaning across stages."""

    stage: str
    runs: int
    runs_elsewhere: int  # Of them: they count with another stage in the total, as their ceilings do.
    node_ns: int
    tokens: int
    expected_usd_micros: int | None  # By the all-in price, as what was spent is; see `is_expected_steady`.
    is_expected_steady: bool  # Some of its tokens have no planned all-in price, so this is by the steady one.
    expected_per_mtok: Fraction | None  # Micro-dollars, while it trains.
    actual_usd_micros: int
    per_mtok_useful: Fraction | None  # All money over the tokens of progress: those trained twice count once.
    per_mtok_steady: Fraction | None
    drift: Fraction | None  # Of the steady price from the expected one.
    per_mtok_all_in: Fraction | None  # All money over all trained tokens, those that were trained twice included.
    expected_per_mtok_all_in: Fraction | None
    drift_all_in: Fraction | None  # Of the runs with a planned all-in price alone.
    unplanned_all_in_runs: int  # Without one, in a stage where others have one.
    expected_tokens_per_s: float | None
    tokens_per_s: float | None  # Of all tokens trained, without the starts of attempts.
    wasted_tokens: int
    # In all. Where causes are unknown: of tokens trained twice alone. None: nobody has reported, so nobody knows.
    wasted_usd_micros: int | None
    # Their sum is the line above; what runs of unknown causes wasted is tokens trained twice. None: of all runs.
    wasted_by_cause: dict[str, int] | None
    ceiling_usd_micros: int | None
    ceiling_elsewhere_usd_micros: int  # Of it, that of `runs_elsewhere`.
    used: Fraction | None  # Of the ceilings.
    burn_rate: Fraction | None
    lands_at_usd_micros: int | None
    # Not in `tokens`: of windows that are no longer stored. The cost of a million is unknown then.
    untold_tokens: int
    # Of `tokens`: trained while no price was known. The cost of all tokens is unknown then.
    unpriced_tokens: int
    # Time without a price. The cost of all tokens is unknown then, and the waste is at least what is told.
    unpriced_ns: int
    # Of windows without a planned price, in a stage where others have one.
    unplanned_tokens: int
    unlimited_runs: int  # Without a ceiling, in a stage where others have one.
    reconstructed_usd_micros: int

    @property
    def is_spend_known(self) -> bool:
        """Without a charge: whether nothing was spent. Else no price was known."""
        return self.actual_usd_micros != 0 or not (self.unpriced_ns or self.unpriced_tokens)


def total_of(rows: Iterable[StageRow]) -> StageRow:
    """All stages as one, without prices, speeds and rates: those of different stages have no common meaning."""
    found = list(rows)
    trained = [row for row in found if row.tokens]
    expected = [row.expected_usd_micros for row in trained if row.expected_usd_micros is not None]
    are_steady = {row.is_expected_steady for row in trained}  # Of two kinds there is no sum.
    has_sum = len(expected) == len(trained) and len(are_steady) == 1
    limited = [row for row in found if row.ceiling_usd_micros is not None]
    ceiling = sum((row.ceiling_usd_micros or 0) - row.ceiling_elsewhere_usd_micros for row in limited)
    landings = [row.lands_at_usd_micros for row in trained if row.lands_at_usd_micros is not None]
    told = [row.wasted_by_cause for row in found if row.wasted_by_cause is not None]
    twice = sum(row.wasted_usd_micros or 0 for row in found if row.wasted_by_cause is None)
    others = sum(row.actual_usd_micros for row in found if not row.tokens)
    return StageRow(
        stage="total",
        runs=sum(row.runs - row.runs_elsewhere for row in found),
        runs_elsewhere=0,
        node_ns=sum(row.node_ns for row in found),
        tokens=sum(row.tokens for row in found),
        expected_usd_micros=sum(expected) if has_sum else None,
        is_expected_steady=has_sum and are_steady == {True},
        expected_per_mtok=None,
        actual_usd_micros=sum(row.actual_usd_micros for row in found),
        per_mtok_useful=None,
        per_mtok_steady=None,
        drift=None,
        per_mtok_all_in=None,
        expected_per_mtok_all_in=None,
        drift_all_in=None,
        unplanned_all_in_runs=0,
        expected_tokens_per_s=None,
        tokens_per_s=None,
        wasted_tokens=sum(row.wasted_tokens for row in found),
        wasted_usd_micros=sum_of_known(row.wasted_usd_micros for row in found),
        wasted_by_cause=added(told, twice),
        ceiling_usd_micros=ceiling if limited else None,
        ceiling_elsewhere_usd_micros=0,
        used=None,
        burn_rate=None,
        lands_at_usd_micros=sum(landings) + others if landings and len(landings) == len(trained) else None,
        untold_tokens=sum(row.untold_tokens for row in found),
        unpriced_tokens=sum(row.unpriced_tokens for row in found),
        unpriced_ns=sum(row.unpriced_ns for row in found),
        unplanned_tokens=sum(row.unplanned_tokens for row in trained) if has_sum else 0,
        unlimited_runs=0,
        reconstructed_usd_micros=sum(row.reconstructed_usd_micros for row in found),
    )


def sum_of_known(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def added(known: list[dict[str, int]], twice: int) -> dict[str, int] | None:
    """Waste by cause. `twice`: for tokens trained twice, by runs that know no other cause."""
    if not known:
        return None
    total = {cause: sum(one[cause] for one in known) for cause in known[0]}
    total[SpentOn.TRAINED_TWICE.value] += twice
    return total
