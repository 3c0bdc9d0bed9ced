"""What a hello tells of a launch: nothing that the kernel does not say too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import MARK_PART_BITS, ConnectionId, Peer, ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Hello
from governor.core.events.streams import StreamOpened
from governor.core.halt.adopted import Adoption
from governor.core.halt.programs import is_sibling
from governor.daemon.launches import NO_COMMAND, SupervisedCommand, is_of_command, launch_seen, writes_log
from tests.contract.fakes import FakeProcesses

OWN, MARK, COMMANDS = 999, 0x9ABCDEF012, 0x8123456789


def hello(process: ProcessId, mark: int | None = None, run: str = "llama") -> Hello:
    return Hello(MonoNs(1), ConnectionId(1), Peer(process, 1000), 1, run, "a", 0, 0, 1, mark=mark)


def machine(mark: int, sid: int | None = None) -> tuple[FakeProcesses, ProcessId]:
    processes = FakeProcesses()
    processes.add(OWN, argv=["costgov"])
    processes.add(90, argv=["-bash"])
    rank = processes.add(100, ppid=90, sid=sid)
    inherit(processes, 100, mark)
    return processes, rank


def inherit(processes: FakeProcesses, pid: int, mark: int) -> None:
    process = processes.by_pid[pid]
    process.facts = replace(process.facts, mark=mark)


def test_a_mark_is_believed_if_rank_and_kernel_say_the_same() -> None:
    processes, rank = machine(MARK)
    seen = launch_seen(processes.table(), hello(rank, MARK), OWN, NO_COMMAND)
    assert seen is not None
    assert seen.marks == (MARK,)


def test_neither_a_ranks_word_alone_nor_a_limit_of_the_machine_is_a_mark() -> None:
    for its, said in ((0, MARK), (COMMANDS, MARK), (1000, None), (MARK, 0)):
        processes, rank = machine(its)
        assert launch_seen(processes.table(), hello(rank, said), OWN, NO_COMMAND) is None
    processes, rank = machine(MARK)
    reused = replace(rank, start_ticks=rank.start_ticks - 1)
    assert launch_seen(processes.table(), hello(reused, MARK), OWN, NO_COMMAND) is None


def test_the_commands_mark_is_enough_for_its_ranks_even_of_another_name_and_out_of_its_tree() -> None:
    for name in ("llama", "other"):
        processes, rank = machine(within := COMMANDS << MARK_PART_BITS | 0x91234)
        launcher = processes.add(200, argv=["sh", "job.sh"])
        command = SupervisedCommand("llama", ("costgov", "run"), (launcher,), mark=COMMANDS, uid=1000)
        seen = launch_seen(processes.table(), hello(rank, within, run=name), OWN, command)
        assert seen is not None
        assert (seen.launchers, seen.marks, seen.unsure) == ((launcher,), (COMMANDS,), ())


def test_another_run_on_the_commands_socket_has_its_own_mark_and_not_the_commands() -> None:
    processes, rank = machine(MARK)
    command = SupervisedCommand("llama", ("costgov", "run"), (processes.add(200),), mark=COMMANDS)
    seen = launch_seen(processes.table(), hello(rank, MARK, run="other"), OWN, command)
    assert seen is not None
    assert (seen.launchers, seen.marks) == ((), (MARK,))


def test_the_commands_name_ties_its_own_users_rank_to_it_and_no_strangers() -> None:
    for whose, expected in ((1000, True), (12345, False)):
        processes, rank = machine(0)
        launcher = processes.add(200, argv=["sh", "job.sh"])
        command = SupervisedCommand("llama", ("costgov", "run"), (launcher,), uid=whose)
        seen = launch_seen(processes.table(), hello(rank, 0, run="llama"), OWN, command)
        assert (seen is not None and seen.launchers == (launcher,)) is expected


def test_a_rank_is_tied_by_its_parents_or_its_mark() -> None:
    processes, rank = machine(COMMANDS)
    launcher = processes.add(200, argv=["sh", "job.sh"])
    below = processes.add(201, ppid=200)
    command = SupervisedCommand("llama", (), (launcher,), mark=COMMANDS, uid=1000)
    assert is_of_command(processes.facts, below, command, 1000)
    assert is_of_command(processes.facts, rank, command, 1000)
    assert not is_of_command(processes.facts, rank, replace(command, mark=MARK), 1000)
    assert not is_of_command(processes.facts, replace(below, start_ticks=1), command, 1000), (
        "another process of that number"
    )


class MadeGroup:
    path, is_populated = "/fake/costgov-1", True

    def kill(self) -> bool:
        return True


def strangers(peer_uid: int, its_uid: int) -> tuple[FakeProcesses, Hello, SupervisedCommand]:
    """A rank with the mark of root's command, which it has read in /proc and set itself."""
    processes, rank = machine(COMMANDS)
    processes.by_pid[100].facts = replace(processes.by_pid[100].facts, uid=its_uid)
    launcher = processes.add(200, argv=["sh", "job.sh"], uid=0, start_ticks=rank.start_ticks)
    command = SupervisedCommand(
        "llama", ("costgov", "run"), (launcher,), mark=COMMANDS, group=MadeGroup(), uid=0, reaper=OWN
    )
    said = hello(rank, COMMANDS)
    return processes, replace(said, peer=replace(said.peer, uid=peer_uid)), command


