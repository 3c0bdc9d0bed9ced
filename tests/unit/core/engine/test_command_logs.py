"""A followed log whose writer nobody else is named to be is the launched command's: one run, one ceiling, one end."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import MonoNs, UsdMicros
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Page
from governor.core.events.inputs import CommandLaunched, Disconnected, LauncherExited, ProcessesSeen, TrainerExited
from governor.core.events.streams import StreamOpened, StreamRead, WriterGone
from governor.core.halt.table import HaltState
from governor.core.views.status import budgets_status, run_status
from governor.reports.terminal import closing_line, live_line
from governor.text.incident_money import spent_text
from tests.unit.core.engine.test_launched_command import (
    CEILING,
    COMMAND,
    PRICE,
    STREAMED,
    charged,
    launched,
    pass_time,
    terms,
)
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick

DOLLAR = 1_000_000
AGAIN = ProcessId(4322, 2, "boot-1")


def log(node: Node, when: int, *processes: ProcessId, run: str = "log", of_command: bool = True) -> None:
    play(node, StreamOpened(at(when), run, 1000, None, {}, processes, of_command=of_command))


def line(node: Node, step: int, when: int, *, run: str = "log", loss: float = 2.5) -> None:
    play(node, a_step(step, run=run, when=when, connection=None, loss=loss))


def scopes(node: Node, when: int) -> list[str]:
    return [row["scope"] for row in budgets_status(node, at(when))]


def test_a_log_without_a_named_writer_is_the_command_from_its_first_line() -> None:
    node = launched()
    log(node, 0)
    pass_time(node, 30)
    assert node.runs["job"].is_unattached, "nothing was written, so nobody speaks for the command yet"
    assert (scopes(node, 30), node.ledger.spend("log")) == (["run:job"], 0)
    line(node, 1, 30)
    assert scopes(node, 30) == ["run:log"]
    ended = [run for second in range(31, 1_000) for run in terms(play(node, tick(second)))]
    assert ended == ["log"]
    incident = node.runs["log"].incident
    assert incident is not None
    assert (incident.launchers, incident.rank_processes) == ((COMMAND,), (COMMAND,))
    assert incident.resume is not None
    play(node, ProcessesSeen(at(1_000), incident.incident_id, ()))
    assert incident.halt.stage is HaltState.HALTED
    assert 0 < incident.spend_at_verdict_usd_micros < CEILING, "all that the command has cost, from its start"


def test_a_named_process_that_the_command_has_started_is_the_command_at_once() -> None:
    node = launched()
    pass_time(node, 30)
    log(node, 30, STREAMED)
    pass_time(node, 60, 31)
    assert list(node.runs) == ["log"]
    assert (node.ledger.spend("log"), charged(node, "log")) == (60 * DOLLAR, 60 * DOLLAR)
    managed = node.runs["log"]
    assert (managed.launch.launchers, managed.launch.named) == ((COMMAND,), (STREAMED,))


@pytest.mark.parametrize("second", ["eval", "aaa"])
def test_of_two_logs_of_the_command_one_pays_and_a_nan_in_either_ends_it(second: str) -> None:
    node = launched()
    log(node, 0)
    log(node, 0, run=second)
    line(node, 1, 1)
    line(node, 1, 1, run=second)
    pass_time(node, 100)
    assert (node.ledger.spend("log"), node.ledger.spend(second)) == (100 * DOLLAR, 0)
    line(node, 2, 100, run=second, loss=float("nan"))
    incident = node.runs[second].incident
    assert incident is not None
    assert incident.launchers == (COMMAND,)
    assert spent_text(incident_snapshot(node, incident)) == "nothing of its own: log pays for the command"


def test_the_log_that_does_not_pay_says_who_does_and_pays_nothing_behind_the_others_halt() -> None:
    node = launched(rule("nonfinite"))
    log(node, 0)
    log(node, 0, run="eval")
    line(node, 1, 1)
    line(node, 1, 1, run="eval")
    pass_time(node, 100)
    told = live_line(run_status(node.runs["eval"], at(100)))
    assert "$ - (paid by log)" in told
    assert "no price" not in told
    line(node, 2, 100, loss=float("nan"))
    incident = node.runs["log"].incident
    assert incident is not None
    play(node, ProcessesSeen(at(101), incident.incident_id, ()))
    assert incident.is_closed
    pass_time(node, 110, 101)
    play(node, TrainerExited(at(110), "log", None))
    pass_time(node, 120, 111)
    assert node.ledger.spend("eval") == 0, "its command has ended with the halt"
    assert node.ledger.spend("log") == 101 * DOLLAR, "up to its exit"
    assert "$ - (paid by log)" in closing_line(run_status(node.runs["eval"], at(120)), "its log was followed")


def test_a_log_beside_ranks_of_the_command_takes_nothing_of_theirs() -> None:
    node = launched()
    log(node, 0)
    play(node, hello(0, 1, run="job", world_size=1))
    line(node, 1, 2)
    pass_time(node, 100, 2)
    assert (node.ledger.spend("job"), node.ledger.spend("log")) == (100 * DOLLAR, 0)
    assert node.runs["log"].launch.launchers == ()


def test_a_pidfile_that_names_another_at_last_gives_the_command_back() -> None:
    node = launched()
    log(node, 0)
    line(node, 1, 1)
    pass_time(node, 10)
    log(node, 10, STREAMED, of_command=False)
    pass_time(node, 20, 11)
    other = node.runs["log"]
    assert (other.launch.launchers, other.launch.named, other.is_separate) == ((), (STREAMED,), True)
    assert node.runs["job"].is_unattached
    assert node.runs["job"].processes() == (COMMAND,)


def test_a_log_of_the_last_launch_is_the_next_commands_again() -> None:
    node = launched()
    log(node, 0)
    line(node, 1, 1)
    pass_time(node, 10)
    play(node, LauncherExited(at(10)), TrainerExited(at(10), "log", None))
    assert run_status(node.runs["log"], at(10))["state"] == "finished"
    line(node, 2, 10)
    assert not node.runs["log"].run.alive, "a last line is read after the end, and is no new attempt"


def test_of_a_run_without_processes_it_is_said_that_nobody_was_signalled() -> None:
    node = make_node(rule("nonfinite"), cloud="none")
    play(node, StreamOpened(at(0), "log", 1000), tick(0))
    line(node, 1, 1, loss=float("nan"))
    incident = node.runs["log"].incident
    assert incident is not None
    effects = [effect for second in range(2, 60) for effect in play(node, tick(second))]
    play(node, ProcessesSeen(at(60), incident.incident_id, ()))
    signals = [entry["detail"] for entry in incident.timeline if entry["what"] in ("term", "kill")]
    assert signals
    assert all(detail["unsent"] == "the run names no processes" for detail in signals)
    (page,) = {effect.reason for effect in effects if isinstance(effect, Page)}
    assert page == "its processes could not be signalled: the run names no processes"
    assert not [effect for effect in effects if isinstance(effect, Alarm) and "survive" in effect.text]


def test_a_run_whose_ranks_have_left_is_ending_and_not_starting() -> None:
    node = make_node(rule(), cloud="none", price_usd_micros_per_hour=UsdMicros(DOLLAR))
    play(node, hello(0, 0, world_size=1), tick(0))
    managed = node.runs["llama"]
    assert run_status(managed, at(0))["state"] == "starting"
    play(node, a_step(1, when=1))
    (connection,) = node.connections
    play(node, Disconnected(at(2), connection))
    assert run_status(managed, at(2))["state"] == "ending"


def test_an_exit_of_the_last_launchs_process_ends_no_log_that_the_command_writes_now() -> None:
    node = launched()
    log(node, 0, run="job")
    play(node, TrainerExited(at(1), "job", None), tick(1))
    assert run_status(node.runs["job"], at(1))["state"] == "starting"
    assert not node.runs["job"].is_unattached
    play(node, LauncherExited(at(2)), TrainerExited(at(2), "job", None))
    assert run_status(node.runs["job"], at(2))["state"] == "finished"


def test_a_nan_in_the_first_lines_has_the_price_of_its_machine() -> None:
    node = launched(rule("nonfinite"))
    pass_time(node, 10)
    log(node, 10)
    line(node, 1, 10, loss=float("nan"))
    incident = node.runs["log"].incident
    assert incident is not None
    assert (incident.spend_rate_usd_micros_per_hour, incident.spend_at_verdict_usd_micros) == (PRICE, 10 * DOLLAR)


@pytest.mark.parametrize("is_log", [True, False])
def test_the_next_launch_of_a_command_goes_on_with_the_budget_of_the_run_that_paid_for_it(is_log: bool) -> None:
    """Before its first line or rank, too: the ceiling of a log's run had nothing of what the launch before had cost."""
    world = World(launched())
    if is_log:
        log(world.node, 0)
        line(world.node, 1, 1)
    else:
        world.play(hello(0, 0, run="log", world_size=1))
    world.at(100)
    world.play(TrainerExited(at(100), "log", 1))
    world.play(LauncherExited(at(100)))
    world.tick()
    spent = world.node.ledger.spend("log")
    assert spent == 100 * DOLLAR
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (AGAIN,)))
    world.at(130)
    assert list(world.node.runs) == ["log"]
    told = run_status(world.node.runs["log"], MonoNs(world.mono))
    assert (told["state"], told["spend_usd"]) == ("starting", 130.0)
    if is_log:
        log(world.node, 130)
        world.at(140)
        line(world.node, 2, 140)
    else:
        world.play(hello(0, 130, run="log", attempt="a2", world_size=1, connection=ConnectionId(7)))
    world.at(150)
    assert world.node.ledger.spend("log") == world.charged("log") == 150 * DOLLAR
    assert world.node.runs["log"].launch.launchers == (AGAIN,)


