"""What becomes of a governor that is silent: what its machine's provider says, and what its runs may have spent.

Silence alone stops nothing. A machine is stopped when its runs have used up all that they were granted: then its own
governor, had it lived, would have halted them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S
from governor.core.events.inputs import BillingAnswer
from governor.core.fleet.presence import NodeRow, RunRow
from governor.core.fleet.scopes import GrantRow

SILENT_NS: Final = 120 * NS_PER_S  # Behind the end of its lease. A service manager starts a governor anew in seconds.
# A run is stopped for when its grant would be used up at half the rate that it said last, and so much later.
PATIENCE_NS: Final = 600 * NS_PER_S


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
    shares_machine: bool = False  # Another governor on the same machine lives: it has its own runs there.

    @property
    def is_ending(self) -> bool:
        """Its last word was that its machine is being stopped: silence is what was to come."""
        return all(run.stops_machine for run in self.alive)

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
    if silent.node.observes or silent.shares_machine or not silent.alive:
        return Step.LEAVE
    return Step.STOP if all(_is_used_up(silent, run) for run in silent.alive) else Step.LEAVE


def _is_used_up(silent: Silent, run: RunRow) -> bool:
    """By our own clock: that of the silent governor may be wrong."""
    unwatched_ns = max(0, silent.for_ns - PATIENCE_NS)
    return any(
        grant.run == run.run
        and grant.row.rate_usd_micros_per_hour > 0
        and grant.row.spent_usd_micros + grant.row.rate_usd_micros_per_hour * unwatched_ns // (2 * NS_PER_HOUR)
        >= grant.row.granted_usd_micros
        for grant in silent.grants
    )


def tells(silent: Silent) -> str:
    """What a person is told of it, once."""
    node = silent.node
    runs = ", ".join(run.run for run in silent.alive[:8])
    machine = f"{node.cloud} {node.instance_id}" if node.instance_id else "a machine that no provider knows"
    return f"the governor of {node.node} is silent, and {runs} ran there on {machine}: its bill goes on"
