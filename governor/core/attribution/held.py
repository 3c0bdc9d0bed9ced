"""What of the time between two counts was a run's: it held the node, or it pays for that later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.attribution.causes import Amount, Cause
from governor.core.base.units import NS_PER_S, BootNs

# Ticks come four times a second. A longer pause is the governor's own absence: nobody knows what was then.
AWAY_NS: Final = 5 * NS_PER_S
ENOUGH_FRAC: Final = 0.99  # Micro-dollars are coarse: of a second at two dollars an hour there are 555.


@dataclass(slots=True)
class Held:
    """As of the last count."""

    boot_to: int | None = None  # The node's meter up to which the time is counted.
    holds: bool = False
    let_go_ns: int = 0  # Since it held, and not counted.
    unpaid_from: int | None = None  # It was known since then, and has not held the node yet.
    # Its training ended well, or its ranks left with a bye: what the command does behind that is its end.
    has_left: bool = False
    unheard_ns: int = 0  # Of what was owed: its ranks were lost, the command went on, and nobody spoke.

    @property
    def rest(self) -> Cause:
        """What the command's time behind its ranks is while nobody speaks. A relaunch may be under way, and hang."""
        return Cause.SHUT_DOWN if self.has_left else Cause.UNKNOWN

    def is_taken_over(self, since: BootNs) -> bool:
        """Whether it pays, from its first hold on, for time before it was known: that of the command that it is of."""
        return self.unpaid_from is not None and since < self.unpaid_from

    def passed_ns(self, boot: BootNs, *, holds: bool) -> int:
        """What has passed since the last count and was the run's: it held the node until it let go."""
        passed_ns = max(0, boot - self.boot_to) if self.boot_to is not None else 0
        held_before, self.holds, self.boot_to = self.holds, holds, boot
        if holds or held_before:
            self.unpaid_from = None
            return passed_ns
        self.let_go_ns += passed_ns
        return 0

    def owed(self, paid: int, spent: int, counted_ns: int, passed_ns: int) -> Amount:
        """The time before for which the run is charged only now, and its part of what is `paid`.

        `spent`, `counted_ns`: before that. Between the ranks of two attempts the command's time is nobody's, until a
        run speaks again or the command ends.
        """
        let_go_ns = self.let_go_ns
        if self.holds:
            self.let_go_ns = 0
        if paid <= 0 or spent <= 0 or not let_go_ns:
            return Amount()
        worth_ns = paid * counted_ns // spent - passed_ns  # At its price so far.
        owed_ns = let_go_ns if worth_ns >= let_go_ns * ENOUGH_FRAC else max(0, worth_ns)
        if not owed_ns:
            return Amount()
        self.let_go_ns = 0
        return Amount(owed_ns, paid * owed_ns // (owed_ns + passed_ns))

    def row(self) -> dict[str, Any]:
        """Plain JSON, for `restored`."""
        told = {"let_go_ns": self.let_go_ns, "has_left": self.has_left, "unheard_ns": self.unheard_ns}
        return {"boot_to": self.boot_to, **{name: one for name, one in told.items() if one}}

    @classmethod
    def restored(cls, row: Mapping[str, Any], *, same_boot: bool) -> Held:
        """KeyError, TypeError or ValueError where it is not one of ours. Another boot's meter began anew."""
        boot_to = row["boot_to"]
        known = int(boot_to) if same_boot and boot_to is not None else None
        owed, unheard = (int(row.get(name, 0)) for name in ("let_go_ns", "unheard_ns"))
        return cls(known, let_go_ns=owed, has_left=bool(row.get("has_left")), unheard_ns=unheard)
