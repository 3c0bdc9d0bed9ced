"""For what the ranks of one window wait for each other. Pure arithmetic, over the steps that all of them have told.

Slowness is told by the window: single steps differ by more than a straggler does. A save, an evaluation or a slow fetch
is of its own step: who waits for it there gets nothing back by the steps in which the other rank is the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution import parts as part
from governor.core.attribution.by_step import ByStep, Piece, joined, shared
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import Losses, computed_ns
from governor.core.attribution.parts import RankSums

# Ranks of a healthy run differ by 2 to 5 % net over a window (measured on busy cores). Less is no straggler.
STRAGGLER_MIN_FRAC: Final = 0.06
# A window of fewer steps a rank says nothing about who is slow.
STEPS_MIN: Final = 3
# Ranks that are each the last one in some steps. Each costs a look at all ranks: of 64, 1.6 ms on one core (measured).
GROUPS_MAX: Final = 8

NAMED: Final = {
    part.DATA: Cause.DATA,
    part.LOOP: Cause.LOOP,
    part.CHECKPOINT: Cause.CHECKPOINT,
    part.EVALUATION: Cause.EVALUATION,
}
assert tuple(NAMED) == part.APART, "a part that is kept by the step without its cause"
_SAVES: Final = tuple(place for place, at in enumerate(part.APART) if at in (part.CHECKPOINT, part.EVALUATION))


@dataclass(slots=True)
class Late:
    """What one rank lost to the slowest one, in nanoseconds."""

    causes: dict[Cause, int] = field(default_factory=dict)
    own_ns: int = 0  # Of it, what was not spent in waiting: it computes longer itself.

    def add(self, other: Late) -> None:
        for cause, ns in other.causes.items():
            self.causes[cause] = self.causes.get(cause, 0) + ns
        self.own_ns += other.own_ns


@dataclass(frozen=True, slots=True)
class _Pace:
    """One rank's steps as they are without their named parts. In nanoseconds of so many steps."""

    steps: int
    own: Mapping[Cause, int]  # STRAGGLER: what it computed.
    beyond_ns: int  # So much longer than the usual rank it computes. Below zero: shorter.
    slower_ns: int  # The same where it is no noise, else 0.
    idle_ns: int  # So much shorter, where it is no noise.

    def of(self, steps: int) -> _Pace:
        own = {cause: ns * steps // self.steps for cause, ns in self.own.items()}
        beyond, slower, idle = (ns * steps // self.steps for ns in (self.beyond_ns, self.slower_ns, self.idle_ns))
        return _Pace(steps, own, beyond, slower, idle)


def lateness(ranks: Mapping[int, RankSums], losses: Losses) -> tuple[dict[int, Late], int | None]:
    """What each rank lost to the slowest one in this window, by the cause that made that slow, and the straggler."""
    if len(ranks) < 2 or any(not sums.steps or sums.parts[part.WHOLE] for sums in ranks.values()):
        return {}, None
    # One may be ahead, or stand still: what it has alone compares to nothing.
    pieces = shared({rank: sums.by_step or ByStep() for rank, sums in ranks.items()})
    steps = sum(piece.steps for piece in pieces)
    if not steps:
        return {}, None
    noise = _noise(ranks, pieces, steps)
    paces = _paces(ranks, losses, noise, steps)
    found = {rank: Late() for rank in ranks}
    slow = Counter[int]()
    for group in _grouped(pieces, paces, noise):
        mine = {rank: pace.of(group.steps) for rank, pace in paces.items()}
        own = {
            rank: {**pace.own, **dict(zip(NAMED.values(), group.named[rank], strict=True))}
            for rank, pace in mine.items()
        }
        last = max(own, key=lambda rank: (sum(own[rank].values()), -rank))
        for rank, late in found.items():
            late.add(one := _late(own[rank], own[last], mine[rank], mine[last].slower_ns))
            slow[last] += one.causes.get(Cause.STRAGGLER, 0)
    slowest = max(slow, key=lambda rank: (slow[rank], -rank))
    return found, slowest if slow[slowest] else None


def _late(mine: Mapping[Cause, int], last: Mapping[Cause, int], pace: _Pace, slower_ns: int) -> Late:
    """`mine`, `last`: what this rank and the last one spent by themselves. `slower_ns`: what the last one is slower."""
    behind = max(0, sum(last.values()) - sum(mine.values()))
    own_ns = min(slower_ns, max(0, pace.beyond_ns))
    waits = {cause: max(0, last[cause] - ns) for cause, ns in mine.items()}
    waits[Cause.STRAGGLER] = slower_ns - own_ns
    waits = {cause: min(ns, behind) for cause, ns in waits.items() if ns}
    total = sum(waits.values())
    if total > behind:
        waits = {cause: ns * behind // total for cause, ns in waits.items()}
    if pace.idle_ns:
        waits[Cause.IMBALANCE] = min(pace.idle_ns, behind - sum(waits.values()))
    if own_ns:
        waits[Cause.STRAGGLER] = waits.get(Cause.STRAGGLER, 0) + own_ns
    return Late(waits, own_ns)


def _noise(ranks: Mapping[int, RankSums], pieces: Sequence[Piece], steps: int) -> dict[int, int]:
    """By how much a healthy rank may differ in so many steps: it does in what it computes, and in nobody's pauses.

    Who does not pause waits meanwhile for the one that does, so its steps have that pause as well.
    """
    saves = {rank: [_saved_ns(piece.named[rank]) for piece in pieces] for rank in ranks}
    stalls = {rank: _stalls([piece.named[rank] for piece in pieces], pieces) for rank in ranks}
    paused = {rank: [sum(both) for both in zip(saves[rank], stalls[rank], strict=True)] for rank in ranks}
    longest = sum(max(of_all) for of_all in zip(*paused.values(), strict=True))
    found = dict[int, int]()
    for rank, sums in ranks.items():
        saved = sum(sums.parts[part.APART[place]] for place in _SAVES)
        without = (sums.total_ns - saved) * steps // sums.steps - (longest - sum(saves[rank]))
        # Ranks that do not meet in each step have not waited for each pause. What one computes is no pause.
        found[rank] = int(STRAGGLER_MIN_FRAC * max(without, sums.own_ns * steps // sums.steps))
    return found


def _saved_ns(named: Sequence[int]) -> int:
    return sum(named[place] for place in _SAVES)


def _stalls(named: Sequence[Sequence[int]], pieces: Sequence[Piece]) -> list[int]:
    """What each piece has of data and of loop code beyond the usual: what comes in every step is no pause."""
    whole = [sum(parts) - _saved_ns(parts) for parts in named]
    usual = _usual(ns // piece.steps for ns, piece in zip(whole, pieces, strict=True))
    return [max(0, ns - usual * piece.steps) for ns, piece in zip(whole, pieces, strict=True)]


def _paces(ranks: Mapping[int, RankSums], losses: Losses, noise: Mapping[int, int], steps: int) -> dict[int, _Pace]:
    own = {
        rank: {cause: ns * steps // sums.steps for cause, ns in _steady(sums, losses.get(rank, {})).items()}
        for rank, sums in ranks.items()
    }
    whole = {rank: sums.own_ns * steps // sums.steps for rank, sums in ranks.items()}
    usual = _usual(causes[Cause.STRAGGLER] for causes in own.values())
    # What came from outside is an estimate. What steps themselves tell to be alike, it makes no different.
    usual_whole = _usual(whole.values())
    found = dict[int, _Pace]()
    for rank, causes in own.items():
        beyond, beyond_whole = causes[Cause.STRAGGLER] - usual, whole[rank] - usual_whole
        slower, idle = max(0, min(beyond, beyond_whole)), max(0, min(-beyond, -beyond_whole))
        if steps < STEPS_MIN:
            slower = idle = 0
        least = noise[rank]
        found[rank] = _Pace(steps, causes, beyond, slower if slower >= least else 0, idle if idle >= least else 0)
    return found


def _grouped(pieces: Sequence[Piece], paces: Mapping[int, _Pace], noise: Mapping[int, int]) -> list[Piece]:
    """The steps with the same last rank, together: within a group no wait cancels another one.

    What ranks compute is taken as their window has it. So a step is set apart from most others by its named parts
    alone, and by no less than what is noise.
    """
    own = {rank: sum(pace.own.values()) for rank, pace in paces.items()}
    steps = next(iter(paces.values())).steps
    lasts, most = list[tuple[int, int, dict[int, int]]](), Counter[int]()
    for piece in pieces:
        totals = {rank: sum(named) + own[rank] * piece.steps // steps for rank, named in piece.named.items()}
        last_ns = max(totals.values())
        last = min(rank for rank, ns in totals.items() if ns == last_ns)
        lasts.append((last, last_ns, totals))
        most[last] += piece.steps
    usual = max(most, key=most.__getitem__)  # Of as many, the one that was last before the other.
    groups: dict[int, list[Piece]] = {usual: []}
    behind = Counter[int]()
    for piece, (last, last_ns, totals) in zip(pieces, lasts, strict=True):
        is_apart = last_ns - totals[usual] > noise[usual] * piece.steps // steps
        groups.setdefault(last if is_apart else usual, []).append(piece)
        behind[last] += last_ns - totals[usual]
    for last in sorted(groups.keys() - {usual}, key=lambda rank: (-behind[rank], rank))[GROUPS_MAX - 1 :]:
        groups[usual] += groups.pop(last)
    return [joined(group) for group in groups.values() if group]


def _usual(amounts: Iterable[int]) -> int:
    """The lower one of two in the middle: of two ranks the faster one is as it should be."""
    ordered = sorted(amounts)
    return ordered[(len(ordered) - 1) // 2]


def _steady(sums: RankSums, losses: Mapping[Cause, int]) -> dict[Cause, int]:
    """What a rank spends by itself in each step alike."""
    whole, compute, lost = computed_ns(sums), sums.own_ns, sum(losses.values())
    return {
        Cause.OFFLOAD: sums.offloaded_ns,
        Cause.THROTTLING: losses.get(Cause.THROTTLING, 0),
        Cause.OTHER_TENANTS: losses.get(Cause.OTHER_TENANTS, 0),
        # What it lost from outside it lost evenly over what it computed.
        Cause.STRAGGLER: max(0, compute - compute * lost // whole) if whole else compute,
    }
