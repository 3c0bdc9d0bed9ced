"""The moment of a launch: what the journal has of the command, and what is said where it has nothing."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.command import launch_lock
from governor.app.node_facts import NO_ROOM
from governor.cli.common import ExitCode
from governor.cli.run.console import Console
from governor.cli.run.outcome import Outcome
from governor.cli.run.relaunch import cannot_run, note_launch
from governor.cli.run.supervise import HELLO_NS, _close
from governor.core.base.identity import ProcessFacts
from governor.core.base.units import WallNs
from governor.core.events.inputs import CommandLaunched, Event, LauncherExited
from governor.core.events.operators import OperatorHalt
from governor.core.halt.left_launch import NEVER_LOOKED, LeftLaunch
from governor.core.halt.state import GivenUp, HaltState
from tests.contract.fakes import FakeProcesses
from tests.unit.cli.test_supervise import Beside, beside
from tests.unit.core.engine.test_step import at, play

__all__ = ["beside"]  # A fixture.
PID, MARK = 700, 0x9ABCDEF012


class NoDescriptors(FakeProcesses):
    def facts(self, pid: int) -> ProcessFacts | None:
        raise OSError(errno.EMFILE, "Too many open files")


def governed(beside: Beside) -> tuple[Any, list[Event]]:
    """Its loop does what it is told at once."""
    noted, governor = list[Event](), beside.governor

    def apply(event: Event) -> None:
        noted.append(event)
        play(beside.node, event)

    governor.daemon.apply, governor.daemon.supervised = apply, None
    governor.daemon.performer.perform = list
    return governor, noted


def launch(governor: Any, said: list[str] | None = None) -> None:
    say = None if said is None else said.append
    partial(note_launch, governor, "run-1", ["train"], say=say)(PID, MARK, None)


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        (None, []),
        (FakeProcesses(), ["is not shown in /proc"]),
        (NoDescriptors(), ["cannot be looked at in /proc (Too many open files)"]),
    ],
)
def test_a_command_that_cannot_be_noted_is_told_of(processes: FakeProcesses | None, told: list[str]) -> None:
    """It was let go with no word of it, and the next launch would have begun beside it."""
    beside = Beside(processes)
    governor, noted = governed(beside)
    if processes is None:
        beside.processes.add(PID)
    said = list[str]()
    launch(governor, said)
    launch(governor)
    assert [line.partition(f"pid {PID} ")[2].partition(", and")[0] for line in said] == told
    assert [type(event) for event in noted] == ([] if told else [CommandLaunched] * 2)


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), ExitCode.NOT_FOUND, "No such file or directory"),
        (PermissionError(errno.EACCES, "Permission denied"), ExitCode.CANNOT_EXECUTE, "Permission denied"),
        (ValueError("embedded null byte"), ExitCode.CANNOT_EXECUTE, "embedded null byte"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), ExitCode.CANNOT_EXECUTE, NO_ROOM),
    ],
)
def test_a_command_that_cannot_be_run_is_one_line_and_its_launch_is_over(
    beside: Beside, error: Exception, code: ExitCode, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process was noted before its exec failed. It would refuse the next launch, as one that may live."""
    governor, _ = governed(beside)
    beside.processes.add(PID)
    launch(governor)
    assert beside.node.launched is not None
    assert cannot_run(governor, "train", error) == code
    assert capsys.readouterr().err == f"costgov: train: cannot be run: {why}\n"
    assert (beside.node.launched, beside.node.left) == (None, None)


@pytest.mark.parametrize(
    ("lives", "waited", "halt", "is_left", "is_seen"),
    [
        (False, 0, None, False, True),
        (True, HELLO_NS, None, False, True),
        (True, HELLO_NS - 1, None, True, False),  # A person's third Ctrl-C.
        (True, HELLO_NS, HaltState.TERMED, False, False),
        (True, HELLO_NS, GivenUp.LEFT_UNNOTED, False, False),
        (True, HELLO_NS, HaltState.HALTED, False, True),
    ],
)
def test_who_leaves_has_nobody_wait_for_what_the_command_has_left_unless_that_wait_was_cut_short(
    lives: bool, waited: int, halt: HaltState | GivenUp | None, is_left: bool, is_seen: bool,
    beside: Beside, tmp_path: Path,
) -> None:  # fmt: skip
    """It is told by then. Noted on, it would refuse the next launch. Cut short, a rank was still importing."""
    beside.state_dir = tmp_path
    lock = launch_lock.join(tmp_path)
    assert lock is not None
    os.close(lock)
    governor, _ = governed(beside)
    beside.processes.add(PID)
    launch(governor)
    if halt is not None:
        play(beside.node, OperatorHalt(at(1), "run-1", "enough", 0))
        close_halt(beside, halt)
    play(beside.node, LauncherExited(at(1)))
    beside.processes.end(PID)
    assert beside.node.left is not None
    if lives:
        beside.leave(PID + 1)
    beside.command.exit_code, beside.command.ended_at = 0, beside.clock.mono()
    beside.clock.advance(waited)
    _close(governor, beside.command, "run-1", ["train"], Outcome("run-1"), Console(stream=io.StringIO()))
    assert (beside.node.left is not None) == is_left
    assert beside.node.ended_lock == (launch_lock.stamp(tmp_path) if is_seen else None)


def close_halt(beside: Beside, halt: HaltState | GivenUp) -> None:
    incident = beside.node.runs["run-1"].incident
    assert incident is not None
    if isinstance(halt, GivenUp):
        incident.give_up(at(2), WallNs(2), halt)
        return
    incident.move(replace(incident.halt, stage=halt))
    if halt is HaltState.HALTED:
        incident.end(at(2), WallNs(2))


def test_a_launch_that_has_just_ended_was_never_looked_at() -> None:
    """Nothing says that there was nothing below it."""
    event = CommandLaunched(at(0), "run-1", 1000, (FakeProcesses().add(PID),))
    assert LeftLaunch.of_command(event).below == NEVER_LOOKED
