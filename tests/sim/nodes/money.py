"""What must hold of a run's money over all nodes: it is told alike everywhere, and never passes the ceiling."""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_HOUR
from tests.sim.nodes.halts import answering, is_over
from tests.sim.nodes.machines import BEAT_NS, GRACE_S, GRID_NS, KILL_S, RUN, STOP_BOUND_S, TERM_S, Machine
from tests.sim.nodes.world import World

UNTOLD_NS: Final = BEAT_NS + GRID_NS
# A message, ticks, and the wait of rank 0's node for one that is silent.
MORE_S: Final = 5 + 3


def adds_up(world: World) -> str | None:
    """Every node that speaks knows the sum of all nodes' ledgers, to the micro-dollar.

    Where messages are lost, less what a node charged behind its last word from which the run has gone.
    """
    live = [one for one in answering(world) if one.node.runs.get(RUN) is not None]
    if len(live) != world.count or not all(is_over(one) for one in live):
        return None  # While they train, each is a moment ahead of what the others know.
    exact = sum(one.node.ledger.spend(RUN) for one in world.machines)
    is_lossy = bool(world.faults.cut) or world.faults.lose > 0
    left = sum(one.price for one in world.machines if one.left_at is not None) if is_lossy else 0
    for one in live:
        told = one.node.ledger.spend(RUN) + sum(one.node.runs[RUN].history.members.charged.values())
        if not exact - left * UNTOLD_NS // NS_PER_HOUR <= told <= exact:
            return f"{one.name} counts {told}, and all ledgers have {exact}"
    return None


def keeps_the_ceiling(world: World) -> str | None:
    """What the run has cost when no machine of it is billed any more is no more than its ceiling.

    What a node charges behind its last word is in the estimate of those that know it, and in the reserve. Beyond it is
    only what all nodes cost while no governor ran anywhere, and a node of which none that lives has ever heard.
    """
    ceiling = world.watched.ceiling_usd_micros
    cost = sum(world.cloud.cost_of(one) for one in world.machines if _is_known(world, one))
    if ceiling is None or world.verdict is None:
        return None
    rate = sum(one.price for one in world.members())
    if cost > ceiling + rate * world.blind_ns // NS_PER_HOUR:
        return f"it has cost {cost}, {(cost - ceiling) * 3600 / rate:.2f} s more than the ceiling {ceiling}"
    return None


def _is_known(world: World, machine: Machine) -> bool:
    others = (one.node.runs[RUN].history.members for one in answering(world) if RUN in one.node.runs)
    return machine in answering(world) or any(machine.name in one.charged for one in others)


def uses_the_ceiling(world: World) -> str | None:
    """A verdict comes no earlier than when what the halt may cost has to be held back."""
    ceiling = world.watched.ceiling_usd_micros
    if ceiling is None or world.verdict is None:
        return None
    rate = sum(one.price for one in world.members())
    lasts_s = ceiling * 3600 / rate
    grace_s, ends_s = min(GRACE_S, max(1, 0.1 * lasts_s)), min(TERM_S + KILL_S, max(2, 0.06 * lasts_s))
    held_s = grace_s + 2 * ends_s + STOP_BOUND_S + MORE_S  # Twice: the node of rank 0 ends last.
    room = ceiling - world.verdict[1] - rate * held_s / 3600
    if room > 0:
        return f"halted {room * 3600 / rate:.2f} s before the halt had to begin"
    return None
