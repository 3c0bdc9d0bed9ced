"""Every Processes: identity before violence, observation after. Real children beside the scripted table."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses, parse_cgroup, parse_stat
from governor.core.base.identity import ProcessId
from governor.ports import Processes, Sent
from tests.contract.fakes import FakeProcesses

SAFETY_S = 30  # A loaded machine is slow; this bound only ends a test that would hang.

CHILD = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *a: None)
print("ready", flush=True)
while True: signal.pause()
"""


class World(Protocol):
    processes: Processes

    def spawn(self) -> ProcessId:
        """Start a process that handles SIGUSR1, not SIGUSR2, and dies of SIGTERM; its parent does not reap it."""

    def reap(self, process: ProcessId) -> None: ...

    def close(self) -> None: ...


class RealWorld:
    def __init__(self) -> None:
        # What the bound is for has a test of its own; here a crowded machine may take its time.
        self.processes = LinuxProcesses(SystemClock().boot_id, look_bound_s=SAFETY_S)
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def spawn(self) -> ProcessId:
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        self._children[child.pid] = child
        facts = self.processes.facts(child.pid)
        assert facts is not None
        return facts.process

    def reap(self, process: ProcessId) -> None:
        self._children[process.pid].wait(SAFETY_S)

    def close(self) -> None:
        for child in self._children.values():
            child.kill()
            child.wait(SAFETY_S)
            assert child.stdout is not None
            child.stdout.close()


class FakeWorld:
    def __init__(self) -> None:
        self.processes = FakeProcesses()
        self._next_pid = 100

    def spawn(self) -> ProcessId:
        self._next_pid += 1
        return self.processes.add(
            self._next_pid, ppid=os.getpid(), uid=os.geteuid(), argv=[sys.executable, "-c", CHILD],
            catches=frozenset({signal.SIGUSR1}), becomes_zombie=True,
        )  # fmt: skip

    def reap(self, process: ProcessId) -> None:
        del self.processes.by_pid[process.pid]

    def close(self) -> None:
        pass


@pytest.fixture(params=[RealWorld, FakeWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = request.param()
    yield world
    world.close()


def wait_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], SAFETY_S)[0])


def end_unreaped(world: World, process: ProcessId) -> None:
    pidfd = world.processes.watch(process)
    assert pidfd is not None
    assert world.processes.send(process, signal.SIGTERM) is Sent.SENT
    assert wait_readable(pidfd)
    os.close(pidfd)


def test_a_process_is_in_the_table_with_who_it_is(world: World) -> None:
    process = world.spawn()
    facts = world.processes.table()[process.pid]
    alone = world.processes.facts(process.pid)
    assert alone is not None
    # Two looks at something that lives: between its word and its rest the child runs, or waits for its turn.
    assert facts == replace(alone, state=facts.state)
    assert facts.process == process
    assert facts.ppid == os.getpid()
    assert facts.uid == os.geteuid()
    assert facts.argv == (sys.executable, "-c", CHILD)


def test_nobody_has_no_facts(world: World) -> None:
    assert world.processes.facts(2**22 + 1) is None


def test_exit_is_observed_and_a_zombie_is_gone(world: World) -> None:
    process = world.spawn()
    assert not world.processes.is_gone(process)
    end_unreaped(world, process)
    facts = world.processes.facts(process.pid)
    assert facts is not None
    assert facts.state == "Z"
    assert facts == world.processes.table()[process.pid], "a state that lasts is the same in each look"
    assert world.processes.is_gone(process)
    assert world.processes.watch(process) is None


def test_even_a_zombie_accepts_a_signal_so_sent_is_not_gone(world: World) -> None:
    process = world.spawn()
    end_unreaped(world, process)
    assert world.processes.send(process, signal.SIGTERM) is Sent.SENT


def test_after_the_reaper_there_is_nobody_to_signal(world: World) -> None:
    process = world.spawn()
    end_unreaped(world, process)
    world.reap(process)
    assert world.processes.send(process, signal.SIGKILL) is Sent.GONE
    assert world.processes.is_gone(process)
    assert world.processes.facts(process.pid) is None
    assert world.processes.watch(process) is None


