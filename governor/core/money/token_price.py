"""What a million tokens cost: the one division of dollars by tokens, its rounding, and its comparison with a plan.

Every figure called `usd_per_mtok…`, in whatever view, is divided and rounded here. A drift is taken of the exact price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from governor.core.base.units import MTOK


def per_mtok(usd_micros: int, tokens: int) -> Fraction | None:
    """Micro-dollars for a million tokens, exactly. None is unknown: without tokens, and where nothing was spent.

    No machine is free: a price of zero is refused (core.money.prices). So tokens for nothing are tokens of which nobody
    here knows the cost. No price was known, another run pays for them, what was charged too much before is being worked
    off, or they took less than a micro-dollar's time.
    """
    return Fraction(usd_micros * MTOK, tokens) if usd_micros > 0 and tokens > 0 else None


def whole_micros(price: Fraction | None) -> int | None:
    """The price as every view shows it: in whole micro-dollars, rounded down."""
    return None if price is None else int(price)


def over(price: Fraction | None, planned: Fraction | int | None) -> Fraction | None:
    """How many times the planned price it is. None where either is unknown."""
    return price / planned if price is not None and planned else None


def drift(price: Fraction | None, planned: Fraction | int | None) -> Fraction | None:
    """Actual over planned, minus one: 0.1 is 10 % dearer than planned."""
    times = over(price, planned)
    return None if times is None else times - 1


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What a million tokens of a run cost, in micro-dollars: four figures with a name each. None is unknown."""

    # Of the last window of tokens: what training costs now.
    last: int | None = None
    # All that the run has spent over all tokens that it trained: with its start, its pauses and its halts.
    all_in: int | None = None
    # The same over the tokens of progress: those that were trained twice count once.
    useful: int | None = None
    # While it trains, of the recent windows: without the starts of attempts (core.money.steady).
    steady: int | None = None
    unpriced_ns: int = 0  # Of the run's time, what has no price. All-in and useful are unknown then.

    def named(self, name: str) -> dict[str, int | None]:
        """By the names that all views share: `name` alone is of the last window."""
        return {name + suffix: getattr(self, field) for suffix, field in PRICE_NAMES.items()}

    @classmethod
    def of(cls, row: Mapping[str, Any], name: str) -> TokenPrices:
        """Read them back. An older row has not all of them."""
        prices = {field: row.get(name + suffix) for suffix, field in PRICE_NAMES.items()}
        return cls(**prices, unpriced_ns=int(row.get("unpriced_ns", 0)))


# What follows `usd_per_mtok` in a name.
PRICE_NAMES: Final = {"": "last", "_all_in": "all_in", "_useful": "useful", "_steady": "steady"}
