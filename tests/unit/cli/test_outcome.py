"""Which halts are the end of the command of `costgov run`: its exit code is 86 after these, and its own otherwise."""

from __future__ import annotations

import io

import pytest

from governor.cli.run.console import Console
from governor.cli.run.outcome import LEAVES_NS, Outcome
from governor.cli.run.relaunch import how_to_resume
from governor.cli.run.supervise import _close, closing_lines
from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.ends import CommandEndSeen
from governor.core.events.inputs import CommandLaunched, Disconnected, Event, LaunchersSeen, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.halt.incident import OTHER_USER
from governor.core.halt.left_launch import process_row
from governor.core.halt.state import GivenUp
from tests.unit.cli.test_supervise import Beside
from tests.unit.core.engine.test_step import a_step, at, hello, peer, play, tick


@pytest.fixture
def beside() -> Beside:
    return Beside()


@pytest.mark.parametrize(
    ("run", "launcher", "counts"), [("mine", 999, True), ("named-by-the-script", 4321, True), ("another", 999, False)]
)
def test_a_halt_of_another_run_is_neither_our_exit_code_nor_our_commands_end(
    run: str, launcher: int, counts: bool
) -> None:
    outcome = Outcome("mine", (ProcessId(4321, 1, "boot-1"),))
    launchers = [process_row(ProcessId(launcher, 1, "boot-1"))]
    snapshot = {
        "incident_id": "i",
        "run": run,
        "halt_stage": "NEEDS_HUMAN",
        "launchers": launchers,
        "opened_mono_ns": 5,
    }
    outcome.incident(snapshot)
    assert outcome.is_unfinished is counts


@pytest.mark.parametrize("open_one", ["i", "j"])
def test_one_of_two_halts_that_is_open_leaves_the_end_unseen(open_one: str) -> None:
    outcome = Outcome("mine")
    for incident_id in ("i", "j"):
        stage = "VERIFYING" if incident_id == open_one else "HALTED"
        snapshot = {"incident_id": incident_id, "run": "mine", "halt_stage": stage, "launchers": []}
        outcome.incident({**snapshot, "opened_mono_ns": 5})
    assert outcome.is_unfinished


def test_a_halt_of_an_earlier_boot_is_neither_open_nor_the_exit_code() -> None:
    outcome = Outcome("mine")
    snapshot = {"incident_id": "i", "run": "mine", "launchers": [], "opened_mono_ns": 5}
    outcome.incident({**snapshot, "halt_stage": GivenUp.SUPERSEDED})
    assert (outcome.stages, outcome.is_unfinished) == ({}, False)


@pytest.mark.parametrize(
    ("run", "lives", "is_left", "counts"),
    [
        ("below", True, False, False),
        ("below", False, False, True),
        ("mine", True, False, True),
        ("mine", True, True, False),
        ("mine", False, True, True),
    ],
)
def test_the_halt_of_one_of_two_runs_below_the_command_that_spares_the_command_is_not_its_exit_code(
    run: str, lives: bool, is_left: bool, counts: bool
) -> None:
    command, living = ProcessId(4321, 1, "boot-1"), [True]
    outcome = Outcome("mine", (command,), lives=lambda: living[0])
    row = process_row(command)
    targets = [{**row, "role": "launcher", "left": True} if is_left else {**row, "role": "launcher"}]
    snapshot = {"incident_id": "i", "run": run, "launchers": [row], "targets": targets, "opened_mono_ns": 5}
    outcome.incident({**snapshot, "halt_stage": "TERM"})
    assert outcome.is_unfinished
    living[0] = lives
    outcome.incident({**snapshot, "halt_stage": "HALTED"})
    living[0] = False
    outcome.incident({**snapshot, "halt_stage": "HALTED"})  # Its checkpoint has been read.
    assert bool(outcome.stages) is counts


HOUR_NS = 3_600 * NS_PER_S


