"""Tokens that ranks have counted themselves. Their sum replaces what the lead rank's own tokens suggest.

The lead rank tells its tokens times the ranks that see different ones. Where batches have various lengths, that is an
estimate. Each such rank also tells a running total of its own. A step's tokens are counted as soon as every connected
rank of this node has told its total as of that step. Totals go on over steps whose frames were lost. Ranks of other
nodes are not heard: the sum stands for them too, by their number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from governor.core.base.units import COUNT_MAX
from governor.core.events.inputs import Step

STEPS_MAX = 32  # Ranks of one run train at most a step or two apart. Further steps are not waited for.
PLACES_MAX = 64  # As ranks of one run on one node.
LATE_STEPS_MAX = 8  # So many steps of the lead rank without the others' totals: its own estimate counts.

# A rank's totals since it attached or resumed: its tokens, and those that are no padding; None: it does not know.
Own = tuple[int, int | None]


class Counted(NamedTuple):
    """A step of the lead rank whose tokens count now."""

    step: Step  # With the tokens that it has, where the step before it is known.
    total: int
    # Since the last such step, which may be several steps ago; None: not known.
    tokens: int | None
    nonpad: int | None


@dataclass(slots=True)
class RankTokens:
    """Totals of this attempt's ranks by step, and the lead rank's steps that wait for them.

    A rank's place is its number among those that see different tokens. Ranks of one place tell the same.
    """

    waiting: dict[int, Step] = field(default_factory=dict)
    told: dict[int, dict[int, Own]] = field(default_factory=dict)  # By step, and by place.
    newest: dict[int, int] = field(default_factory=dict)  # By rank: the last step that it told.
    settled: tuple[int, Own] | None = None  # The last counted step, and the sum over all places as of it.
    is_patient: bool = True  # Ranks whose place is not known yet are waited for.
    correction: int = 0  # What that sum had over the lead rank's estimate.

    def tell(self, step: Step, rank: int, place: int, tokens: int) -> dict[int, Own]:
        """Enter a rank's own totals. Return what is known of its step, by place."""
        number = step.step
        if number <= self.newest.get(rank, -1):  # It went back, and counts from zero again.
            for places in self.told.values():
                places.pop(place, None)
        self.newest[rank] = number
        told = self.told.get(number)
        if told is None:
            told = self.told[number] = {}
            if len(self.told) > STEPS_MAX:
                del self.told[min(self.told)]
        if len(told) < PLACES_MAX or place in told:
            told[place] = tokens, step.nonpad_own_total
        return told

    def wait(self, step: Step) -> None:
        """Enter a step of the lead rank."""
        if self.waiting and step.step <= max(self.waiting):
            self.waiting.clear()
        if self.settled is not None and step.step <= self.settled[0]:
            self.settled, self.correction = None, 0
        self.waiting[step.step] = step

    def settle(self, number: int, told: Mapping[int, Own], size: int) -> Counted:
        """Count step `number`, which waits, by what all have told. `size`: places on all nodes."""
        step = self.waiting[number]
        now, own = _sum(told.values(), size), step.tokens_own_total
        assert own is not None, "as wait() and its caller have it"
        before = self.settled
        if before is None and step.tokens == own * size:  # Its first since it attached or resumed.
            before = number - 1, (0, 0)
        tokens = nonpad = None
        if before is not None:
            tokens, nonpad = max(0, now[0] - before[1][0]), _difference(now[1], before[1][1])
            if before[0] == number - 1 and step.tokens != tokens:
                step = replace(step, tokens=tokens)
        self.correction = now[0] - own * size
        self.settled = number, now
        self.told = {one: places for one, places in self.told.items() if one > number}
        self.waiting = {one: waits for one, waits in self.waiting.items() if one > number}
        return Counted(step, self._total(step), tokens, nonpad)

    def doubt(self) -> None:
        """What was counted last is not believed: what follows is counted without it."""
        self.settled, self.correction = None, 0

    @property
    def is_late(self) -> bool:
        return len(self.waiting) > LATE_STEPS_MAX

    def late(self, size: int) -> Counted:
        """The lead rank's estimate, where the others' totals do not come."""
        first, step = self.waiting[min(self.waiting)], self.waiting[max(self.waiting)]
        if self.settled is None and first.tokens == (first.tokens_own_total or 0) * size:
            step = replace(step, tokens=(step.tokens_own_total or 0) * size)  # All since it attached: none counted yet.
        self.waiting.clear()
        self.is_patient = False
        return Counted(step, self._total(step), None, None)

    def _total(self, step: Step) -> int:
        assert step.tokens_total is not None, "only such steps wait"
        return min(max(0, step.tokens_total + self.correction), COUNT_MAX)


def _sum(told: Collection[Own], size: int) -> Own:
    """What all places have, those of other nodes like the mean of these."""
    known = [nonpad for _, nonpad in told if nonpad is not None]
    nonpad = min(sum(known) * size // len(told), COUNT_MAX) if len(known) == len(told) else None
    return min(sum([tokens for tokens, _ in told]) * size // len(told), COUNT_MAX), nonpad


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)
