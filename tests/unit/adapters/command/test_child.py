"""The command of `costgov run`: the signals that are passed on to it, and which of them ended it."""

from __future__ import annotations

import signal
import subprocess

import pytest

from governor.adapters.command.child import Command
from tests.unit.core.engine.test_step import at


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