# It says hello and becomes a setuid program, which has its limits: the table shows root then.
@pytest.mark.parametrize("its_uid", [12346, 0])
def test_the_commands_mark_on_a_strangers_rank_is_a_copy_and_gives_it_nothing_of_the_command(its_uid: int) -> None:
    for name in ("llama", "other"):
        processes, said, command = strangers(12346, its_uid)
        assert not is_of_command(processes.facts, said.peer.process, command, 12346)
        seen = launch_seen(processes.table(), replace(said, run=name), OWN, command)
        assert seen is not None
        assert (seen.launchers, seen.cgroups, seen.command) == ((), (), ())


def test_a_strangers_log_with_a_copied_mark_is_not_the_commands() -> None:
    for its_uid in (12346, 0):
        processes, said, command = strangers(12346, its_uid)
        log = StreamOpened(MonoNs(1), "log", 12346, None, {}, (said.peer.process,))
        assert not writes_log(processes.facts, log, command)


@pytest.mark.parametrize("tie", ["parent", "session", "control group", "our orphan", "as pid 1"])
def test_a_rank_that_the_command_has_made_another_users_is_tied_by_what_nobody_can_set(tie: str) -> None:
    processes, said, command = strangers(12346, 12346)
    changed: dict[str, dict[str, Any]] = {
        "parent": {"ppid": 200}, "session": {"sid": 200}, "control group": {"cgroup": "/fake/costgov-1"},
        "our orphan": {"ppid": OWN}, "as pid 1": {"ppid": 1},
    }  # fmt: skip
    command = replace(command, reaper=1) if tie == "as pid 1" else command
    processes.by_pid[100].facts = replace(processes.by_pid[100].facts, **changed[tie])
    assert is_of_command(processes.facts, said.peer.process, command, 12346)
    seen = launch_seen(processes.table(), said, OWN, command)
    assert seen is not None
    assert seen.launchers == command.processes


def left_by_command(**changes: Any) -> bool:
    """Whether another user's rank is the command's, which has exited, with neither its mark nor a control group."""
    processes, said, command = strangers(12346, 12346)
    del processes.by_pid[200]
    processes.by_pid[100].facts = replace(processes.by_pid[100].facts, mark=0, **changes)
    return is_of_command(processes.facts, said.peer.process, replace(command, group=None), 12346)


def test_a_rank_that_the_command_left_in_its_session_is_tied_without_a_mark() -> None:
    assert left_by_command(ppid=OWN, sid=200)
    # Not one that was given the number of a session that is over, or whose parent alone died below us.
    assert not left_by_command(ppid=1, sid=200)


# It trained on under a name of its own when its launcher was gone, or as a user whom the launcher had switched to.
@pytest.mark.parametrize("uid", [0, 12346])
def test_a_rank_that_dropped_all_that_it_had_inherited_is_the_commands_if_only_its_orphans_come_to_us(uid: int) -> None:
    for is_ours_alone in (True, False):
        processes, said, command = strangers(uid, uid)
        inherit(processes, OWN, MARK)
        escaped = replace(processes.by_pid[100].facts, ppid=OWN, sid=100, mark=0)
        processes.by_pid[100].facts = escaped
        command = replace(command, adoption=Adoption(OWN, 200, COMMANDS, 0, is_ours_alone))
        assert is_of_command(processes.facts, escaped.process, command, uid) is is_ours_alone
        seen = launch_seen(processes.table(), replace(said, run="other", mark=None), OWN, command)
        assert (seen is not None and seen.launchers == command.processes and COMMANDS in seen.marks) is is_ours_alone


