"""What was trained unheard and paid for: a launch that goes on from there has it in its prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# What was trained unheard may have been so much cheaper than the steps before: batches and lengths vary.
CHEAPER_MAX: Final = 2
# Of what is trained by turns so many reaches are kept: the journal's row is not to grow.
REACHES_MAX: Final = 8


def may_have_bought(paid_usd_micros: int, tokens: int, usd_micros: int) -> int:
    """How many tokens this may have paid for unheard. So many tokens have cost so much, when they were heard."""
    return CHEAPER_MAX * paid_usd_micros * tokens // usd_micros if usd_micros > 0 else 0


@dataclass(slots=True)
class Unheard:
    """How far an attempt may have trained unheard with what was paid for, by what it goes on from, in its own totals.

    A launch that goes on with something else leaves that as it is.
    """

    of: str = ""  # What the attempt goes on from, whose steps were counted last.
    offset: int = 0  # What that tells less what the meter counts.
    ended_at: int | None = None  # Its last total, where another training has begun since. None: as the meter's.
    reaches: dict[str, int] = field(default_factory=dict)  # Up to which total it may have trained unheard.

    def end_at(self, last_total: int) -> None:
        """Another training begins: from now on the meter's last total is that one's."""
        self.ended_at = last_total if self.ended_at is None else self.ended_at

    def leave(self, last_total: int, bought: int) -> None:
        """Steps of the attempt are counted no more. Behind its last total it may have trained so many tokens."""
        ended_at, self.ended_at = last_total if self.ended_at is None else self.ended_at, None
        if not self.of or bought <= 0:
            return
        told = max(ended_at + self.offset + bought, self.reaches.pop(self.of, 0))
        self.reaches[self.of] = told
        while len(self.reaches) > REACHES_MAX:
            del self.reaches[next(iter(self.reaches))]

    def take(self, of: str, offset: int) -> None:
        """An attempt's first step is counted."""
        self.of, self.offset = of, offset

    def hear(self, tokens: int) -> None:
        """So many were trained for the first time, and heard: of the attempt before they are none."""
        if self.of in self.reaches:
            self.reaches[self.of] -= tokens

    def may_reach(self, total: int) -> bool:
        """Whether the attempt's own strand may have trained to here unheard."""
        return total + self.offset <= self.reaches.get(self.of, -1)

    @classmethod
    def read(cls, row: Mapping[str, Any] | None) -> Unheard:
        """Read what asdict() made. KeyError, TypeError or ValueError when it is none. An older journal has none."""
        if row is None:
            return cls()
        ended_at = row.get("ended_at")
        reaches = {str(of): int(told) for of, told in row["reaches"].items()}
        return cls(str(row["of"]), int(row["offset"]), None if ended_at is None else int(ended_at), reaches)
