"""The node's meter: what its time has cost, and who pays. Sums are exact integers over any partition of the time.

Spend accrues by node time (CLOCK_BOOTTIME, so suspend counts), not by training time. Each line accrues separately: the
machine, its disks, whatever is paid by the hour. Live runs share it by the ranks that they hold on this node. Time that
no run holds is `unallocated`. An unknown price charges nothing; that time is counted as unpriced. The ledger splits
amounts; its ChargeBook enters each one (docs/adr/0021).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.shares import Claim
from governor.core.base.units import NS_PER_HOUR, BootNs, DurationNs, UsdMicros, WallNs, accrue
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_PAYER, Charge, ChargeBook, Line, Part, Payer, Place
from governor.core.money.group_totals import GroupSpend
from governor.core.money.lines import LineMeter, Lines, Metered, Split, price_of, price_row


@dataclass(slots=True)
class Ledger:
    """Spend of this node since the governor first saw it, by run."""

    compute: LineMeter  # The machine itself.
    charged_to: BootNs
    book: ChargeBook  # Every part of every split is entered here.
    others: tuple[LineMeter, ...] = ()  # All other lines that cost by time.
    carries: dict[str, int] = field(default_factory=dict)  # Of the lines that cost by the GB, by line name.
    unpriced_ns: int = 0  # Time that passed while the price was unknown.
    uncommitted: list[Charge] = field(default_factory=list)  # Closed charges that no commit has stored yet.
    # The next stretch began before this governor started, and ends at its start.
    returning: bool = False
    # The price of compute holds since then. A price correction reaches no further back.
    priced_from: BootNs = BootNs(0)
    # The next price of compute, and since when it holds. The next charge() applies it. The time may be in the past.
    next_price: tuple[Metered | None, BootNs] | None = None

    @property
    def price_usd_micros_per_hour(self) -> UsdMicros | None:
        """Of compute alone."""
        metered = self.compute.metered
        return UsdMicros(metered.line.price_usd_micros) if metered is not None else None

    @property
    def usd_micros_per_hour(self) -> UsdMicros | None:
        """Of all lines together, rounded up; None while the price of compute is unknown."""
        price = self.price_usd_micros_per_hour
        if price is None or not self.others:
            return price
        return UsdMicros(price + sum(metered.usd_micros_per_hour for metered in self.other_lines))

    @property
    def other_lines(self) -> tuple[Metered, ...]:
        """The lines that cost by time, without compute."""
        return tuple(meter.metered for meter in self.others if meter.metered is not None)

    @property
    def groups(self) -> GroupSpend:
        """The spend of stages, labels, days and the node."""
        return self.book.groups

    def charge(
        self,
        until: BootNs,
        wall_of_boot: WallNs,
        holders: Mapping[str, int],
        payers: Mapping[str, Payer],
        *,
        ends_others: bool = True,
    ) -> list[Split]:
        """Charge the time since the last call to the runs that hold ranks now, or to UNALLOCATED. Time never goes back.

        `wall_of_boot`: the wall clock's reading at the boot clock's zero. `ends_others`: close the charges of every
        payer that this call charges nothing. Returns the splits; empty when no time has passed, or no line has a price.
        """
        splits = self._split(until, holders or {UNALLOCATED: 1})
        if splits and ends_others:
            self.uncommitted += self.book.close_all_but(holders.keys() or {UNALLOCATED})
        self._enter(splits, wall_of_boot, payers)
        return splits

    def _enter(self, splits: Iterable[Split], wall_of_boot: WallNs, payers: Mapping[str, Payer]) -> None:
        for split in splits:
            at, parts = WallNs(wall_of_boot + split.began), split.parts(payers)
            self.uncommitted += self.book.add(split.line, at, split.elapsed, parts, reconstructed=split.reconstructed)

    def _split(self, until: BootNs, weights: Mapping[str, int]) -> list[Split]:
        until = max(until, self.charged_to)  # The same instant may be read twice.
        elapsed, splits = until - self.charged_to, []
        if self.next_price is not None and self.next_price[1] <= until:
            to, since = self.next_price
            self.next_price = None
            splits += self._pass(since, weights)
            splits += self._reprice(to, since, weights)
        splits += self._pass(until, weights)
        self.returning = self.returning and not elapsed
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
        """Correct the charges of the time from `since` to `charged_to`: all of it is charged already."""
        since = min(max(since, self.priced_from), self.charged_to)
        span = DurationNs(self.charged_to - since)
        was_unknown, self.priced_from = self.compute.metered is None, since
        splits = self.compute.reprice(to, self.charged_to, span, weights)
        # The price now holds for this time too, so the time is charged after all.
        if was_unknown and to is not None:
            self.unpriced_ns -= span
            splits += self.compute.charge(since, span, weights, reconstructed=True)
        return splits

    def charge_one_off(self, line: Line, quantity: int, at: WallNs, payer: Payer) -> UsdMicros:
        """Charge what a launch or a checkpoint adds to a line, at the moment it happens; return the amount."""
        base_units, carry = line.unit.base_units, self.carries.get(line.name, 0)
        amount, self.carries[line.name] = accrue(line.price_usd_micros, quantity, carry % base_units, base_units)
        self.uncommitted += self.book.add(line, at, DurationNs(0), [Part(payer, quantity, amount)])
        return UsdMicros(amount)

    def charge_absence(self, meter: LineMeter, since: WallNs, elapsed: DurationNs) -> None:
        """Charge one line's time as unallocated, where no clock of this boot has measured it."""
        if meter is self.compute and meter.metered is None:
            self.unpriced_ns += elapsed
        splits = meter.charge(BootNs(0), elapsed, {UNALLOCATED: 1}, reconstructed=True)
        self._enter(splits, since, {UNALLOCATED: UNALLOCATED_PAYER})

    def charge_unstored(
        self, until: BootNs, wall_of_boot: WallNs, holders: Mapping[str, int], payers: Mapping[str, Payer],
        gap_ends: BootNs,
    ) -> None:  # fmt: skip
        """Charge the beginning of the gap to those who held the node: the previous governor ran, and has metered it."""
        self.returning = False
        self.charge(until, wall_of_boot, holders, payers)
        self.returning = self.charged_to < gap_ends

    def set_unallocated_aside(self) -> list[Charge]:
        """Keep the unallocated charges from the next hand_over(). The caller restores those that it shall move."""
        taken, closed = self.book.set_unallocated_aside()
        self.uncommitted += closed
        return taken

    def hand_over(self, to: Payer, command: str | None = None) -> None:
        """Move all unallocated charges so far to a run: its spend grows by their sum. `command`: see ChargeBook."""
        self.uncommitted += self.book.hand_over(to, command)

    def take_back(self, to: Payer) -> list[str]:
        """Move what the runs that were lent to (ChargeBook.lend) were charged to this run. Returns those runs."""
        closed, runs = self.book.take_back(to)
        self.uncommitted += closed
        return runs

    def take_charges(self) -> tuple[Charge, ...]:
        """The charges for the next commit: those closed since the last one, and those that still grow."""
        charges = (*self.uncommitted, *self.book.open_charges())
        self.uncommitted.clear()
        return charges

    def set_next_price(self, to: Metered | None, since: BootNs) -> None:
        """Set the price of compute from `since` on. `since` may be in the past; the next charge() applies the price."""
        self.next_price = (to, since)

    def resume_from(self, since: BootNs) -> None:
        """Go back to where the previous governor stopped: its downtime is node time too."""
        if since < self.charged_to:
            self.charged_to = since
            self.returning = True

    def pass_over(self, until: BootNs) -> None:
        """Charge the time before this moment to no payer at all: this governor did not have the node then."""
        self.charged_to = until
        self.priced_from = max(self.priced_from, until)
        self.returning = False

    def carry_in(self, run: str, spend: UsdMicros) -> None:
        """Add a run's spend from the journal after a restart."""
        self.book.runs.carry_in(run, spend)

    def make_past(self, run: str, claim: Claim = Claim()) -> str | None:
        """The run is no longer managed. Returns another run whose spend is folded away instead, if there is one."""
        return self.book.runs.make_past(run, claim)

    def unfold(self, run: str, spend: UsdMicros) -> None:
        """Give a run whose name was dropped its spend back, as the journal has it."""
        self.book.runs.unfold(run, spend)

    def recall(self, run: str) -> None:
        """Manage the run again: its spend continues."""
        self.book.runs.recall(run)

    def total(self) -> UsdMicros:
        """The cost of the node's time since the governor first saw it, of all payers."""
        return self.book.runs.total()

    def spend(self, run: str) -> UsdMicros:
        """The sum of the charges of this run, over all its attempts."""
        return UsdMicros(self.book.runs.by_run.get(run, 0))

    def spend_at(self, run: str, at: BootNs, rate_usd_micros_per_hour: int | None) -> UsdMicros:
        """What the run has spent by this moment: its charges, and its rate for the time that no tick has charged yet.

        The moment of a frame lies between two ticks, or a little before the last one if it was read late.
        """
        since = at - self.charged_to
        return UsdMicros(self.spend(run) + (rate_usd_micros_per_hour or 0) * since // NS_PER_HOUR)

    def rate(self, run: str, holders: Mapping[str, int]) -> UsdMicros | None:
        """The run's share of the node's cost per hour, all lines; None while the price of compute is unknown."""
        price = self.usd_micros_per_hour
        if price is None:
            return None
        total = sum(holders.values())
        return UsdMicros(price * holders.get(run, 0) // total if total else 0)

    def snapshot(self) -> dict[str, Any]:
        """The state of the meters and counters, as plain JSON. Each run's snapshot holds the run's own spend."""
        return {
            "carry": self.compute.carry,
            "credit": self.compute.credit,
            "price": price_row(self.compute.metered),
            "priced_from": self.priced_from,
            "lines": {
                meter.metered.line.name: {"carry": meter.carry, "credit": meter.credit}
                for meter in self.others
                if meter.metered is not None
            },
            "carries": dict(self.carries),
            "unallocated_usd_micros": self.spend(UNALLOCATED),
            "unpriced_ns": self.unpriced_ns,
            "groups": self.groups.snapshot(),
            **({"commands": commands} if (commands := self.book.runs.commands()) else {}),
        }

    def restore(self, snapshot: Mapping[str, Any], *, same_boot: bool, in_force_from: BootNs) -> None:
        """Restore the meters and the unallocated spend. KeyError, TypeError or ValueError when it is not one.

        Within one boot, the gap up to `in_force_from` is charged at the old price. Today's price holds from then on.
        """
        carry, unallocated = int(snapshot["carry"]), int(snapshot["unallocated_usd_micros"])
        # Old journals have no credit.
        unpriced_ns, credit = int(snapshot["unpriced_ns"]), int(snapshot.get("credit", 0))
        lines = {str(name): (int(row["carry"]), int(row["credit"])) for name, row in snapshot.get("lines", {}).items()}
        carries = {str(name): int(carry) for name, carry in snapshot.get("carries", {}).items()}
        commands = {str(name): int(amount) for name, amount in snapshot.get("commands", {}).items()}
        before = price_of(snapshot.get("price")) if same_boot else None
        priced_from = BootNs(int(snapshot.get("priced_from", snapshot["boot_ns"])))
        self.compute.restore(carry, credit)
        for meter in self.others:
            if meter.metered is not None and meter.metered.line.name in lines:
                meter.restore(*lines[meter.metered.line.name])
        self.carries, self.unpriced_ns = carries, unpriced_ns
        self.book.runs.restore(UNALLOCATED, unallocated)
        self.book.runs.restore_commands(commands)
        if before is not None:
            self.next_price = (self.compute.metered, in_force_from)
            self.compute.metered, self.priced_from = before, priced_from


def new_ledger(
    compute: Metered | None, charged_to: BootNs, place: Place, epoch: WallNs, lines: Lines | None = None
) -> Ledger:
    """An empty ledger. `epoch`: see ChargeBook."""
    others = tuple(LineMeter(metered) for metered in lines.hourly) if lines is not None else ()
    return Ledger(LineMeter(compute), charged_to, ChargeBook(place, epoch), others, priced_from=charged_to)


def reserve(rate_usd_micros_per_hour: int, bounds_ns: int) -> UsdMicros:
    """What the run's own stop may cost: its rate over the declared bounds, rounded up."""
    return UsdMicros(-(-rate_usd_micros_per_hour * bounds_ns // NS_PER_HOUR))
