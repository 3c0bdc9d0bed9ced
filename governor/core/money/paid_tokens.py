"""What a run's spend has bought, and what a million tokens of it cost: worked out here for all views, rules and rows.

Everything is read when somebody asks. Steps are many, and most rules ask for no price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros
from governor.core.money.steady import steady_per_mtok
from governor.core.money.token_price import TokenPrices, per_mtok, whole_micros
from governor.core.money.token_windows import TokenMeter, Window

# Ticks come every 250 ms. Behind a longer gap nobody listened: no governor ran, or it stood still with its machine.
UNHEARD_MIN_NS: Final = 5 * NS_PER_S
# So long at most a log that was written meanwhile is read, a megabyte with each tick.
READ_LATE_MAX_NS: Final = NS_PER_MINUTE
TOLD_WITHIN_NS: Final = NS_PER_MINUTE  # A rank finds us again within seconds.
# Of 1,346 healthy runs of language models one in a hundred took 45 minutes to its first step.
START_WITHIN_NS: Final = NS_PER_HOUR


@dataclass(slots=True)
class Awaited:
    """Time that was charged at once. What was trained in it is told later, if at all.

    Until a step is counted that ended behind it, the run's money has tokens that nobody knows of, and its price is too
    high. Not stored: whoever starts again has been away.
    """

    until: BootNs | None = None  # None: there is none, or what came behind it was heard.
    lasted_ns: DurationNs = DurationNs(0)
    attempt: str = ""  # Of then.
    since: MonoNs = MonoNs(0)  # When somebody listened again.
    is_before: bool = False  # No governor ran then.
    ticked_to: BootNs | None = None  # By the last tick.
    ticked_at: MonoNs = MonoNs(0)

    def tick(self, boot: BootNs, at: MonoNs, away_ns: int, attempt: str | None, *, is_unbroken: bool) -> None:
        """`away_ns`: at a governor's first tick, for how long there was none. `is_unbroken`: see Tick.

        `attempt`: who may have trained meanwhile, with tokens that are told. None: nobody.
        """
        passed_ns = 0 if self.ticked_to is None or is_unbroken else boot - self.ticked_to
        if attempt is not None and (away_ns or passed_ns >= UNHEARD_MIN_NS):
            longest_ns = self.lasted_ns if self.until is not None else 0
            self.until, self.lasted_ns = boot, DurationNs(max(longest_ns, away_ns, passed_ns))
            self.attempt, self.since, self.is_before = attempt, at, bool(away_ns)
        self.ticked_to, self.ticked_at = boot, at

    def hear(self, counted_to: BootNs, log_read_at: MonoNs | None, *, is_fresh: bool = False) -> None:
        """A step was counted that ended then. Of a log, when its last line was read: more of then may follow it.

        `is_fresh`: but none of before the governor began. To be called before this moment's `tick`.
        """
        if self.until is None or counted_to <= self.until:
            return
        is_read = log_read_at is None or log_read_at <= self.ticked_at or (is_fresh and self.is_before)
        if is_read or counted_to - self.until > READ_LATE_MAX_NS:
            self.until = None

    def give_up(self, at: MonoNs, attempt: str, attempt_at: MonoNs, step_at: MonoNs | None) -> None:
        """No step is told: none was trained, or it hangs. The price is what it is.

        A rank that finds us again tells at once what it has kept, and what it could not keep with its next step. That
        is one of before, so it takes no longer than the time that it was away for, or no step is missing. Of what an
        attempt trained that has ended since, the first step of the next one tells, whose start may take long.
        """
        waited_ns = at - max(self.since, step_at or self.since)
        if attempt == self.attempt:
            is_over = waited_ns > TOLD_WITHIN_NS + self.lasted_ns
        else:
            is_over = at - max(attempt_at, step_at or attempt_at) > START_WITHIN_NS
        if is_over:
            self.until = None


@dataclass(slots=True)
class Bought:
    """What a run's spend has bought by now, over all attempts and restarts of the governor."""

    paid_before: UsdMicros = UsdMicros(0)  # Of the spend, what no window contains: it bought none of the tokens.
    unpriced_ns: int = 0  # The run's time for which no price is known: nothing was charged for it.
    meter: TokenMeter | None = None  # From the first step whose tokens are known.
    # The steady price as the journal has it. It stands until a window closes: those that it is of are not kept.
    steady_before: int | None = None
    awaited: Awaited = field(default_factory=Awaited)

    def spent_before(self, usd_micros: UsdMicros) -> None:
        """So much was spent that buys none of the tokens that come."""
        self.paid_before = usd_micros

    def begin_metering(
        self, window_tokens: int, tokens_total: int, paid_from: BootNs, attempt: str, directory: str | None
    ) -> TokenMeter:
        """The first tokens come. The first window has all that was spent before its first step, and was not before."""
        self.meter = TokenMeter(window_tokens=window_tokens)
        self.meter.begin(tokens_total, self.paid_before, paid_from)
        self.meter.begin_attempt(attempt, directory, trains_again=False, is_anew=False)
        return self.meter

    def hear_attempt(self, attempt: str, directory: str | None, *, trains_again: bool) -> None:
        """An attempt says hello."""
        if self.meter is not None:
            self.meter.trainings.hear(attempt, directory, is_launch=not trains_again)

    def complete_training(self, attempt: str) -> None:
        """The attempt has said that it was trained to its end."""
        if self.meter is not None:
            self.meter.trainings.complete(attempt)

    def progress_of(self, tokens_at: int | None) -> int | None:
        """All that the run has trained, each token once. `tokens_at`: its last step's, which may be behind that."""
        if tokens_at is None or self.meter is None:
            return tokens_at
        return max(tokens_at, self.meter.progress_tokens)

    def go_on(self, before: Bought) -> None:
        """Go on from what the journal has."""
        self.paid_before, self.unpriced_ns = before.paid_before, before.unpriced_ns
        self.meter, self.steady_before = before.meter, before.steady_before

    def keep_steady(self, steady: int | None) -> None:
        """The windows that this is of are not kept."""
        self.steady_before = steady


