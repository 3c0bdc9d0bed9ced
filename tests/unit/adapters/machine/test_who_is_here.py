"""What is looked at to say that nobody is here: GPUs, their absence, other governors, a command and its session."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from governor.adapters.command.child import Command, CommandEnd, living
from governor.adapters.machine.gpu_watch import LOOK_PERIOD_NS, GpuWatch, accelerators
from governor.adapters.machine.host_watch import GOVERNORS_LOOK_PERIOD_NS as NEIGHBOURS_NS
from governor.adapters.machine.host_watch import GovernorWatch, governs, uid_ranges
from governor.core.base.identity import ProcessFacts
from governor.core.base.shares import UidRange, user_of
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import CommandExited
from governor.core.events.machine import GovernorsSeen, GpuProcessesSeen
from governor.core.halt.adopted import Adoption
from governor.ports import GpuReading
from tests.contract.fakes import FakeGpus, FakeProcesses

AT = MonoNs(100 * NS_PER_S)
FREE = GpuReading("GPU-1", "H100", 0.0, 600_000_000, ())


@pytest.mark.parametrize(
    ("readings", "pids", "unnamed"),
    [
        ((FREE, FREE), set(), 0),
        ((FREE, replace(FREE, pids=(7, 8), busy_frac=0.9)), {7, 8}, 0),
        ((replace(FREE, busy_frac=0.02), FREE), set(), 1),  # A container does not see the processes of others.
        ((replace(FREE, memory_used_bytes=60_000_000_000), FREE), set(), 1),
        ((replace(FREE, memory_used_bytes=None, busy_frac=None), FREE), set(), 1),  # MIG within a container: not known.
        ((replace(FREE, memory_used_bytes=None), replace(FREE, busy_frac=None)), set(), 0),
    ],
)
def test_gpus_are_free_when_nobody_is_named_and_nothing_moves(
    readings: tuple[GpuReading, ...], pids: set[int], unnamed: int
) -> None:
    gpus = FakeGpus()
    gpus.offer(readings)
    watch = GpuWatch(gpus, FakeProcesses(), accelerators=lambda: ["0000:18:00.0", "0000:2a:00.0"])
    assert watch.poll(AT)[0] == GpuProcessesSeen(AT, frozenset(pids), unnamed)
    gpus.close()


class NoDriver(FakeGpus):
    def fileno(self) -> int | None:
        return None


@pytest.mark.parametrize(
    ("gpus", "devices", "problem"),
    [
        (NoDriver, [], None),
        (NoDriver, ["0000:18:00.0"], "no NVIDIA driver, and the machine has accelerators (0000:18:00.0)"),
        (NoDriver, None, "no NVIDIA driver, and the kernel does not list the machine's devices"),
        (FakeGpus, [], "no NVIDIA driver"),  # There is one to wait for: it has said nothing yet.
    ],
)
def test_no_gpu_is_told_from_a_sampler_that_is_silent(
    gpus: type[FakeGpus], devices: Sequence[str] | None, problem: str | None
) -> None:
    made = gpus()
    watch = GpuWatch(made, FakeProcesses(), accelerators=lambda: devices)
    assert watch.poll(AT) == [GpuProcessesSeen(AT, frozenset(), problem=problem)]
    assert watch.poll(MonoNs(AT + LOOK_PERIOD_NS - 1)) == []
    made.close()


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        ([f"0000:{n}" for n in range(8)], "the driver shows 2 of the machine's 8 accelerators"),
        (None, "the kernel does not list the machine's devices, of which the driver may show only some"),
    ],
)
def test_a_container_with_some_of_the_gpus_does_not_know_about_the_others(
    devices: list[str] | None, problem: str
) -> None:
    gpus = FakeGpus()
    gpus.offer((FREE, replace(FREE, pids=(7,))))
    seen, _ = GpuWatch(gpus, FakeProcesses(), accelerators=lambda: devices).poll(AT)
    assert isinstance(seen, GpuProcessesSeen)
    assert seen.problem == problem
    assert seen.pids == {7}, "whom it sees is a tenant all the same"
    gpus.close()


def test_a_driver_that_does_not_say_who_computes_is_not_an_empty_gpu() -> None:
    gpus = FakeGpus()
    gpus.offer((FREE, replace(FREE, pids=None)))
    seen, _ = GpuWatch(gpus, FakeProcesses(), accelerators=lambda: None).poll(AT)
    assert isinstance(seen, GpuProcessesSeen)
    assert seen.problem == "the driver does not say who computes on its GPUs"
    gpus.close()


@pytest.mark.parametrize(
    ("kind", "vendor", "computes"),
    [
        ("0x030200", "0x10de", True),  # NVIDIA's 3D controller.
        ("0x120000", "0x1da3", True),  # Gaudi.
        ("0x038000", "0x1002", True),
        ("0x030000", "0x1a03", False),  # A server's console.
        ("0x020000", "0x15b3", False),
    ],
)
def test_the_kernel_says_whether_there_is_an_accelerator(
    kind: str, vendor: str, computes: bool, tmp_path: Path
) -> None:
    device = tmp_path / "devices" / "0000:18:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text(f"{kind}\n")
    (device / "vendor").write_text(f"{vendor}\n")
    assert accelerators(tmp_path / "devices") == (["0000:18:00.0"] if computes else [])
    assert accelerators(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (("/opt/venv/bin/python3", "/opt/venv/bin/costgov", "run", "--", "x"), "run"),
        (("/usr/bin/python3.11", "-m", "governor", "daemon"), "daemon"),
        (("python3", "-u", "-m", "governor", "run", "--", "x"), "run"),
        (("/usr/bin/costgov", "daemon"), "daemon"),
        (("/usr/bin/python3", "/usr/bin/costgov", "status"), None),
        (("sudo", "costgov", "run", "--", "x"), None),  # Who starts one is none.
        (("python3", "train.py", "costgov", "run"), "run"),  # A false neighbour keeps a node: the safe side.
        ((), None),
    ],
)
def test_a_governor_is_known_by_its_command_line(argv: tuple[str, ...], kind: str | None) -> None:
    assert governs(argv) == kind


def test_another_governor_is_somebody_and_we_and_what_we_fork_are_not() -> None:
    processes = FakeProcesses()
    run = ("python3", "/bin/costgov", "run", "--", "x")
    processes.add(10, argv=run)
    processes.add(11, argv=run, ppid=10)
    processes.add(12, argv=run)
    processes.add(13, argv=("python3", "/bin/costgov", "daemon"))
    service = GovernorWatch(processes, ("run",), own_pid=13)
    assert service.poll(AT) == [GovernorsSeen(AT, (10, 11, 12))]
    beside = GovernorWatch(processes, ("run", "daemon"), own_pid=10)
    assert beside.poll(AT) == [GovernorsSeen(AT, (12, 13))]
    assert beside.poll(MonoNs(AT + NEIGHBOURS_NS - 1)) == []


def test_without_command_lines_nobody_knows_who_is_a_governor() -> None:
    processes = FakeProcesses()
    processes.add(10, argv=())  # Started since a wedged driver holds somebody's memory map.
    processes.is_stuck = True
    (seen,) = GovernorWatch(processes, ("run",), own_pid=1).poll(AT)
    assert isinstance(seen, GovernorsSeen)
    assert seen.problem is not None
    assert seen.problem.startswith("command lines cannot be read: some process's memory map is locked, or ")


class Blind(FakeProcesses):
    def table(self) -> Mapping[int, ProcessFacts]:
        raise OSError(errno.EMFILE, "Too many open files")


def test_who_cannot_look_says_so() -> None:
    seen = GovernorWatch(Blind(), ("run",), own_pid=1).poll(AT)
    assert seen == [GovernorsSeen(AT, (), "the process table cannot be read: Too many open files")]
    blind = CommandEnd("llama", lambda: 0, started(), Blind())
    assert [blind.poll(AT), blind.poll(AT)] == [[], []]


def test_a_command_that_is_over_at_once_has_its_first_tick() -> None:
    end = CommandEnd("llama", lambda: 0, started(), FakeProcesses())
    assert [end.poll(AT), end.poll(AT)] == [[], [CommandExited(AT, "llama", 0)]]


MARK = 1 << 40 | 5


def started(mark: int | None = None) -> Command:
    with subprocess.Popen(["true"]) as process:
        return Command(process, mark=mark)


@pytest.mark.parametrize("way", ["in its session", "gone by setsid"])
def test_a_command_is_over_when_nobody_is_left_of_it(way: str) -> None:
    processes, command = FakeProcesses(), started(MARK)
    processes.add(os.getpid(), start_ticks=0)
    left = 500_001
    if way == "in its session":
        processes.add(left, sid=command.process.pid)
    else:
        processes.add(left, ppid=os.getpid(), sid=left, mark=MARK)
    exit_code: list[int | None] = [None]
    end = CommandEnd("llama", lambda: exit_code[0], command, processes)
    assert end.poll(AT) == []
    assert end.poll(AT) == []
    exit_code[0] = 0
    assert end.poll(AT) == [], "it has left somebody behind"
    processes.end(left)
    later = MonoNs(AT + 2 * NS_PER_S)
    assert end.poll(later) == [CommandExited(later, "llama", 0)]
    assert end.poll(MonoNs(later + 2 * NS_PER_S)) == [], "said once"


def test_what_was_seen_below_the_command_is_left_of_it_also_where_others_orphans_come_to_us() -> None:
    """As pid 1 of a container. It has dropped the mark, and its launcher ends before the command."""
    processes, command = FakeProcesses(), started(MARK)
    pid = command.process.pid
    command.adoption = Adoption(os.getpid(), pid, MARK, 0, is_ours_alone=False)
    processes.add(os.getpid(), start_ticks=0, mark=MARK + 1)
    processes.add(pid, ppid=os.getpid(), sid=pid, mark=MARK)
    processes.add(500_001, ppid=pid, sid=500_001, start_ticks=2_000)
    end = CommandEnd("llama", lambda: None, command, processes)
    assert [end.poll(AT), end.poll(AT)] == [[], []]
    processes.end(pid)
    for orphan in (500_001, 500_002):
        processes.add(orphan, ppid=os.getpid(), sid=orphan, start_ticks=2_000)
    assert [facts.process.pid for facts in living(processes, command) or ()] == [500_001]


def test_a_stranger_with_a_copy_of_the_mark_is_not_left_of_a_command() -> None:
    """Nor is what we have started ourselves, which has no mark."""
    processes, command = FakeProcesses(), started(MARK)
    processes.add(os.getpid(), start_ticks=0)
    processes.add(500_001, sid=500_001, mark=MARK)
    processes.add(500_002, ppid=os.getpid(), sid=500_002)
    assert living(processes, command) == []


def test_nor_is_another_users_orphan_with_a_copy_where_others_orphans_come_to_us() -> None:
    processes, command = FakeProcesses(), started(MARK)
    command.adoption = Adoption(os.getpid(), command.process.pid, MARK, 0, is_ours_alone=False)
    processes.add(os.getpid(), start_ticks=0, mark=MARK + 1, uid=0)
    processes.add(500_001, ppid=os.getpid(), sid=500_001, mark=MARK, uid=12345)
    own = processes.add(500_002, ppid=os.getpid(), sid=500_002, mark=MARK, uid=0)
    processes.add(500_003, ppid=500_001, sid=500_001, uid=12345)
    for _ in range(2):
        assert [facts.process for facts in living(processes, command) or ()] == [own]


def test_uid_ranges_are_read_by_uid_and_by_name_and_a_broken_line_is_left_out() -> None:
    text = "1001:165536:65536\nroot:100000:65536\nnobody-knows:7:7\nbroken\n1002:x:1\n\n"
    ranges = uid_ranges(text)
    assert ranges == [UidRange(100_000, 65_536, 0), UidRange(165_536, 65_536, 1001)]
    assert [user_of(ranges, uid) for uid in (99_999, 100_000, 165_535, 165_536, 231_072)] == [
        99_999,
        0,
        0,
        1001,
        231_072,
    ]
