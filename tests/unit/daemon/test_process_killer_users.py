"""Whom a halt ends where the command of `costgov run` has become other users, as container entry points do."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.halt.adopted import Adoption
from governor.daemon.process_killer import ProcessKiller
from tests.contract.fakes import FakeProcesses
from tests.unit.daemon.test_process_killer import FakeGroup

OWN, COMMAND, MARK = 999, 100, 0x9ABCDEF012
ROOT, USER, OTHER = 0, 2001, 2002


class Adopting(FakeProcesses):
    """Orphans come to `costgov run`, and not to init."""

    def end(self, pid: int) -> None:
        super().end(pid)
        for process in self.by_pid.values():
            if process.facts.ppid == 1 and process.facts.process.pid != OWN:
                process.facts = replace(process.facts, ppid=OWN)


def launched(
    uid: int = ROOT, *, by: int = ROOT, may_end_all: bool = True, is_ours_alone: bool = True
) -> tuple[FakeProcesses, ProcessKiller, ProcessId]:
    """`costgov run` of the user `by`, and its command, which is `uid`'s."""
    processes = Adopting()
    processes.add(OWN, argv=["costgov", "run"], uid=by, mark=MARK + 1)
    processes.by_pid[OWN].facts = replace(processes.by_pid[OWN].facts, cgroup="/user.slice")  # Not its command's.
    command = processes.add(COMMAND, ppid=OWN, sid=COMMAND, argv=["sh", "job.sh"], uid=uid, mark=MARK)
    process_killer = ProcessKiller(processes, OWN)
    adoption = Adoption(OWN, COMMAND, MARK, command.start_ticks, is_ours_alone, uid=by, may_end_all=may_end_all)
    process_killer.attend(None, None, adoption)
    return processes, process_killer, command


def named_after(process_killer: ProcessKiller, begin_s: int = 0) -> list[list[int]]:
    """Who is named as perhaps the run's, each time that all of it was seen to be gone."""
    seen = [seen for n in range(5) for seen in process_killer.scan(MonoNs((begin_s + n) * NS_PER_S))]
    return [[pid for pid, _ in one.unsure] for one in seen]


# `sh -c "setpriv --reuid=2001 python train.py; exit 7"`, and gosu or su-exec, which become the trainer.
@pytest.mark.parametrize("is_command", [False, True])
def test_a_silent_trainer_that_roots_command_has_made_another_users_is_ended(is_command: bool) -> None:
    processes, process_killer, command = launched(USER if is_command else ROOT)
    processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(102, ppid=OWN, uid=USER, sid=102)  # It has left the tree, and dropped the mark.
    rows = process_killer.begin("i", [command], [command], ROOT, signal.SIGTERM, marks=[MARK])
    assert {row["sent"] for row in rows} == {"sent"}
    assert named_after(process_killer) == [[]]
    assert set(processes.table()) == {OWN}


def test_the_shell_of_root_that_would_start_a_halted_rank_of_another_user_again_is_ended_with_it() -> None:
    processes, process_killer, command = launched()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    rows = process_killer.begin("i", [rank], [command], USER, signal.SIGTERM, marks=[MARK])
    assert [(row["pid"], row["role"], row["sent"]) for row in rows] == [
        (COMMAND, "launcher", "sent"),
        (101, "child", "sent"),
    ]
    assert (named_after(process_killer), set(processes.table())) == ([[]], {OWN})


def test_without_the_right_to_it_only_what_is_our_own_users_is_ended_besides_the_runs() -> None:
    processes, process_killer, command = launched(by=USER, uid=USER, may_end_all=False)
    rank = processes.add(101, ppid=COMMAND, uid=OTHER, mark=MARK)
    processes.add(102, ppid=COMMAND, uid=ROOT, mark=MARK)  # sudo
    process_killer.begin("i", [rank], [command], OTHER, signal.SIGTERM, marks=[MARK])
    assert set(processes.table()) == {OWN, 102}
    assert named_after(process_killer) == [[102]]


