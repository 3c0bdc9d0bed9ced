"""The time in which nobody governed: who is heard before the first tick behind it did not hold the node then."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_HOUR, accrue
from governor.core.events.inputs import CommandExited, CommandLaunched, Event, Step, TrainerExited
from governor.core.events.streams import StreamOpened
from governor.core.money.charges import UNALLOCATED
from tests.unit.core.engine.test_metering import WALL, World
from tests.unit.core.engine.test_step import PRICE, at, hello, make_node, peer

DAY_S = 24 * 3600
NEW_RANK = hello(0, DAY_S, run="new", world_size=1, connection=ConnectionId(9), peer=peer(900))
NEW_LOG = StreamOpened(at(DAY_S), "new", 1000)
OLD_LOG = Step(at(DAY_S), None, "log", 0, 1, tokens=1000)  # Of an ended run, whose log goes on.


@pytest.mark.parametrize("held_by", [UNALLOCATED, "llama"])
@pytest.mark.parametrize("first", [NEW_RANK, NEW_LOG, OLD_LOG], ids=["rank", "log", "old log"])
def test_whoever_has_record_first_behind_a_gap_pays_nothing_of_it(first: Event, held_by: str) -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.play(StreamOpened(at(0), "log", 1000))
    world.play(TrainerExited(at(0), "log", None))
    if held_by:
        world.hear(run=held_by)
    world.at(20)
    world.boot = world.mono = at(DAY_S)
    world.restart()
    world.play(first)
    world.tick()
    name = "log" if first is OLD_LOG else "new"
    assert world.node.runs[name].run.alive
    assert (world.node.ledger.spend(name), world.node.ledger.spend(held_by)) == (0, 24 * PRICE)
    world.at(DAY_S + 10)
    gap = sum(charge.quantity for charge in world.charges.values() if charge.reconstructed)
    assert gap == 24 * NS_PER_HOUR - at(20)
    assert world.charged(held_by) == world.node.ledger.spend(held_by)


def test_a_gap_is_charged_also_where_the_rest_of_the_nodes_snapshot_cannot_be_read() -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.at(20)
    world.runs[UNALLOCATED] = {**world.runs[UNALLOCATED], "carry": "?"}
    world.boot = world.mono = at(DAY_S)
    world.restart()
    world.tick()
    gap = [charge for charge in world.charges.values() if charge.reconstructed]
    assert sum(charge.quantity for charge in gap) == at(DAY_S) - at(20)


def test_who_ended_meanwhile_pays_nothing_though_a_known_log_has_record_before_that_is_noticed() -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    world.play(StreamOpened(at(0), "log", 1000))
    world.at(20)
    before = world.node.ledger.spend("llama")
    world.boot = world.mono = at(DAY_S)
    world.restart()
    world.play(StreamOpened(at(DAY_S), "log", 1000))
    world.play(TrainerExited(at(DAY_S), "llama", None))
    world.tick()
    assert world.node.ledger.spend("llama") == before
    assert world.node.ledger.total() == 24 * PRICE


@pytest.mark.parametrize("log", ["cmd", "log"], ids=["its own log", "a log beside it"])
def test_between_two_commands_of_one_name_no_log_pays_that_has_record_first_either(log: str) -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.play(CommandLaunched(at(0), "cmd", 1000, (peer(100).process,)))
    world.tick()
    world.at(20)
    world.play(CommandExited(at(20), "cmd", 0))
    before = world.node.ledger.total()
    world.boot = world.mono = at(DAY_S)
    world.restart()
    world.play(CommandLaunched(at(DAY_S), "cmd", 1000, (peer(500).process,)))
    world.play(StreamOpened(at(DAY_S), log, 1000))
    world.tick()
    assert world.node.ledger.total() == before


def test_of_a_command_that_outlived_its_governor_a_log_beside_it_that_comes_then_pays_nothing() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    command = CommandLaunched(at(0), "cmd", 1000, (peer(100).process,))
    world.play(command)
    world.tick()
    world.at(20)
    world.boot = world.mono = at(DAY_S)
    world.restart()
    world.play(command)
    world.play(NEW_LOG)
    world.tick()
    assert world.node.ledger.spend("new") == 0
    assert world.node.ledger.total() == 24 * PRICE


def two_runs_of_one_and_two_ranks() -> World:
    """Killed after 20 s, and started again a day later. No rank has said hello again."""
    world = World(make_node(cloud="none"))
    world.tick()
    for told in RANKS:
        world.play(told)
    world.at(20)
    world.boot = world.mono = at(DAY_S)
    return world


RANKS = (
    hello(0, 0, run="one", world_size=1, connection=ConnectionId(1), peer=peer(100)),
    hello(0, 0, run="two", connection=ConnectionId(2), peer=peer(200)),
    hello(1, 0, run="two", connection=ConnectionId(3), peer=peer(201)),
)


def shares(world: World, since: int = 0, *, reconstructed: tuple[bool, ...] = (True, False)) -> float:
    """How many times as much of the node's time the second run pays for as the first."""
    rows = [c for c in world.charges.values() if c.reconstructed in reconstructed and c.from_wall >= WALL + since]
    held = {run: sum(charge.quantity for charge in rows if charge.payer.run == run) for run in ("one", "two")}
    return round(held["two"] / held["one"], 6)