@pytest.mark.parametrize(
    ("second", "ends_after", "counts"),
    [
        ("none", 1, True),
        ("none", LEAVES_NS + 1, True),
        ("none", HOUR_NS, True),
        ("ended before", HOUR_NS, True),
        ("stranger's", HOUR_NS, True),
        ("trains", 1, True),
        ("trains", LEAVES_NS, True),
        ("trains", LEAVES_NS + 1, False),
        ("has trained", LEAVES_NS + 1, False),
    ],
)
@pytest.mark.parametrize("run", ["mine", "below"])
def test_a_command_of_another_user_that_ends_behind_its_halted_run_was_halted_unless_another_of_its_runs_trained(
    beside: Beside, run: str, second: str, ends_after: int, counts: bool
) -> None:
    """`sudo` is not signalled, closes its session, or uploads: `sudo sh -c "train; upload"` has trained nothing."""
    command, living = ProcessId(4321, 1, "boot-1"), [True]
    outcome = Outcome("mine", (command,), lives=lambda: living[0])
    play(beside.node, CommandLaunched(at(0), "mine", 1000, (command,)), tick(0))
    if second != "none":
        uid = 2002 if second == "stranger's" else 1000
        play(beside.node, hello(0, 1, run="second", world_size=1, peer=peer(900, uid)))
    if second not in ("none", "stranger's"):
        play(beside.node, LaunchersSeen(at(1), "second", (command,)))
        play(beside.node, a_step(900, run="second", when=7 if second == "has trained" else 2))
    if second in ("ended before", "has trained"):
        play(beside.node, Disconnected(at(8), ConnectionId(1)), TrainerExited(at(8), "second", None))
    row = process_row(command)
    targets = [{**row, "role": "launcher", "left": OTHER_USER}]
    snapshot = {"incident_id": "i", "run": run, "launchers": [row], "targets": targets, "opened_mono_ns": 5}
    outcome.incident({**snapshot, "halt_stage": "HALTED"})
    halted = at(5)
    for moment in (0, LEAVES_NS, LEAVES_NS + 1, HOUR_NS - 1):
        living[0] = moment < ends_after
        play(beside.node, tick(int(5 + moment / NS_PER_S)))
        outcome.tick(beside.node, MonoNs(halted + moment))
    assert bool(outcome.stages) is counts
    assert bool(outcome.outlived) is not counts


def test_a_command_that_ends_within_a_second_behind_its_halted_run_has_not_trained_on(beside: Beside) -> None:
    """PAM's modules may take it, while the last step of another of its runs is newer than the halt."""
    command, living = ProcessId(4321, 1, "boot-1"), [True]
    outcome = Outcome("mine", (command,), lives=lambda: living[0])
    play(beside.node, CommandLaunched(at(0), "mine", 1000, (command,)), tick(0))
    play(beside.node, hello(0, 1, run="second", world_size=1), LaunchersSeen(at(1), "second", (command,)))
    row = process_row(command)
    targets = [{**row, "role": "launcher", "left": OTHER_USER}]
    snapshot = {"incident_id": "i", "run": "mine", "launchers": [row], "targets": targets, "opened_mono_ns": 5}
    outcome.incident({**snapshot, "halt_stage": "HALTED"})
    for second in (5, 6):
        outcome.tick(beside.node, at(second))
    living[0] = False
    outcome.tick(beside.node, at(60))
    assert outcome.stages == {"i": "HALTED"}


@pytest.mark.parametrize(
    ("opened", "start_ticks", "counts"), [(99, 7_000, False), (99, 9_000, True), (99, 9_500, True), (100, 7_000, True)]
)
def test_the_halt_of_an_earlier_launch_is_not_the_exit_code_of_this_one_that_it_does_not_end(
    opened: int, start_ticks: int, counts: bool
) -> None:
    outcome = Outcome("mine", (ProcessId(4321, 9_000, "boot-1"),), began_at=MonoNs(100))
    its = [process_row(ProcessId(4400, start_ticks, "boot-1"))]
    snapshot = {"incident_id": "i", "run": "mine", "launchers": [], "rank_processes": its, "opened_mono_ns": opened}
    outcome.incident({**snapshot, "halt_stage": "HALTED"})
    assert bool(outcome.stages) is counts


def test_a_run_whose_halt_the_command_has_outlived_is_told_as_halted(beside: Beside) -> None:
    command = ProcessId(beside.command.process.pid, 1, "boot-1")
    play(beside.node, CommandLaunched(at(0), "run-1", 1000, (command,)), tick(0))
    play(beside.node, hello(0, 1, run="below", world_size=1), LaunchersSeen(at(1), "below", (command,)))
    play(beside.node, OperatorHalt(at(2), "below", "enough", 0))
    incident = beside.node.runs["below"].incident
    assert incident is not None
    beside.command.poll()
    lines = closing_lines(
        beside.governor, beside.command, Outcome("run-1", (command,), outlived={incident.incident_id})
    )
    assert [line.partition(";")[0] for line in lines] == ["below: was halted"]


@pytest.mark.parametrize("stages", [{}, {"i": "HALTED"}])
def test_an_end_by_a_halt_is_neither_looked_at_for_its_cause_nor_followed_by_the_line_that_resumes(
    beside: Beside, stages: dict[str, str]
) -> None:
    """The report of the halt has both."""
    noted: list[Event] = []
    console = Console(stream=io.StringIO())
    governor = beside.governor
    governor.daemon.apply, governor.daemon.supervised = noted.append, None
    governor.daemon.performer.perform = list
    beside.command.exit_code = 1
    outcome = Outcome("run-1", stages=stages)
    _close(governor, beside.command, "run-1", ["train"], outcome, console)
    resumes = how_to_resume(governor, beside.command, "run-1", ["train"], is_halted=False)
    assert isinstance(console.stream, io.StringIO)
    said = set(console.stream.getvalue().splitlines())
    looked = [event for event in noted if isinstance(event, CommandEndSeen)]
    assert (len(looked), [line in said for line in resumes]) == ((0, [False]) if stages else (1, [True]))
