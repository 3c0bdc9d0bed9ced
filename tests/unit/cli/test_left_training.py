"""What an ended command has left, and trains on: it gets the signals of `costgov run`, and is named where we leave."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from governor.adapters.command.child import send_to_left
from governor.cli.run.outcome import Outcome
from governor.cli.run.relaunch import how_to_resume
from governor.cli.run.signal_answers import SignalAnswers
from governor.cli.run.supervise import closing_lines
from governor.core.base.identity import Peer, ProcessId
from governor.core.events.inputs import CommandLaunched
from governor.core.halt.adopted import Adoption
from tests.contract.fakes import BOOT_ID
from tests.unit.cli.test_supervise import Beside, beside
from tests.unit.core.engine.test_step import a_step, at, hello, play

__all__ = ["beside"]  # A fixture.
US, RANK, STRANGER = os.getpid(), 500_001, 500_002
MARK = 1 << 40 | 5


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
    assert beside.left().trains
    alarm = beside.alarm()
    assert alarm is not None
    assert "and train on" in alarm.text
    assert str(RANK) in alarm.text
    outcome = Outcome("llama", leaves_training=True)
    (line,) = closing_lines(beside.governor, beside.command, outcome)
    assert line.startswith("llama: goes on unwatched; ")


def test_what_is_no_rank_of_a_living_run_is_no_training(beside: Beside) -> None:
    leave_a_rank(beside)
    beside.processes.end(RANK)
    assert not beside.left().trains


def test_a_rank_of_the_command_that_it_has_not_started_is_named_with_its_own_end(beside: Beside) -> None:
    """In a terminal server from before, or in a container: it has said the command's name and is its user's."""
    rank = beside.processes.add(RANK, ppid=1, sid=400_000)
    processes = (ProcessId(beside.command.process.pid, 5, BOOT_ID),)
    play(beside.node, CommandLaunched(at(0), "llama", 1000, processes, ("torchrun",)))
    play(beside.node, hello(0, peer=Peer(rank, 1000)), a_step(1))
    assert beside.left().trains
    alarm = beside.alarm()
    assert alarm is not None
    assert f"end them with `kill {RANK}`" in alarm.text
    assert "pkill" not in alarm.text, "its session is not the command's"


def test_a_signal_goes_past_roots_manager_with_anothers_login_and_past_other_users(beside: Beside) -> None:
    """As a halt of root's run does, and as one before the command's end, which goes to the command's group."""
    leave_a_rank(beside)
    for facts in list(beside.processes.by_pid.values()):
        facts.facts = replace(facts.facts, mark=MARK)
    beside.command.mark = MARK
    beside.command.adoption = Adoption(US, beside.command.process.pid, MARK, 0, is_ours_alone=True, uid=0)
    sshd, login, other, own = 500_010, 500_011, 500_012, 500_013
    beside.processes.add(sshd, ppid=US, sid=sshd, uid=0, mark=MARK, argv=["sshd: /usr/sbin/sshd [listener]"])
    beside.processes.add(login, ppid=sshd, sid=login, uid=2000, mark=MARK, argv=["-bash"])
    beside.processes.add(other, ppid=US, sid=other, uid=2001, mark=MARK)
    beside.processes.add(own, ppid=US, sid=own, uid=0, mark=MARK)
    sent = send_to_left(beside.processes, beside.command, signal.SIGTERM, {0, 1000}, ())
    assert sent == [RANK, own]


def test_who_ends_what_the_command_has_left_gets_no_exit_code_of_success(beside: Beside) -> None:
    leave_a_rank(beside)
    answers = SignalAnswers(beside.command, lambda _line: None)
    assert answers.pass_on(beside.governor, signal.SIGTERM)
    beside.processes.end(RANK)
    (line,) = closing_lines(beside.governor, beside.command, Outcome("llama"))
    assert line.startswith("llama: ended with exit code 143")
    lines = how_to_resume(beside.governor, beside.command, "llama", ["train"], is_halted=False)
    assert any(one.startswith("resume ") for one in lines)
