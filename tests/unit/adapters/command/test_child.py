"""The command of `costgov run`: the signals that are passed on to it, and which of them ended it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from governor.adapters.command.child import UNNAMED, Command, _environ, end_command
from governor.cli.run.signal_answers import SignalAnswers
from tests.unit.core.engine.test_step import at, make_node
from trainer_shim.connection import forwarded

NOBODY = 65_534


@contextmanager
def as_nobody() -> Iterator[None]:
    """As the user who has started `sudo`: the command is root's."""
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_ranks_of_other_nodes_are_told_of_this_run_and_not_of_one_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forwarded.VARIABLE, "of a run around this one")
    monkeypatch.setenv("COSTGOV_STAGE", "sft")
    for is_named in (True, False):
        told = _environ("/run/s", "night", None, is_named=is_named, is_read=False)[forwarded.VARIABLE]
        found = forwarded.with_forwarded({forwarded.VARIABLE: told})
        unnamed = {} if is_named else {UNNAMED: "night"}
        assert found == {forwarded.VARIABLE: told, "COSTGOV_RUN": "night", "COSTGOV_STAGE": "sft", **unnamed}


@pytest.mark.parametrize(("apart_s", "stays"), [(60, [True, True, False]), (61, [True, True, True])])
def test_the_third_signal_in_a_row_leaves_and_not_the_third_that_was_survived(apart_s: int, stays: list[bool]) -> None:
    survives = ["sh", "-c", "trap '' TERM; echo ready; exec sleep 60"]
    with subprocess.Popen(survives, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        command = Command(process)
        assert [command.pass_on(signal.SIGTERM, at(apart_s * number)) for number in range(3)] == stays
        process.kill()


def test_the_end_is_of_the_signal_that_ended_it_and_not_of_one_that_it_survived() -> None:
    survives = ["sh", "-c", "trap '' TERM QUIT; echo ready; exec sleep 60"]
    with subprocess.Popen(survives, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        command = Command(process)
        for second, signum in enumerate((signal.SIGTERM, signal.SIGQUIT)):
            command.pass_on(signum, at(second))
        process.send_signal(signal.SIGINT)
        process.wait(10)
    command.poll()
    assert command.passed_on_to_end() == ("SIGQUIT", at(1)), "it may have ended it slowly"
    command.died_of = "SIGTERM"
    assert command.passed_on_to_end() == ("SIGTERM", at(0))


def test_a_command_that_ends_while_its_end_is_told_has_not_ended() -> None:
    """The lines said that it goes on unwatched, and the exit code was its own."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        command = Command(process)
        assert command.tell() is None
        process.kill()
        process.wait(10)
        assert command.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another user")
def test_a_signal_that_the_command_may_not_get_from_us_is_said_and_fails_nothing() -> None:
    """A governor that a Ctrl-C fails would leave what `sudo` has started without its watchdog."""
    said: list[str] = []
    governor = cast("Any", SimpleNamespace(node=make_node(), clock=SimpleNamespace(mono=lambda: at(1))))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        command = Command(process)
        answers = SignalAnswers(command, said.append)
        with as_nobody():
            stays = [answers.pass_on(governor, signum) for signum in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)]
        assert stays == [True, True, True]
        assert command.poll() is None
        assert command.passed_on == {}, "it can be the cause of no end"
        assert said == [
            f"costgov: SIGINT is not passed on: pid {process.pid} is another user's (sudo), who alone or root can end "
            f"it: `sudo kill -TERM {process.pid}`"
        ]
        with as_nobody():
            assert not answers.pass_on(governor, signal.SIGTERM), "the third leaves, as ever"
        assert answers.pass_on(governor, signal.SIGUSR1)
        assert process.wait(10) == -signal.SIGUSR1, "nothing is held against one that becomes ours again"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another user")
def test_a_halt_without_a_governor_waits_for_a_command_that_it_may_not_end() -> None:
    with subprocess.Popen(["sleep", "0.5"], start_new_session=True) as process:
        with as_nobody():
            end_command(Command(process), cast("Any", None))
        assert process.returncode == 0
