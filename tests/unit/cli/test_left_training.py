"""What an ended command has left, and trains on: it gets the signals of `costgov run`, and is named where we leave."""

from __future__ import annotations

import os
import signal

from governor.cli.run.outcome import Outcome
from governor.cli.run.signal_answers import SignalAnswers
from governor.cli.run.supervise import closing_lines, leaves_training
from governor.core.base.identity import Peer
from tests.unit.cli.test_supervise import Beside, beside
from tests.unit.core.engine.test_step import a_step, hello, play

__all__ = ["beside"]  # A fixture.
US, RANK, STRANGER = os.getpid(), 500_001, 500_002


def leave_a_rank(beside: Beside) -> None:
    """A launcher has started it and has ended. Somebody else has a session of the command's old number."""
    sid = beside.command.process.pid
    beside.processes.add(US, start_ticks=0)
    rank = beside.processes.add(RANK, ppid=US, sid=sid, dies_of=())
    beside.processes.add(STRANGER, ppid=1, sid=sid, uid=2000)
    play(beside.node, hello(0, peer=Peer(rank, 1000)), a_step(1))


def test_a_signal_behind_the_commands_end_goes_to_what_it_has_left(beside: Beside) -> None:
    leave_a_rank(beside)
    said: list[str] = []
    answers = SignalAnswers(beside.command, said.append)
    assert [answers.pass_on(beside.governor, signal.SIGTERM) for _ in range(3)] == [True, True, False]
    assert beside.processes.by_pid[RANK].received == [signal.SIGTERM] * 3
    assert beside.processes.by_pid[STRANGER].received == []
    assert said == [f"costgov: the command has ended: SIGTERM goes to what it has left, pid {RANK}"]


def test_a_rank_that_trains_on_behind_us_is_named_and_is_no_success(beside: Beside) -> None:
    leave_a_rank(beside)
    left = [beside.processes.table()[RANK]]
    assert leaves_training(beside.governor, left)
    alarm = beside.alarm()
    assert alarm is not None
    assert "and train on" in alarm.text
    assert str(RANK) in alarm.text
    outcome = Outcome("llama", leaves_training=True)
    (line,) = closing_lines(beside.governor, beside.command, outcome)
    assert line.startswith("llama: goes on unwatched; ")


def test_what_is_no_rank_of_a_living_run_is_no_training(beside: Beside) -> None:
    leave_a_rank(beside)
    assert not leaves_training(beside.governor, [beside.processes.table()[STRANGER]])
    assert not leaves_training(beside.governor, [])
