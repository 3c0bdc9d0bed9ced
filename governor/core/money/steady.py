"""The steady price of tokens: what a million costs while a run trains, without its starts and what it trains twice.

A planner's price is one of this kind, so it is what expected is held against. What a calendar pays (all-in) has the
starts, the pauses and the halts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from governor.core.money.forecast import RECENT_WINDOWS
from governor.core.money.token_price import per_mtok
from governor.core.money.token_windows import Window

# Two windows have no middle. Then the sum of what lies between the starts of attempts speaks.
WINDOWS_MIN: Final = 3
# For a rule's variable and a metric alike.
MEANING: Final = (
    f"While it trains: of the last {RECENT_WINDOWS} windows, the median of those in which no attempt began and nothing "
    f"was trained twice; with fewer than {WINDOWS_MIN} of these, of all of them without the starts of attempts."
)


@dataclass(slots=True)
class SteadySum:
    """Windows of one run under one plan."""

    # Micro-dollars and tokens of each window in which no attempt began and nothing was trained twice.
    clean: list[tuple[int, int]] = field(default_factory=list)
    # Of all windows, without the starts of attempts. Tokens that were trained again count: they cost as much.
    usd_micros: int = 0
    tokens: int = 0

    def add(self, window: Window) -> None:
        if window.is_unpriced:
            return
        self.usd_micros += window.steady_usd_micros
        self.tokens += window.steady_tokens
        if not window.has_start and not window.wasted_tokens and window.per_mtok is not None:
            self.clean.append((window.usd_micros, window.tokens))

    @property
    def per_mtok(self) -> Fraction | None:
        """Micro-dollars per million tokens: the median of clean windows, which no save, stall or evaluation moves.

        None without a step that is not an attempt's first.
        """
        if len(self.clean) < WINDOWS_MIN:
            return per_mtok(self.usd_micros, self.tokens)
        ordered = sorted(self.clean, key=lambda one: one[0] / one[1])
        low, high = (per_mtok(*ordered[place]) for place in ((len(ordered) - 1) // 2, len(ordered) // 2))
        assert low is not None, "no clean window is without a price"
        assert high is not None
        return (low + high) / 2


def steady_per_mtok(windows: Iterable[Window]) -> Fraction | None:
    """Of one run's windows under one plan."""
    total = SteadySum()
    for window in windows:
        total.add(window)
    return total.per_mtok
