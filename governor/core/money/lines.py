"""What this node is billed for: lines that run by the hour, and lines that a launch or a checkpoint adds to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, BootNs, DurationNs, UsdMicros, accrue, format_usd
from governor.core.money.charges import Line, LineKind, Part, Payer, Unit

NODE_LINE: Final = "node"  # The compute line's name in every charge.


@dataclass(frozen=True, slots=True)
class Metered:
    """A line that is charged by time. `amount`: a disk's GB where it costs by the GB-month, else 1."""

    line: Line
    amount: int = 1

    @property
    def usd_micros_per_hour(self) -> UsdMicros:
        """Rounded up: ceilings reserve by it."""
        return UsdMicros(-(-self.line.price_usd_micros * self.amount * NS_PER_HOUR // self.line.unit.base_units))

    @property
    def is_disk(self) -> bool:
        """It is billed while the machine is off, too."""
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
    """Everything billed beside compute, as its owner says."""

    hourly: tuple[Metered, ...] = ()
    per_launch: tuple[Line, ...] = ()  # Of each attempt of a run.
    per_gb: tuple[Line, ...] = ()  # Of each checkpoint that a run acknowledges as whole.

    @property
    def usd_micros_per_hour(self) -> UsdMicros:
        return UsdMicros(sum(metered.usd_micros_per_hour for metered in self.hourly))

    @property
    def texts(self) -> tuple[str, ...]:
        """A line of text for each, for people."""
        said = [metered.text for metered in self.hourly]
        said += [_piece_text(line, "a launch") for line in self.per_launch]
        said += [_piece_text(line, "a GB of checkpoints") for line in self.per_gb]
        return tuple(said)


def _piece_text(line: Line, what: str) -> str:
    return f"{line.name}: {format_usd(line.price_usd_micros)} for {what} ({line.source}, {line.as_of})"


def compute_line(price: UsdMicros | None, source: str | None, as_of: str) -> Metered | None:
    """What an hour of the node is charged as; None while its price is unknown."""
    if price is None:
        return None
    return Metered(Line(LineKind.COMPUTE, NODE_LINE, Unit.HOUR, price, source or "", as_of))


def price_row(metered: Metered | None) -> Mapping[str, Any] | None:
    """Return what compute costs as plain JSON, as the journal keeps it; None while it is unknown."""
    if metered is None:
        return None
    line = metered.line
    return {"usd_micros_per_hour": line.price_usd_micros, "source": line.source, "as_of": line.as_of}


def price_of(row: Mapping[str, Any] | None) -> Metered | None:
    """Rebuild it. KeyError, TypeError or ValueError when the row is not one of ours."""
    if row is None:
        return None
    return compute_line(UsdMicros(int(row["usd_micros_per_hour"])), str(row["source"]), str(row["as_of"]))


# Whole amounts in whole parts: by weights, adding up exactly, and over many splits never off for long.


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
    # What is left over, or was given too much, goes to or comes from those who lack most, or least: mostly one each,
    # more where others have left with what they were owed.
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


# The meter of one line that costs by the hour or by the GB-month: exact over any partition of its time.
#
# At every moment `spent x base units + carry - credit` is price times quantity since the meter began, also where a
# price was learned of after it had changed: what was charged too little is one charge, what was charged too much is
# worked off by time that costs nothing. No amount is ever negative: what was spent is a counter.


# Of the charges that make up for a price that was read late.
READ_LATE: Final = "price read late"
CREDITED: Final = "credited: price read late"


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of one line's time at one price, shared out exactly: the parts add up to its quantity and amount."""

    line: Line
    began: BootNs
    elapsed: DurationNs
    quantities: Mapping[str, int]  # By run, in base units of the line.
    amounts: Mapping[str, int]  # By run, in micro-dollars.
    reconstructed: bool = False  # It passed while no governor ran.

    def parts(self, payers: Mapping[str, Payer]) -> list[Part]:
        """Those who pay, in the order of their names."""
        return [Part(payers[run], self.quantities[run], self.amounts[run]) for run in self.quantities]


@dataclass(slots=True)
class LineMeter:
    metered: Metered | None  # None: its price is unknown, and nothing is charged.
    carry: int = 0  # In micro-dollars times base units, below one micro-dollar's worth.
    credit: int = 0  # In the same: what was charged too much, at a price that had fallen already.
    owed: dict[str, int] = field(default_factory=dict)  # To those who share now; see share_on.

    def charge(
        self, began: BootNs, elapsed: DurationNs, weights: Mapping[str, int], *, reconstructed: bool
    ) -> list[Split]:
        """Charge a stretch of time to those who share it. Nothing while the price is unknown."""
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
        """How much of this time the credit pays for, in nanoseconds."""
        if not self.credit:
            return 0
        each = metered.line.price_usd_micros * metered.amount
        if self.credit >= each * elapsed:
            self.credit -= each * elapsed
            return elapsed
        free, rest = divmod(self.credit, each)
        self.credit = 0
        self.carry -= rest
        if self.carry < 0:  # One more nanosecond costs nothing; what that is too much is carried on.
            free, self.carry = free + 1, self.carry + each
        return free

    def reprice(self, to: Metered | None, at: BootNs, span: int, weights: Mapping[str, int]) -> list[Split]:
        """Go over to another price, which has been in force for the last `span` nanoseconds that were charged.

        What they were charged too little is a charge of its own, of those who share now.
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
        """Go on where a journal says that this line stood; a line that is another now begins anew."""
        metered = self.metered
        if metered is None or 0 <= carry < metered.line.unit.base_units:
            self.carry, self.credit = carry, max(0, credit)


def _made_up_for(line: Line, at: BootNs, run: str, amount: int) -> Split:
    piece = replace(line, name=f"{line.name} ({READ_LATE})", unit=Unit.PIECE, price_usd_micros=UsdMicros(amount))
    return Split(piece, at, DurationNs(0), {run: 1}, {run: amount})
