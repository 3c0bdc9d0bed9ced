"""Ending processes: nobody is gone before it was seen gone, and a table that cannot be read is not an empty one."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping

from governor.core.identity import ProcessFacts
from governor.core.units import NS_PER_S, MonoNs
from governor.killing import EMPTY_SCANS, SCAN_NS, Killings
from tests.contract.fakes import FakeProcesses

OWN = 999


class BlindProcesses(FakeProcesses):
    """A governor without a free descriptor, `blind` times."""

    blind = 0

    def table(self) -> Mapping[int, ProcessFacts]:
        if self.blind:
            self.blind -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().table()


def scans(killings: Killings, count: int, begin: int = 0) -> list[tuple[int, ...]]:
    """Who was said to be alive, scan by scan, for those scans that said something."""
    told = []
    for number in range(begin, begin + count):
        told += [tuple(p.pid for p in seen.alive) for seen in killings.scan(MonoNs(number * NS_PER_S))]
    return told


def test_a_rank_of_another_uid_that_lives_on_is_never_said_to_be_gone() -> None:
    processes = FakeProcesses()
    rank = processes.add(100, uid=1000)
    killings = Killings(processes, OWN)
    assert killings.begin("i", [rank], [], 2000, signal.SIGKILL) == []
    assert scans(killings, EMPTY_SCANS + 3) == []
    assert processes.by_pid[100].received == [], "it is not ours to end"
    processes.end(100)
    assert scans(killings, EMPTY_SCANS + 3, begin=10) == [()]


def test_without_a_process_table_nothing_is_gone_and_the_signal_comes_once_it_can_be_read() -> None:
    processes = BlindProcesses()
    rank = processes.add(100, dies_of=frozenset())
    worker = processes.add(101, ppid=100, dies_of=frozenset())
    processes.blind = 3
    killings = Killings(processes, OWN)
    assert killings.begin("i", [rank], [], 1000, signal.SIGTERM) == []
    assert scans(killings, 2) == []
    assert processes.by_pid[100].received == []
    assert killings.next_at() == MonoNs(NS_PER_S + SCAN_NS), "it looks again soon"
    assert scans(killings, 1) == []
    killings.scan(MonoNs(5 * NS_PER_S))
    for process in (rank, worker):
        assert signal.SIGTERM in processes.by_pid[process.pid].received
