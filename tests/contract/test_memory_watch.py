"""What is left of main memory: a kernel's files as they are written, and this machine's own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from governor.adapters.machine.host_watch import MemoryLeft, MemoryWatch, group_of, machine
from governor.core.base.units import MonoNs
from governor.core.events.machine import HostMemory

SAFETY_S = 30
GIB = 2**30
PID = 4711


# As a kernel writes it.
MEMINFO = f"""MemTotal:       {64 * 2**20} kB
MemFree:             100 kB
MemAvailable:   {12 * 2**20} kB
Buffers:            1024 kB
Cached:         {13 * 2**20} kB
Active:             2048 kB
Inactive:           2048 kB
Shmem:               512 kB
Slab:                256 kB
SReclaimable:        128 kB
HugePages_Total:       0
"""


class Kernel:
    """/proc and /sys/fs/cgroup of a machine of 64 GiB, 12 of them available; one process in /slurm/job_7/step_0."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / str(PID)).mkdir(parents=True)
        self.meminfo(MEMINFO)
        self.place("/slurm/job_7/step_0")

    def meminfo(self, text: str) -> None:
        (self.proc / "meminfo").write_text(text)

    def place(self, group: str) -> None:
        (self.proc / str(PID) / "cgroup").write_text(f"1:name=systemd:/else\n0::{group}\n")

    def limit(
        self, group: str, limit: str, used_gib: float, inactive_file_gib: float = 0, active_file_gib: float = 0
    ) -> None:
        directory = self.cgroups / group.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.max").write_text(limit + "\n")
        (directory / "memory.current").write_text(f"{round(used_gib * GIB)}\n")
        files = f"inactive_file {round(inactive_file_gib * GIB)}\nactive_file {round(active_file_gib * GIB)}\n"
        (directory / "memory.stat").write_text("anon 1\n" + files)

    def group(self) -> MemoryLeft | None:
        return group_of(PID, self.proc, self.cgroups)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel, ours = Kernel(tmp_path), psutil.PROCFS_PATH
    psutil.PROCFS_PATH = str(kernel.proc)  # Its own way to be shown another machine.
    yield kernel
    psutil.PROCFS_PATH = ours


def test_the_machines_memory_is_what_the_kernel_calls_available(kernel: Kernel) -> None:
    assert machine() == MemoryLeft(12 * GIB, 64 * GIB)


def test_a_kernel_that_does_not_say_is_not_full(kernel: Kernel) -> None:
    for text in ("MemTotal: 5 kB\nMemAvailable: what\n", "MemTotal: 5 kB\n", "MemTotal:\n", "", "\0"):
        kernel.meminfo(text)
        assert machine() is None, text
    (kernel.proc / "meminfo").unlink()
    assert machine() is None


def test_the_group_with_the_least_left_of_its_limit_counts_wherever_it_stands(kernel: Kernel) -> None:
    kernel.limit("/slurm/job_7/step_0", "max", 7)
    kernel.limit("/slurm/job_7", str(8 * GIB), 7, inactive_file_gib=0.5)
    kernel.limit("/slurm", str(60 * GIB), 7)
    assert kernel.group() == MemoryLeft(round(1.5 * GIB), 8 * GIB, "/slurm/job_7")


def test_caches_beyond_the_limit_leave_no_more_than_the_limit(kernel: Kernel) -> None:
    kernel.limit("/slurm/job_7", str(8 * GIB), 7, inactive_file_gib=9)
    assert kernel.group() == MemoryLeft(8 * GIB, 8 * GIB, "/slurm/job_7")


def test_without_a_limit_there_is_no_group_and_a_process_that_is_gone_has_none(kernel: Kernel) -> None:
    kernel.limit("/slurm/job_7", "max", 7)
    assert kernel.group() is None
    assert group_of(PID + 1, kernel.proc, kernel.cgroups) is None


def test_pages_of_a_mapped_data_set_can_be_dropped_however_often_they_were_read(kernel: Kernel) -> None:
    kernel.limit("/slurm/job_7", str(8 * GIB), 8, inactive_file_gib=0.5, active_file_gib=5)
    assert kernel.group() == MemoryLeft(round(5.5 * GIB), 8 * GIB, "/slurm/job_7")


def test_in_a_container_its_own_root_has_the_limit(kernel: Kernel) -> None:
    kernel.place("/")
    kernel.limit("/", str(8 * GIB), 6)
    assert kernel.group() == MemoryLeft(2 * GIB, 8 * GIB, "/")


def test_of_a_process_in_another_container_the_limit_is_not_to_be_seen_and_ours_is_not_its_own(kernel: Kernel) -> None:
    kernel.place("/../trainer")
    kernel.limit("/", str(GIB), 0.99)
    assert kernel.group() is None


def test_the_source_tells_the_machines_and_each_limited_runs_without_holding_up_the_loop(kernel: Kernel) -> None:
    kernel.limit("/slurm/job_7", str(8 * GIB), 7)
    watch = MemoryWatch(lambda: {"llama": PID, "gone": PID + 1}, kernel.proc, kernel.cgroups)
    assert taken(watch) == [
        HostMemory(MonoNs(5), 12 * GIB, 64 * GIB),
        HostMemory(MonoNs(5), GIB, 8 * GIB, "llama", "/slurm/job_7"),
    ]
    assert watch.poll(MonoNs(6)) == [], "what was taken is not told again"
    watch.close()


def test_this_machine_tells_its_own() -> None:
    left = machine()
    assert left is not None
    said = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    assert left.total_bytes == int(said["MemTotal:"]) * 1024, "the kernel's own figure"
    assert 0 < left.available_bytes <= left.total_bytes
    group = group_of(os.getpid())
    assert group is None or 0 <= group.available_bytes <= group.total_bytes


def taken(watch: MemoryWatch) -> list[object]:
    """The first answer: it comes from another thread."""
    until = time.monotonic() + SAFETY_S
    while time.monotonic() < until:
        events: list[object] = [*watch.poll(MonoNs(5))]
        if events:
            return events
        os.sched_yield()
    raise AssertionError(f"no answer within {SAFETY_S} s")
