"""What must hold of a run's money over all nodes: it is told alike everywhere, and never passes the ceiling."""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S
from tests.sim.nodes.halts import answering, is_over
from tests.sim.nodes.machines import GRACE_S, KILL_S, RUN, STOP_BOUND_S, TERM_S
from tests.sim.nodes.world import World

# What a halt may take, with the wait of rank 0's node: so much of all nodes' money may stay unused.
HELD_S: Final = GRACE_S + 2 * (TERM_S + KILL_S) + STOP_BOUND_S + 5 + 3


def adds_up(world: World) -> str | None:
    """Every node that speaks knows the sum of all nodes' ledgers, to the micro-dollar."""
    live = [one for one in answering(world) if one.node.runs.get(RUN) is not None]
    if len(live) != world.count or not all(is_over(one) for one in live):
        return None  # While they train, each is a moment ahead of what the others know.
    exact = sum(one.node.ledger.spend(RUN) for one in world.machines)
    for one in live:
        told = one.node.ledger.spend(RUN) + sum(one.node.runs[RUN].history.members.charged.values())
        if told != exact:
            return f"{one.name} counts {told}, and all ledgers have {exact}"
    return None


def keeps_the_ceiling(world: World) -> str | None:
    """What the run has cost when no machine of it is billed any more."""
    ceiling, cost = world.watched.ceiling_usd_micros, world.cloud.cost_usd_micros()
    if ceiling is None or world.verdict is None:
        return None
    per_s = sum(one.price for one in world.members()) / 3600
    if cost > ceiling:
        return f"it has cost {cost}, {(cost - ceiling) / per_s:.2f} s more than the ceiling {ceiling}"
    return None


def uses_the_ceiling(world: World) -> str | None:
    """A verdict comes no earlier than what the halt may cost has to be held back."""
    ceiling = world.watched.ceiling_usd_micros
    if ceiling is None or world.verdict is None:
        return None
    rate = sum(one.price for one in world.members())
    room = ceiling - world.verdict[1] - rate * HELD_S * NS_PER_S // NS_PER_HOUR
    if room > 0:
        return f"halted {room * 3600 / rate:.2f} s before the halt had to begin"
    return None
