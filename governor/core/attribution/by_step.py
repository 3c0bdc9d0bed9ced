"""What single steps of a window spent before their passes, so that ranks are compared step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Steps of 80 ms fill it within a window. Of shorter ones, several are taken as one.
KEPT_MAX: Final = 128


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


class Piece(NamedTuple):
    """Steps that all ranks have told. `named`: by rank, its parts in them, in the order of APART."""

    steps: int
    named: Mapping[int, Sequence[int]]


def shared(ranks: Mapping[int, ByStep]) -> list[Piece]:
    """The steps of a window that each rank has."""
    width = max((one.width for one in ranks.values()), default=1)
    told = {rank: one.by(width) for rank, one in ranks.items()}
    found = list[Piece]()
    for key in sorted(set.intersection(*(set(one) for one in told.values()))) if told else ():
        rows = {rank: one[key] for rank, one in told.items()}
        if len({row[0] for row in rows.values()}) == 1:  # Else some of these steps are of one rank alone, at an edge.
            found.append(Piece(next(iter(rows.values()))[0], {rank: row[1:] for rank, row in rows.items()}))
    return found


def joined(pieces: Sequence[Piece]) -> Piece:
    """At least one."""
    named = {
        rank: [sum(column) for column in zip(*(piece.named[rank] for piece in pieces), strict=True)]
        for rank in pieces[0].named
    }
    return Piece(sum(piece.steps for piece in pieces), named)


def _sum(mine: list[int], steps: int, parts: Sequence[int]) -> None:
    mine[0] += steps
    for place, ns in enumerate(parts, 1):
        mine[place] += ns
