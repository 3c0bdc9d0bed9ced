"""The moment of a launch: what the journal has of the command, and what is said where it has nothing."""

from __future__ import annotations

import errno
import io
from functools import partial
from typing import Any

import pytest

from governor.cli.common import ExitCode
from governor.cli.run.console import Console
from governor.cli.run.outcome import Outcome
from governor.cli.run.relaunch import cannot_run, note_launch
from governor.cli.run.supervise import _close
from governor.core.base.identity import ProcessFacts
from governor.core.events.inputs import CommandLaunched, Event, LauncherExited
from governor.core.halt.incident import NEVER_LOOKED, LeftLaunch
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


def test_who_leaves_has_nobody_wait_for_what_the_command_has_left(beside: Beside) -> None:
    """It is told by then. Noted on, it would refuse the next launch."""
    governor, _ = governed(beside)
    beside.processes.add(PID)
    launch(governor)
    play(beside.node, LauncherExited(at(1)))
    assert beside.node.left is not None
    beside.command.exit_code = 0
    _close(governor, beside.command, "run-1", ["train"], Outcome("run-1"), Console(stream=io.StringIO()))
    assert beside.node.left is None


def test_a_launch_that_has_just_ended_was_never_looked_at() -> None:
    """Nothing says that there was nothing below it."""
    event = CommandLaunched(at(0), "run-1", 1000, (FakeProcesses().add(PID),))
    assert LeftLaunch.of_command(event).below == NEVER_LOOKED
