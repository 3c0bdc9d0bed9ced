"""What single steps of a window spent before their passes, so that ranks are compared step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution.causes import Cause

# Steps of 40 ms fill it within a window. Of shorter ones, several are taken as one.
KEPT_MAX: Final = 256


@dataclass(slots=True)
class ByStep:
    """Bounded. `kept`, by the step's number over `width`: how many steps that is, and their parts in the order given.

    Parts that come in some steps alone are what it is for: a save, an evaluation, a slow fetch.
    """

    width: int = 1
    kept: dict[int, list[int]] = field(default_factory=dict)

    def add(self, number: int, parts: Sequence[int], steps: int = 1) -> None:
        key = number // self.width
        if (mine := self.kept.get(key)) is not None:
            _sum(mine, steps, parts)
            return
        self.kept[key] = [steps, *parts]
        while len(self.kept) > KEPT_MAX:
            self.widen(2 * self.width)

    def widen(self, width: int) -> None:
        """`width`: a multiple of its own."""
        self.kept, self.width = self.by(width), width

    def by(self, width: int) -> dict[int, list[int]]:
        """As `kept`, with a `width` that is a multiple of its own."""
        times = width // self.width
        if times == 1:
            return self.kept
        wide: dict[int, list[int]] = {}
        for key, (steps, *parts) in self.kept.items():
            _sum(wide.setdefault(key // times, [0] * (1 + len(parts))), steps, parts)
        return wide

    def take(self, other: ByStep) -> None:
        """Add what `other` has. Widths are powers of two."""
        width = max(self.width, other.width)
        self.widen(width)
        for key, (steps, *parts) in other.by(width).items():
            self.add(key * width, parts, steps)


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps that all ranks have told. `named`: what each rank spent in them, by cause."""

    steps: int
    named: dict[int, dict[Cause, int]]

    def plus(self, other: Piece) -> Piece:
        named = {
            rank: {cause: ns + other.named[rank][cause] for cause, ns in mine.items()}
            for rank, mine in self.named.items()
        }
        return Piece(self.steps + other.steps, named)


def shared(ranks: dict[int, ByStep], causes: Sequence[Cause]) -> list[Piece]:
    """The steps of a window that each rank has. `causes`: of the parts, in their order."""
    width = max((one.width for one in ranks.values()), default=1)
    told = {rank: one.by(width) for rank, one in ranks.items()}
    found = list[Piece]()
    for key in sorted(set.intersection(*(set(one) for one in told.values()))) if told else ():
        counts = {one[key][0] for one in told.values()}
        if len(counts) == 1:  # Else some of these steps are of one rank alone, at the window's edge.
            named = {rank: dict(zip(causes, one[key][1:], strict=True)) for rank, one in told.items()}
            found.append(Piece(counts.pop(), named))
    return found


def _sum(mine: list[int], steps: int, parts: Sequence[int]) -> None:
    mine[0] += steps
    for place, ns in enumerate(parts, 1):
        mine[place] += ns