@pytest.mark.parametrize("first", [(), RANKS[:1], RANKS[1:2], RANKS[1:], RANKS], ids=len)
def test_a_gap_is_shared_by_the_ranks_of_before_whoever_is_back_by_the_first_tick(first: tuple[Event, ...]) -> None:
    world = two_runs_of_one_and_two_ranks()
    world.restart()
    for told in first:
        world.play(told)
    world.at(DAY_S)
    assert shares(world, reconstructed=(True,)) == 2
    for second in range(DAY_S + 1, DAY_S + 30):  # The other ranks take their time, or never come.
        world.at(second)
    assert shares(world) == 2


def test_a_second_governor_that_dies_before_the_ranks_are_back_hands_their_shares_on() -> None:
    world = two_runs_of_one_and_two_ranks()
    world.restart()
    world.tick()
    world.boot = world.mono = at(2 * DAY_S)
    world.restart()
    world.at(2 * DAY_S + 20)
    assert shares(world) == 2


def test_a_new_attempt_after_a_gap_pays_by_its_own_ranks_and_for_the_gap_by_those_of_before() -> None:
    world = two_runs_of_one_and_two_ranks()
    world.restart()
    world.play(hello(0, DAY_S, run="two", attempt="a2", world_size=1, connection=ConnectionId(2), peer=peer(300)))
    world.at(DAY_S)
    assert shares(world) == 2
    world.at(2 * DAY_S)
    assert shares(world, at(DAY_S)) == 1


def test_a_journal_without_ranks_shares_a_gap_by_those_that_are_back() -> None:
    world = two_runs_of_one_and_two_ranks()
    world.runs = {name: {key: row[key] for key in row if key != "ranks"} for name, row in world.runs.items()}
    world.restart()
    for told in RANKS:
        world.play(told)
    world.at(DAY_S)
    assert shares(world, reconstructed=(True,)) == 2


NEW_PROCESS = StreamOpened(at(20), "one", 1000, processes=(peer(900).process,))
LINE = Step(at(20), None, "one", 0, 1, tokens=1000)


@pytest.mark.parametrize("again", [RANKS[0], NEW_PROCESS, LINE], ids=["rank", "log", "line"])
def test_a_run_that_begins_again_is_in_the_journal_with_the_next_tick(again: Event) -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.play(StreamOpened(at(0), "one", 1000))
    world.tick()
    world.play(TrainerExited(at(0), "one", None))
    world.at(20)
    world.play(again)
    world.tick()
    assert world.runs["one"]["alive"]


# Beside a gap: the rest of a tick, in which somebody ends.


def test_who_ends_between_two_ticks_pays_until_then() -> None:
    world = World()
    world.at(0)
    world.hear()
    world.at(600)
    world.play(TrainerExited(at(600.2), "llama", 0))
    world.at(610)
    held = {charge.payer.run: charge.quantity for charge in world.charges.values()}
    assert held == {"llama": at(600.2), UNALLOCATED: at(9.8)}
    assert sum(charge.usd_micros for charge in world.charges.values()) == accrue(PRICE, at(610), 0)[0]


def test_a_command_that_nobody_spoke_for_pays_until_its_exit() -> None:
    world = World(make_node(cloud="none", exclusive=True))
    world.play(CommandLaunched(at(0), "cmd", 1000, (peer(100).process,)))
    world.at(0)
    world.at(0.5)
    world.play(CommandExited(at(0.62), "cmd", 0))
    world.at(20)
    assert world.charged("cmd") == accrue(PRICE, at(0.62), 0)[0]
