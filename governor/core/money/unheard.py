"""How far a run may have trained unheard with what it has paid for, also where another launch comes between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# What is trained by turns is not to make the journal's row grow. What the oldest may have trained is elsewhere then.
KEPT_MAX: Final = 8


@dataclass(slots=True)
class Unheard:
    """By what an attempt goes on from, in its own totals. One that goes on with something else leaves those as is."""

    of: str = ""  # What the attempt goes on from, whose steps were counted last.
    offset: int = 0  # What that tells less what the meter counts.
    reaches: dict[str, int] = field(default_factory=dict)  # Up to which total it may have trained unheard.

    def leave(self, last_total: int, bought: int) -> None:
        """Steps of the attempt are counted no more. Behind its last total it may have trained so many tokens."""
        if not self.of or bought <= 0:
            return
        told = max(last_total + self.offset + bought, self.reaches.pop(self.of, 0))
        self.reaches[self.of] = told
        while len(self.reaches) > KEPT_MAX:
            del self.reaches[next(iter(self.reaches))]

    def take(self, of: str, offset: int) -> None:
        """An attempt's first step is counted."""
        self.of, self.offset = of, offset

    def may_reach(self, total: int) -> bool:
        """Whether the attempt's own strand may have trained to here unheard."""
        return total + self.offset <= self.reaches.get(self.of, -1)

    @classmethod
    def read(cls, row: Mapping[str, Any] | None) -> Unheard:
        """Read what asdict() made. KeyError, TypeError or ValueError when it is none. An older journal has none."""
        if row is None:
            return cls()
        return cls(str(row["of"]), int(row["offset"]), {str(of): int(told) for of, told in row["reaches"].items()})
