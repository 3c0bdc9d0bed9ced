"""What the ranks' steps of one window went to. Pure arithmetic over whole nanoseconds of all ranks.

The last rank to arrive at a collective waits for nobody. What the others spend there beyond it is their wait for it,
and of the cause that made it late: its data, its checkpoint, or its own slowness. A rank that computes less than the
usual one waits for all of these: their load is not balanced. What is left of communication is the wire's
(`docs/adr/0026`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import NO_LOSSES, Losses
from governor.core.attribution.lateness import NAMED, Late, lateness
from governor.core.attribution.parts import RankSums

_NAMED: Final = {**NAMED, part.OTHER: Cause.UNKNOWN}
# _split_rank() divides these: the passes, and the wait for other stages.
_DIVIDED: Final = (part.FORWARD, part.BACKWARD, part.OPTIMIZER, part.BUBBLE)
assert {*_NAMED, *_DIVIDED} >= {*range(part.BETWEEN)}, "_NAMED: a part of a step has no cause here"


@dataclass(slots=True)
class Split:
    """Rank-nanoseconds by cause. They add up to the sums of the ranks."""

    by_cause: dict[Cause, int] = field(default_factory=dict)
    slow_rank: int | None = None  # The one for which all others wait.
    weak: dict[Cause, int] = field(default_factory=dict)  # Of `by_cause`, what frames tell as a bound, or do not time.

    def add(self, cause: Cause, ns: int) -> None:
        if ns:
            self.by_cause[cause] = self.by_cause.get(cause, 0) + ns


def split(ranks: Mapping[int, RankSums], losses: Losses = NO_LOSSES) -> Split:
    """Attribute one window's steps. `ranks`: by rank number. `losses`: what each lost of `computed_ns` from outside."""
    found = Split()
    late, found.slow_rank = lateness(ranks, losses)
    for rank, sums in ranks.items():
        _split_rank(found, sums, late.get(rank, Late()), losses.get(rank, {}))
    if not all(sums.tells_communication for sums in ranks.values()):  # Only forward passes are compared.
        compared = {cause: found.by_cause.get(cause, 0) for cause in (Cause.STRAGGLER, Cause.IMBALANCE)}
        found.weak.update({cause: ns for cause, ns in compared.items() if ns})
    if len(ranks) == 1 and (ns := found.by_cause.get(Cause.COMMUNICATION)):  # For whom it waits, nobody knows.
        found.weak[Cause.COMMUNICATION] = ns
    for index in {index for sums in ranks.values() for index, ns in sums.bound_ns.items() if ns}:
        bound = sum(sums.bound_ns.get(index, 0) for sums in ranks.values())
        told, cause = sum(sums.parts[index] for sums in ranks.values()), _NAMED[index]
        # Who waits for a rank's data waits for what is in that.
        found.weak[cause] = found.by_cause.get(cause, 0) * min(bound, told) // max(1, told)
    return found


def _split_rank(found: Split, sums: RankSums, late: Late, losses: Mapping[Cause, int]) -> None:
    left = list(sums.parts)
    for index, cause in _NAMED.items():
        found.add(cause, left[index])
    recompute, offload = min(sums.recompute_ns, left[part.BACKWARD]), sums.offloaded_ns
    working = sums.working_ns - recompute - offload
    found.add(Cause.RECOMPUTE, recompute)
    found.add(Cause.OFFLOAD, offload)
    for cause, ns in losses.items():
        found.add(cause, ns)
        working -= ns
    communication = min(sums.communication_ns, working)
    waited, bubble = 0, left[part.BUBBLE]
    # Where ranks do not meet in each step, they get back what they lost, and no collective is as long.
    in_calls = communication if sums.tells_all_communication else working
    for cause, ns in late.causes.items():
        # A stage waits in the bubble. What a slow rank computes longer is in no wait.
        own = late.own_ns if cause is Cause.STRAGGLER else 0
        idle = min(bubble, ns - own)
        bubble -= idle
        in_call = min(in_calls, ns - own - idle)
        in_calls -= in_call
        taken = min(own + in_call, working - waited)
        found.add(cause, idle + taken)
        waited += taken
    found.add(Cause.BUBBLE, bubble)
    # The wait for a late rank is spent in communication. The late rank's own slowness is not.
    wire = max(0, communication - max(0, waited - late.own_ns)) if sums.tells_communication else 0
    found.add(Cause.COMMUNICATION, min(wire, working - waited))
    found.add(Cause.PRODUCTIVE, working - waited - min(wire, working - waited))
