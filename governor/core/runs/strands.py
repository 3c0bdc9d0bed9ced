"""What a run's launches go on from: strands of checkpoints, and for each of several trainings its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from governor.core.events.checkpoints import Origin


@dataclass(slots=True)
class Strand:
    """Launches that go on from each other's checkpoints."""

    from_told: int  # Its totals begin here.
    offset: int  # What it tells less what was trained.
    step: int  # The step of the highest total, and that.
    told: int
    left_at: int = 0  # What the run had trained when a launch went on with another strand.
    line: int = 0  # Strands of one line are one training, whose count has jumped. 0: of none.
    origin: Origin | None = None  # None: nobody knows.


@dataclass(slots=True)
class KeptCount:
    """How far a training has come in its own totals, while its processes are in another. As it is: not begun."""

    step: int = 0  # That was counted last, and what was trained by then.
    total: int = 0
    furthest: tuple[int, int] = (0, 0)  # The same of its highest step.
    trained: int = 0  # See TrainedCount.
    strands: list[Strand] = field(default_factory=list)

    def row(self) -> list[Any]:
        return [self.step, self.total, *self.furthest, self.trained, [strand_row(one) for one in self.strands]]

    @classmethod
    def of(cls, row: Sequence[Any]) -> KeptCount:
        """Read a row(). TypeError or ValueError when it is none."""
        *numbers, strands = row
        step, total, furthest, furthest_total, trained = (int(number) for number in numbers)
        return cls(step, total, (furthest, furthest_total), trained, [strand_of(one) for one in strands])


def strand_row(strand: Strand) -> list[Any]:
    return [*astuple(strand)[:-1], origin_row(strand.origin)]


def strand_of(row: Sequence[Any]) -> Strand:
    """An older journal has no origin, and one before that no line."""
    from_told, offset, step, told, left_at, line = (int(value) for value in [*row, 0][:6])
    return Strand(from_told, offset, step, told, left_at, line, origin_of(row[6] if len(row) > 6 else None))


def origin_row(origin: Origin | None) -> list[Any] | None:
    return None if origin is None else [origin.run, origin.step, origin.tokens_total]


def origin_of(row: Any) -> Origin | None:
    if row is None:
        return None
    run, step, total = row
    return Origin(str(run), int(step), None if total is None else int(total))
