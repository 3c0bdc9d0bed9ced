"""The lines that this node is billed for: lines by the hour, and lines that a launch or a checkpoint adds to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, BootNs, DurationNs, MonoNs, UsdMicros, accrue, format_usd
from governor.core.money.charges import Line, LineKind, Part, Payer, Unit

NODE_LINE: Final = "node"  # The compute line's name in every charge.


@dataclass(frozen=True, slots=True)
class Metered:
    """A line that is charged by time. `amount`: a disk's GB if the price is per GB-month, else 1."""

    line: Line
    amount: int = 1

    @property
    def usd_micros_per_hour(self) -> UsdMicros:
        """Rounded up, because ceilings reserve by it."""
        return UsdMicros(-(-self.line.price_usd_micros * self.amount * NS_PER_HOUR // self.line.unit.base_units))

    @property
    def is_disk(self) -> bool:
        """A disk is billed while the machine is off, too."""
        return self.line.kind is LineKind.STORAGE

    @property
    def text(self) -> str:
        """For people: "vol-0abc gp3: $0.0548/h (500 GB at $0.08/GB-month; costgov.toml, 2026-11-01)"."""
        line = self.line
        size = ""
        if line.unit is Unit.GB_MONTH:
            size = f"{self.amount} GB at {format_usd(line.price_usd_micros)}/GB-month; "
        return f"{line.name}: {format_usd(self.usd_micros_per_hour)}/h ({size}{line.source}, {line.as_of})"


@dataclass(frozen=True, slots=True)
class Lines:
    """All lines beside compute, from the settings."""

    hourly: tuple[Metered, ...] = ()
    per_launch: tuple[Line, ...] = ()  # For each attempt of a run.
    per_gb: tuple[Line, ...] = ()  # For each checkpoint that a run acknowledges as complete.

    @property
    def usd_micros_per_hour(self) -> UsdMicros:
        return UsdMicros(sum(metered.usd_micros_per_hour for metered in self.hourly))

    @property
    def texts(self) -> tuple[str, ...]:
        """One line of text for each, for people."""
        said = [metered.text for metered in self.hourly]
        said += [_piece_text(line, "a launch") for line in self.per_launch]
        said += [_piece_text(line, "a GB of checkpoints") for line in self.per_gb]
        return tuple(said)


def _piece_text(line: Line, what: str) -> str:
    return f"{line.name}: {format_usd(line.price_usd_micros)} for {what} ({line.source}, {line.as_of})"


def compute_line(price: UsdMicros | None, source: str | None, as_of: str, kind: str = "") -> Metered | None:
    """The line of the node's compute hours; None while its price is unknown."""
    if price is None:
        return None
    return Metered(Line(LineKind.COMPUTE, NODE_LINE, Unit.HOUR, price, source or "", as_of, kind))


def price_row(metered: Metered | None) -> Mapping[str, Any] | None:
    """Return the price of compute as plain JSON, as the journal stores it; None while it is unknown."""
    if metered is None:
        return None
    line = metered.line
    row = {"usd_micros_per_hour": line.price_usd_micros, "source": line.source, "as_of": line.as_of}
    return row | ({"kind": line.price_kind} if line.price_kind else {})


def price_of(row: Mapping[str, Any] | None) -> Metered | None:
    """Rebuild the price of compute. KeyError, TypeError or ValueError when the row is not a price row."""
    if row is None:
        return None
    return compute_line(
        UsdMicros(int(row["usd_micros_per_hour"])), str(row["source"]), str(row["as_of"]), str(row.get("kind", ""))
    )


@dataclass(frozen=True, slots=True)
class PriceRise:
    """The machine's price went up: when we learned of it, and micro-dollars per hour before and after."""

    at: MonoNs
    before: UsdMicros
    after: UsdMicros


# Splits of whole amounts into whole parts: by weights, with exact sums, and without drift over many splits.


def share_out(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split an amount by weights so that the parts sum to it exactly; no part is off by more than one."""
    total = sum(weights.values())
    assert total > 0, "nobody to charge"
    if len(weights) == 1:
        return dict.fromkeys(weights, amount)
    parts: dict[str, int] = {}
    cumulated = 0
    paid = 0
    for name in sorted(weights):
        cumulated += weights[name]
        parts[name] = amount * cumulated // total - paid
        paid += parts[name]
    return parts


# Of a micro-dollar. Ten ticks a second for a century lose less than one micro-dollar.
_FRACTION_BITS = 32


def share_on(amount: int, weights: Mapping[str, int], owed: dict[str, int]) -> dict[str, int]:
    """share_out() for repeated splits: `owed` carries what each part lacks of its exact share (2^-32; may be negative).

    Without it the same run would be rounded down at every tick: 1.4 cents an hour, measured, which is 3 % of an eighth
    of a $2.49 node. With it every run's sum stays within a micro-dollar of its exact share.
    """
    total = sum(weights.values())
    assert total > 0, "nobody to charge"
    if len(weights) == 1:  # Nearly every tick: one run pays all, and its share is exact.
        (name,) = weights
        lacks = owed.get(name, 0)
        owed.clear()
        owed[name] = lacks
        return {name: amount}
    exact = {name: (amount * weight << _FRACTION_BITS) // total + owed.get(name, 0) for name, weight in weights.items()}
    # Never below zero: spend is a counter.
    parts = {name: max(0, share >> _FRACTION_BITS) for name, share in exact.items()}
    left = amount - sum(parts.values())
    # A remainder goes to the parts that lack most, an excess comes from those that lack least. Mostly that is one each;
    # it is more after a run with an owed amount has left.
    neediest = sorted(weights, key=lambda name: (parts[name] << _FRACTION_BITS) - exact[name], reverse=left < 0)
    each = 1 if left > 0 else -1
    for name in cycle(neediest):
        if not left:
            break
        if each > 0 or parts[name]:
            parts[name] += each
            left -= each
    owed.clear()
    owed.update({name: exact[name] - (parts[name] << _FRACTION_BITS) for name in weights})
    return parts


# The meter of one line by the hour or by the GB-month: exact over any partition of its time.
#
# Invariant: `spent x base units + carry - credit` is price times quantity since the meter began. It also holds when a
# price change is learned late: an undercharge becomes one charge, an overcharge is worked off by time at zero cost. No
# amount is ever negative: spend is a counter.


# Names of the charges that correct a price that was read late.
READ_LATE: Final = "price read late"
CREDITED: Final = "credited: price read late"


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of one line's time at one price, split exactly: the parts add up to its quantity and amount."""

    line: Line
    began: BootNs
    elapsed: DurationNs
    quantities: Mapping[str, int]  # By run, in base units of the line.
    amounts: Mapping[str, int]  # By run, in micro-dollars.
    reconstructed: bool = False  # It passed while no governor ran.

    def parts(self, payers: Mapping[str, Payer]) -> list[Part]:
        """The parts, in the order of `quantities`."""
        return [Part(payers[run], self.quantities[run], self.amounts[run]) for run in self.quantities]


@dataclass(slots=True)
class LineMeter:
    metered: Metered | None  # None: the price is unknown, and nothing is charged.
    carry: int = 0  # Micro-dollars times base units, below one micro-dollar.
    # In the same unit: the overcharge at a price that had already fallen.
    credit: int = 0
    owed: dict[str, int] = field(default_factory=dict)  # By run that shares now; see share_on.

    def charge(
        self, began: BootNs, elapsed: DurationNs, weights: Mapping[str, int], *, reconstructed: bool
    ) -> list[Split]:
        """Charge a stretch of time to the runs that share it. Charges nothing while the price is unknown."""
        metered = self.metered
        if metered is None or elapsed <= 0:
            return []
        splits = []
        line, free = metered.line, self._work_off(metered, elapsed)
        if free:
            at_nothing = replace(line, name=f"{line.name} ({CREDITED})", price_usd_micros=0)
            quantities = share_out(metered.amount * free, weights)
            nothing = dict.fromkeys(weights, 0)
            splits.append(Split(at_nothing, began, DurationNs(free), quantities, nothing, reconstructed))
        if elapsed > free:
            quantity = metered.amount * (elapsed - free)
            micros, self.carry = accrue(line.price_usd_micros, quantity, self.carry, line.unit.base_units)
            amounts, quantities = share_on(micros, weights, self.owed), share_out(quantity, weights)
            at, lasts = BootNs(began + free), DurationNs(elapsed - free)
            splits.append(Split(line, at, lasts, quantities, amounts, reconstructed))
        return splits

    def _work_off(self, metered: Metered, elapsed: int) -> int:
        """Return how much of this time the credit pays for, in nanoseconds."""
        if not self.credit:
            return 0
        each = metered.line.price_usd_micros * metered.amount
        if self.credit >= each * elapsed:
            self.credit -= each * elapsed
            return elapsed
        free, rest = divmod(self.credit, each)
        self.credit = 0
        self.carry -= rest
        if self.carry < 0:  # One more nanosecond is free; the excess goes into the carry.
            free, self.carry = free + 1, self.carry + each
        return free

    def reprice(self, to: Metered | None, at: BootNs, span: int, weights: Mapping[str, int]) -> list[Split]:
        """Change to another price, which has been in force for the last `span` nanoseconds that were charged.

        An undercharge of that time is a separate charge, to the runs that share now.
        """
        before, self.metered = self.metered, to
        if before is None or to is None:
            return []
        dearer = (to.line.price_usd_micros - before.line.price_usd_micros) * to.amount
        due = dearer * span - self.credit
        self.credit = max(0, -due)
        if due <= 0:
            return []
        micros, self.carry = divmod(due + self.carry, to.line.unit.base_units)
        amounts = share_on(micros, weights, self.owed)
        return [_made_up_for(to.line, at, run, amount) for run, amount in amounts.items() if amount]

    def restore(self, carry: int, credit: int) -> None:
        """Continue from the journal's values. A carry that does not fit means another line, which starts at zero."""
        metered = self.metered
        if metered is None or 0 <= carry < metered.line.unit.base_units:
            self.carry, self.credit = carry, max(0, credit)


def _made_up_for(line: Line, at: BootNs, run: str, amount: int) -> Split:
    piece = replace(line, name=f"{line.name} ({READ_LATE})", unit=Unit.PIECE, price_usd_micros=UsdMicros(amount))
    return Split(piece, at, DurationNs(0), {run: 1}, {run: amount})