def trains_twice(gap: int) -> World:
    """Two trainings of one launch, and so many seconds between the end of the first and the second's hello."""
    world = World(launched())
    for run, begins in (("first", 10), ("second", 50 + gap)):
        world.at(begins)
        world.play(hello(0, begins, run=run, world_size=1, connection=ConnectionId(begins), peer=peer(begins)))
        world.at(begins + 40)
        world.play(Disconnected(at(begins + 40), ConnectionId(begins)))
        world.play(TrainerExited(at(begins + 40), run, 0))
    return world


@pytest.mark.parametrize("gap", [0, 3])
def test_of_several_runs_of_the_command_the_last_stands_in_for_what_follows_and_for_its_next_launch(gap: int) -> None:
    world = trains_twice(gap)
    world.at(100)
    assert [name for name, managed in world.node.runs.items() if managed.is_unattached] == ["second"]
    world.play(LauncherExited(at(100)))
    world.play(TrainerExited(at(100), "second", 0))
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (AGAIN,)))
    world.at(130)
    assert [name for name, managed in world.node.runs.items() if managed.is_unattached] == ["second"]


def test_of_several_runs_none_does_where_an_older_journal_does_not_say_which_was_the_last() -> None:
    world = trains_twice(3)
    world.play(LauncherExited(at(100)))
    world.play(TrainerExited(at(100), "second", 0))
    turns = [row["command_turn"] for row in map(dict, world.runs.values()) if row.get("command") == "job"]
    assert sorted(turns) == [1, 2]
    world.runs = {name: {**row, "command_turn": 0} for name, row in world.runs.items()}
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (AGAIN,)))
    world.at(130)
    assert world.node.runs["job"].is_unattached