def test_a_pid_that_changed_hands_is_not_touched(world: World) -> None:
    process = world.spawn()
    former = replace(process, start_ticks=process.start_ticks - 1)
    assert world.processes.send(former, signal.SIGKILL) is Sent.NOT_OURS
    assert world.processes.is_gone(former)
    assert world.processes.watch(former) is None
    assert world.processes.catches(former, signal.SIGUSR1) is None
    assert not world.processes.is_gone(process)


def test_a_process_of_another_boot_is_gone_whoever_has_its_pid_now(world: World) -> None:
    process = world.spawn()
    former = replace(process, boot_id="another boot")
    assert world.processes.send(former, signal.SIGKILL) is Sent.GONE
    assert world.processes.is_gone(former)
    assert not world.processes.is_gone(process)


def test_an_installed_handler_is_seen_from_outside(world: World) -> None:
    process = world.spawn()
    assert world.processes.catches(process, signal.SIGUSR1) is True
    assert world.processes.catches(process, signal.SIGUSR2) is False


def test_a_handled_signal_ends_nobody(world: World) -> None:
    process = world.spawn()
    assert world.processes.send(process, signal.SIGUSR1) is Sent.SENT
    assert not world.processes.is_gone(process)


@pytest.mark.parametrize("comm", [b"python", b"a) R 1 (b", b") S 7 8 9", b"two words", b"()"])
def test_a_command_name_cannot_shift_the_fields_of_stat(comm: bytes) -> None:
    tail = b" S 10 20 30 0 -1 4194304 1 2 3 4 5 6 7 8 9 0 1 0 12345 99 0\n"
    stat = parse_stat(b"42 (" + comm + b")" + tail)
    assert stat is not None
    assert (stat.state, stat.ppid, stat.pgid, stat.sid, stat.start_ticks) == ("S", 10, 20, 30, 12345)


@pytest.mark.parametrize(("flags", "is_kernel_thread"), [(4194304, False), (2129984, True), (69238880, True)])
def test_kernel_threads_are_told_by_their_flag(flags: int, is_kernel_thread: bool) -> None:
    stat = parse_stat(b"42 (kworker/0:1) I 2 0 0 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 55 0 0" % flags)
    assert stat is not None
    assert stat.is_kernel_thread is is_kernel_thread


def test_a_process_of_another_pid_namespace_is_none_of_ours_though_number_and_start_agree(world: World) -> None:
    """Where nothing is seen of it, it is not gone either."""
    process = world.spawn()
    other = replace(process, pid_ns=process.pid_ns + 1)
    place = world.processes.locate(other)
    assert place in (other, None)
    assert world.processes.is_gone(other) == (place == other)
    assert world.processes.send(other, signal.SIGKILL) is (Sent.DENIED if place is None else Sent.GONE)
    assert (world.processes.watch(other), world.processes.catches(other, signal.SIGUSR1)) == (None, None)
    assert not world.processes.is_gone(process)


def test_a_process_of_an_older_journal_is_one_of_ours(world: World) -> None:
    process = world.spawn()
    assert world.processes.locate(replace(process, pid_ns=0)) == process
    assert not world.processes.is_gone(replace(process, pid_ns=0))


def test_a_process_of_another_boot_is_gone_whatever_its_namespace(world: World) -> None:
    process = world.spawn()
    for other in (replace(process, boot_id="before"), replace(process, boot_id="before", pid_ns=1)):
        assert world.processes.locate(other) == other
        assert world.processes.is_gone(other)


def test_a_torn_stat_is_nobody() -> None:
    assert parse_stat(b"42 (python) S 1 2") is None
    assert parse_stat(b"") is None


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"0::/system.slice/a.service\n", "/system.slice/a.service"),
        (b"5:cpu:/x\n1:name=systemd:/user.slice\n0::/\n", "/user.slice"),
        (b"5:cpu:/x\n1:name=systemd:/user.slice\n0::/unified\n", "/unified"),
        (b"0::/with:colon\n", "/with:colon"),
        (b"", ""),
    ],
)
def test_the_cgroup_is_the_unified_path_or_systemds(raw: bytes, path: str) -> None:
    assert parse_cgroup(raw) == path


def test_a_hidden_proc_is_denied_and_never_taken_for_gone(tmp_path: object) -> None:
    """As under hidepid=2: the process can be signalled, its identity cannot be read."""
    real = RealWorld()
    try:
        process = real.spawn()
        blind = LinuxProcesses(process.boot_id, proc=str(tmp_path))
        assert blind.send(process, signal.SIGKILL) is Sent.DENIED
        assert not blind.is_gone(process)
        assert not real.processes.is_gone(process)
    finally:
        real.close()


