"""Money from the meter into the journal: what is kept is price times time, whatever happened in between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core import engine
from governor.core.charges import UNALLOCATED, Charge, ChargeBook, Place, charge_of, charge_row
from governor.core.effects import Effect, KeepRuns
from governor.core.events import Event, Tick, TrainerExited
from governor.core.ledger import share_out
from governor.core.node import Node
from governor.core.resume import restore_runs
from governor.core.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, WallNs, accrue
from tests.unit.test_engine import PRICE, at, hello, make_node, peer

WALL = 1_800_000_000 * NS_PER_S


@dataclass
class World:
    """One node through several lives of its governor, and the journal that they share."""

    node: Node = field(default_factory=lambda: make_node(cloud="none"))
    boot: int = 0
    mono: int = 0
    wall_offset: int = WALL
    lives: int = 0
    charges: dict[str, Charge] = field(default_factory=dict)
    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def play(self, event: Event) -> list[Effect]:
        effects = engine.step(self.node, event)
        for effect in effects:
            if isinstance(effect, KeepRuns):
                kept = json.loads(json.dumps([charge_row(charge) for charge in effect.charges]))
                self.charges |= {row["charge_id"]: charge_of(row) for row in kept}
                self.runs |= json.loads(json.dumps(effect.runs))
        return effects

    def tick(self) -> None:
        self.play(Tick(MonoNs(self.mono), BootNs(self.boot), WallNs(self.boot + self.wall_offset)))

    def restart(self) -> None:
        """SIGKILL and start: what no KeepRuns took along is gone."""
        self.lives += 1
        self.node = make_node(cloud="none", boot=self.boot / NS_PER_S)
        # Two governors never start at the same instant of the wall clock; two acts of a schedule may.
        self.node.charges = ChargeBook(Place("node-a"), WallNs(self.lives * NS_PER_S))
        restore_runs(self.node, list(self.runs.values()), BootNs(self.boot), MonoNs(self.mono))

    def charged(self, run: str) -> int:
        return sum(charge.usd_micros for charge in self.charges.values() if charge.payer.run == run)


ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 20 * NS_PER_S)),  # Time passes,
    st.tuples(st.just("suspend"), st.integers(1, 3 * NS_PER_HOUR)),  # also while the monotonic clock stands,
    st.tuples(st.just("set_clock"), st.integers(-2 * NS_PER_HOUR, 2 * NS_PER_HOUR)),
    st.tuples(st.just("restart"), st.integers(0, NS_PER_HOUR)),  # also while nobody meters it.
    st.tuples(st.just("hello"), st.integers(0, 3)),
    st.tuples(st.just("again"), st.integers(0, 3)),  # A new attempt of the same run.
    st.tuples(st.just("exit"), st.integers(0, 3)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ACTS, max_size=60))
def test_what_is_kept_is_price_times_time(acts: list[tuple[str, int]]) -> None:
    world = World()
    world.tick()
    for act, amount in acts:
        match act:
            case "run":
                world.boot, world.mono = world.boot + amount, world.mono + amount
            case "suspend":
                world.boot += amount
            case "set_clock":
                world.wall_offset += amount
            case "restart":
                world.boot, world.mono = world.boot + amount, world.mono + amount
                world.restart()
            case "hello" | "again":
                name, attempt = f"run{amount}", "a1" if act == "hello" else f"a{world.boot}"
                who = peer(100 + amount if act == "hello" else 1000 + world.boot % 10**6)
                world.play(hello(0, 0, at=MonoNs(world.mono), run=name, attempt=attempt, peer=who, world_size=1))
            case "exit":
                world.play(TrainerExited(MonoNs(world.mono), f"run{amount}", 0))
        world.tick()
    # Ten quiet seconds: everything is kept.
    world.boot, world.mono = world.boot + 10 * NS_PER_S, world.mono + 10 * NS_PER_S
    world.tick()
    exact, _ = accrue(PRICE, world.boot, 0)
    assert sum(charge.usd_micros for charge in world.charges.values()) == exact
    assert sum(charge.quantity for charge in world.charges.values()) == world.boot
    for run in ("run0", "run1", "run2", "run3", UNALLOCATED):
        assert world.charged(run) == world.node.ledger.spend(run)


def test_a_governor_that_was_away_charges_the_gap_on_return_and_says_so() -> None:
    world = World()
    world.tick()
    world.play(hello(0, 0, world_size=1))
    world.boot = world.mono = 20 * NS_PER_S
    world.tick()
    world.boot = world.mono = 24 * NS_PER_HOUR
    world.restart()
    world.tick()
    world.boot = world.mono = 24 * NS_PER_HOUR + 10 * NS_PER_S
    world.tick()
    gap = [charge for charge in world.charges.values() if charge.reconstructed]
    assert [(charge.payer.run, charge.quantity) for charge in gap] == [("llama", 24 * NS_PER_HOUR - 20 * NS_PER_S)]
    assert world.charged("llama") == accrue(PRICE, world.boot, 0)[0]


def test_downtime_of_a_node_that_nobody_held_is_nobodys() -> None:
    world = World()
    world.tick()
    world.boot = world.mono = 20 * NS_PER_S
    world.tick()
    world.boot = world.mono = NS_PER_HOUR
    world.restart()
    world.tick()
    assert world.node.ledger.spend(UNALLOCATED) == accrue(PRICE, NS_PER_HOUR, 0)[0]


def test_two_runs_share_by_the_ranks_they_hold() -> None:
    world = World()
    world.tick()
    for rank in range(3):
        world.play(hello(rank, 0, world_size=3, run="wide", peer=peer(100 + rank)))
    world.play(hello(0, 0, world_size=1, run="narrow", peer=peer(200, uid=1001)))
    world.boot = world.mono = NS_PER_HOUR
    world.tick()
    spent, _ = accrue(PRICE, NS_PER_HOUR, 0)
    assert [world.charged("narrow"), world.charged("wide")] == [*share_out(spent, {"narrow": 1, "wide": 3}).values()]
    hours = {charge.payer.run: charge.quantity / NS_PER_HOUR for charge in world.charges.values()}
    assert hours == {"narrow": 0.25, "wide": 0.75}


def test_an_unknown_price_charges_nothing_and_counts_the_time() -> None:
    world = World(make_node(cloud="none", price_usd_micros_per_hour=None))
    world.tick()
    world.boot = world.mono = NS_PER_HOUR
    world.tick()
    assert world.charges == {}
    assert world.runs[UNALLOCATED]["unpriced_ns"] == NS_PER_HOUR


def test_a_command_pays_for_the_time_before_its_first_rank() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    world.boot = world.mono = 2 * NS_PER_HOUR
    world.tick()
    world.play(hello(0, 0, at=MonoNs(world.mono), world_size=1))
    world.boot = world.mono = 3 * NS_PER_HOUR
    world.tick()
    assert world.charged("llama") == accrue(PRICE, world.boot, 0)[0] == world.node.ledger.spend("llama")
    assert world.charged(UNALLOCATED) == 0


def test_a_snapshot_of_another_version_costs_the_nodes_own_sum_and_is_said() -> None:
    world = World()
    world.tick()
    world.boot = world.mono = 20 * NS_PER_S
    world.tick()
    world.runs[UNALLOCATED] = {"run": UNALLOCATED, "carry": "?"}
    effects = restore_runs(make_node(boot=20), list(world.runs.values()), BootNs(at(20)), at(20))
    assert "node_unreadable" in str(effects)
