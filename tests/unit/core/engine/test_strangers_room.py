"""Beside the command of `costgov run`: other users may hold every place on the node, and the command has one still."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import BootNs, UsdMicros, WallNs
from governor.core.engine.alarms import displace
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.node import RUNS_MAX, Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Alarm, CloseIncident, Effect, PersistIncident, Refuse
from governor.core.events.inputs import CommandLaunched, LauncherExited, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.halt.state import GivenUp
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.reports.incident import incident_markdown
from tests.unit.core.engine.test_launched_command import CEILING, COMMAND, launched, terms
from tests.unit.core.engine.test_step import at, hello, make_node, peer, play, rule, tick

# Each one where the ceiling of ten minutes is near. A tick of so many runs takes a millisecond.
SECONDS = (*range(3, 540, 10), *range(540, 620), *range(620, 700, 10))


def strangers(node: Node, count: int, *, first_uid: int = 3000, uids: int = RUNS_MAX) -> None:
    for number in range(count):
        link, whose = ConnectionId(50 + number), peer(900 + number, first_uid + number % uids)
        play(node, hello(0, number / 100, run=f"o{number}", world_size=1, connection=link, peer=whose))


def displaced(effects: list[Effect]) -> list[str | None]:
    return [effect.run for effect in effects if isinstance(effect, Alarm) and effect.name == "run_displaced"]


def all_in_halts() -> Node:
    """All places but one are of strangers, whose halts are open."""
    node = launched()
    play(node, hello(0, 0, run="first", world_size=1))
    strangers(node, RUNS_MAX - 1)
    play(node, *(OperatorHalt(at(1), f"o{number}", "enough", 0) for number in range(RUNS_MAX - 1)))
    return node


def full_at_a_launch(*, uids: int) -> tuple[Node, list[Effect]]:
    """The command is over when the strangers come, and another governor launches it again among them."""
    node = launched()
    play(node, LauncherExited(at(0.1)), TrainerExited(at(0.1), "job", 0))
    strangers(node, RUNS_MAX, uids=uids)
    kept = [run_snapshot(node, managed, at(1)) for managed in node.runs.values()]
    price, ceiling = UsdMicros(3_600_000_000), Budget(ceiling_usd_micros=CEILING)
    again = make_node(
        rule(), rule("budget"), budget=ceiling, cloud="none", exclusive=True, boot=1, price_usd_micros_per_hour=price
    )
    restore_runs(again, kept, BootNs(at(1)), at(1))
    return again, play(again, CommandLaunched(at(2), "job", 1000, (COMMAND,)), tick(2))


def test_a_silent_command_that_is_launched_among_strangers_is_held_to_its_ceiling() -> None:
    for uids in (3, RUNS_MAX):
        node, effects = full_at_a_launch(uids=uids)
        assert len(node.runs) == RUNS_MAX
        assert len(displaced(effects)) == 1
        assert node.runs["job"].is_unattached
        (ended_at,) = [second for second in SECONDS if terms(play(node, tick(second)))]
        assert ended_at * 1_000_000 < CEILING, "at $1 a second"


def test_a_rank_of_the_command_has_a_place_among_strangers_of_as_many_users() -> None:
    node = launched()
    play(node, hello(0, 0, run="own", world_size=1))
    strangers(node, RUNS_MAX - 1)
    effects = play(node, hello(0, 3, run="second", world_size=1, connection=ConnectionId(7), peer=peer(7)))
    assert displaced(effects) == [f"o{RUNS_MAX - 2}"]
    assert node.runs["second"].run.ranks


def test_no_stranger_takes_the_place_of_a_run_of_the_commands_user() -> None:
    node = launched()
    for number in range(30):
        link, whose = ConnectionId(500 + number), peer(500 + number)
        play(node, hello(0, 1, run=f"own{number}", world_size=1, connection=link, peer=whose))
    strangers(node, RUNS_MAX - len(node.runs))
    effects = play(node, hello(0, 3, run="last", world_size=1, connection=ConnectionId(7), peer=peer(7, 2001)))
    assert [type(effect) for effect in effects if isinstance(effect, Refuse)] == [Refuse]
    assert displaced(effects) == []


def test_a_strangers_halt_is_seen_to_its_end_whoever_needs_its_place() -> None:
    node = launched()
    play(node, hello(0, 0, run="own", world_size=1))
    strangers(node, RUNS_MAX - 1)
    play(node, OperatorHalt(at(2), f"o{RUNS_MAX - 2}", "enough", 0))
    effects = play(node, hello(0, 3, run="second", world_size=1, connection=ConnectionId(7), peer=peer(7)))
    assert displaced(effects) == [f"o{RUNS_MAX - 3}"]


def test_nor_does_a_user_all_of_whose_runs_are_being_halted_keep_another_users_from_giving_way() -> None:
    node = launched()
    play(node, hello(0, 0, run="own", world_size=1))
    for number in range(RUNS_MAX - 1):
        link, whose = ConnectionId(50 + number), peer(900 + number, 3000 + number // 32)
        play(node, hello(0, 1 + number / 100, run=f"o{number}", world_size=1, connection=link, peer=whose))
    play(node, *(OperatorHalt(at(2), f"o{number}", "enough", 0) for number in range(32)))
    effects = play(node, hello(0, 3, run="second", world_size=1, connection=ConnectionId(7), peer=peer(7)))
    assert displaced(effects) == [f"o{RUNS_MAX - 2}"]
    assert node.runs["second"].run.ranks


def test_a_rank_of_the_command_has_a_place_though_all_others_are_of_strangers_whose_halts_do_not_end() -> None:
    node = all_in_halts()
    for second in range(3, 300, 10):
        play(node, tick(second))
    assert node.runs["o1"].run.alive, "nobody may end its processes"
    effects = play(node, hello(0, 300, run="second", world_size=1, connection=ConnectionId(7), peer=peer(7)))
    assert node.runs["second"].run.ranks
    (name,) = displaced(effects)
    assert name not in node.runs


@pytest.mark.parametrize("may_be_signalled", [True, False])
def test_of_strangers_halts_one_that_nothing_ends_gives_way_first(may_be_signalled: bool) -> None:
    node = all_in_halts()
    incident = node.runs["o5"].incident
    assert incident is not None
    incident.note(at(1), WallNs(0), "term", **({} if may_be_signalled else {"unsent": "not permitted"}))
    effects = play(node, hello(0, 3, run="second", world_size=1, connection=ConnectionId(7), peer=peer(7)))
    assert displaced(effects) == ["o62" if may_be_signalled else "o5"]


def test_a_halt_whose_run_gives_way_is_closed_in_the_journal_as_not_ended() -> None:
    node = all_in_halts()
    effects = play(node, hello(0, 3, run="second", world_size=1, connection=ConnectionId(7), peer=peer(7)))
    (kept,) = [effect for effect in effects if isinstance(effect, PersistIncident)]
    assert (kept.snapshot["run"], kept.snapshot["halt_stage"], kept.snapshot["strangers"]) == (
        "o62",
        GivenUp.GAVE_WAY,
        True,
    )
    assert kept.closed
    assert kept.snapshot["halt"]["stage"] == kept.snapshot["timeline"][-1]["detail"]["was"] != "HALTED"
    again = incident_of(kept.snapshot)
    assert (again.is_closed, again.stage_name, again.has_ended(again.rank_processes)) == (True, GivenUp.GAVE_WAY, False)
    (closed,) = [effect for effect in effects if isinstance(effect, CloseIncident)]
    assert (closed.incident_id, closed.has_ended) == (kept.incident_id, False), "nobody looks for its processes"
    (told,) = [effect.text for effect in effects if isinstance(effect, Alarm) and effect.name == "run_displaced"]
    assert told.endswith(f"; its halt is not seen to its end ({kept.incident_id})")
    report = incident_markdown(kept.snapshot)
    assert "its place was given to a run of the launched command" in report
    assert "The end of the run's processes was not observed." in report
    assert "went down" not in report


def test_no_view_calls_a_halt_halted_that_gave_way() -> None:
    node = all_in_halts()
    managed = node.runs["o62"]
    incident = managed.incident
    assert incident is not None
    displace(node, managed, "no room", at(3))
    told = run_status(managed, at(3))
    assert (told["state"], told["halt"]["stage"]) == ("finished", GivenUp.GAVE_WAY)
    measured = take_snapshot(node, at(3), GovernorHealth(), LagReading(), "")
    assert [run.halt_stage for run in measured.runs if run.run == "o62"] == [GivenUp.GAVE_WAY]
    assert not incident.has_ended(incident.rank_processes)


def test_a_command_that_is_launched_again_among_such_halts_has_its_ceiling() -> None:
    node = launched()
    play(node, LauncherExited(at(0.1)), TrainerExited(at(0.1), "job", 0))
    strangers(node, RUNS_MAX)
    play(node, *(OperatorHalt(at(1), f"o{number}", "enough", 0) for number in range(RUNS_MAX)))
    kept = [run_snapshot(node, managed, at(1)) for managed in node.runs.values()]
    halts = [incident_snapshot(node, managed.incident) for managed in node.runs.values() if managed.incident]
    price, ceiling = UsdMicros(3_600_000_000), Budget(ceiling_usd_micros=CEILING)
    again = make_node(
        rule(), rule("budget"), budget=ceiling, cloud="none", exclusive=True, boot=1, price_usd_micros_per_hour=price
    )
    restore_runs(again, kept, BootNs(at(1)), at(1))
    restore_incidents(again, halts, at(1), WallNs(0))
    effects = play(again, CommandLaunched(at(2), "job", 1000, (COMMAND,)), tick(2))
    assert (len(displaced(effects)), len(again.runs)) == (1, RUNS_MAX)
    assert again.runs["job"].is_unattached
