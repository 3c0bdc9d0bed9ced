"""Which of the runs that have one name in several journals are one run.

Each `costgov run` without a name has a journal of its own, and what a script or a log calls its run is in all of them.
A run that begins in its journal where another of its name began, or that tells of no tokens, is another run. One that
begins within what another has trained goes on from that one's checkpoint: both are one run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Part = tuple[str, str]  # A journal, and the name of a run in it.
_NO_TOKENS: Final = -1


@dataclass(eq=False, slots=True)
class OneRun:
    """A run, whatever journals it is in. Each is equal to itself alone."""

    name: str
    began_tokens: int = _NO_TOKENS
    to_tokens: int = _NO_TOKENS  # How far it is known to have trained.

    def may_go_on_at(self, began_tokens: int) -> bool:
        """Where it has been, or further on: it may have been unwatched for as long as it is known to have trained."""
        ahead = began_tokens - self.to_tokens
        return 0 <= self.began_tokens < began_tokens and ahead <= self.to_tokens - self.began_tokens


class Namesakes:
    """Finds the run of each part. Parts are entered in the order in which their journals were written."""

    def __init__(self) -> None:
        self._of: dict[Part, OneRun] = {}
        self._named: dict[str, list[OneRun]] = {}

    def enter_all(self, meters: Iterable[tuple[Part, int, int]]) -> None:
        """Of each part where its metering began, and how far it has come. A run that goes on began later."""
        for part, began_tokens, to_tokens in sorted(meters, key=lambda one: one[1]):
            self.enter(part, began_tokens, to_tokens)

    def enter(self, part: Part, began_tokens: int, to_tokens: int) -> OneRun:
        run = self._of.get(part)
        if run is None:
            run = self._of[part] = self._before(part[1], began_tokens) or self._new(part[1])
        if run.began_tokens == _NO_TOKENS:
            run.began_tokens = began_tokens
        run.to_tokens = max(run.to_tokens, to_tokens)
        return run

    def run_of(self, part: Part) -> OneRun:
        """One of which nothing was entered is a run of its own."""
        run = self._of.get(part)
        if run is None:
            run = self._of[part] = self._new(part[1])
        return run

    def _before(self, name: str, began_tokens: int) -> OneRun | None:
        """The run that goes on there; of several the one that came nearest, the last one first."""
        may = [run for run in reversed(self._named.get(name, ())) if run.may_go_on_at(began_tokens)]
        return min(may, key=lambda run: abs(began_tokens - run.to_tokens), default=None)

    def _new(self, name: str) -> OneRun:
        run = OneRun(name)
        self._named.setdefault(name, []).append(run)
        return run


def counted(namesakes: Namesakes, parts: Iterable[Part]) -> dict[str, int]:
    """How many runs there are of each name that several of these parts' runs have."""
    numbers: dict[str, set[OneRun]] = {}
    for part in parts:
        numbers.setdefault(part[1], set()).add(namesakes.run_of(part))
    return {name: len(runs) for name, runs in numbers.items() if len(runs) > 1}
