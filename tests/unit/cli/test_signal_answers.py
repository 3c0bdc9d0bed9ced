"""What `costgov run` does with the signals that it is sent: with a halt, without one, and without a governor."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from governor.adapters.command.child import INTERRUPTS_BEFORE_LEAVING, Command
from governor.cli.common import ExitCode
from governor.cli.run.signal_answers import SignalAnswers, wait_unwatched
from governor.cli.run.supervise import is_over
from governor.core.base.policy import Policy
from governor.core.engine import step as engine
from governor.core.engine.idle_state import Finish
from governor.core.events.inputs import StopAnswer
from governor.daemon import signals
from tests.unit.cli.test_supervise import Beside, beside
from tests.unit.core.engine.test_step import a_step, at, play, training
from tests.unit.idle_node import Idle

__all__ = ["beside"]  # A fixture.


def test_a_signal_while_a_halt_saves_is_held_back_once() -> None:
    """Passed on, it would end the ranks in the middle of the save that the halt has asked for."""
    beside = Beside()
    said: list[str] = []
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        answers = SignalAnswers(Command(sleeper), said.append)
        training(beside.node)
        play(beside.node, a_step(31, 1, loss=float("nan")))
        assert answers.pass_on(beside.governor, signal.SIGUSR1), "it would end the command too"
        said.clear()
        assert answers.pass_on(beside.governor, signal.SIGTERM)
        assert sleeper.poll() is None, "the first one waits for the save"
        assert len(said) == 1
        assert "saving a checkpoint" in said[0]
        assert answers.pass_on(beside.governor, signal.SIGTERM)
        assert sleeper.wait(10) == -signal.SIGTERM, "who insists is obeyed"


def test_a_signal_without_a_halt_is_passed_on_at_once() -> None:
    beside = Beside()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        assert SignalAnswers(Command(sleeper), lambda _line: None).pass_on(beside.governor, signal.SIGINT)
        assert sleeper.wait(10) == -signal.SIGINT


def test_a_signal_while_only_the_nodes_stop_is_left_keeps_the_node_and_a_second_one_leaves(beside: Beside) -> None:
    node, said = beside.node, []
    node.idle.finish = Finish("llama", "p", observed=False, at=at(0))
    beside.command.poll()
    governor = beside.governor
    governor.daemon.apply = lambda event: engine.step(node, event)
    assert not is_over(governor, beside.command), "its stop is waited for"
    answers = SignalAnswers(beside.command, said.append)
    assert answers.pass_on(governor, signal.SIGINT)
    assert said == ["costgov: the node is kept, if its stop can still be taken back; once more to leave at once"]
    assert node.idle.finish is None
    assert node.idle.hold_reason == "SIGINT to costgov run"
    assert is_over(governor, beside.command)
    node.idle.finish = Finish("llama", "p", observed=False, at=at(0))  # One that could not be given up.
    assert not answers.pass_on(governor, signal.SIGINT)


def test_a_signal_behind_an_accepted_stop_is_the_machines_shutdown_and_not_somebody(beside: Beside) -> None:
    world = Idle(policy=Policy(name="p", run_on_finish="stop"))
    world.until(4)
    world.begins()
    world.until(6)
    world.ends()
    world.until(70)
    world.replies(StopAnswer.ACCEPTED)
    beside.node, said = world.node, []
    beside.command.poll()
    assert not SignalAnswers(beside.command, said.append).pass_on(beside.governor, signal.SIGTERM)
    assert "accepted the node's stop" in said[0]


@pytest.fixture
def handlers() -> Iterator[None]:
    of_terminals = dict.fromkeys((*signals.ANSWERED, *signals.OF_TERMINALS))
    before = {signum: signal.getsignal(signum) for signum in of_terminals}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Signalled(subprocess.Popen[bytes]):
    """Whoever waits for it gets Ctrl-C again and again."""

    sent = 0

    def wait(self, timeout: float | None = None) -> int:
        if self.sent:
            return super().wait(timeout)
        for self.sent in range(1, 10):
            signal.raise_signal(signal.SIGINT)
        return 0


@pytest.mark.usefixtures("handlers")
def test_who_insists_leaves_a_command_that_is_unwatched_and_does_not_end() -> None:
    argv = ["sh", "-c", "trap '' INT; echo; exec sleep 60"]
    process = Signalled(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(SystemExit) as left:
            wait_unwatched(Command(process))
        assert (left.value.code, process.sent, process.poll()) == (
            ExitCode.NEEDS_HUMAN,
            INTERRUPTS_BEFORE_LEAVING,
            None,
        )
    finally:
        process.kill()
        process.communicate()
