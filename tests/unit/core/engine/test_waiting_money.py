"""What a command has cost before its first rank is the command's in every view, and nobody's in none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from governor.adapters.journal.reader import read_charges
from governor.adapters.journal.sums import read_sums
from governor.adapters.journal.writer import open_journal
from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.events.inputs import CommandLaunched, TrainerExited
from governor.core.money.charges import UNALLOCATED, charge_row
from governor.core.money.reports.cost import tally, tally_sums
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import node_status, runs_status
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import at, make_node, peer

PRICE = UsdMicros(3_600_000_000)  # $1 a second.


@pytest.fixture
def world() -> World:
    """A command that has gone on for twenty seconds, and no rank has said hello."""
    world = World(make_node(cloud="none", exclusive=True, price_usd_micros_per_hour=PRICE))
    world.tick()
    world.play(CommandLaunched(at(0), "lone", 1000, (COMMAND,)))
    for second in range(1, 21):
        world.at(second)
    return world


def metered(node: Node, now: MonoNs) -> int | None:
    return take_snapshot(node, now, GovernorHealth(), LagReading(), "").unallocated_usd_micros


def by_run(world: World, tmp_path: Path) -> dict[str, int]:
    """As `costgov cost` reads the journal, in both of its ways."""
    path = tmp_path / "costgov.db"
    path.unlink(missing_ok=True)
    journal, problem = open_journal(str(path), str(tmp_path / "runtime"))
    assert problem is None
    assert journal.save_runs(world.runs, [charge_row(one) for one in world.charges.values()])
    journal.close()
    found = {group.key: group.usd_micros for group in tally_sums(read_sums(str(path), "run"), "run")}
    assert found == {group.key: group.usd_micros for group in tally(read_charges(str(path)), "run")}
    assert sum(one.charge.usd_micros for one in read_sums(str(path), "run", ("lone",))) == found.get("lone", 0)
    for by in ("stage", "label:team", "day", "line"):
        assert tally_sums(read_sums(str(path), by), by) == tally(read_charges(str(path)), by)
    return found


def test_every_view_has_one_owner_for_it(world: World, tmp_path: Path) -> None:
    spent = world.node.ledger.spend(UNALLOCATED)
    now = MonoNs(20 * NS_PER_S)
    [run] = runs_status(world.node, now)
    assert (run["run"], run["spend_usd"]) == ("lone", spent / 1e6)
    assert spent == 20_000_000
    assert node_status(world.node, now)["unallocated_usd"] == 0
    assert metered(world.node, now) == 0
    told = by_run(world, tmp_path)
    assert [*told] == ["lone"]
    assert 9_000_000 < told["lone"] <= spent, "as of the last commit"


def test_the_rank_that_takes_it_over_has_it(world: World, tmp_path: Path) -> None:
    world.hear(run="mine")
    world.at(21)
    assert node_status(world.node, MonoNs(21 * NS_PER_S))["unallocated_usd"] == 0
    world.play(TrainerExited(at(21), "mine", 0))
    assert [*by_run(world, tmp_path)] == ["mine"]


def test_what_no_command_waits_for_is_nobodys(tmp_path: Path) -> None:
    world = World(make_node(cloud="none", price_usd_micros_per_hour=PRICE))
    for second in range(21):
        world.at(second)
    assert node_status(world.node, MonoNs(20 * NS_PER_S))["unallocated_usd"] == 20
    assert metered(world.node, MonoNs(20 * NS_PER_S)) == 20_000_000
    path = tmp_path / "costgov.db"
    journal, _ = open_journal(str(path), str(tmp_path / "runtime"))
    assert journal.save_runs(world.runs, [charge_row(one) for one in world.charges.values()])
    journal.close()
    assert [group.key for group in tally_sums(read_sums(str(path), "run"), "run")] == ["(unallocated)"]


def launch_again(world: World, seconds: int, mark: int) -> None:
    """The command ends, its governor with it, and the next launch of its name goes on for so long."""
    world.play(TrainerExited(MonoNs(world.mono), "lone", 0))
    world.restart()
    began = world.mono // NS_PER_S
    world.tick()
    process = replace(COMMAND, pid=COMMAND.pid + mark, start_ticks=COMMAND.start_ticks + mark)
    world.play(CommandLaunched(at(began), "lone", 1000, (process,)))
    for second in range(1, seconds + 1):
        world.at(began + second)


def test_a_command_that_no_run_reports_for_has_no_waste_however_often_it_is_launched(
    world: World, tmp_path: Path
) -> None:
    for mark in (1, 2):
        launch_again(world, 10, mark)
        [run] = [one for one in runs_status(world.node, MonoNs(world.mono)) if one["run"] == "lone"]
        assert (run["spend_usd"], run["wasted_usd"]) == (20.0 + 10 * mark, None)
    world.take([persist(world.node, MonoNs(world.mono), world.node.runs["lone"])])
    assert by_run(world, tmp_path) == {"lone": 40_000_000}
    assert world.runs["lone"]["spend_split"] is None


def test_once_a_rank_reports_all_before_it_was_the_start_of_its_name(world: World) -> None:
    launch_again(world, 10, 1)
    world.hear(run="lone", peer=peer(0, uid=1000))
    world.at(31)
    world.at(32)  # What came since the last tick may still be training.
    [run] = [one for one in runs_status(world.node, MonoNs(world.mono)) if one["run"] == "lone"]
    assert (run["wasted_usd_by_cause"]["start_up"], run["spend_usd"]) == (31.0, 32.0)
