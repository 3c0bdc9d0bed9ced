"""What becomes of a governor that is silent: what its machine's provider says, and what its runs may have spent.

Silence alone stops nothing. A machine is stopped when its runs have used up all that they were granted: then its own
governor, had it lived, would have halted them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, UsdMicros, format_usd
from governor.core.events.inputs import BillingAnswer
from governor.core.fleet.presence import NodeRow, RunRow
from governor.core.fleet.scopes import DAY, FLEET, GrantRow, may_have_spent

SILENT_NS: Final = 120 * NS_PER_S  # Behind the end of its lease. A service manager starts a governor anew in seconds.
# A run is stopped for when its grant would be used up at half the rate that it said last, and so much later.
PATIENCE_NS: Final = 600 * NS_PER_S
BELIEVED_GRANTS: Final = 3  # More than so many times its grant is settled by a person.


class Step(Enum):
    LEAVE = "leave"
    SETTLE = "settle"  # Its billing has ended: settle the grants, and take its rows away.
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class HeldGrant:
    key: str
    scope: str
    run: str
    row: GrantRow


@dataclass(frozen=True, slots=True)
class Silent:
    """A holder whose lease has ended. `for_ns`: how long we have seen that, by our own clock."""

    holder: str
    for_ns: int
    node: NodeRow
    runs: Sequence[RunRow] = ()
    grants: Sequence[HeldGrant] = ()
    is_whole: bool = True  # Every row of its runs and grants can be read.
    shares_machine: bool = False  # Another governor on the same machine lives: it has its own runs there.

    @property
    def is_ending(self) -> bool:
        """Its last word was that its machine is being stopped: silence is what was to come."""
        return self.node.stops_machine or (bool(self.alive) and all(run.stops_machine for run in self.alive))

    @property
    def alive(self) -> list[RunRow]:
        """Its runs that were alive, or in a halt, at its last word."""
        return [run for run in self.runs if run.is_alive or run.rate_usd_micros_per_hour]


def next_step(silent: Silent, billing: BillingAnswer) -> Step:
    """What to do with its machine, when the provider has said this of it."""
    if billing is BillingAnswer.ENDED:
        return Step.SETTLE
    if billing is not BillingAnswer.RUNNING or silent.for_ns < SILENT_NS:
        return Step.LEAVE
    if silent.node.observes or not silent.node.can_stop or silent.shares_machine or not silent.is_whole:
        return Step.LEAVE
    ends = bool(silent.alive) and all(
        run.may_stop and not _is_held(silent, run) and _is_used_up(silent, run) for run in silent.alive
    )
    return Step.STOP if ends else Step.LEAVE


def _is_held(silent: Silent, run: RunRow) -> bool:
    """Its hold was so long at its last word. Behind it, its own governor would have begun a halt."""
    return run.held_s is not None and silent.for_ns - PATIENCE_NS < run.held_s * NS_PER_S


def _is_used_up(silent: Silent, run: RunRow) -> bool:
    """By our own clock: that of the silent governor may be wrong.

    Of a budget that covers every run. It may live and be cut off from etcd alone: whatever has begun there since is
    halted by the same budget, for want of a grant.
    """
    unwatched_ns = max(0, silent.for_ns - PATIENCE_NS)
    return any(
        grant.run == run.run
        and (grant.scope == FLEET or grant.scope.startswith(f"{DAY}:"))
        and grant.row.rate_usd_micros_per_hour > 0
        and grant.row.spent_usd_micros + grant.row.rate_usd_micros_per_hour * unwatched_ns // (2 * NS_PER_HOUR)
        >= grant.row.granted_usd_micros
        for grant in silent.grants
    )


def settles_at(grant: HeldGrant, silent: Silent, wall: int) -> int | None:
    """What its run may have spent at most. None: so much more than it was granted that a person has to say.

    Its clock may be behind ours or ahead, and nobody may have looked for days.
    """
    ended = max(wall, grant.row.seen_wall_ns + silent.for_ns)
    spent = may_have_spent(grant.row, ended, silent.node.rate_usd_micros_per_hour or 0)
    return spent if spent <= BELIEVED_GRANTS * max(grant.row.granted_usd_micros, grant.row.spent_usd_micros) else None


def tells(silent: Silent) -> str:
    """What a person is told of it, once."""
    node = silent.node
    runs = ", ".join(run.run for run in silent.alive[:8]) or "no run"
    machine = f"{node.cloud} {node.instance_id}" if node.instance_id else "a machine that no provider knows"
    rate = node.rate_usd_micros_per_hour
    bill = f"which cost {format_usd(UsdMicros(rate))}/h and may do so still" if rate else "which may be billed still"
    return f"the governor of {node.node} is silent: {runs} ran there at its last word, on {machine}, {bill}"