def test_what_may_be_another_users_run_that_lives_below_the_command_lives_and_is_named() -> None:
    processes, process_killer, command = launched()
    silent = processes.add(101, ppid=COMMAND, uid=OTHER, mark=MARK)
    other = processes.add(201, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(202, ppid=201, uid=USER, mark=MARK)
    left = processes.add(203, ppid=OWN, sid=203, uid=USER, mark=MARK)
    own = processes.add(102, ppid=COMMAND, uid=ROOT, mark=MARK)
    process_killer.begin("i", [own], [command], ROOT, signal.SIGTERM, marks=[MARK], others=lambda: [other])
    assert named_after(process_killer) == [[left.pid]]
    assert set(processes.table()) == {OWN, 201, 202, left.pid}
    assert processes.is_gone(silent)


def test_the_halt_of_a_sandbox_below_the_command_ends_nothing_of_root_whose_run_is_announced() -> None:
    processes, process_killer, command = launched()
    own = processes.add(101, ppid=COMMAND, uid=ROOT, mark=MARK)
    processes.add(102, ppid=OWN, sid=102, uid=ROOT, mark=MARK)  # Its loader, which has left its tree.
    sandbox = processes.add(201, ppid=101, uid=USER, mark=MARK)
    process_killer.begin("i", [sandbox], [command], USER, signal.SIGKILL, marks=[MARK], others=lambda: [own])
    assert named_after(process_killer) == [[102]]
    assert set(processes.table()) == {OWN, COMMAND, own.pid, 102}


def test_the_halt_of_a_sandbox_ends_nothing_of_roots_command_below_which_another_users_trainer_lives() -> None:
    """An entry point that serves both: a user dropped from root trains, and a sandbox announces a run of its own."""
    processes, process_killer, command = launched()
    trainer = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(102, ppid=COMMAND, uid=ROOT, mark=MARK)  # What it uploads by.
    sandbox = processes.add(201, ppid=COMMAND, uid=OTHER, mark=MARK)
    process_killer.begin("i", [sandbox], [command], OTHER, signal.SIGKILL, marks=[MARK], others=lambda: [trainer])
    assert set(processes.table()) == {OWN, COMMAND, trainer.pid, 102}
    assert [set(named) for named in named_after(process_killer)] == [{102}]


@pytest.mark.parametrize(("rooted", "lives"), [(False, {201}), (True, {COMMAND, 103, 201})])
def test_a_sandboxs_hello_keeps_nothing_alive_that_would_start_the_halted_trainer_again(
    rooted: bool, lives: set[int]
) -> None:
    """The trainer has the command's name. Where root's own run is announced, whoever took that name is no trainer."""
    processes, process_killer, command = launched()
    trainer = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(102, ppid=101, uid=USER, mark=MARK)
    others = [processes.add(201, ppid=COMMAND, uid=OTHER, mark=MARK)]
    if rooted:
        others.append(processes.add(103, ppid=COMMAND, uid=ROOT, mark=MARK))
    process_killer.begin(
        "i", [trainer], [command], USER, signal.SIGTERM, marks=[MARK], others=lambda: others,
        strangers=lambda: others, has_name=True,
    )  # fmt: skip
    assert set(processes.table()) == {OWN, *lives}


def test_a_daemon_of_root_that_has_begun_logins_is_left_with_them_to_root() -> None:
    processes, process_killer, command = launched()
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(200, ppid=OWN, sid=200, uid=ROOT, argv=["sshd: /usr/sbin/sshd [listener]"])
    processes.add(201, ppid=200, sid=201, uid=OTHER, argv=["-bash"])
    process_killer.begin("i", [rank], [command], USER, signal.SIGTERM, marks=[MARK])
    assert named_after(process_killer) == [[200, 201]]
    assert set(processes.table()) == {OWN, 200, 201}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_logins_of_others_below_roots_command_are_left_with_their_sshd_by_the_halt_of_roots_own_run(
    signum: signal.Signals,
) -> None:
    processes, process_killer, command = launched()
    rank = processes.add(101, ppid=COMMAND, uid=ROOT, mark=MARK)
    processes.add(200, ppid=OWN, sid=200, uid=ROOT, mark=MARK, argv=["sshd: /usr/sbin/sshd [listener]"])
    processes.add(201, ppid=200, sid=201, uid=ROOT, mark=MARK, argv=["sshd: user [priv]"])
    processes.add(202, ppid=201, sid=201, uid=OTHER, mark=MARK, argv=["sshd: user@pts/0"])
    processes.add(203, ppid=202, sid=203, uid=OTHER, argv=["-bash"])
    processes.add(300, ppid=OWN, sid=300, uid=ROOT, mark=MARK, argv=["sshd: nobody is logged in here"])
    process_killer.begin("i", [rank], [command], ROOT, signum, marks=[MARK])
    assert [set(named) for named in named_after(process_killer)] == [{200, 201, 202, 203}]
    assert set(processes.table()) == {OWN, 200, 201, 202, 203}


def test_the_control_group_in_which_others_have_a_login_does_not_end_as_a_whole_and_keeps_no_halt_open() -> None:
    processes, process_killer, command = launched()
    group = FakeGroup(processes)
    process_killer.attend(group, None, process_killer.adoption)
    rank = processes.add(101, ppid=COMMAND, uid=ROOT, mark=MARK)
    processes.add(200, ppid=OWN, sid=200, uid=ROOT, argv=["sshd: /usr/sbin/sshd [listener]"])
    processes.add(201, ppid=200, sid=201, uid=OTHER, argv=["-bash"])
    process_killer.begin("i", [rank], [command], ROOT, signal.SIGKILL, marks=[MARK], cgroups=[group.path])
    assert ([set(named) for named in named_after(process_killer)], group.kills) == ([{200, 201}], 0)
    assert set(processes.table()) == {OWN, 200, 201}


def test_roots_sshd_in_the_control_group_keeps_no_halt_of_another_users_trainer_open_and_is_named() -> None:
    processes, process_killer, command = launched()
    group = FakeGroup(processes)
    process_killer.attend(group, None, process_killer.adoption)
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    processes.add(200, ppid=OWN, sid=200, uid=ROOT, argv=["sshd: /usr/sbin/sshd [listener]"])
    process_killer.begin("i", [rank], [command], USER, signal.SIGKILL, marks=[MARK], cgroups=[group.path])
    assert ([set(named) for named in named_after(process_killer)], group.kills) == ([{200}], 0)


def test_what_is_the_runs_in_the_control_group_of_a_login_keeps_the_halt_open_while_it_lives() -> None:
    processes, process_killer, command = launched()
    group = FakeGroup(processes)
    process_killer.attend(group, None, process_killer.adoption)
    rank = processes.add(101, ppid=COMMAND, uid=ROOT, mark=MARK)
    processes.add(200, ppid=OWN, sid=200, uid=ROOT, argv=["sshd: /usr/sbin/sshd [listener]"])
    processes.add(201, ppid=200, sid=201, uid=OTHER, argv=["-bash"])
    own = processes.add(301, ppid=OWN, sid=301, uid=ROOT, dies_of=())
    process_killer.begin("i", [rank], [command], ROOT, signal.SIGKILL, marks=[MARK], cgroups=[group.path])
    assert named_after(process_killer) == []
    processes.end(own.pid)
    assert [set(named) for named in named_after(process_killer, 10)] == [{200, 201}]


def test_one_in_the_group_of_whom_nothing_tells_keeps_the_halt_open_beside_a_login_that_does_not() -> None:
    """Without the login it would end with the group, whosever it is."""
    processes, process_killer, command = launched(is_ours_alone=False)
    group = FakeGroup(processes)
    process_killer.attend(group, None, process_killer.adoption)
    rank = processes.add(101, ppid=COMMAND, uid=ROOT, mark=MARK)
    sshd = processes.add(200, ppid=COMMAND, uid=ROOT, argv=["sshd: /usr/sbin/sshd [listener]"])
    processes.add(201, ppid=sshd.pid, uid=OTHER, argv=["-bash"])
    unknown = processes.add(301, ppid=OWN, sid=301, uid=OTHER)
    process_killer.begin("i", [rank], [command], ROOT, signal.SIGKILL, marks=[MARK], cgroups=[group.path])
    assert (named_after(process_killer), set(processes.table())) == ([], {OWN, 200, 201, unknown.pid})
    processes.end(unknown.pid)
    assert [set(named) for named in named_after(process_killer, 10)] == [{200, 201}]


def test_the_command_itself_is_ended_as_such_also_if_it_is_called_like_a_manager() -> None:
    processes, process_killer, command = launched()
    processes.by_pid[COMMAND].facts = replace(processes.by_pid[COMMAND].facts, argv=("/lib/systemd/systemd",))
    rank = processes.add(101, ppid=COMMAND, uid=ROOT, mark=MARK)
    processes.add(102, ppid=COMMAND, uid=OTHER, mark=MARK)
    rows = process_killer.begin("i", [rank], [command], ROOT, signal.SIGTERM, marks=[MARK])
    assert {row["pid"] for row in rows} == {COMMAND, 101, 102}
    assert (named_after(process_killer), set(processes.table())) == ([[]], {OWN})


def test_a_strangers_copy_of_the_mark_is_nothing_to_end_where_others_orphans_come_to_us() -> None:
    processes, process_killer, command = launched(is_ours_alone=False)
    rank = processes.add(101, ppid=COMMAND, uid=USER, mark=MARK)
    stranger = processes.add(300, ppid=OWN, sid=300, uid=OTHER, mark=MARK)
    process_killer.begin("i", [rank], [command], USER, signal.SIGKILL, marks=[MARK])
    named_after(process_killer)
    assert (set(processes.table()), processes.by_pid[stranger.pid].received) == ({OWN, stranger.pid}, [])


def test_a_run_beside_the_command_ends_nothing_of_it() -> None:
    processes, process_killer, _ = launched()
    processes.add(90, argv=["-bash"], uid=USER)
    beside = processes.add(400, ppid=90, uid=USER)
    processes.add(401, ppid=400, uid=OTHER)
    process_killer.begin("i", [beside], [], USER, signal.SIGKILL)
    named_after(process_killer)
    assert set(processes.table()) == {OWN, COMMAND, 90, 401}
