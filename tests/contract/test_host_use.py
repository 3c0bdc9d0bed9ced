"""What processes and the machine use: a kernel's files as they are written, and this machine's own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from governor.adapters.machine.host_use import PROCESSES_MAX, HostUseWatch, Look, Wanted, node_use
from governor.adapters.machine.mounts import Mount
from governor.adapters.machine.processes import stat_of
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.machine import HostSample, NodeUse, ProcessUse

SAFETY_S = 30
TICKS = os.sysconf("SC_CLK_TCK")
RANK = ProcessId(700, 55, "boot")


class Kernel:
    """/proc of a machine on which a rank trains."""

    def __init__(self, root: Path) -> None:
        self.proc = root

    def process(self, pid: int, *, start: int = 55, cpu_s: int = 3, name: str = "python", state: str = "S",
                read: int | None = 4096, waited: int | None = 7, children: tuple[int, ...] = ()) -> None:  # fmt: skip
        directory = self.proc / str(pid)
        (directory / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        before, behind = "1 1 1 0 -1 0 0 0 0 0", "0 0 20 0 1 0"
        fields = f"{state} {before} {(cpu_s - 1) * TICKS} {TICKS} {behind} {start} 0 0"
        (directory / "stat").write_text(f"{pid} ({name}) {fields}\n")
        if waited is not None:
            (directory / "schedstat").write_text(f"123 {waited} 9\n")
        if read is not None:
            (directory / "io").write_text(f"rchar: 9\nwchar: 8\nread_bytes: {read}\nwrite_bytes: 0\n")
        self.children(pid, pid, children)

    def children(self, pid: int, thread: int, children: tuple[int, ...]) -> None:
        task = self.proc / str(pid) / "task" / str(thread)
        task.mkdir(exist_ok=True)
        (task / "children").write_text(" ".join(map(str, children)))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def look(kernel: Kernel, *ranks: ProcessId) -> tuple[ProcessUse, ...]:
    return look_by_users(kernel, [[ranks]]).processes


def look_by_users(kernel: Kernel, wanted: Wanted) -> Look:
    watch = HostUseWatch(lambda: wanted, kernel.proc)
    watch._wanted = wanted
    return watch.look()


def test_a_rank_and_its_workers_are_told_with_what_they_use(kernel: Kernel) -> None:
    kernel.process(700, children=(701,))
    kernel.process(701, start=60, cpu_s=9, name="pt_data) worker", state="R", read=1 << 40, waited=12)
    worker = ProcessId(701, 60, "boot")
    assert look(kernel, RANK) == (
        ProcessUse(RANK, RANK, "python", "S", 3 * NS_PER_S, 7, 4096, core_run_ns=123),
        ProcessUse(worker, RANK, "pt_data) worker", "R", 9 * NS_PER_S, 12, 1 << 40, core_run_ns=123),
    )


def test_where_a_rank_may_run_is_told(kernel: Kernel) -> None:
    kernel.process(700)
    for line, cores in (
        ("0-2,8", frozenset({0, 1, 2, 8})), ("5", frozenset({5})), ("", None), ("9-3", None), ("0-99999999", None),
        ("x", None),
    ):  # fmt: skip
        (kernel.proc / "700" / "status").write_text(f"Cpus_allowed:\tf\nCpus_allowed_list:\t{line}\nMems_allowed:\t1\n")
        assert look(kernel, RANK)[0].cores == cores, line


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({"a": "150000 100000", "a/b": "max 100000"}, 1.5),
        ({"": "50000 100000", "a": "max 100000", "a/b": "400000 100000"}, 0.5),
        ({"a/b": "max 100000"}, None),
        ({"a/b": "torn"}, None),
        ({"a/b": "5 0"}, None),
        ({}, None),
    ],
)
def test_what_its_control_groups_grant_a_rank(kernel: Kernel, limits: dict[str, str], cores: float | None) -> None:
    groups = kernel.proc / "cgroup"
    (groups / "a" / "b").mkdir(parents=True)
    for name, text in limits.items():
        (groups / name / "cpu.max").write_text(f"{text}\n")
    kernel.process(700)
    (kernel.proc / "700" / "cgroup").write_text("1:cpu:/other\n0::/docker/a/b\n")
    watch = HostUseWatch(lambda: [[[RANK]]], kernel.proc, groups=Mount(1, "/docker", str(groups), "cgroup2", ()))
    watch._wanted = [[[RANK]]]
    assert watch.look()[1][0].cores_max == cores
    (kernel.proc / "700" / "cgroup").write_text("0::/../a/b\n")  # Of another namespace.
    assert watch.look()[1][0].cores_max is None


def test_workers_of_other_threads_and_of_a_forkserver_are_found(kernel: Kernel) -> None:
    kernel.process(700, children=(701,))
    kernel.children(700, 777, (702,))
    kernel.process(701, children=(703,))
    kernel.process(702)
    kernel.process(703)
    assert [use.process.pid for use in look(kernel, RANK)] == [700, 701, 702, 703]


def test_what_may_not_be_read_is_unknown(kernel: Kernel) -> None:
    """Another user's I/O, and a kernel without schedstat."""
    kernel.process(700, read=None, waited=None)
    assert look(kernel, RANK) == (ProcessUse(RANK, RANK, "python", "S", 3 * NS_PER_S, None, None),)


