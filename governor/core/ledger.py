"""The node's meter: what its time has cost, and whose it was. Exact integers over any partition of the time.

Spend accrues by node time (CLOCK_BOOTTIME, so suspend counts), not by training time. Live runs share it by the
ranks they hold here; what nobody holds is `unallocated`. An unknown price charges nothing and says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from governor.core.charges import UNALLOCATED, Part, Payer
from governor.core.units import MTOK, NS_PER_HOUR, BootNs, DurationNs, UsdMicros, accrue

WINDOW_SAMPLES = 64  # Resolution of the rolling $/1M window: 1.6 % of it.


def share_out(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split an amount by weights so that the parts sum to it exactly; no part is off by more than one."""
    total = sum(weights.values())
    assert total > 0, "nobody to charge"
    parts: dict[str, int] = {}
    cumulated = 0
    paid = 0
    for name in sorted(weights):
        cumulated += weights[name]
        parts[name] = amount * cumulated // total - paid
        paid += parts[name]
    return parts


_FRACTION_BITS = 32  # Of a micro-dollar: ten ticks a second for a century lose none of one.


def share_on(amount: int, weights: Mapping[str, int], owed: dict[str, int]) -> dict[str, int]:
    """share_out() many times over: what a part lacks of its exact share is owed to it (in 2^-32, may be negative).

    Without it the same run would be rounded down at every tick: 1.4 cents an hour, measured, which is 3 % of an eighth
    of a $2.49 node. With it every run's sum stays within a micro-dollar of its exact share.
    """
    total = sum(weights.values())
    assert total > 0, "nobody to charge"
    exact = {name: (amount * weight << _FRACTION_BITS) // total + owed.get(name, 0) for name, weight in weights.items()}
    # Never below zero: what was spent is a counter.
    parts = {name: max(0, share >> _FRACTION_BITS) for name, share in exact.items()}
    left = amount - sum(parts.values())
    # What is left over, or was given too much, goes to or comes from those who lack most, or least.
    neediest = sorted(weights, key=lambda name: (parts[name] << _FRACTION_BITS) - exact[name])
    takers = neediest[:left] if left >= 0 else [name for name in reversed(neediest) if parts[name]][:-left]
    for name in takers:
        parts[name] += 1 if left > 0 else -1
    owed.clear()
    owed.update({name: exact[name] - (parts[name] << _FRACTION_BITS) for name in weights})
    return parts


# Runs that nobody tracks any more and that may come back to their budgets: as many as the journal knows. Below a MB.
FORGOTTEN_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of node time at one price, shared out exactly: the parts are its nanoseconds and its micro-dollars."""

    elapsed: DurationNs
    quantities: Mapping[str, int]  # By run, in nanoseconds of node time.
    amounts: Mapping[str, int]  # By run, in micro-dollars.
    reconstructed: bool  # It passed while no governor ran.

    def parts(self, payers: Mapping[str, Payer]) -> list[Part]:
        """Those who pay, in the order of their names."""
        return [Part(payers[run], self.quantities[run], self.amounts[run]) for run in self.quantities]


@dataclass(slots=True)
class Ledger:
    """Spend of this node since the governor first saw it, by run."""

    price_usd_micros_per_hour: UsdMicros | None
    charged_to: BootNs
    spent: dict[str, int] = field(default_factory=dict)
    carry: int = 0
    owed: dict[str, int] = field(default_factory=dict)  # To those who share now; see share_on.
    unpriced_ns: int = 0  # Time that passed while the price was unknown.
    forgotten: dict[str, None] = field(default_factory=dict)  # In `spent` and no longer tracked, oldest first.
    folded_usd_micros: int = 0  # What those spent whose names are gone.
    returning: bool = False  # The next stretch begins before our start: its end is when we came back.

    def charge(self, until: BootNs, holders: Mapping[str, int]) -> Split | None:
        """Charge the time since the last call to those who hold ranks now, or to nobody. Never goes back.

        None when no time has passed, or none that has a price.
        """
        elapsed = until - self.charged_to
        if elapsed <= 0:
            return None  # The same instant, read twice.
        self.charged_to = until
        returning, self.returning = self.returning, False
        if self.price_usd_micros_per_hour is None:
            self.unpriced_ns += elapsed
            return None
        micros, self.carry = accrue(self.price_usd_micros_per_hour, elapsed, self.carry)
        weights = holders or {UNALLOCATED: 1}
        amounts = share_on(micros, weights, self.owed)
        for name, part in amounts.items():
            self.spent[name] = self.spent.get(name, 0) + part
        return Split(DurationNs(elapsed), share_out(elapsed, weights), amounts, returning)

    def hand_over(self, to: str, amount: UsdMicros) -> None:
        """Give so much of what nobody held to a run: that of the charges which are put on its account."""
        self.spent[UNALLOCATED] = self.spent.get(UNALLOCATED, 0) - amount
        self.spent[to] = self.spent.get(to, 0) + amount

    def pass_over(self, until: BootNs) -> None:
        """What passed before this moment is charged to nobody at all: it was not our node then."""
        self.charged_to = until
        self.returning = False

    def carry_in(self, run: str, spend: UsdMicros) -> None:
        """Take up a run's spend from the journal after a restart."""
        self.spent[run] = self.spent.get(run, 0) + spend

    def forget(self, run: str) -> str | None:
        """The run is no longer tracked. Its spend waits for it; beyond FORGOTTEN_MAX the oldest goes into one sum.

        Returns the name that is gone with it, if one is.
        """
        self.recall(run)
        self.forgotten[run] = None
        if len(self.forgotten) <= FORGOTTEN_MAX:
            return None
        oldest = next(iter(self.forgotten))
        del self.forgotten[oldest]
        self.folded_usd_micros += self.spent.pop(oldest, 0)
        return oldest

    def recall(self, run: str) -> None:
        """The run is tracked again: it goes on with what it has spent."""
        self.forgotten.pop(run, None)

    def total(self) -> UsdMicros:
        """What the node's time has cost since we first saw it, whoever held it."""
        return UsdMicros(sum(self.spent.values()) + self.folded_usd_micros)

    def spend(self, run: str) -> UsdMicros:
        return UsdMicros(self.spent.get(run, 0))

    def rate(self, run: str, holders: Mapping[str, int]) -> UsdMicros | None:
        """The run's share of the node's price per hour; None while the price is unknown."""
        if self.price_usd_micros_per_hour is None:
            return None
        total = sum(holders.values())
        return UsdMicros(self.price_usd_micros_per_hour * holders.get(run, 0) // total if total else 0)


def reserve(rate_usd_micros_per_hour: int, bounds_ns: int) -> UsdMicros:
    """What the run's own stop may cost: its rate over the declared bounds, rounded up."""
    return UsdMicros(-(-rate_usd_micros_per_hour * bounds_ns // NS_PER_HOUR))


class TokenWindow:
    """$ per 1M tokens over the last window of tokens (or what there is of it), from (tokens, spend) samples."""

    __slots__ = ("_samples", "_spacing", "_window")

    def __init__(self, window_tokens: int = MTOK) -> None:
        self._samples: deque[tuple[int, int]] = deque()
        self._resize(window_tokens)

    def _resize(self, window_tokens: int) -> None:
        """Samples stay: the window holds what there is of it until as many tokens have come."""
        self._window = window_tokens
        self._spacing = max(1, window_tokens // WINDOW_SAMPLES)

    def add(self, tokens_total: int, spend_usd_micros: int, window_tokens: int | None = None) -> None:
        """Enter where the run is. `window_tokens` is the size from now on, where a policy was loaded anew."""
        if window_tokens is not None and window_tokens != self._window:
            self._resize(window_tokens)
        samples = self._samples
        if samples and tokens_total < samples[-1][0]:
            samples.clear()  # The step went back: a resume. Older samples are of another count.
        while len(samples) >= 2 and samples[1][0] <= tokens_total - self._window:
            samples.popleft()
        if len(samples) >= 2 and samples[-1][0] - samples[-2][0] < self._spacing:
            samples[-1] = (tokens_total, spend_usd_micros)
        else:
            samples.append((tokens_total, spend_usd_micros))

    def usd_micros_per_mtok(self) -> int | None:
        """None until two samples differ in tokens and in spend: nothing is trained for nothing."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        if last[0] <= first[0] or last[1] <= first[1]:
            return None
        return (last[1] - first[1]) * MTOK // (last[0] - first[0])
