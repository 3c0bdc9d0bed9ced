"""The trainings of a process, one after another, and from which total each has begun: SFT, then DPO.

Each tells totals that begin at nothing. A relaunch trains them again, or skips those that are done: their checkpoint
directories tell which is which. Where they do not, the numbers behind the launch's name do: ATTEMPT+1 is the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.units import is_whole

# A search over hyperparameters is not to make the journal's row grow. What a relaunch repeats of those beyond is new.
TRAININGS_MAX: Final = 16
_DIGITS_MAX: Final = 9
NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Training:
    number: int  # In its launch: 0 is the first.
    place: str  # Of its checkpoint directory. "": not told.
    earlier_tokens: int  # Of the trainings before it.


@dataclass(slots=True)
class Trainings:
    """Of a run, over its launches."""

    attempt: str = ""  # Whose steps were counted last.
    number: int = 0  # Of the training in its launch.
    now: int = NONE  # Which of `known` that is. NONE: it is not among them.
    by_place: bool = False  # This launch's directories are those of an earlier launch.
    known: list[Training] = field(default_factory=list)

    def begin(
        self, attempt: str, directory: str | None, earlier_tokens: int, progress_tokens: int,
        *, is_launch: bool, is_anew: bool,
    ) -> int:  # fmt: skip
        """The attempt's first step has come. Returns the tokens of the trainings before its own.

        `earlier_tokens`: of the training before. `is_launch`: its process has trained nothing yet. `is_anew`: its
        totals begin at nothing. A training that is not known goes on from all progress.
        """
        place, is_first = _place_of(directory), not self.attempt
        self.attempt, self.number = attempt, 0 if is_launch else _number_of(attempt, self.number + 1)
        if is_launch and is_first and earlier_tokens:
            return earlier_tokens  # An older journal does not say which training it was in.
        found = self._of_launch(place) if is_launch else self._next(place)
        if not is_launch and found in (NONE, self.now):
            if not is_anew:
                return earlier_tokens  # A restart within the process: the same training.
            found = NONE
        if found != NONE:
            self.now = found
            return self.known[found].earlier_tokens
        return self._keep(Training(self.number, place, 0 if is_launch else progress_tokens))

    def _keep(self, training: Training) -> int:
        self.now = NONE
        if len(self.known) < TRAININGS_MAX:
            self.known.append(training)
            self.now = len(self.known) - 1
        return training.earlier_tokens

    def _of_launch(self, place: str) -> int:
        found = self._at(place)
        self.by_place = found != NONE
        return found if found != NONE else self._numbered()

    def _next(self, place: str) -> int:
        found = self._at(place)
        return found if found != NONE or (place and self.by_place) else self._numbered()

    def _at(self, place: str) -> int:
        """The training that saves there. Of several the one with this number."""
        there = [at for at, one in enumerate(self.known) if place and one.place == place]
        numbered = [at for at in there if self.known[at].number == self.number]
        return next(iter(numbered or (there if len(there) == 1 else [])), NONE)

    def _numbered(self) -> int:
        return next((at for at, one in enumerate(self.known) if one.number == self.number), NONE)

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> Trainings:
        """Read what asdict() made. KeyError, TypeError or ValueError when it is none. An older journal has none."""
        if row is None:
            return cls()
        known = [Training(int(one["number"]), str(one["place"]), int(one["earlier_tokens"])) for one in row["known"]]
        now = int(row["now"])
        if not NONE <= now < len(known):
            raise ValueError(f"training {now} of {len(known)}")
        return cls(str(row["attempt"]), int(row["number"]), now, bool(row["by_place"]), known)


def _place_of(directory: str | None) -> str:
    """As a digest: sixteen paths are more than the journal's row is for."""
    told = (directory or "").encode("utf-8", "surrogatepass")
    return hashlib.blake2b(told, digest_size=8).hexdigest() if told else ""


def _number_of(attempt: str, otherwise: int) -> int:
    """ATTEMPT+1 is the second."""
    _, plus, number = attempt.rpartition("+")
    return int(number) if plus and is_whole(number) and len(number) <= _DIGITS_MAX else otherwise
