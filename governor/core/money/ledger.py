"""The node's meter: what its time has cost, and whose it was. Exact integers over any partition of the time.

Spend accrues by node time (CLOCK_BOOTTIME, so suspend counts), not by training time, line by line: the machine, its
disks, what is paid by the hour. Live runs share it by the ranks they hold here; what nobody holds is `unallocated`.
An unknown price charges nothing and says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from governor.core.base.units import MTOK, NS_PER_HOUR, BootNs, DurationNs, UsdMicros, accrue
from governor.core.money.charges import UNALLOCATED
from governor.core.money.lines import LineMeter, Lines, Metered, Split

WINDOW_SAMPLES = 64  # Resolution of the rolling $/1M window: 1.6 % of it.
# Runs that nobody tracks any more and that may come back to their budgets: as many as the journal knows. Below a MB.
FORGOTTEN_MAX = 1_000


@dataclass(slots=True)
class Ledger:
    """Spend of this node since the governor first saw it, by run."""

    compute: LineMeter  # The machine itself.
    charged_to: BootNs
    others: tuple[LineMeter, ...] = ()  # Everything else that costs by time.
    spent: dict[str, int] = field(default_factory=dict)
    carries: dict[str, int] = field(default_factory=dict)  # Of the lines that cost by the GB, by name.
    unpriced_ns: int = 0  # Time that passed while the price was unknown.
    forgotten: dict[str, None] = field(default_factory=dict)  # In `spent` and no longer tracked, oldest first.
    folded_usd_micros: int = 0  # What those spent whose names are gone.
    returning: bool = False  # The next stretch begins before our start: its end is when we came back.
    priced_from: BootNs = BootNs(0)  # Since when the price of compute holds: a correction reaches no further back.
    # What compute costs next, and from when on, which may have passed: for the next charge().
    next_price: tuple[Metered | None, BootNs] | None = None

    @property
    def price_usd_micros_per_hour(self) -> UsdMicros | None:
        """Of the machine alone."""
        metered = self.compute.metered
        return UsdMicros(metered.line.price_usd_micros) if metered is not None else None

    @property
    def usd_micros_per_hour(self) -> UsdMicros | None:
        """Of all lines together, rounded up; None while what the machine costs is unknown."""
        price = self.price_usd_micros_per_hour
        if price is None:
            return None
        return UsdMicros(price + sum(metered.usd_micros_per_hour for metered in self.beside))

    @property
    def beside(self) -> tuple[Metered, ...]:
        """What costs by time beside the machine."""
        return tuple(meter.metered for meter in self.others if meter.metered is not None)

    def charge(self, until: BootNs, holders: Mapping[str, int]) -> list[Split]:
        """Charge the time since the last call to those who hold ranks now, or to nobody. Never goes back.

        Empty when no time has passed, or none that has a price.
        """
        weights = holders or {UNALLOCATED: 1}
        until = max(until, self.charged_to)  # The same instant, read twice.
        elapsed, splits = until - self.charged_to, []
        if self.next_price is not None and self.next_price[1] <= until:
            to, since = self.next_price
            self.next_price = None
            splits += self._pass(since, weights)
            splits += self._reprice(to, since, weights)
        splits += self._pass(until, weights)
        self.returning = self.returning and not elapsed
        for split in splits:
            for name, amount in split.amounts.items():
                self.spent[name] = self.spent.get(name, 0) + amount
        return splits

    def _pass(self, until: BootNs, weights: Mapping[str, int]) -> list[Split]:
        began, elapsed = self.charged_to, DurationNs(until - self.charged_to)
        if elapsed <= 0:
            return []
        self.charged_to = until
        if self.compute.metered is None:
            self.unpriced_ns += elapsed
        splits = []
        for meter in (self.compute, *self.others):
            splits += meter.charge(began, elapsed, weights, reconstructed=self.returning)
        return splits

    def _reprice(self, to: Metered | None, since: BootNs, weights: Mapping[str, int]) -> list[Split]:
        """Everything up to `charged_to` is charged; of that, what passed since `since` is put right."""
        since = min(max(since, self.priced_from), self.charged_to)
        span = DurationNs(self.charged_to - since)
        was_unknown, self.priced_from = self.compute.metered is None, since
        splits = self.compute.reprice(to, self.charged_to, span, weights)
        if was_unknown and to is not None:  # Since its price is known to hold, this time has one after all.
            self.unpriced_ns -= span
            splits += self.compute.charge(since, span, weights, reconstructed=True)
        return splits

    def charge_piece(self, name: str, usd_micros: int, quantity: int, base_units: int, run: str) -> UsdMicros:
        """Charge a run what a launch or a checkpoint adds to the line of that name; return the amount."""
        amount, self.carries[name] = accrue(usd_micros, quantity, self.carries.get(name, 0) % base_units, base_units)
        self.spent[run] = self.spent.get(run, 0) + amount
        return UsdMicros(amount)

    def charge_absence(self, meter: LineMeter, elapsed: DurationNs) -> list[Split]:
        """Charge time of one line that no clock of this boot has measured, to nobody. Its begin counts as zero."""
        if meter is self.compute and meter.metered is None:
            self.unpriced_ns += elapsed
        splits = meter.charge(BootNs(0), elapsed, {UNALLOCATED: 1}, reconstructed=True)
        amount = sum(split.amounts[UNALLOCATED] for split in splits)
        self.spent[UNALLOCATED] = self.spent.get(UNALLOCATED, 0) + amount
        return splits

    def hand_over(self, to: str, amount: UsdMicros) -> None:
        """Give so much of what nobody held to a run: that of the charges which are put on its account."""
        self.spent[UNALLOCATED] = self.spent.get(UNALLOCATED, 0) - amount
        self.spent[to] = self.spent.get(to, 0) + amount

    def pass_over(self, until: BootNs) -> None:
        """What passed before this moment is charged to nobody at all: it was not our node then."""
        self.charged_to = until
        self.priced_from = max(self.priced_from, until)
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
        """The run's share of what the node costs an hour, all lines; None while the machine's price is unknown."""
        price = self.usd_micros_per_hour
        if price is None:
            return None
        total = sum(holders.values())
        return UsdMicros(price * holders.get(run, 0) // total if total else 0)


def new_ledger(compute: Metered | None, charged_to: BootNs, lines: Lines | None = None) -> Ledger:
    """A ledger that has charged nothing yet."""
    others = tuple(LineMeter(metered) for metered in lines.hourly) if lines is not None else ()
    return Ledger(LineMeter(compute), charged_to, others, priced_from=charged_to)


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
