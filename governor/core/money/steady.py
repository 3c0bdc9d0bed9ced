"""The steady price of tokens: what a million costs while a run trains, without its starts and what it trains twice.

A planner's price is one of this kind, so it is what expected is held against. What a calendar pays (all-in) has the
starts, the pauses and the halts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from governor.core.money.token_price import per_mtok, whole_micros
from governor.core.money.token_windows import Window

# Two windows have no middle. Then the sum of what lies between the starts of attempts speaks.
WINDOWS_MIN: Final = 3


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


@dataclass(slots=True)
class PaidTokens:
    """The tokens that a run's spend has bought by now, for prices that are divided when a rule asks."""

    trained: int = 0  # Again or for the first time.
    useful: int = 0  # Each counted once.
    paid_before: int = 0  # Of the run's spend, what bought none of them.
    unpriced_ns: int = 0  # Of the run's time, what has no price. Then what all of them cost is unknown.
    windows: Sequence[Window] = ()  # The recent ones.

    def take_meter(self, trained: int, useful: int) -> None:
        self.trained, self.useful = trained, useful

    def take_money(self, paid_before: int, unpriced_ns: int, windows: Sequence[Window]) -> None:
        self.paid_before, self.unpriced_ns, self.windows = paid_before, unpriced_ns, windows

    def all_in(self, spent_usd_micros: int) -> int | None:
        return self._of_all(spent_usd_micros, self.trained)

    def useful_price(self, spent_usd_micros: int) -> int | None:
        return self._of_all(spent_usd_micros, self.useful)

    def steady(self) -> int | None:
        return whole_micros(steady_per_mtok(self.windows))

    def _of_all(self, spent_usd_micros: int, tokens: int) -> int | None:
        return None if self.unpriced_ns else whole_micros(per_mtok(spent_usd_micros - self.paid_before, tokens))
