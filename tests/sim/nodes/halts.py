"""What must hold of a halt over several nodes, whatever has caused it."""

from __future__ import annotations

import json
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.peers import PeerTold
from governor.core.halt.table import HaltState
from tests.sim.nodes.machines import GRACE_S, TERM_S, Machine
from tests.sim.nodes.world import World

# From a verdict until a node that hears of it is quiet: the save's grace, both signals, the wait for the others.
HALT_S: Final = GRACE_S + 2 * (TERM_S + 1) + 5


def is_decided(world: World) -> bool:
    return any(one.incident is not None for one in world.machines)


def answering(world: World) -> list[Machine]:
    """Nodes of the launch whose governor can do its part to the end."""
    return [one for one in world.members() if world.governs(one.number)]


def nobody_halts(world: World) -> str | None:
    halted = [one.name for one in world.machines if one.incident is not None]
    return f"nothing was wrong, and {halted} halted" if halted else None


def ends(world: World, *, must: bool) -> str | None:
    if not any(one.incident is not None for one in answering(world)):
        return "nobody has decided" if must and answering(world) else None
    for machine in answering(world):
        if machine.ranks_alive:
            return f"ranks of {machine.name} train on"
        if machine.is_billed:
            return f"{machine.name} stays billed"
        if not is_over(machine):
            return f"the halt of {machine.name} is not over"
    return _orphan(world)


def _orphan(world: World) -> str | None:
    """The machine of a node that is dead, and had spoken of the launch before, is stopped and read back by another."""
    for machine in world.machines:
        knows = [one for one in answering(world) if one.incident is not None and machine.name in one.incident.nodes]
        if not world.is_dead(machine.number) or not knows:
            continue
        if machine.is_billed:
            return f"{machine.name} is dead, and stays billed"
        kept = [json.loads(text) for one in answering(world) for text in one.kept_incidents.values()]
        if not any(part["node"] == machine.name and part["verified"] for row in kept for part in row["nodes"]):
            return f"the end of {machine.name} was not read back"
    return None


def is_over(machine: Machine) -> bool:
    """By its engine, or by the journal: a halt that is closed is not taken up again."""
    if machine.incident is not None:
        return machine.incident.halt.stage is HaltState.HALTED
    return any(json.loads(text)["closed_wall_ns"] is not None for text in machine.kept_incidents.values())


def says_one_name(world: World) -> str | None:
    names = {one.incident.called for one in answering(world) if one.incident is not None}
    return f"one halt has several names: {sorted(names)}" if len(names) > 1 else None


def stops_once(world: World) -> str | None:
    twice = [one.name for one in world.machines if len(set(one.stops)) > 1 or len(one.swept_by) > 1]
    return f"stopped by several governors: {twice}" if twice else None


def goes_last(world: World) -> str | None:
    """The node of rank 0 sends its signals when nobody who could speak needs the store, or when the time is over.

    Where nothing is lost.
    """
    host = world.machines[0]
    if 0 not in world.ranks.termed or host.incident is None:
        return None
    at, lived = world.ranks.termed[0]
    is_early = at - host.incident.opened_at < HALT_S * NS_PER_S // 2  # Else those who lived had their whole time.
    return f"rank 0's node went before {sorted(lived)}" if lived and is_early else None


def leaves_tomorrow_alone(world: World) -> str | None:
    """The next launch, on the same machines, gets every old message once more, and trains on."""
    machine = next(iter(answering(world)), None)
    if machine is None or not is_decided(world):
        return None
    world.ranks.say_hello(machine, "a3", "costgov/llama/a3/watch/0/0/1")
    for told in world.old[-200:]:
        if told.node != machine.name:
            world.hear(machine, PeerTold(MonoNs(world.now), told))
    return f"yesterday's halt has ended today's launch on {machine.name}" if machine.incident is not None else None
