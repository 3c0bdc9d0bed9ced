"""Which of the tokens that a run tells were trained here: what is told goes on from other counts, too.

A launch that goes on from another run's checkpoint tells totals that count what the other one has trained. So does a
trainer whose count jumps. Such totals count less their offset. All that is not told but worked out (progress, prices,
windows, goals) is of what was trained.

The checkpoint says with what its training began: then launches of one origin are one strand. Where nobody knows, the
distance from what was trained here must tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.units import COUNT_MAX, MonoNs
from governor.core.events.checkpoints import Origin
from governor.core.runs.strands import KeptCount, Strand, origin_of, origin_row, strand_of, strand_row

# Whoever tells ever other counts is not to make the journal's row grow. The oldest are dropped, never the run's own.
# What goes on from a dropped one is weighed anew, or counts anew where its origin is known.
STRANDS_MAX: Final = 8
BENDS_MAX: Final = 8
# A rank keeps no more frames than half of these for us. A load that is further ahead of its steps is none.
STEPS_QUEUED_MAX: Final = 8_192


@dataclass(slots=True)
class TrainedCount:
    """What a run's totals have of tokens that were not trained here, over its attempts."""

    offset: int = 0  # Of the attempt: what it tells less what was trained.
    is_new: bool = False  # No step was counted since the attempt began, or since it loaded another checkpoint.
    origin: Origin | None = None  # Of what the attempt trains. None: nobody knows.
    loaded_at: int = 0  # So many steps of the attempt were before that load.
    told_at: MonoNs | None = field(default=None, compare=False)  # When a hello said so first. Not kept.
    # What it has loaded since, as a hello says ahead of steps of before: behind so many steps of the attempt.
    next_origin: tuple[Origin | None, int] | None = None
    begun: tuple[int, bool] | None = None  # See take_begun().
    has_said_bye: bool = False  # Nothing was trained behind the last counted step.
    last_step: int | None = field(default=None, compare=False)  # Of the attempt, as its bye has said. Not kept.
    is_told: bool = field(default=False, compare=False)  # Of this attempt, not before our restart alone.
    trained: int = 0  # All that the run has trained, each token once. Known where there are strands.
    strands: list[Strand] = field(default_factory=list)  # The present one last. Empty: all launches are of one.
    # Where the count of this attempt has jumped: the total from which on it did, and the offset before that.
    bends: list[tuple[int, int]] = field(default_factory=list)
    # Of several trainings of its processes, how far those had come that the present attempt is not in.
    kept: dict[int, KeptCount] = field(default_factory=dict)

    def begin_attempt(self, last: tuple[int, int] | None) -> None:
        """`last`: the last step, and all that the run has trained. None: not known."""
        self.last_step = None
        self._begin(last)

    def _begin(self, last: tuple[int, int] | None) -> None:
        self.is_new, self.origin, self.loaded_at = True, None, 0
        self.next_origin = self.begun = None
        self.is_told = True
        if self.bends and last is not None:
            self._keep_bends(*last)
        self.bends.clear()
        self.offset = self.strands[-1].offset if self.strands else 0

    def hear(self, origin: Origin | None, loaded_at: int, at: MonoNs) -> None:
        """Note of which origin the attempt says that it is, behind so many of its steps.

        A later step than before: it has loaded a checkpoint. What our last start found in the journal may not have it.
        """
        if self.is_new or not self.is_told:
            self.origin, self.loaded_at, self.told_at, self.is_told = origin, loaded_at, at, True
            return
        last = self.next_origin[1] if self.next_origin is not None else self.loaded_at
        if loaded_at > last or (self.next_origin is not None and loaded_at == last):
            self.next_origin = origin, loaded_at
            self.told_at = at if loaded_at > last or self.told_at is None else self.told_at

    def turn(self, attempt_step: int | None, last: tuple[int, int] | None) -> bool:
        """A step comes. Behind a load it goes on from what was loaded: True. `last`: as in begin_attempt.

        A load that is told to be far ahead of the step was before it: no rank keeps so many steps for us.
        """
        if self.is_new and attempt_step is not None and self.loaded_at - attempt_step > STEPS_QUEUED_MAX:
            self.loaded_at = attempt_step - 1
        if self.next_origin is None:
            return False
        origin, loaded_at = self.next_origin
        if attempt_step is not None and loaded_at - attempt_step > STEPS_QUEUED_MAX:
            loaded_at = attempt_step - 1
        if attempt_step is not None and attempt_step <= loaded_at:
            return False
        self._begin(last)
        self.origin, self.loaded_at = origin, loaded_at
        return True

    def _keep_bends(self, step: int, trained: int) -> None:
        """A launch may go on from any checkpoint of the attempt that ends: from before a jump, or from after it."""
        if not self.strands:
            self.strands.append(Strand(0, 0, step, trained, origin=Origin()))
            self.trained = trained
        base = self.strands[-1]
        base.line = base.line or 1 + max(strand.line for strand in self.strands)
        highest = base.told - base.offset  # As it would be told without a jump.
        offsets = [*(offset for _, offset in self.bends[1:]), self.offset]
        for (from_told, _), offset in zip(self.bends, offsets, strict=True):
            kept = next((one for one in self._line_of(base) if one.offset == offset), None)
            if kept is None:
                kept = Strand(from_told, offset, step, highest + offset, self.trained, base.line, base.origin)
            else:  # It has jumped as it did before.
                self.strands.remove(kept)
                kept.step = step
                kept.from_told, kept.told = min(kept.from_told, from_told), max(kept.told, highest + offset)
            self.strands.append(kept)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keep the run's own strand whatever comes: it goes back to that."""
        while len(self.strands) > STRANDS_MAX:
            others = [one for one in self.strands[:-1] if one.origin != Origin()]
            self.strands.remove((others or self.strands)[0])

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

    def take_training(
        self, left: int, now: int, last: tuple[int, int | None, tuple[int, int] | None] | None, *, has_trained: bool
    ) -> tuple[int, int, tuple[int, int]] | None:
        """The attempt is in another training than the last one: its totals are that one's.

        `left`, `now`: the places of both in their list; negative: not in it. `last`: of the one that is left, the last
        step, its total, and both of the highest step. `has_trained`: the present one was begun before. Returns the same
        three of that. None: they stay, an older journal does not say them.
        """
        if left >= 0 and last is not None and last[1] is not None:
            step, total, furthest = last[0], last[1], last[2]
            self.kept[left] = KeptCount(step, total, furthest or (step, total), self.trained, self.strands)
        kept = self.kept.pop(now, None)
        if kept is None and has_trained:
            return None
        kept = kept or KeptCount()
        self.trained, self.strands = kept.trained, kept.strands
        self.offset = self.strands[-1].offset if self.strands else 0
        return kept.step, kept.total, kept.furthest

    def of_other_origins(self) -> list[int]:
        """The kept trainings that the attempt does not go on with: none of their checkpoints is of its origin."""
        if self.origin is None:
            return []
        return [
            at for at, one in self.kept.items()
            if one.strands and all(strand.origin not in (None, self.origin) for strand in one.strands)
        ]  # fmt: skip

    def begin_counting(self) -> None:
        """The attempt goes on with the present strand."""
        self.is_new = False

    @property
    def _possible(self) -> list[Strand]:
        return [one for one in self.strands if self.origin is None or one.origin == self.origin]

    @property
    def is_of_new_origin(self) -> bool:
        """Whether it is known that the attempt goes on with nothing of what was trained here."""
        if self.origin is None or (not self.strands and not self.origin.run):
            return False
        return not self._possible

    def go_to(self, step: int, told: int) -> None:
        """The attempt goes on from this step and total: with the strand that has it, or has come closest to it."""
        self.is_new = False
        if not (possible := self._possible):
            return
        having = [strand for strand in reversed(possible) if strand.from_told <= told] or possible[-1:]
        found = min(having, key=lambda strand: max(0, told - strand.told))  # The latest of several.
        of_line = [one for one in self._line_of(found) if one.from_told <= told <= one.told]
        if len(of_line) > 1:  # More was trained since the jump than it has skipped.
            base = min(of_line, key=lambda one: one.offset)
            due = base.told * step // max(1, base.step) - base.offset
            found = min(of_line, key=lambda one: abs(told - one.offset - due))
        if found is not self.strands[-1]:
            self._take(found)
        self.offset = found.offset

    def go_to_step(self, step: int, tokens: int, ahead_max: int | None) -> int | None:
        """As go_to() for an attempt that tells no totals. `tokens`: of each step.

        Returns the total that was told at this step. None: none is, it is more than `ahead_max` beyond each.
        """
        self.is_new = False
        possible = self._possible
        having = [one for one in possible if one.told - (one.step - step) * tokens >= one.from_told] or possible[-1:]
        if not having:
            return None
        found = min(reversed(having), key=lambda one: max(0, step - one.step))
        if ahead_max is not None and step - found.step > ahead_max:
            return None
        if found is not self.strands[-1]:
            self._take(found)
        self.offset = found.offset
        return max(found.from_told, found.told - (found.step - step) * tokens)

    def go_on_apart(self, step: int, told: int, last: tuple[int, int] | None, trained: int) -> None:
        """The attempt goes on from this step and total, which were not trained here.

        `last`: the furthest step that was, and the total that was told with it. None: nothing was.
        """
        self.is_new = False
        if not self.strands and last is not None:
            self.strands.append(Strand(0, self.offset, *last, origin=Origin()))
            self.trained = trained
        if self.strands:
            self._leave(self.strands[-1])
        self.offset = told - self.trained
        self.strands.append(Strand(told, self.offset, step, told, origin=self.origin))
        self._drop_oldest()

    def begin_at(self, told: int) -> None:
        """The attempt goes on from this total."""
        self.begun = max(0, told - self.offset), self.has_said_bye

    def end_training(self, step: int, counted: int | None) -> None:
        """The attempt has said that it trains no more behind this step. `counted`: the last one that is."""
        self.last_step = step
        if not self.is_new:
            self.has_said_bye = step == counted

    def take_begun(self) -> tuple[int, bool] | None:
        """With which total of what was trained the attempt goes on, and whether the one before was heard to its end.

        Told once, with its first step. None: not known.
        """
        begun, self.begun = self.begun, None
        return begun

    def jump(self, told: int, skipped: int) -> None:
        """The count goes on from this total within an attempt, and so much of it was not trained."""
        if self.begun is not None:
            self.begun = max(0, self.begun[0] - skipped), self.begun[1]
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
        self.has_said_bye = step == self.last_step  # Another rank may tell it behind the bye.
        if self.strands:
            strand = self.strands[-1]
            self.trained = max(self.trained, trained)
            if trained + strand.offset >= strand.told:
                strand.step, strand.told = step, trained + strand.offset

    @property
    def last_told(self) -> tuple[int, int] | None:
        """The furthest step, and the total, of what the attempt goes on with. None: as the run's own."""
        return (self.strands[-1].step, self.strands[-1].told) if self.strands else None

    @property
    def strand(self) -> str:
        """A name for what the attempt goes on with, as long as that is kept."""
        if not self.strands or (origin := self.strands[-1].origin) == Origin():
            return "own"
        return f"{origin.step} {origin.run}" if origin is not None else f"from {self.strands[-1].from_told}"

    def row(self) -> dict[str, Any] | None:
        """Plain JSON. None: of this attempt no hello was heard, and nothing that it tells was trained elsewhere."""
        if not self.is_told and self == TrainedCount():
            return None
        strands = [strand_row(one) for one in self.strands]
        return {
            "offset": self.offset,
            "is_new": self.is_new,
            "origin": origin_row(self.origin),
            "loaded_at": self.loaded_at,
            "next_origin": [origin_row(self.next_origin[0]), self.next_origin[1]] if self.next_origin else None,
            "has_said_bye": self.has_said_bye,
            "trained": self.trained,
            "strands": strands,
            "bends": [list(bend) for bend in self.bends],
            **({"kept": {str(at): one.row() for at, one in self.kept.items()}} if self.kept else {}),
        }

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> TrainedCount:
        """Read a row(). KeyError, TypeError or ValueError when it is none. An older journal has no such row."""
        if row is None:
            return cls()
        count = cls(int(row["offset"]), bool(row["is_new"]))
        count.origin = origin_of(row.get("origin"))  # An older journal has none.
        count.loaded_at, count.is_told = int(row.get("loaded_at", 0)), "origin" in row
        if row.get("next_origin") is not None:
            origin, loaded_at = row["next_origin"]
            count.next_origin = origin_of(origin), int(loaded_at)
        count.trained, count.strands = int(row["trained"]), [strand_of(one) for one in row["strands"]]
        count.has_said_bye = bool(row.get("has_said_bye"))
        count.bends = [(int(told), int(offset)) for told, offset in row["bends"]]
        count.kept = {int(at): KeptCount.of(one) for at, one in row.get("kept", {}).items()}
        return count
