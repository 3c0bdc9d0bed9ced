"""What the ranks' steps of one window went to. Pure arithmetic over whole nanoseconds of all ranks.

The last rank to arrive at a collective waits for nobody. What the others spend there beyond it is their wait for it,
and of the cause that made it late: its data, its checkpoint, or its own slowness. A rank that computes less than the
usual one waits for all of these: their load is not balanced. What is left of communication is the wire's
(`docs/adr/0026`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import Losses, computed_ns
from governor.core.attribution.parts import RankSums

# Ranks of a healthy run differ by 2 to 5 % net over a window (measured on busy cores). Less is no straggler.
STRAGGLER_MIN_FRAC: Final = 0.06
# A window of fewer steps a rank says nothing about who is slow.
STEPS_MIN: Final = 3

NO_LOSSES: Final[Losses] = {}
_NAMED: Final = {
    part.DATA: Cause.DATA,
    part.LOOP: Cause.LOOP,
    part.CHECKPOINT: Cause.CHECKPOINT,
    part.EVALUATION: Cause.EVALUATION,
    part.OTHER: Cause.UNKNOWN,
}


@dataclass(slots=True)
class Split:
    """Rank-nanoseconds by cause. They add up to the sums of the ranks."""

    by_cause: dict[Cause, int] = field(default_factory=dict)
    slow_rank: int | None = None  # The one for which all others wait.
    weak: dict[Cause, int] = field(default_factory=dict)  # Of `by_cause`, what frames tell as a bound, or do not time.

    def add(self, cause: Cause, ns: int) -> None:
        if ns:
            self.by_cause[cause] = self.by_cause.get(cause, 0) + ns


@dataclass(frozen=True, slots=True)
class Late:
    """What one rank lost to the slowest one, in nanoseconds."""

    causes: Mapping[Cause, int] = field(default_factory=dict)
    own_ns: int = 0  # Of it, what was not spent in waiting: it computes longer itself.


def split(ranks: Mapping[int, RankSums], losses: Losses = NO_LOSSES) -> Split:
    """Attribute one window's steps. `ranks`: by rank number. `losses`: what each lost of `computed_ns` from outside."""
    found = Split()
    own = {rank: _own(sums, losses.get(rank, {})) for rank, sums in ranks.items()}
    last = max(own, key=lambda rank: (sum(own[rank].values()), -rank), default=0)
    late = _lateness(ranks, own, last)
    for rank, sums in ranks.items():
        _split_rank(found, sums, late.get(rank, Late()), losses.get(rank, {}))
    if any(Cause.STRAGGLER in one.causes for one in late.values()):
        found.slow_rank = last
    if not all(sums.tells_communication for sums in ranks.values()):  # Only forward passes are compared.
        compared = {cause: found.by_cause.get(cause, 0) for cause in (Cause.STRAGGLER, Cause.IMBALANCE)}
        found.weak.update({cause: ns for cause, ns in compared.items() if ns})
    if len(ranks) == 1 and (ns := found.by_cause.get(Cause.COMMUNICATION)):  # For whom it waits, nobody knows.
        found.weak[Cause.COMMUNICATION] = ns
    bound = sum(sums.bound_ns for sums in ranks.values())
    if bound:  # Who waits for a rank's data waits for what is in that.
        told = sum(sums.parts[part.DATA] for sums in ranks.values())
        found.weak[Cause.DATA] = found.by_cause.get(Cause.DATA, 0) * min(bound, told) // max(1, told)
    return found


