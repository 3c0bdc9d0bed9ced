"""Money from the meter into the journal: what is kept is price times time, whatever happened in between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs, accrue
from governor.core.engine import step as engine
from governor.core.engine.node import Node, new_node
from governor.core.engine.node_journal import metered_row
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Effect, PersistIncident, PersistRuns, Record
from governor.core.events.inputs import Event, Tick, TrainerExited
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_MAX, Charge, charge_of, charge_row
from governor.core.money.lines import share_out
from tests.sweeps import share_of
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, rule

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
    windows: list[Mapping[str, Any]] = field(default_factory=list)
    metered: Mapping[str, Any] | None = None
    # Whether the next tick leaves out such as would change nothing. Else nobody has ticked meanwhile.
    is_awake: bool = True
    # By how much each tick's boot clock is read later than its monotonic one: on a real machine never alike.
    read_late: Iterator[int] = field(default_factory=lambda: repeat(0))

    def at(self, seconds: float) -> None:
        """Time passes until then, machine and all, and a tick ends it."""
        self.boot = self.mono = round(seconds * NS_PER_S)
        self.tick()

    def hear(self, **changes: Any) -> list[Effect]:
        return self.play(hello(0, 0, **{"at": MonoNs(self.mono), "world_size": 1, **changes}))

    def play(self, event: Event) -> list[Effect]:
        return self.take(engine.step(self.node, event))

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, PersistRuns):
                kept = json.loads(json.dumps([charge_row(charge) for charge in effect.charges]))
                self.charges |= {row["charge_id"]: charge_of(row) for row in kept}
                self.runs |= json.loads(json.dumps(effect.runs))
                self.windows += [record.data for record in effect.records]
            assert not isinstance(effect, Record) or effect.kind != "window", "not in a commit of its own"
        return effects

    def tick(self) -> None:
        boot = self.boot + next(self.read_late)
        self.play(Tick(MonoNs(self.mono), BootNs(boot), WallNs(boot + self.wall_offset), unbroken=self.is_awake))
        self.is_awake = True
        self.metered = metered_row(self.node) or self.metered

    def pass_time(self, how: str, amount: int) -> None:
        """Without a tick. "set_clock" is no time: the wall clock alone is another."""
        match how:
            case "suspend":
                self.boot += amount
                self.is_awake = False
            case "set_clock":
                self.wall_offset += amount
            case _:
                self.boot, self.mono = self.boot + amount, self.mono + amount

    def restart(self) -> None:
        """SIGKILL and start: what no PersistRuns took along is gone, but for the moment of the last tick."""
        self.lives += 1
        # Two governors never start at the same instant of the wall clock; two acts of a schedule may.
        wall = WallNs(self.lives * NS_PER_S)
        self.node = new_node(self.node.facts, self.node.policies, BootNs(self.boot), wall)
        runs = list(self.runs.values())
        self.take(restore_runs(self.node, runs, BootNs(self.boot), MonoNs(self.mono), self.metered))

    def charged(self, run: str) -> int:
        return sum(charge.usd_micros for charge in self.charges.values() if charge.payer.run == run)

    def unmetered(self) -> int:
        """How long ago the journal's last commit was, where an exclusive governor that starts now would charge nobody.

        Its node time is its command's: between two of them there is none.
        """
        if not self.node.facts.exclusive or any(row.get("alive") for row in self.runs.values()):
            return 0
        return self.boot - max((row["boot_ns"] for row in self.runs.values()), default=0)


ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 20 * NS_PER_S)),  # Time passes,
    st.tuples(st.just("suspend"), st.integers(1, 3 * NS_PER_HOUR)),  # also while the monotonic clock stands,
    st.tuples(st.just("set_clock"), st.integers(-2 * NS_PER_HOUR, 2 * NS_PER_HOUR)),
    st.tuples(st.just("restart"), st.integers(0, NS_PER_HOUR)),  # also while nobody meters it.
    st.tuples(st.just("hello"), st.integers(0, 3)),
    st.tuples(st.just("again"), st.integers(0, 3)),  # A new attempt of the same run.
    st.tuples(st.just("exit"), st.integers(0, 3)),
)


@settings(max_examples=share_of(200), deadline=None)
@given(st.lists(ACTS, max_size=60), st.booleans())
def test_what_is_kept_is_price_times_time(acts: list[tuple[str, int]], exclusive: bool) -> None:
    world = World(make_node(cloud="none", exclusive=exclusive))
    unmetered = 0
    world.tick()
    for act, amount in acts:
        match act:
            case "run" | "suspend" | "set_clock":
                world.pass_time(act, amount)
            case "restart":
                world.pass_time("run", amount)
                unmetered += world.unmetered()
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
    metered = world.boot - unmetered
    exact, _ = accrue(PRICE, metered, 0)
    assert sum(charge.usd_micros for charge in world.charges.values()) == exact
    assert sum(charge.quantity for charge in world.charges.values()) == metered
    for run in ("run0", "run1", "run2", "run3", UNALLOCATED):
        assert world.charged(run) == world.node.ledger.spend(run)


@pytest.mark.parametrize("torn", ["llama", UNALLOCATED])
def test_a_commit_that_was_torn_is_not_charged_a_second_time(torn: str) -> None:
    """Of the last one before the crash this snapshot did not get through; its charges did."""
    world = World()
    world.tick()
    world.hear()
    for second in range(0, 3600, 5):
        world.at(second)
    old = world.runs[torn]
    world.at(3600)
    assert world.runs[torn] != old
    world.runs[torn] = old
    world.boot = world.mono = 3700 * NS_PER_S
    world.restart()
    world.tick()
    world.at(3710)
    exact, _ = accrue(PRICE, world.boot, 0)
    assert abs(sum(charge.usd_micros for charge in world.charges.values()) - exact) <= 1, "the torn carry"
    assert sum(charge.quantity for charge in world.charges.values()) == world.boot
    lost, _ = accrue(PRICE, 10 * NS_PER_S if torn == "llama" else 0, 0)
    assert world.node.ledger.spend("llama") == pytest.approx(exact - lost, abs=1)


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
    assert {charge.payer.run for charge in gap} == {"llama"}
    assert sum(charge.quantity for charge in gap) == 24 * NS_PER_HOUR - 20 * NS_PER_S
    assert len(gap) == 24, "a charge for each hour of it"
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


def test_who_comes_back_within_the_hour_has_a_row_for_each_time() -> None:
    """One row over both would end where nobody was charged, and overlap what another paid for in between."""
    world = World()
    world.at(0)
    world.at(600)
    world.hear()
    world.at(1200)
    world.play(TrainerExited(MonoNs(world.mono), "llama", 0))
    world.at(1800)
    rows = sorted(world.charges.values(), key=lambda charge: charge.from_wall)
    spans = [(c.payer.run, *((wall - WALL) // NS_PER_S for wall in (c.from_wall, c.to_wall))) for c in rows]
    assert spans == [(UNALLOCATED, 0, 600), ("llama", 600, 1200), (UNALLOCATED, 1200, 1800)]


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


@pytest.mark.parametrize("killed_after", range(1, 25))
def test_windows_follow_each_other_whenever_the_governor_is_killed(killed_after: int) -> None:
    """What it had closed and not kept, the next one closes again, later; what it had kept, the next one knows."""
    world = World()
    world.tick()
    world.hear()
    for number in range(1, 31):
        world.at(number)
        told = a_step(number, tokens=600_000, tokens_total=600_000 * number, at=MonoNs(world.mono))
        world.play(told)
        if number == killed_after:
            world.at(number + 0.25)  # One tick later: that a meter has begun is kept with it.
            world.restart()
            world.tick()
            world.hear()
    world.at(60)
    edges = [(window["from_tokens"], window["to_tokens"]) for window in world.windows]
    assert edges[0][0] == 0
    assert edges[-1][1] >= 17_400_000
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    meter = world.node.runs["llama"].history.meter
    assert meter is not None
    assert sum(window["usd_micros"] for window in world.windows) == meter.from_usd_micros
    assert sum(window["duration_ns"] for window in world.windows) == edges[-1][1] // 600_000 * NS_PER_S


HOURS_12 = 12 * 3600


def launched_twice() -> World:
    """Under `costgov run --name`: the first command died after 20 s, before attach(). The second comes 12 h later."""
    budget = Budget(ceiling_usd_micros=UsdMicros(90_000_000))
    judged = rule("budget", params={"budget": budget}, checkpoint="none")
    world = World(make_node(judged, budget=budget, cloud="none", exclusive=True))
    world.tick()
    world.at(20)
    world.boot = world.mono = HOURS_12 * NS_PER_S
    world.restart()
    world.tick()
    world.at(HOURS_12 + 5)
    world.hear()
    return world


def test_the_time_between_two_commands_of_one_name_is_charged_to_nobody_at_all() -> None:
    world = launched_twice()
    world.at(HOURS_12 + 20)
    assert world.charged("llama") == world.node.ledger.spend("llama") == accrue(PRICE, 20 * NS_PER_S, 0)[0]
    # Of the command that died nobody knows whether it would have become this run.
    assert world.charged(UNALLOCATED) == world.node.ledger.spend(UNALLOCATED) == accrue(PRICE, 20 * NS_PER_S, 0)[0]


def test_a_command_that_is_launched_again_is_not_halted_for_the_time_in_between() -> None:
    world = launched_twice()
    world.boot = world.mono = (HOURS_12 + 6) * NS_PER_S
    tick = Tick(MonoNs(world.mono), BootNs(world.boot), WallNs(world.boot + world.wall_offset))
    assert [effect for effect in world.play(tick) if isinstance(effect, PersistIncident)] == []


def test_a_run_that_died_with_its_governor_does_not_pay_for_the_time_until_it_is_launched_again() -> None:
    """The journal knows it as alive; that its processes are gone is told before the first tick."""
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    world.hear()
    world.at(20)
    world.boot = world.mono = HOURS_12 * NS_PER_S
    world.restart()
    world.play(TrainerExited(MonoNs(world.mono), "llama", None))
    world.tick()
    world.hear(attempt="a2", peer=peer(300))
    world.at(HOURS_12 + 20)
    assert world.charged("llama") == world.node.ledger.spend("llama") == accrue(PRICE, 40 * NS_PER_S, 0)[0]


def test_a_run_that_outlives_its_exclusive_governor_pays_for_the_gap() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    world.hear()
    world.at(20)
    world.boot = world.mono = 3600 * NS_PER_S
    world.restart()
    world.tick()
    world.at(3610)
    assert world.charged("llama") == world.node.ledger.spend("llama") == accrue(PRICE, world.boot, 0)[0]


def test_a_second_command_of_a_known_run_pays_for_its_own_start_up() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    world.hear()
    world.at(20)
    world.play(TrainerExited(MonoNs(world.mono), "llama", 0))
    world.restart()
    world.tick()
    world.at(3620)
    world.hear(attempt="a2", peer=peer(300))
    world.at(3640)
    assert world.charged("llama") == world.node.ledger.spend("llama") == accrue(PRICE, world.boot, 0)[0]
    assert world.charged(UNALLOCATED) == 0


def test_what_is_handed_over_carries_the_attempt_it_became() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    world.at(5)
    world.hear(stage="stage1", labels={"team": "a"})
    world.at(20)
    [charge] = world.charges.values()
    assert (charge.payer.attempt, charge.payer.stage, charge.payer.labels) == ("a1", "stage1", (("team", "a"),))
    assert charge.quantity == 20 * NS_PER_S


def test_only_the_first_run_of_a_command_is_handed_what_was_nobodys() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    world.hear()
    world.at(10)
    world.play(TrainerExited(MonoNs(world.mono), "llama", 0))
    world.at(20)
    world.hear(run="second", peer=peer(300))
    world.at(30)
    assert {run: world.charged(run) for run in ("llama", UNALLOCATED, "second")} == {
        run: world.node.ledger.spend(run) for run in ("llama", UNALLOCATED, "second")
    }
    assert world.charged("second") == pytest.approx(PRICE * 10 / 3600, abs=1)


def test_a_week_of_start_up_leaves_ledger_and_charges_equal() -> None:
    """More hours than the book remembers of nobody's charges: the oldest stay nobody's, in both."""
    world = World(make_node(cloud="none", exclusive=True))
    world.tick()
    for hour in range(1, UNALLOCATED_MAX + 20):
        world.at(hour * 3600)
    world.hear()
    world.at((UNALLOCATED_MAX + 20) * 3600)
    for run in ("llama", UNALLOCATED):
        assert world.charged(run) == world.node.ledger.spend(run) > 0


def test_a_snapshot_of_another_version_costs_the_nodes_own_sum_and_is_said() -> None:
    world = World()
    world.tick()
    world.boot = world.mono = 20 * NS_PER_S
    world.tick()
    world.runs[UNALLOCATED] = {"run": UNALLOCATED, "carry": "?"}
    effects = restore_runs(make_node(boot=20), list(world.runs.values()), BootNs(at(20)), at(20))
    assert "node_unreadable" in str(effects)
