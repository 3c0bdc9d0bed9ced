"""A command whose governor is killed again and again has cost what it has cost, to one tick a kill.

Each life is a `costgov run` of its own: SIGKILL ends governor and command, and a service manager starts both again,
under the same name or another. Now and then the machine goes down with them, with what its disk did not have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, TICK_NS, MonoNs
from governor.core.engine.node_journal import PERSIST_PERIOD_NS
from governor.core.events.inputs import CommandLaunched, TrainerExited
from tests.sim.test_sim import fresh_seeds
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import PRICE, hello, make_node, peer

NAMES = ("job", "other")
AT_LAST = "at-last"
UID = 1000
SEEDS = [*range(60), *fresh_seeds()[:20]]

Note = Mapping[str, Any] | None
Twist = Callable[[Note], Note]


@dataclass
class Account:
    """What one name has cost, in nanoseconds of the machine, and how much of it a governor may not know."""

    ns: int = 0
    unseen_ns: int = 0


@dataclass
class Loop:
    rng: Random
    twist: Twist
    world: World = field(default_factory=lambda: World(make_node(cloud="none", exclusive=True)))
    accounts: dict[str, Account] = field(default_factory=lambda: {name: Account() for name in (*NAMES, AT_LAST)})
    boots: int = 0

    def life(self, name: str, lasts_ns: int) -> None:
        """From the start of `costgov run` to its kill, some time after its last tick."""
        world, rng = self.world, self.rng
        began = world.boot
        world.boot = world.mono = began + rng.randrange(NS_PER_S)  # Until the command is launched.
        command = ProcessId(1000 + world.lives, world.lives, world.node.facts.boot_id)
        world.play(CommandLaunched(MonoNs(world.mono), name, UID, (command,)))
        for run in [managed.run.run for managed in world.node.runs.values() if managed.run.alive]:
            if not world.node.runs[run].is_unattached:  # Its ranks went with the governor before.
                world.play(TrainerExited(MonoNs(world.mono), run, None))
        world.tick()
        attaches_at = world.boot + rng.randrange(2 * lasts_ns + 1)
        killed_at = world.boot + lasts_ns
        is_attached = False
        while world.boot + TICK_NS <= killed_at:
            world.boot = world.mono = world.boot + TICK_NS
            if not is_attached and world.boot >= attaches_at:
                is_attached = True
                rank = peer(5000 + world.lives, uid=UID)
                told = hello(0, 0, at=MonoNs(world.mono), run=name, attempt=f"a{world.lives}", peer=rank,
                             connection=ConnectionId(world.lives + 1), world_size=1)  # fmt: skip
                world.play(told)
            world.tick()
        world.boot = world.mono = killed_at
        account = self.accounts[name]
        account.ns += killed_at - began
        account.unseen_ns += TICK_NS

    def start_again(self, name: str) -> None:
        world, rng = self.world, self.rng
        world.boot = world.mono = world.boot + rng.randrange(60 * NS_PER_S)
        if rng.random() < 0.2:
            self.boots += 1
            # The disk may have the commit and an older note, or none.
            world.metered = rng.choice((world.metered, None))
            self.accounts[name].unseen_ns += PERSIST_PERIOD_NS
            world.wall_offset += world.boot
            world.boot = world.mono = rng.randrange(NS_PER_HOUR)
            world.node.facts = replace(world.node.facts, boot_id=f"later-{self.boots}")
        world.metered = self.twist(world.metered)
        world.restart()


def play(seed: int, twist: Twist = lambda note: note) -> list[str]:
    """The accounts that are wrong, in words."""
    rng = Random(f"crash loop {seed}")
    loop = Loop(rng, twist)
    name = NAMES[0]
    for _ in range(rng.randint(2, 25)):
        longest = rng.choice((1, NS_PER_S, 9 * NS_PER_S, 60 * NS_PER_S))
        loop.life(name, rng.randrange(longest))
        loop.start_again(name)
        name = rng.choice((name, name, *NAMES))
    loop.life(AT_LAST, 2 * PERSIST_PERIOD_NS)  # Everything of the others is kept.
    world, wrong = loop.world, []
    rounded = world.lives * 3
    for told in NAMES:
        account, charged = loop.accounts[told], world.charged(told)
        most = account.ns * PRICE // NS_PER_HOUR + rounded
        least = (account.ns - account.unseen_ns) * PRICE // NS_PER_HOUR - rounded
        if not least <= charged <= most:
            wrong.append(f"{told}: charged {charged}, not {least} to {most}")
        if charged != world.node.ledger.spend(told):
            wrong.append(f"{told}: charged {charged}, and its spend is {world.node.ledger.spend(told)}")
    return wrong


@pytest.mark.parametrize("chunk", range(3))
def test_a_crash_loop_hides_at_most_a_tick_of_each_life(chunk: int) -> None:
    for seed in SEEDS[chunk::3]:
        assert play(seed) == [], f"seed {seed}"


def test_without_the_note_it_would_hide_up_to_ten_seconds_of_each() -> None:
    assert sum(bool(play(seed, lambda _: None)) for seed in SEEDS[:50]) > 30
