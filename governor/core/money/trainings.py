"""The trainings of a process, one after another, and how far each has come: SFT, then DPO.

Each tells totals that begin at nothing. A relaunch trains them again, or goes on with them, or skips those that are
done: their checkpoint directories tell which is which. Where they do not, the numbers behind the launch's name do:
ATTEMPT+1 is the second.

The run's progress is the sum of how far they have come. One that goes on has its furthest total where that sum is: what
it trains up to there was trained before, by whatever came between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.identity import training_of

# A search over hyperparameters is not to make the journal's row grow. What a relaunch repeats of those beyond is new.
TRAININGS_MAX: Final = 16
NONE: Final = -1


@dataclass(slots=True)
class Training:
    number: int  # In its launch: 0 is the first.
    place: str  # Of its checkpoint directory. "": not told.
    reached: int = 0  # Its highest total, when another followed it.
    is_whole: bool = False  # It has said that it was trained to its end.
    is_taken: bool = False  # This launch has trained it, or has found it done.
    is_named: bool = False  # This launch has said its directory.


@dataclass(slots=True)
class Trainings:
    """Of a run, over its launches."""

    attempt: str = ""  # Which was heard last.
    number: int = 0  # Of the training in its launch.
    place: str = ""  # Of its checkpoint directory.
    is_launch: bool = True  # Its process has trained nothing before.
    counted: str = ""  # The attempt whose steps were counted last.
    now: int = NONE  # Which of `known` that is. NONE: it is not among them.
    restarts: int = 0  # Attempts of this launch that went on with a training of its own. They have a number each, too.
    is_shifted: bool = False  # This launch has said the directory of a training with another number than its own.
    known: list[Training] = field(default_factory=list)

    def hear(self, attempt: str, directory: str | None, *, is_launch: bool) -> None:
        """An attempt says hello. `is_launch`: its process has trained nothing before.

        Until its first step nobody knows with what it goes on. It may end before that.
        """
        place = _place_of(directory)
        if attempt != self.attempt:
            self._end_unstepped()
            number = training_of(attempt)[1]
            if is_launch:
                self.is_shifted, self.restarts = False, 0
                for one in self.known:
                    one.is_taken = one.is_named = False
            after = 0 if is_launch else self.number + 1
            self.number = after if number is None else max(0, number - self.restarts)
            self.attempt, self.is_launch = attempt, is_launch
        if attempt != self.counted:
            self.place = place
            self._name([one for one in self.known if place and one.place == place])

    def _name(self, there: list[Training]) -> None:
        for one in there:
            one.is_named = True
        self.is_shifted |= bool(there) and all(one.number != self.number for one in there)

    def _end_unstepped(self) -> None:
        """The next one is heard. A training that only attached is known by its directory: it has come to nothing yet.

        A launch may have a directory of its own each time: it tells nothing.
        """
        if self.attempt in ("", self.counted) or self.is_launch or not self.place or not self.known:
            return
        if all(one.place != self.place for one in self.known) and self._found(is_anew=False) == NONE:
            self._keep(Training(self.number, self.place))

    def begin(
        self, attempt: str, directory: str | None, earlier_tokens: int, progress_tokens: int,
        *, is_launch: bool, is_anew: bool, barred: Collection[int] = (),
    ) -> int | None:  # fmt: skip
        """The attempt's first step has come. Returns the run's progress less what its training had reached.

        None: it goes on with the training that was counted last. `earlier_tokens`: what was returned for that.
        `is_anew`: its totals begin at nothing. `barred`: trainings with whose checkpoints it does not go on.
        """
        self.hear(attempt, directory, is_launch=is_launch)
        is_first, is_new = not self.counted, attempt != self.counted
        self.counted = attempt
        if not is_new or (is_first and earlier_tokens):
            return None  # The latter: an older journal does not say which training it was in.
        if not self.known:
            self._take(self._keep(Training(self.number, self.place, progress_tokens)))
            return 0
        found = self._found(is_anew=is_anew, barred=barred)
        if not (is_anew or is_launch) and (
            found == NONE or self.known[found].is_taken
        ):  # A restart within the process.
            self.restarts, self.number = self.restarts + 1, self.number - 1
        if found == NONE and not is_anew:
            return None
        if found != NONE and found == self.now:
            self._take(found)
            return None
        if self.now != NONE:
            self.known[self.now].reached = progress_tokens - earlier_tokens
        self._take(found if found != NONE else self._keep(Training(self.number, self.place)))
        return progress_tokens - (self.known[found].reached if found != NONE else 0)

    def complete(self, attempt: str) -> None:
        """The attempt has trained to its end. Of one without a step that was before."""
        if attempt != self.attempt:
            return
        at = self.now if attempt == self.counted else self._found(is_anew=False)
        if at != NONE:
            self.known[at].is_whole = self.known[at].is_taken = True

    def _take(self, at: int) -> None:
        self.now = at
        if at != NONE:
            self.known[at].is_taken = True
            self.known[at].place = self.known[at].place or self.place

    def _keep(self, training: Training) -> int:
        if len(self.known) == TRAININGS_MAX:
            return NONE
        self.known.append(training)
        return len(self.known) - 1

    def _found(self, *, is_anew: bool, barred: Collection[int] = ()) -> int:
        """Which training the attempt goes on with. None of its own launch's begins at nothing once more.

        A launch may skip trainings that are done: where its number alone tells and that is barred, it is a later one.
        """
        possible = [at for at, one in enumerate(self.known) if not (is_anew and one.is_taken)]
        there = [at for at in possible if self.place and self.known[at].place == self.place]
        if there:
            return self._of_several(there)
        found = next((at for at in possible if self.known[at].number == self.number), NONE)
        if found in barred:
            later = (at for at in possible if at not in barred and self.known[at].number > self.number)
            found = next(later, NONE)
        if found != NONE and self.place and self._is_elsewhere(self.known[found], is_anew=is_anew):
            return NONE
        return found

    def _is_elsewhere(self, numbered: Training, *, is_anew: bool) -> bool:
        """Whether an attempt that saves where no known training does is another than that of its number."""
        if any(one.is_named for one in self.known):  # So this launch's directories are those of launches before.
            return self.is_shifted or numbered.is_named or numbered.is_whole
        return is_anew and bool(numbered.place) and numbered.is_whole  # That one is done.

    def _of_several(self, there: list[int]) -> int:
        """Of those of one directory that of its number; else the present one; else a later one: some are skipped."""
        numbered = [at for at in there if self.known[at].number == self.number]
        present = [at for at in there if at == self.now and self.known[at].is_taken]
        later = [at for at in there if self.known[at].number > self.number]
        return (numbered or present or later or there[-1:])[0]

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> Trainings:
        """Read what asdict() made. KeyError, TypeError or ValueError when it is none. An older journal has none."""
        if row is None or "counted" not in row:
            return cls()
        known = [
            Training(
                int(one["number"]),
                str(one["place"]),
                int(one["reached"]),
                bool(one["is_whole"]),
                bool(one["is_taken"]),
                bool(one.get("is_named")),
            )
            for one in row["known"]
        ]
        now = int(row["now"])
        if not NONE <= now < len(known):
            raise ValueError(f"training {now} of {len(known)}")
        return cls(
            str(row["attempt"]), int(row["number"]), str(row["place"]), bool(row["is_launch"]), str(row["counted"]),
            now, int(row["restarts"]), bool(row.get("is_shifted")), known,
        )  # fmt: skip


def _place_of(directory: str | None) -> str:
    """As a digest: sixteen paths are more than the journal's row is for."""
    told = (directory or "").encode("utf-8", "surrogatepass")
    return hashlib.blake2b(told, digest_size=8).hexdigest() if told else ""
