"""Ending processes: nobody is gone before it was seen gone, and a table that cannot be read is not an empty one."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.daemon.process_killer import COMMAND_CHARS_MAX, EMPTY_SCANS, SCAN_NS, SENDS_MAX, ProcessKiller
from governor.ports import Sent
from tests.contract.fakes import FakeProcesses

OWN = 999
MARK = 0x9ABCDEF012


class BlindProcesses(FakeProcesses):
    """A governor without a free descriptor, `blind` times."""

    blind = 0

    def table(self) -> Mapping[int, ProcessFacts]:
        if self.blind:
            self.blind -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().table()


def scans(process_killer: ProcessKiller, count: int, begin: int = 0) -> list[tuple[int, ...]]:
    """Who was said to be alive, scan by scan, for those scans that said something."""
    told = []
    for number in range(begin, begin + count):
        told += [tuple(p.pid for p in seen.alive) for seen in process_killer.scan(MonoNs(number * NS_PER_S))]
    return told


def test_a_rank_of_another_uid_that_lives_on_is_never_said_to_be_gone() -> None:
    processes = FakeProcesses()
    rank = processes.add(100, uid=1000)
    process_killer = ProcessKiller(processes, OWN)
    rows = process_killer.begin("i", [rank], [], 2000, signal.SIGKILL)
    assert [(row["pid"], row["sent"]) for row in rows] == [(100, "denied")], "it is said that nothing was sent"
    assert scans(process_killer, EMPTY_SCANS + 3) == []
    assert processes.by_pid[100].received == [], "it is not ours to end"
    processes.end(100)
    assert scans(process_killer, EMPTY_SCANS + 3, begin=10) == [()]


def test_without_a_process_table_nothing_is_gone_and_the_signal_comes_once_it_can_be_read() -> None:
    processes = BlindProcesses()
    rank = processes.add(100, dies_of=frozenset())
    worker = processes.add(101, ppid=100, dies_of=frozenset())
    processes.blind = 3
    process_killer = ProcessKiller(processes, OWN)
    assert process_killer.begin("i", [rank], [], 1000, signal.SIGTERM) == []
    assert scans(process_killer, 2) == []
    assert processes.by_pid[100].received == []
    assert process_killer.next_at() == MonoNs(NS_PER_S + SCAN_NS), "it looks again soon"
    assert process_killer.blind == "Too many open files"
    assert process_killer.take_late() == []
    assert scans(process_killer, 1) == []
    process_killer.scan(MonoNs(5 * NS_PER_S))
    assert process_killer.blind is None
    ((incident_id, signum, rows),) = process_killer.take_late()
    assert (incident_id, signum, [row["pid"] for row in rows]) == ("i", signal.SIGTERM, [100, 101])
    for process in (rank, worker):
        assert signal.SIGTERM in processes.by_pid[process.pid].received


def test_a_table_that_could_not_be_read_between_two_looks_says_of_neither_that_all_are_gone() -> None:
    processes = BlindProcesses()
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [processes.add(100)], [], 1000, signal.SIGKILL)
    assert scans(process_killer, EMPTY_SCANS - 1) == []
    processes.blind = 1
    assert scans(process_killer, EMPTY_SCANS, begin=10) == [], "one that was blind, and one too few behind it"
    assert scans(process_killer, 1, begin=20) == [()]


def test_a_last_fork_that_one_look_has_missed_keeps_the_halt_open_and_gets_its_signal() -> None:
    """The table was read before it, and who forked was gone behind it."""
    processes = FakeProcesses()
    rank = processes.add(100)
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM)
    assert processes.is_gone(rank)
    assert scans(process_killer, 1) == []
    worker = processes.add(101, sid=100, argv=["worker"], dies_of=frozenset())
    assert scans(process_killer, EMPTY_SCANS + 3, begin=1) == []
    assert processes.by_pid[worker.pid].received == [signal.SIGCONT, signal.SIGTERM]


def test_a_run_that_comes_back_when_all_were_gone_is_told_and_so_is_that_it_is_gone_again() -> None:
    processes = FakeProcesses()
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [processes.add(100)], [], 1000, signal.SIGKILL)
    assert scans(process_killer, EMPTY_SCANS + 3) == [()]
    again = processes.add(101, sid=100)
    assert scans(process_killer, EMPTY_SCANS + 3, begin=10) == [(101,), ()]
    assert processes.is_gone(again)


def test_sigterm_wakes_a_stopped_process_once_and_sigkill_is_repeated_while_it_lives() -> None:
    processes = FakeProcesses()
    rank = processes.add(100, dies_of=frozenset())
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM)
    assert scans(process_killer, 2) == []
    assert processes.by_pid[100].received == [signal.SIGCONT, signal.SIGTERM]
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL)
    assert processes.by_pid[100].received[2:] == [signal.SIGKILL]
    processes.by_pid[100].dies_of = frozenset((signal.SIGKILL,))  # The disk that it waited for has answered.
    assert scans(process_killer, EMPTY_SCANS + 1, begin=10) == [()]


def test_another_users_announced_run_below_the_same_command_is_not_named_as_perhaps_the_runs() -> None:
    processes = FakeProcesses()
    command = processes.add(50, uid=1000, argv=["sh", "train.sh"], start_ticks=1)
    box = processes.add(100, uid=2000, ppid=50)
    own = processes.add(200, uid=1000, ppid=50)
    processes.add(201, uid=1000, ppid=200)  # Its loader.
    processes.add(300, uid=0, ppid=1)
    for pid in (50, 100, 200, 201, 300):
        processes.by_pid[pid].facts = replace(processes.by_pid[pid].facts, mark=MARK)
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin(
        "i", [box], [command], 2000, signal.SIGKILL, marks=[MARK], others=lambda: [own], strangers=lambda: [own]
    )
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert [pid for pid, _ in seen.unsure] == [300], "nobody has announced it"


def test_what_is_perhaps_the_runs_is_never_signalled_and_named_when_all_else_is_gone() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    lives, ends = (processes.add(pid, argv=["redis-server", "x" * 200]) for pid in (200, 201))
    root = processes.add(300, uid=0, argv=["sudo", "sleep", "--hf_token", "SECRETCANARY11"])
    for pid in (100, 300):
        processes.by_pid[pid].facts = replace(processes.by_pid[pid].facts, mark=MARK)
    process_killer = ProcessKiller(processes, OWN)
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, marks=[MARK], unsure=lambda: [lives, ends])
    processes.end(201)
    (seen,) = [seen for n in range(5) for seen in process_killer.scan(MonoNs(n * NS_PER_S))]
    assert seen.alive == ()
    assert seen.unsure == (
        (200, ("redis-server " + "x" * 200)[:COMMAND_CHARS_MAX]),
        (300, "sudo sleep --hf_token <redacted>"),
    )
    assert [processes.by_pid[process.pid].received for process in (lives, root)] == [[], []]


def test_a_strangers_copy_of_the_mark_saves_nothing_when_the_runs_rank_is_gone() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    daemon = processes.add(200, argv=["httpd"], dies_of=frozenset((signal.SIGKILL,)))
    stranger = processes.add(300, uid=1001)
    for pid in (100, 200, 300):
        processes.by_pid[pid].facts = replace(processes.by_pid[pid].facts, mark=MARK)
    process_killer = ProcessKiller(processes, OWN)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        process_killer.begin("i", [rank], [], 1000, signum, marks=[MARK], others=lambda: [stranger])
    assert processes.is_gone(rank)
    assert processes.is_gone(daemon)
    assert processes.by_pid[300].received == []


class Crowd(FakeProcesses):
    """Thousands of processes; `forks` new ones come with each look at the table while anybody of them lives."""

    forks = 0
    next_pid = 1_000_000
    sends_in_a_row = 0
    sends_most = 0

    def table(self) -> Mapping[int, ProcessFacts]:
        self.sends_in_a_row = 0
        bomb = next((pid for pid, process in self.by_pid.items() if not process.gone), None)
        for _ in range(self.forks if bomb is not None else 0):
            self.add(self.next_pid, ppid=bomb or 1)
            self.next_pid += 1
        return super().table()

    def send(self, target: ProcessId, signum: signal.Signals) -> Sent:
        if signum is not signal.SIGCONT:
            self.sends_in_a_row += 1
            self.sends_most = max(self.sends_most, self.sends_in_a_row)
        return super().send(target, signum)

    def end(self, pid: int) -> None:
        del self.by_pid[pid]  # Everybody shares the rank's session: whose child one is does not matter, and costs O(n).


def fork_bomb(size: int, **script: object) -> tuple[Crowd, ProcessKiller, ProcessId]:
    processes = Crowd()
    rank = processes.add(100, **script)
    for pid in range(200_000, 200_000 + size - 1):
        processes.add(pid, ppid=100, **script)
    return processes, ProcessKiller(processes, OWN), rank


def test_a_fork_bomb_is_killed_whole_in_rounds_that_each_have_an_end() -> None:
    size = 2 * SENDS_MAX + 500
    processes, process_killer, rank = fork_bomb(size)
    assert len(process_killer.begin("i", [rank], [], 1000, signal.SIGKILL)) == SENDS_MAX
    assert len(processes.by_pid) == size - SENDS_MAX
    assert scans(process_killer, 20) == [()]
    assert processes.by_pid == {}
    assert processes.sends_most <= SENDS_MAX


@pytest.mark.parametrize("at_once", [True, False])
def test_everybody_of_a_fork_bomb_gets_its_sigterm_before_anybody_is_killed(at_once: bool) -> None:
    size = SENDS_MAX + 500
    processes, process_killer, rank = fork_bomb(size if at_once else 1, dies_of=frozenset())
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM)
    for pid in range(300_000, 300_000 + size - len(processes.by_pid)):
        processes.add(pid, ppid=100, dies_of=frozenset())
    scans(process_killer, 20)
    assert sum(signal.SIGTERM in process.received for process in processes.by_pid.values()) == size
    assert all(process.received.count(signal.SIGTERM) == 1 for process in processes.by_pid.values())


def test_those_whom_sigkill_cannot_end_do_not_stand_in_front_of_those_whom_it_can() -> None:
    processes, process_killer, rank = fork_bomb(SENDS_MAX + 500)
    for pid in [100, *range(200_000, 200_000 + SENDS_MAX - 1)]:
        processes.by_pid[pid].dies_of = frozenset()  # In uninterruptible sleep, and the first of the set.
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL)
    process_killer.scan(MonoNs(NS_PER_S))
    assert len(processes.by_pid) == SENDS_MAX


def test_the_dead_of_a_fork_bomb_are_not_kept() -> None:
    processes, process_killer, rank = fork_bomb(50)
    processes.by_pid[rank.pid].dies_of = frozenset()
    processes.forks = 50
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM)
    for number in range(1, 100):
        process_killer.scan(MonoNs(number * NS_PER_S))
    kept = process_killer._open["i"].members
    assert kept is not None
    assert processes.next_pid > 1_000_000 + 4_000, "thousands came and went"
    assert len(kept.members) <= 200
    processes.end(rank.pid)
    assert scans(process_killer, EMPTY_SCANS + 2, begin=200) == [()]


class FakeGroup:
    """The control group /fake of the fakes. `hidden`: what lives in it and the table does not show."""

    path = "/fake"

    def __init__(self, processes: FakeProcesses, *, hidden: int = 0, can_kill: bool = True) -> None:
        self.processes, self.hidden, self.can_kill, self.kills = processes, hidden, can_kill, 0

    @property
    def is_populated(self) -> bool:
        return bool(self.hidden or self.processes.by_pid)

    def kill(self) -> bool:
        if not self.can_kill:
            return False
        self.kills += 1
        self.hidden = 0
        for pid in list(self.processes.by_pid):
            self.processes.end(pid)
        return True


def grouped(processes: FakeProcesses, **options: Any) -> tuple[ProcessKiller, FakeGroup]:
    group = FakeGroup(processes, **options)
    return ProcessKiller(processes, OWN, group=group), group


def test_a_run_is_gone_when_its_control_group_is_empty_and_not_before() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    process_killer, group = grouped(processes, hidden=1, can_kill=False)
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, cgroups=[group.path])
    assert scans(process_killer, EMPTY_SCANS + 3) == [], "the table is empty, and somebody lives"
    group.hidden = 0
    assert scans(process_killer, EMPTY_SCANS + 3, begin=10) == [()]


def test_the_control_group_is_killed_with_sigkill_alone_and_another_users_process_too() -> None:
    processes = FakeProcesses()
    rank, sudos = processes.add(100), processes.add(200, uid=0, argv=["sudo", "python"], dies_of=frozenset())
    process_killer, group = grouped(processes, hidden=1)
    process_killer.begin("i", [rank], [], 1000, signal.SIGTERM, cgroups=[group.path])
    assert (scans(process_killer, EMPTY_SCANS + 3), group.kills) == ([], 0)
    rows = process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, cgroups=[group.path])
    assert [(row["pid"], row["sent"]) for row in rows] == [(sudos.pid, "sent")]
    assert (scans(process_killer, EMPTY_SCANS + 3, begin=10), group.kills) == ([()], 1)


def test_neither_roots_manager_nor_another_runs_group_is_killed() -> None:
    processes = FakeProcesses()
    rank = processes.add(100)
    processes.add(200, uid=0, argv=["slurmstepd: [7.0]"], dies_of=frozenset())
    process_killer, group = grouped(processes)
    process_killer.begin("i", [rank], [], 1000, signal.SIGKILL, cgroups=[group.path])
    assert (scans(process_killer, EMPTY_SCANS + 3), group.kills) == ([], 0), "it lives on, and keeps the halt open"
    process_killer.begin("other", [rank], [], 1000, signal.SIGKILL, cgroups=["/other"])
    process_killer.end("i")
    assert (scans(process_killer, EMPTY_SCANS + 3, begin=10), group.kills) == ([()], 0)
