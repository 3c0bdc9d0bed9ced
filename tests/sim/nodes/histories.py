"""Seeded histories of a run on several nodes: what goes wrong is drawn, and what must hold at the end is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.operators import OperatorHalt
from governor.core.events.peers import PeerTold
from governor.core.halt.table import HaltState
from tests.sim.nodes.world import GRACE_S, RUN, TERM_S, UID, Faults, Machine, World

FAULT_S: Final = 6.0  # When the run goes wrong.
HEALED_S: Final = 45.0  # When every cut and every pause is over.
END_S: Final = 90.0
# From a verdict until a node that hears of it is quiet: the save's grace, both signals, the wait for the others.
HALT_S: Final = GRACE_S + 2 * (TERM_S + 1) + 5

MakeWorld = Callable[[int, int, Faults], World]


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    count: int
    faults: Faults
    # "nan": on one node. "both": people halt it on two nodes at once. "none": nothing is wrong with the run.
    cause: str
    where: int


class BrokenError(AssertionError):
    """An invariant did not hold: which one, in which history, and what happened in it."""

    def __init__(self, history: History, what: str, log: list[str]) -> None:
        super().__init__(f"{what}: {history}\nagain: python -m tests.sim.nodes --seed {history.seed}")
        self.log = log


def draw(seed: int) -> History:
    rng = Random(seed)
    count = rng.randint(2, 5)

    def some(chance: float) -> list[int]:
        return [number for number in range(count) if rng.random() < chance]

    def spans(chance: float) -> tuple[tuple[int, float, float], ...]:
        begins = [(number, rng.uniform(1, 20)) for number in some(chance)]
        return tuple((number, since, min(HEALED_S, since + rng.choice((2, 8, 30)))) for number, since in begins)

    kind = rng.choice(("clean", "net", "cut", "dead", "frozen", "governor", "deaf", "all"))
    is_all = kind == "all"
    faults = Faults(
        lose=rng.uniform(0, 0.5) if kind == "net" or is_all else 0.0,
        double=rng.uniform(0, 0.5) if kind == "net" or is_all else 0.0,
        delay_s=rng.choice((0.01, 0.3, 2.0)) if kind == "net" or is_all else 0.01,
        cut=spans(0.4) if kind == "cut" or is_all else (),
        frozen=spans(0.3) if kind == "frozen" or is_all else (),
        dead=tuple((number, rng.uniform(2, 20)) for number in some(0.3)) if kind == "dead" or is_all else (),
        governor_down=spans(0.4) if kind == "governor" or is_all else (),
        clock_off_s=tuple(rng.choice((0.0, 3600.0, -3600.0)) for _ in range(count)),
        deaf=frozenset(some(0.4)) if kind == "deaf" or is_all else frozenset(),
    )
    return History(seed, count, faults, rng.choice(("nan", "nan", "nan", "both", "none")), rng.randrange(count))


def play(seed: int, make_world: MakeWorld = World) -> World:
    """Raise BrokenError where something does not hold."""
    history = draw(seed)
    world = make_world(seed, history.count, history.faults)
    world.begin()
    for number, _, until in history.faults.governor_down:
        world.after(round(until * NS_PER_S), partial(world.restart, number))
    world.run(FAULT_S)
    _go_wrong(world, history)
    world.run(END_S)
    for holds in (_ends, _says_one_name, _stops_once, _goes_last, _adds_up, _leaves_tomorrow_alone):
        told = holds(world, history)
        if told is not None:
            raise BrokenError(history, told, world.log)
    return world


def _go_wrong(world: World, history: History) -> None:
    machine = world.machines[history.where]
    if history.cause == "none" or not world.governs(machine.number):
        return
    if history.cause == "nan":
        world.tell_step(machine, float("nan"))
        return
    for one in (machine, world.machines[(history.where + 1) % history.count]):
        if world.governs(one.number):
            world.hear(one, OperatorHalt(MonoNs(world.now), RUN, "enough", UID))


# --- what must hold ----------------------------------------------------------------------------------------------


def _decided(world: World) -> bool:
    return any(one.incident is not None for one in world.machines)


def _answering(world: World) -> list[Machine]:
    """Nodes whose governor can do its part to the end."""
    return [one for one in world.machines if world.governs(one.number)]


def _ends(world: World, history: History) -> str | None:
    if history.cause == "none":
        halted = [one.name for one in world.machines if one.incident is not None]
        return f"nothing was wrong, and {halted} halted" if halted else None
    if not any(one.incident is not None for one in _answering(world)):
        return None if history.faults != _calm(history) else "nobody has decided"
    for machine in _answering(world):
        if machine.ranks_alive:
            return f"ranks of {machine.name} train on"
        if machine.is_billed:
            return f"{machine.name} stays billed"
        if not _is_over(machine):
            return f"the halt of {machine.name} is not over"
    return _orphan(world)


def _orphan(world: World) -> str | None:
    """The machine of a node that is dead, and had spoken of the launch before, is stopped and read back by another."""
    for machine in world.machines:
        knows = [one for one in _answering(world) if one.incident is not None and machine.name in one.incident.nodes]
        if not world.is_dead(machine.number) or not knows:
            continue
        if machine.is_billed:
            return f"{machine.name} is dead, and stays billed"
        kept = [json.loads(text) for one in _answering(world) for text in one.kept_incidents.values()]
        if not any(part["node"] == machine.name and part["verified"] for row in kept for part in row["nodes"]):
            return f"the end of {machine.name} was not read back"
    return None


def _is_over(machine: Machine) -> bool:
    """By its engine, or by the journal: a halt that is closed is not taken up again."""
    if machine.incident is not None:
        return machine.incident.halt.stage is HaltState.HALTED
    return any(json.loads(text)["closed_wall_ns"] is not None for text in machine.kept_incidents.values())


def _says_one_name(world: World, history: History) -> str | None:
    names = {one.incident.called for one in _answering(world) if one.incident is not None}
    return f"one halt has several names: {sorted(names)}" if len(names) > 1 else None


def _stops_once(world: World, history: History) -> str | None:
    twice = [one.name for one in world.machines if len(set(one.stops)) > 1 or len(one.swept_by) > 1]
    return f"stopped by several governors: {twice}" if twice else None


def _goes_last(world: World, history: History) -> str | None:
    """The node of rank 0 sends its signals when nobody who could be heard needs the store, or when the time is over."""
    host = world.machines[0]
    if 0 not in world.termed or history.faults != _calm(history) or host.incident is None:
        return None
    at, lived = world.termed[0]
    is_early = at - host.incident.opened_at < HALT_S * NS_PER_S // 2  # Else those who lived had their whole time.
    return f"rank 0's node went before {sorted(lived)}" if lived and is_early else None


def _calm(history: History) -> Faults:
    """The same history if only wall clocks are off."""
    return Faults(clock_off_s=history.faults.clock_off_s, delay_s=0.01)


def _adds_up(world: World, history: History) -> str | None:
    """Every node that is heard knows the sum of all nodes' ledgers, to the micro-dollar."""
    live = [one for one in _answering(world) if one.node.runs.get(RUN) is not None]
    if len(live) != history.count or not all(_is_over(one) for one in live):
        return None  # While they train, each is a moment ahead of what the others have heard.
    exact = sum(one.node.ledger.spend(RUN) for one in live)
    for one in live:
        told = one.node.ledger.spend(RUN) + sum(one.node.runs[RUN].history.members.charged.values())
        if told != exact:
            return f"{one.name} counts {told}, and all ledgers have {exact}"
    return None


def _leaves_tomorrow_alone(world: World, history: History) -> str | None:
    """The next launch, on the same machines, hears every old message once more, and trains on."""
    machine = next(iter(_answering(world)), None)
    if machine is None or not _decided(world):
        return None
    world.say_hello(machine, "a2", "costgov/llama/a2/watch/0/0/1")
    for told in world.old[-200:]:
        if told.node != machine.name:
            world.hear(machine, PeerTold(MonoNs(world.now), told))
    return f"yesterday's halt has ended today's launch on {machine.name}" if machine.incident is not None else None