# As pid 1 of a container: `docker exec` too starts what stands below us, and everybody can copy a mark.
def test_where_others_orphans_come_to_us_a_mark_below_us_ties_only_whom_the_command_was_seen_to_start() -> None:
    for below_command in (False, True):
        processes, said, command = strangers(12346, 12346)
        rank = processes.by_pid[100].facts
        processes.by_pid[OWN].facts = replace(processes.by_pid[OWN].facts, uid=0, mark=MARK)
        shared = Adoption(OWN, 200, COMMANDS, 0, is_ours_alone=False)
        processes.by_pid[200].facts = replace(processes.by_pid[200].facts, ppid=OWN, sid=200, mark=COMMANDS)
        processes.by_pid[100].facts = replace(rank, ppid=200 if below_command else OWN, sid=100)
        shared.learn(processes.table())
        processes.by_pid[100].facts = replace(rank, ppid=OWN, sid=100)
        shared.learn(processes.table())
        command = replace(command, adoption=shared)
        assert is_of_command(processes.facts, said.peer.process, command, 12346) is below_command
        seen = launch_seen(processes.table(), said, OWN, command)
        assert seen is not None
        assert (seen.launchers == command.processes) is below_command


def test_who_was_seen_below_the_command_and_dropped_its_mark_is_its_rank_also_where_we_are_pid_1() -> None:
    for seen_below in (False, True):
        processes, said, command = strangers(12346, 12346)
        processes.add(1, ppid=0, sid=1, uid=0, mark=MARK, start_ticks=1)
        processes.by_pid[200].facts = replace(processes.by_pid[200].facts, ppid=1, sid=200, mark=COMMANDS)
        rank = replace(processes.by_pid[100].facts, ppid=200 if seen_below else 1, sid=100, mark=0)
        shared = Adoption(1, 200, COMMANDS, 0, is_ours_alone=False)
        processes.by_pid[100].facts = rank
        shared.learn(processes.table())
        processes.by_pid[100].facts = replace(rank, ppid=1)
        command = replace(command, adoption=shared, reaper=1, group=None)
        assert is_of_command(processes.facts, said.peer.process, command, 12346) is seen_below


def test_a_log_is_the_commands_unless_somebody_else_is_named_or_it_is_not_believed() -> None:
    processes, rank = machine(COMMANDS)
    launcher, stranger = processes.add(200, argv=["sh", "job.sh"]), processes.add(300, argv=["python"])
    command = SupervisedCommand("llama", (), (launcher,), mark=COMMANDS, uid=1000)
    log = StreamOpened(MonoNs(1), "log", 1000)
    assert writes_log(processes.facts, log, command)
    assert writes_log(processes.facts, replace(log, processes=(rank,)), command)
    assert not writes_log(processes.facts, replace(log, processes=(stranger,)), command)
    assert not writes_log(processes.facts, replace(log, uid=2000), command)
    assert not writes_log(processes.facts, replace(log, is_distrusted=True), command)


def test_what_the_rank_runs_is_known_with_the_number_that_it_has_said() -> None:
    processes, _ = machine(MARK)
    rank = processes.add(101, argv=["python", "train.py", "--rank", "0"])
    inherit(processes, 101, MARK)
    seen = launch_seen(processes.table(), hello(rank, MARK), OWN, NO_COMMAND)
    assert seen is not None
    found = [is_sibling(("python", "train.py", *words.split()), seen.programs) for words in ("--rank 1", "--lr 1")]
    assert found == [False, True]


def test_orphans_of_the_time_before_the_hello_are_unsure() -> None:
    processes, rank = machine(MARK)
    orphan = processes.add(300, argv=["redis-server"])
    seen = launch_seen(processes.table(), hello(rank, MARK), OWN, NO_COMMAND)
    assert seen is not None
    assert seen.unsure == (orphan,)


def test_a_session_whose_number_another_process_has_now_ties_nobody() -> None:
    processes, said, command = strangers(12346, 12346)
    launcher = processes.by_pid[200].facts
    processes.by_pid[200].facts = replace(launcher, process=replace(launcher.process, start_ticks=9_999))
    processes.by_pid[100].facts = replace(processes.by_pid[100].facts, mark=0, ppid=OWN, sid=200)
    assert not is_of_command(processes.facts, said.peer.process, replace(command, group=None), 12346)


def test_who_says_hello_as_the_commands_user_has_its_mark_only_as_long_as_it_is_that_user() -> None:
    processes, said, command = strangers(0, 12346)
    assert not is_of_command(processes.facts, said.peer.process, command, 0)