def _split_rank(found: Split, sums: RankSums, late: Late, losses: Mapping[Cause, int]) -> None:
    left = list(sums.parts)
    for index, cause in _NAMED.items():
        found.add(cause, left[index])
    recompute, offload = min(sums.recompute_ns, left[part.BACKWARD]), _offload_ns(sums)
    working = sums.working_ns - recompute - offload
    found.add(Cause.RECOMPUTE, recompute)
    found.add(Cause.OFFLOAD, offload)
    for cause, ns in losses.items():
        found.add(cause, ns)
        working -= ns
    communication = min(sums.communication_ns, working)
    waited, bubble = 0, left[part.BUBBLE]
    for cause, ns in late.causes.items():
        # A stage waits in the bubble. What a slow rank computes longer is in no wait.
        idle = min(bubble, ns - late.own_ns if cause is Cause.STRAGGLER else ns)
        bubble -= idle
        taken = min(ns - idle, working - waited)
        found.add(cause, idle + taken)
        waited += taken
    found.add(Cause.BUBBLE, bubble)
    # The wait for a late rank is spent in communication. The late rank's own slowness is not.
    wire = max(0, communication - max(0, waited - late.own_ns)) if sums.tells_communication else 0
    found.add(Cause.COMMUNICATION, min(wire, working - waited))
    found.add(Cause.PRODUCTIVE, working - waited - min(wire, working - waited))


def _offload_ns(sums: RankSums) -> int:
    return min(sums.offload_ns, sums.parts[part.OPTIMIZER])


def _lateness(ranks: Mapping[int, RankSums], own: Mapping[int, Mapping[Cause, int]], last: int) -> dict[int, Late]:
    """What each rank lost to the slowest one in this window, by the cause that made it slow. `own`: see _own()."""
    if len(ranks) < 2 or any(sums.steps < STEPS_MIN or sums.parts[part.WHOLE] for sums in ranks.values()):
        return {}
    usual = _usual(causes[Cause.STRAGGLER] for causes in own.values())
    # What came from outside is an estimate. What steps themselves tell to be alike, it makes no different.
    usual_whole = _usual(sums.own_ns for sums in ranks.values())
    slower = max(0, min(own[last][Cause.STRAGGLER] - usual, ranks[last].own_ns - usual_whole))
    if slower < STRAGGLER_MIN_FRAC * ranks[last].total_ns:
        slower = 0
    found: dict[int, Late] = {}
    waits: dict[Cause, int]
    for rank, causes in own.items():
        behind = max(0, sum(own[last].values()) - sum(causes.values()))
        ahead = {cause: max(0, own[last][cause] - causes[cause]) for cause in causes if cause is not Cause.STRAGGLER}
        waits = {cause: min(ns, behind) for cause, ns in ahead.items() if ns}
        total = sum(waits.values())
        if total > behind:
            waits = {cause: ns * behind // total for cause, ns in waits.items()}
        if slower:
            waits[Cause.STRAGGLER] = slower
        idle = min(usual - causes[Cause.STRAGGLER], usual_whole - ranks[rank].own_ns)
        if idle >= STRAGGLER_MIN_FRAC * ranks[rank].total_ns:
            waits[Cause.IMBALANCE] = min(idle, behind)
        if waits:
            found[rank] = Late(waits, min(slower, max(0, causes[Cause.STRAGGLER] - usual)))
    return found


def _usual(amounts: Iterable[int]) -> int:
    """The lower one of two in the middle: of two ranks the faster one is as it should be."""
    ordered = sorted(amounts)
    return ordered[(len(ordered) - 1) // 2]


def _own(sums: RankSums, losses: Mapping[Cause, int]) -> dict[Cause, int]:
    told, whole = sums.parts, computed_ns(sums)
    compute, lost = sums.own_ns, sum(losses.values())
    own: dict[Cause, int] = {
        Cause.DATA: told[part.DATA],
        Cause.LOOP: told[part.LOOP],
        Cause.CHECKPOINT: told[part.CHECKPOINT],
        Cause.EVALUATION: told[part.EVALUATION],
        Cause.OFFLOAD: _offload_ns(sums),
        Cause.THROTTLING: losses.get(Cause.THROTTLING, 0),
        Cause.OTHER_TENANTS: losses.get(Cause.OTHER_TENANTS, 0),
        # What it lost from outside it lost evenly over what it computed.
        Cause.STRAGGLER: max(0, compute - compute * lost // whole) if whole else compute,
    }
    return own
