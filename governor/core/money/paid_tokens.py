"""The tokens that a run's spend has bought by now, for prices that are divided when a rule asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from governor.core.money.steady import steady_per_mtok
from governor.core.money.token_price import per_mtok, whole_micros
from governor.core.money.token_windows import Window


@dataclass(slots=True)
class PaidTokens:
    """Owned by the engine, which sets it with each step and tick."""

    trained: int = 0  # Again or for the first time.
    useful: int = 0  # Each counted once.
    paid_before: int = 0  # Of the run's spend, what bought none of them.
    unpriced_ns: int = 0  # Of the run's time, what has no price. Then what all of them cost is unknown.
    windows: Sequence[Window] = ()  # The recent ones.

    def all_in(self, spent_usd_micros: int) -> int | None:
        return self._of_all(spent_usd_micros, self.trained)

    def useful_price(self, spent_usd_micros: int) -> int | None:
        return self._of_all(spent_usd_micros, self.useful)

    def steady(self) -> int | None:
        return whole_micros(steady_per_mtok(self.windows))

    def _of_all(self, spent_usd_micros: int, tokens: int) -> int | None:
        return None if self.unpriced_ns else whole_micros(per_mtok(spent_usd_micros - self.paid_before, tokens))