def test_who_pays_for_the_command_in_a_logs_place_is_no_run_beside_it() -> None:
    node = launched()
    log(node, 0, STREAMED, run="beside", of_command=False)
    for run in ("a", "b"):
        log(node, 0, run=run)
        line(node, 1, 1, run=run)
    pass_time(node, 3)
    assert (node.runs["beside"].is_separate, "beside" in node.holders()) == (True, True)
    assert {name: managed.money.paid_by for name, managed in node.runs.items() if managed.run.alive} == {
        "beside": None, "a": None, "b": "a",
    }  # fmt: skip


def test_a_log_whose_pidfile_named_others_at_last_is_the_commands_again_when_it_stands_in_for_it() -> None:
    node = launched()
    log(node, 0)
    line(node, 1, 1)
    pass_time(node, 3)
    log(node, 4, STREAMED, of_command=False)
    assert node.runs["log"].is_separate
    play(node, TrainerExited(at(4), "log", None), tick(5))
    own = node.runs["log"]
    assert (own.is_unattached, own.is_separate) == (True, False)
    pass_time(node, 10, 6)
    assert own.run.spend_usd_micros == 10 * DOLLAR


def two_logs() -> Node:
    """Two logs of one command. `log` pays, and its writer was never seen."""
    node = launched(rule("nonfinite"))
    for run in ("log", "other"):
        log(node, 0, run=run)
        line(node, 1, 1, run=run)
    pass_time(node, 10)
    return node


