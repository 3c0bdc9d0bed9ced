"""Whom a halt ends that goes on under another `costgov run` than its own, which was killed."""

from __future__ import annotations

import signal

import pytest

from governor.core.base.identity import ProcessId
from governor.core.halt.adopted import Adoption
from governor.core.halt.left_launch import Below, LeftLaunch
from governor.daemon.process_killer import ProcessKiller
from tests.contract.fakes import FakeProcesses
from tests.unit.daemon.test_process_killer_users import named_after

OWN, COMMAND, MARK = 999, 100, 0x9ABCDEF012
ROOT, USER, OTHER, LOGIN = 0, 2001, 2002, 2003
IGNORES_TERM = {"dies_of": (signal.SIGKILL,)}


def left(may_end_all: bool = True, by: int = ROOT) -> tuple[FakeProcesses, ProcessKiller, ProcessId]:
    """The command of an earlier `costgov run` of the user `by`, which init has by now. It goes on behind SIGTERM."""
    processes = FakeProcesses()
    processes.add(OWN, argv=["costgov", "run"], uid=by)
    command = processes.add(COMMAND, sid=COMMAND, argv=["sh", "entry.sh"], uid=by, mark=MARK, **IGNORES_TERM)
    return processes, ProcessKiller(processes, OWN, may_end_all=may_end_all), command


def launch(command: ProcessId, *below: ProcessId, uid: int = ROOT) -> LeftLaunch:
    return LeftLaunch("drill", uid, (command,), MARK, (), Below(below))


def test_roots_entry_point_and_other_users_helpers_end_and_roots_manager_and_strangers_live() -> None:
    processes, process_killer, command = left()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(102, ppid=COMMAND, uid=OTHER, mark=MARK)
    gone = processes.add(103, sid=103, uid=OTHER)  # It has left the tree, without a mark.
    processes.add(200, ppid=COMMAND, uid=ROOT, mark=MARK, argv=["sshd: /usr/sbin/sshd [listener]"])
    processes.add(201, ppid=200, sid=201, uid=LOGIN, argv=["-bash"])
    strangers = {processes.add(pid, sid=pid, uid=uid).pid for pid, uid in ((300, USER), (301, OTHER), (302, ROOT))}
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process_killer.begin("i", [rank], [command], USER, signum, marks=[MARK], launch=launch(command, gone))
    assert named_after(process_killer) == [[200, 201]]
    assert set(processes.table()) == {OWN, 200, 201, *strangers}
    assert process_killer.left_of(launch(command, gone), (USER,), (command, rank), ()) == ()


def test_what_the_entry_point_has_begun_meanwhile_ends_with_it() -> None:
    """A restart loop, between two looks: the trainer has a new number, and a helper comes too."""
    processes, process_killer, command = left()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    process_killer.begin("i", [rank], [command], USER, signal.SIGTERM, marks=[MARK], launch=launch(command))
    processes.add(104, ppid=COMMAND, uid=USER, mark=MARK, **IGNORES_TERM)
    processes.add(105, ppid=104, sid=105, uid=OTHER, **IGNORES_TERM)
    assert named_after(process_killer) == [[]], "it has come back"
    process_killer.begin("i", [rank], [command], USER, signal.SIGKILL, marks=[MARK], launch=launch(command))
    assert (named_after(process_killer, 10), set(processes.table())) == ([[]], {OWN})


def test_a_copy_of_the_mark_lives_and_is_named_and_told_when_the_halt_is_over() -> None:
    processes, process_killer, command = left()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(300, sid=300, uid=OTHER, mark=MARK)
    process_killer.begin("i", [rank], [command], USER, signal.SIGKILL, marks=[MARK], launch=launch(command))
    assert named_after(process_killer) == [[300]]
    process_killer.end("i")
    told = process_killer.left_of(launch(command), (USER,), (command, rank), ())
    assert [facts.process.pid for facts in told] == [300]


def test_who_may_not_end_other_users_tells_of_them() -> None:
    processes, process_killer, command = left(may_end_all=False, by=USER)
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(102, ppid=COMMAND, uid=ROOT, mark=MARK)  # sudo
    known = launch(command, uid=USER)
    process_killer.begin("i", [rank], [command], USER, signal.SIGKILL, marks=[MARK], launch=known)
    assert (named_after(process_killer), set(processes.table())) == ([[102]], {OWN, 102})
    told = process_killer.left_of(known, (USER,), (command, rank), ())
    assert [facts.process.pid for facts in told] == [102]


@pytest.mark.parametrize(("has_name", "lives"), [(False, {COMMAND, 201}), (True, {201})])
def test_a_sandbox_below_the_command_keeps_what_it_would_have_kept(has_name: bool, lives: set[int]) -> None:
    processes, process_killer, command = left()
    trainer = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    sandbox = processes.add(201, ppid=COMMAND, uid=OTHER, mark=MARK)
    process_killer.begin(
        "i", [trainer], [command], USER, signal.SIGKILL, marks=[MARK], others=lambda: [sandbox],
        strangers=lambda: [sandbox], has_name=has_name, launch=launch(command),
    )  # fmt: skip
    assert set(processes.table()) == {OWN, *lives}


def test_the_governor_that_has_begun_the_launch_goes_by_what_stands_below_it() -> None:
    """Its loop failed, and it has built another one: the orphans come to it as ever."""
    processes, process_killer, command = left()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(102, ppid=OWN, sid=102, uid=OTHER)
    process_killer.attend(
        None, None, Adoption(OWN, COMMAND, MARK, command.start_ticks, is_ours_alone=True, uid=ROOT, may_end_all=True)
    )
    known = launch(command)
    process_killer.begin("i", [rank], [command], USER, signal.SIGTERM, marks=[MARK], launch=known)
    assert 102 not in processes.table()
    assert process_killer.left_of(known, (USER,), (command, rank), ()) == ()


def test_what_is_below_the_command_is_seen_for_the_journal() -> None:
    processes, process_killer, command = left()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    assert process_killer.below([command]) is None, "nobody attends to it"
    assert process_killer.below([rank], launch(command)) is None, "another run's"
    assert process_killer.below([command, rank], launch(command)) == Below((rank,))


def test_its_own_helpers_live_where_it_was_begun_inside_of_the_launch() -> None:
    processes, process_killer, command = left()
    processes.add(998, ppid=OWN, uid=ROOT, mark=MARK)
    process_killer.begin("i", [command], [command], ROOT, signal.SIGKILL, marks=[MARK], launch=launch(command))
    assert (named_after(process_killer), set(processes.table())) == ([[]], {OWN, 998})
