"""Which halts are the end of the command of `costgov run`: its exit code is 86 after these, and its own otherwise."""

from __future__ import annotations

import pytest

from governor.cli.run.supervise import LEAVES_NS, Outcome, closing_lines
from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.inputs import CommandLaunched, LaunchersSeen, OperatorHalt
from governor.core.halt.incident import OTHER_USER, process_row
from tests.unit.cli.test_supervise import Beside
from tests.unit.core.engine.test_step import at, hello, play, tick


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


@pytest.mark.parametrize(("ends_after", "counts"), [(1, True), (LEAVES_NS, True), (LEAVES_NS + 1, False)])
@pytest.mark.parametrize("run", ["mine", "below"])
def test_a_command_of_another_user_that_ends_behind_the_run_that_it_waited_for_was_halted(
    run: str, ends_after: int, counts: bool
) -> None:
    """`sudo` is not signalled, and closes its session; `sudo train.sh; python evaluate.py` goes on."""
    command, living = ProcessId(4321, 1, "boot-1"), [True]
    outcome = Outcome("mine", (command,), lives=lambda: living[0])
    row = process_row(command)
    targets = [{**row, "role": "launcher", "left": OTHER_USER}]
    snapshot = {"incident_id": "i", "run": run, "launchers": [row], "targets": targets, "opened_mono_ns": 5}
    outcome.incident({**snapshot, "halt_stage": "HALTED"})
    for moment in (100, 100 + LEAVES_NS):
        living[0] = moment < 100 + ends_after
        outcome.tick(None, MonoNs(moment))
    assert bool(outcome.stages) is counts
    assert bool(outcome.outlived) is not counts


@pytest.mark.parametrize(
    ("opened", "start_ticks", "counts"), [(99, 7_000, False), (99, 9_500, True), (100, 7_000, True)]
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