def test_of_two_logs_the_other_pays_once_the_first_ones_writer_is_gone() -> None:
    node = two_logs()
    play(node, WriterGone(at(10), "log"), tick(10))
    pass_time(node, 30, 11)
    assert (node.ledger.spend("log"), node.ledger.spend("other")) == (10 * DOLLAR, 20 * DOLLAR)
    assert run_status(node.runs["log"], at(30))["state"] == "finished"


def test_a_line_of_a_log_whose_writer_was_taken_for_gone_is_judged_as_before() -> None:
    node = two_logs()
    play(node, WriterGone(at(10), "log"))
    pass_time(node, 20, 11)
    line(node, 2, 20)
    play(node, StreamRead(at(20), "log", {}))
    assert run_status(node.runs["log"], at(20))["state"] == "training"
    pass_time(node, 30, 21)
    assert node.ledger.spend("log") + node.ledger.spend("other") == 30 * DOLLAR
    line(node, 3, 30, loss=float("nan"))
    incident = node.runs["log"].incident
    assert incident is not None
    assert (incident.launchers, incident.rank_processes) == ((COMMAND,), (COMMAND,))


def test_an_only_log_of_the_command_is_its_until_the_command_ends() -> None:
    """Its pidfile may name a process that is not seen from here, as another namespace numbers it."""
    node = launched()
    log(node, 0)
    line(node, 1, 1)
    pass_time(node, 10)
    play(node, WriterGone(at(10), "log"))
    pass_time(node, 20, 11)
    assert run_status(node.runs["log"], at(20))["state"] == "training"
    assert node.ledger.spend("log") == 20 * DOLLAR
    log(node, 20, run="other")
    line(node, 1, 20, run="other")
    pass_time(node, 30, 20)
    assert (node.ledger.spend("log"), node.ledger.spend("other")) == (20 * DOLLAR, 10 * DOLLAR), "until another goes on"


def test_a_line_says_that_somebody_writes_a_log_whose_writer_was_taken_for_gone() -> None:
    node = launched()
    log(node, 0)
    line(node, 1, 1)
    pass_time(node, 10)
    play(node, WriterGone(at(10), "log"), tick(10))
    line(node, 2, 11)
    play(node, StreamRead(at(11), "log", {}))
    log(node, 20, run="other")
    line(node, 1, 20, run="other")
    pass_time(node, 30, 12)
    assert run_status(node.runs["log"], at(30))["state"] == "training"


def test_a_writer_that_is_gone_ends_no_halt_and_no_log_without_a_line() -> None:
    node = two_logs()
    log(node, 10, run="third")
    play(node, WriterGone(at(10), "third"), WriterGone(at(10), "unknown"), tick(10))
    assert node.runs["third"].run.alive
    line(node, 2, 10, loss=float("nan"))
    play(node, WriterGone(at(11), "log"), tick(11))
    incident = node.runs["log"].incident
    assert incident is not None
    assert not incident.is_closed
    assert node.runs["log"].run.alive


def test_a_log_whose_process_is_named_ends_with_it_alone() -> None:
    node = two_logs()
    log(node, 10, STREAMED)
    play(node, WriterGone(at(10), "log"), tick(10))
    assert node.runs["log"].run.alive
