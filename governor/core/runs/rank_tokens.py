"""Tokens that ranks have counted themselves. Their sum replaces what the lead rank's own tokens suggest.

The lead rank tells its tokens times the ranks that see different ones. Where batches have various lengths, that is an
estimate. Each such rank also tells a running total of its own. A step's tokens are counted as soon as every connected
rank of this node has told its total as of that step. Totals go on over steps whose frames were lost. Ranks of other
nodes are not heard: the sum stands for them too, by their number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from governor.core.events.inputs import Step

STEPS_MAX = 32  # Ranks of one run train at most a step or two apart. Further steps are not waited for.
LATE_STEPS_MAX = 8  # So many steps of the lead rank without the others' totals: its own estimate counts.

COUNT_MAX = 2**63 - 1  # As the wire's integers.


class Own(NamedTuple):
    """A rank's totals since it attached or resumed. None: it does not know how many are padding."""

    tokens: int
    nonpad: int | None


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
    correction: int = 0  # What that sum had over the lead rank's estimate.

    def tell(self, step: Step, place: int) -> None:
        """Enter a rank's own totals."""
        assert step.tokens_own_total is not None, "the caller looked"
        if step.step <= self.newest.get(step.rank, -1):  # It went back, and counts from zero again.
            for places in self.told.values():
                places.pop(place, None)
        self.newest[step.rank] = step.step
        self.told.setdefault(step.step, {})[place] = Own(step.tokens_own_total, step.nonpad_own_total)
        if len(self.told) > STEPS_MAX:
            del self.told[min(self.told)]

    def wait(self, step: Step) -> None:
        """Enter a step of the lead rank."""
        if self.waiting and step.step <= max(self.waiting):
            self.waiting.clear()
        if self.settled is not None and step.step <= self.settled[0]:
            self.settled, self.correction = None, 0
        self.waiting[step.step] = step

    def settle(self, number: int, places: Iterable[int], size: int) -> Counted | None:
        """Count step `number` if it waits and all of `places` have told. `size`: places on all nodes."""
        step, told = self.waiting.get(number), self.told.get(number)
        if step is None or told is None or any(place not in told for place in places):
            return self._late()
        now, own = _sum(told.values(), size), step.tokens_own_total
        assert own is not None, "as wait() and its caller have it"
        before = self.settled
        if before is None and step.tokens == own * size:  # Its first since it attached or resumed.
            before = number - 1, Own(0, 0)
        tokens = nonpad = None
        if before is not None:
            tokens, nonpad = max(0, now.tokens - before[1].tokens), _difference(now.nonpad, before[1].nonpad)
            if before[0] == number - 1:
                step = replace(step, tokens=tokens)
        self.correction = now.tokens - own * size
        self.settled = number, now
        self.told = {one: places for one, places in self.told.items() if one > number}
        self.waiting = {one: waits for one, waits in self.waiting.items() if one > number}
        return Counted(step, self._total(step), tokens, nonpad)

    def _late(self) -> Counted | None:
        """The lead rank's estimate, where the others' totals do not come."""
        if len(self.waiting) <= LATE_STEPS_MAX:
            return None
        step = self.waiting[max(self.waiting)]
        self.waiting.clear()
        return Counted(step, self._total(step), None, None)

    def _total(self, step: Step) -> int:
        assert step.tokens_total is not None, "only such steps wait"
        return min(max(0, step.tokens_total + self.correction), COUNT_MAX)


def _sum(told: Collection[Own], size: int) -> Own:
    """What all places have, those of other nodes like the mean of these."""
    known = [own.nonpad for own in told if own.nonpad is not None]
    nonpad = min(sum(known) * size // len(told), COUNT_MAX) if len(known) == len(told) else None
    return Own(min(sum(own.tokens for own in told) * size // len(told), COUNT_MAX), nonpad)


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)