def make_proc(directory: Path, pid: int, argv: bytes | None) -> None:
    """One process's files as /proc has them; argv None makes a command line whose reader waits for ever."""
    own = directory / str(pid)
    own.mkdir()
    (own / "stat").write_text(f"{pid} (python) S 1 {pid} {pid} 0 -1 4194304 1 2 3 4 5 6 7 8 9 0 1 0 {pid}00 99 0")
    (own / "status").write_text("Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n")
    (own / "cgroup").write_text("0::/a\n")
    if argv is None:
        os.mkfifo(own / "cmdline")
    else:
        (own / "cmdline").write_bytes(argv)


def test_a_table_without_its_reader_is_none(tmp_path: Path) -> None:
    """As when something is mounted over /proc: the run's processes are not gone."""
    make_proc(tmp_path, 10, b"python\0train.py\0")
    with pytest.raises(OSError, match="does not show the governor itself"):
        LinuxProcesses("boot", proc=str(tmp_path)).table()


@pytest.mark.parametrize("shown", ["1073741824", "nobody"])
def test_a_table_of_another_pid_namespace_is_none(tmp_path: Path, shown: str) -> None:
    """`unshare --pid` keeps the /proc outside, where our number is a stranger's: pid 1 is there in any."""
    make_proc(tmp_path, os.getpid(), b"init\0")
    os.symlink(shown, tmp_path / "self")
    processes = LinuxProcesses("boot", proc=str(tmp_path))
    for look in (processes.table, processes.require_own):
        with pytest.raises(OSError, match="of another PID namespace"):
            look()
    (tmp_path / "self").unlink()
    os.symlink(str(os.getpid()), tmp_path / "self")
    processes.require_own()
    assert list(processes.table()) == [os.getpid()]


def test_a_command_line_that_cannot_be_read_holds_up_no_scan(tmp_path: Path) -> None:
    """As when a wedged driver keeps a process's memory map locked: the table goes on with what was seen before."""
    processes = LinuxProcesses("boot", proc=str(tmp_path))
    make_proc(tmp_path, os.getpid(), b"costgov\0daemon\0")
    make_proc(tmp_path, 10, b"python\0train.py\0")
    assert processes.table()[10].argv == ("python", "train.py")
    make_proc(tmp_path, 11, None)
    for _ in range(3):
        table = processes.table()
        assert processes.is_stuck
        assert (table[10].argv, table[11].argv) == (("python", "train.py"), ())
    assert table[11].process == ProcessId(11, 1100, "boot")
    (reader,) = [thread for thread in threading.enumerate() if thread.name == "proc"]
    with (tmp_path / "11" / "cmdline").open("wb") as cmdline:
        cmdline.write(b"python\0wedged.py\0")
    reader.join(SAFETY_S)
    (tmp_path / "11" / "cmdline").unlink()
    (tmp_path / "11" / "cmdline").write_bytes(b"python\0wedged.py\0")
    assert processes.table()[11].argv == ("python", "wedged.py")
    assert not processes.is_stuck


BLIND = """
import json, os, resource, signal, sys
from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.processes import LinuxProcesses
processes = LinuxProcesses(SystemClock().boot_id)
own = processes.facts(os.getpid()).process
used = [os.open("/dev/null", os.O_RDONLY)]
resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 1, used[0] + 1))
answers = {"gone": processes.is_gone(own), "sent": processes.send(own, signal.SIGKILL).value,
           "catches": processes.catches(own, signal.SIGINT), "watch": processes.watch(own)}
try:
    answers["table"] = len(processes.table())
except OSError as error:
    answers["table"] = error.strerror
print(json.dumps(answers))
"""


def test_blind_is_not_empty() -> None:
    """Out of descriptors nothing can be read: nobody is gone for it, and no table pretends that nobody is there."""
    done = subprocess.run(
        [sys.executable, "-c", BLIND], capture_output=True, text=True, timeout=SAFETY_S, cwd=Path(__file__).parents[2]
    )
    assert json.loads(done.stdout) == {
        "gone": False, "sent": "denied", "catches": None, "watch": None, "table": "Too many open files",
    }  # fmt: skip