def test_a_pid_that_is_anothers_by_now_and_one_that_has_ended_are_left_out(kernel: Kernel) -> None:
    kernel.process(700, start=56, children=(701,))
    kernel.process(701)
    assert look(kernel, RANK, ProcessId(900, 1, "boot")) == ()


@pytest.mark.parametrize("raw", [b"", b"700 (python", b"700 (python) S 1", b"\xff\xfe"])
def test_a_torn_stat_is_a_process_that_has_gone(kernel: Kernel, raw: bytes) -> None:
    kernel.process(700)
    (kernel.proc / "700" / "stat").write_bytes(raw)
    assert look(kernel, RANK) == ()


def test_a_fork_bomb_below_a_rank_is_looked_at_within_bounds(kernel: Kernel) -> None:
    many = tuple(range(1000, 1000 + 2 * PROCESSES_MAX))
    kernel.process(700, children=many)
    for pid in many:
        kernel.process(pid)
    found = look_by_users(kernel, [[[RANK]]])
    assert (len(found.processes), found.cut) == (PROCESSES_MAX, {RANK})


def family(kernel: Kernel, pid: int, children: int) -> ProcessId:
    """A rank with so many workers, of the pids behind its own."""
    below = tuple(range(pid + 1, pid + 1 + children))
    kernel.process(pid, children=below)
    for child in below:
        kernel.process(child)
    return ProcessId(pid, 55, "boot")


def test_a_users_many_processes_hide_no_other_users_and_a_cut_look_is_marked(kernel: Kernel) -> None:
    bomb, victim = family(kernel, 10_000, 2 * PROCESSES_MAX), family(kernel, 20_000, 2)
    beside = [family(kernel, 30_000 + 100 * run, 1) for run in range(20)]  # Runs of the one with the bomb.
    found = look_by_users(kernel, [[[bomb], *([one] for one in beside)], [[victim]]])
    seen = Counter(use.rank for use in found.processes)
    assert (seen[victim], found.cut) == (3, {bomb})
    assert [seen[one] for one in beside] == [2] * 20


def test_a_node_of_eight_ranks_with_32_workers_each_is_seen_whole(kernel: Kernel) -> None:
    ranks = [family(kernel, 1_000 * (rank + 1), 32) for rank in range(8)]
    found = look_by_users(kernel, [[ranks]])
    assert (len(found.processes), found.cut) == (264, frozenset())


def test_ranks_of_a_run_have_equal_parts_of_a_cut_look(kernel: Kernel) -> None:
    """A rank is looked at before any rank's workers."""
    ranks = [family(kernel, 1_000 * (rank + 1), 100) for rank in range(8)]
    found = look_by_users(kernel, [[ranks]])
    assert Counter(use.rank for use in found.processes) == dict.fromkeys(ranks, PROCESSES_MAX // 8)
    assert found.cut == set(ranks)
    assert [use.process for use in found.processes[:8]] == ranks


def test_more_children_than_the_kernel_tells_at_once_are_a_cut_look(kernel: Kernel) -> None:
    """They are one here: the list alone is too long."""
    kernel.process(700, children=(701,) * 5_000)
    kernel.process(701)
    found = look_by_users(kernel, [[[RANK]]])
    assert ([use.process.pid for use in found.processes], found.cut) == ([700, 701], {RANK})


def test_pressure_is_unknown_where_the_kernel_does_not_tell_it(kernel: Kernel) -> None:
    (kernel.proc / "pressure").mkdir()
    (kernel.proc / "pressure" / "io").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull total=7\n")
    (kernel.proc / "pressure" / "memory").write_text("nonsense\n")
    use = node_use(kernel.proc)
    assert (use.io_pressure_s, use.cpu_pressure_s, use.memory_pressure_s) == (1.5, None, None)


def test_this_machine_and_a_process_of_ours_are_told() -> None:
    """A child that computes: the watch's thread finds it, and its CPU time grows."""
    program = [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], SAFETY_S)[0]
        stat = stat_of(os.getpid())
        assert stat is not None
        own = ProcessId(os.getpid(), stat.start_ticks, "boot")
        watch = HostUseWatch(lambda: [[[own]]])
        samples = []
        deadline = time.monotonic() + SAFETY_S
        while len(samples) < 3 and time.monotonic() < deadline:
            samples += watch.poll(MonoNs(time.monotonic_ns()))
            select.select([], [], [], 0.05)
        watch.close()
        child.kill()
    assert all(isinstance(one, HostSample) for one in samples)
    told = [one.processes for one in samples if isinstance(one, HostSample)]
    busy = [use.cpu_ns for uses in told for use in uses if use.process.pid == child.pid]
    assert len(busy) >= 2
    assert busy[-1] > busy[0]
    assert watch.newest is not None
    assert watch.newest != NodeUse()
    assert (watch.newest.cpu_busy_s or 0) > 0
