"""The meter of one line that costs by the hour or by the GB-month: exact over any partition of its time.

At every moment `spent x base units + carry - credit` is price times quantity since the meter began, also where a
price was learned of after it had changed: what was charged too little is one charge, what was charged too much is
worked off by time that costs nothing. No amount is ever negative: what was spent is a counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from governor.core.base.units import BootNs, DurationNs, UsdMicros, accrue
from governor.core.money.charges import Line, Part, Payer, Unit
from governor.core.money.lines import Metered
from governor.core.money.shares import share_on, share_out

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