def bought_of(row: Mapping[str, Any], *, same_boot: bool) -> Bought:
    """What a run's row in the journal has of it. KeyError, TypeError or ValueError when it is not one of ours.

    An older journal has no steady price. One that does not say what bought no tokens had all of it in its windows.
    """
    tokens, steady = row.get("tokens"), row.get("usd_micros_per_mtok_steady")
    meter = TokenMeter.restored(tokens, same_boot=same_boot) if tokens is not None else None
    before = row.get("paid_before_usd_micros", 0 if meter is not None else row["spend_usd_micros"])
    steady_before = int(steady) if steady is not None else None
    return Bought(UsdMicros(int(before)), int(row.get("unpriced_ns", 0)), meter, steady_before)


@dataclass(frozen=True, slots=True)
class PaidTokens:
    """The four prices of one run, exactly. None is unknown. `bought` and `windows` go on with the run."""

    bought: Bought = field(default_factory=Bought)
    windows: Sequence[Window] = ()  # The recent ones.

    def last(self) -> Fraction | None:
        """Of the last window; before the first one closes, of what has come of it."""
        return self.bought.meter.per_mtok if self.bought.meter is not None else None

    def all_in(self, spent_usd_micros: int) -> Fraction | None:
        """All that the run has spent, over all tokens that it trained."""
        meter = self.bought.meter
        return self._of_all(spent_usd_micros, meter.trained_tokens) if meter is not None else None

    def useful(self, spent_usd_micros: int) -> Fraction | None:
        """The same over the tokens of progress."""
        meter = self.bought.meter
        return self._of_all(spent_usd_micros, meter.useful_tokens) if meter is not None else None

    def steady(self) -> Fraction | None:
        """While it trains: see core.money.steady."""
        if self.windows or self.bought.steady_before is None:
            return steady_per_mtok(self.windows)
        return Fraction(self.bought.steady_before)

    def prices(self, spent_usd_micros: int) -> TokenPrices:
        """As views show them."""
        return TokenPrices(
            whole_micros(self.last()),
            whole_micros(self.all_in(spent_usd_micros)),
            whole_micros(self.useful(spent_usd_micros)),
            whole_micros(self.steady()),
            self.bought.unpriced_ns,
        )

    @property
    def unheard_ns(self) -> DurationNs | None:
        """How long nobody listened before what was heard last, while the money of that time waits for its tokens.

        Prices that have this money are unknown to rules then. None: nothing is awaited.
        """
        awaited = self.bought.awaited
        return None if awaited.until is None else awaited.lasted_ns

    @property
    def paid_before(self) -> UsdMicros:
        """Of the run's spend, what bought none of its tokens."""
        return self.bought.paid_before

    @property
    def unpaid_tokens(self) -> int | None:
        """Of the run's total, what it came with or others have paid for. None: none was metered."""
        meter = self.bought.meter
        return meter.began_tokens + meter.lent_tokens if meter is not None else None

    @property
    def counted(self) -> tuple[int, int] | None:
        """What the run has trained for its own money, and of that the progress. None: none was metered."""
        meter = self.bought.meter
        return (meter.trained_tokens, meter.useful_tokens) if meter is not None else None

    def _of_all(self, spent_usd_micros: int, tokens: int) -> Fraction | None:
        """While some of its time has no price, what all of it cost is unknown."""
        bought = self.bought
        return None if bought.unpriced_ns else per_mtok(spent_usd_micros - bought.paid_before, tokens)
