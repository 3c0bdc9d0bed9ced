"""Which of the tokens that a run tells were trained here: what is told goes on from other counts, too.

A launch that goes on from another run's checkpoint tells totals that count what the other one has trained. So does a
trainer whose count jumps. Such totals count less their offset. All that is not told but worked out (progress, prices,
windows, goals) is of what was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.units import COUNT_MAX

# Whoever tells ever other counts is not to make the journal's row grow. The oldest are dropped, and what goes on from
# one of these is weighed anew.
STRANDS_MAX: Final = 8
BENDS_MAX: Final = 8


@dataclass(slots=True)
class Strand:
    """Launches that go on from each other's checkpoints."""

    from_told: int  # Its totals begin here.
    offset: int  # What it tells less what was trained.
    step: int  # The last step of it, and the highest total.
    told: int
    left_at: int = 0  # What the run had trained when a launch went on with another strand.
    line: int = 0  # Strands of one line are one training, whose count has jumped. 0: of none.


@dataclass(slots=True)
class TrainedCount:
    """What a run's totals have of tokens that were not trained here, over its attempts."""

    offset: int = 0  # Of the attempt: what it tells less what was trained.
    is_new: bool = False  # The attempt has told no total yet.
    trained: int = 0  # All that the run has trained, each token once. Known where there are strands.
    strands: list[Strand] = field(default_factory=list)  # The present one last. Empty: all launches are of one.
    # Where the count of this attempt has jumped: the total from which on it did, and the offset before that.
    bends: list[tuple[int, int]] = field(default_factory=list)

    def begin_attempt(self, last: tuple[int, int] | None) -> None:
        """`last`: the last step, and all that the run has trained. None: not known."""
        self.is_new = True
        if self.bends and last is not None:
            self._keep_bends(*last)
        self.bends.clear()
        self.offset = self.strands[-1].offset if self.strands else 0

    def _keep_bends(self, step: int, trained: int) -> None:
        """A launch may go on from any checkpoint of the attempt that ends: from before a jump, or from after it."""
        if not self.strands:
            self.strands.append(Strand(0, 0, step, trained))
            self.trained = trained
        base = self.strands[-1]
        base.line = base.line or 1 + max(strand.line for strand in self.strands)
        highest = base.told - base.offset  # As it would be told without a jump.
        offsets = [*(offset for _, offset in self.bends[1:]), self.offset]
        for (from_told, _), offset in zip(self.bends, offsets, strict=True):
            kept = next((one for one in self._line_of(base) if one.offset == offset), None)
            if kept is None:
                kept = Strand(from_told, offset, step, highest + offset, self.trained, base.line)
            else:  # It has jumped as it did before.
                self.strands.remove(kept)
                kept.step = step
                kept.from_told, kept.told = min(kept.from_told, from_told), max(kept.told, highest + offset)
            self.strands.append(kept)
        del self.strands[:-STRANDS_MAX]

    def _line_of(self, strand: Strand) -> list[Strand]:
        return [one for one in self.strands if one is strand or one.line == strand.line != 0]

    def _leave(self, strand: Strand) -> None:
        for one in self._line_of(strand):
            one.left_at = self.trained

    def _take(self, strand: Strand) -> None:
        """Go on with another strand than the present one."""
        if all(strand is not one for one in self._line_of(self.strands[-1])):
            self._leave(self.strands[-1])
            since = self.trained - strand.left_at
            for one in self._line_of(strand):
                one.offset -= since  # What the others have trained since is not told by it.
        self.strands.remove(strand)
        self.strands.append(strand)

    def begin_training(self) -> None:
        """The attempt is another training of the same processes, whose totals begin at nothing."""
        self.strands.clear()
        self.offset = 0

    def go_to(self, step: int, told: int) -> None:
        """The attempt goes on from this step and total: with the strand that has it, or has come closest to it."""
        self.is_new = False
        if not self.strands:
            return
        having = [strand for strand in reversed(self.strands) if strand.from_told <= told] or self.strands[-1:]
        found = min(having, key=lambda strand: max(0, told - strand.told))  # The latest of several.
        of_line = [one for one in self._line_of(found) if one.from_told <= told <= one.told]
        if len(of_line) > 1:  # More was trained since the jump than it has skipped.
            base = min(of_line, key=lambda one: one.offset)
            due = base.told * step // max(1, base.step) - base.offset
            found = min(of_line, key=lambda one: abs(told - one.offset - due))
        if found is not self.strands[-1]:
            self._take(found)
        self.offset = found.offset

    def go_on_apart(self, told: int, last: tuple[int, int], trained: int) -> None:
        """The attempt goes on from this total, which was not trained here. `last`: the step and total before it."""
        if not self.strands:
            self.strands.append(Strand(0, self.offset, *last))
            self.trained = trained
        self._leave(self.strands[-1])
        self.offset = told - self.trained
        self.strands.append(Strand(told, self.offset, last[0], told))
        del self.strands[:-STRANDS_MAX]

    def jump(self, told: int, skipped: int) -> None:
        """The count goes on from this total within an attempt, and so much of it was not trained."""
        self.bends.append((told, self.offset))
        del self.bends[:-BENDS_MAX]
        self.offset += skipped

    def of_told(self, told: int, own: int) -> int:
        """What was trained by this total. `own`: the tokens of its steps since the last one."""
        while self.bends and told < self.bends[-1][0]:  # The count is back where it was.
            self.offset = self.bends.pop()[1]
        strand = self.strands[-1] if self.strands else None
        if strand is not None and not self.bends and told < strand.from_told:
            self._go_before(strand, told, own)
        return min(max(0, told - self.offset), COUNT_MAX)

    def _go_before(self, strand: Strand, told: int, own: int) -> None:
        """The attempt has gone back before its own begin."""
        line = [one for one in self._line_of(strand) if one is not strand]
        if not line:  # To what was not trained here either.
            strand.from_told = max(0, told - own)
            strand.offset = self.offset = strand.from_told - self.trained
            return
        before = next((one for one in reversed(line) if one.from_told <= told <= one.told), None)
        if before is not None and not self.is_new:  # To before the jump, as its own total tells.
            self._take(before)
            self.offset = before.offset

    def note(self, step: int, trained: int) -> None:
        """A step was counted, and so much was trained by it."""
        if self.strands:
            strand = self.strands[-1]
            self.trained = max(self.trained, trained)
            strand.step, strand.told = step, max(strand.told, trained + strand.offset)

    @property
    def last_told(self) -> tuple[int, int] | None:
        """The last step, and the total, of what the attempt goes on with. None: as the run's own."""
        return (self.strands[-1].step, self.strands[-1].told) if self.strands else None

    def row(self) -> dict[str, Any] | None:
        """Plain JSON. None: nothing that it tells was trained elsewhere."""
        if not self.offset and not self.strands and not self.bends:
            return None
        strands = [[one.from_told, one.offset, one.step, one.told, one.left_at, one.line] for one in self.strands]
        return {
            "offset": self.offset,
            "is_new": self.is_new,
            "trained": self.trained,
            "strands": strands,
            "bends": [list(bend) for bend in self.bends],
        }

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> TrainedCount:
        """Read a row(). KeyError, TypeError or ValueError when it is none. An older journal has no such row."""
        if row is None:
            return cls()
        strands = [Strand(*(int(value) for value in one)) for one in row["strands"]]
        bends = [(int(told), int(offset)) for told, offset in row["bends"]]
        return cls(int(row["offset"]), bool(row["is_new"]), int(row["trained"]), strands, bends)
