"""What the machine and the processes of its runs use, once a second: the node's figures from psutil, processes' from
/proc.

A separate thread reads; the loop takes what there is. Only processes of known runs are looked at, and those below them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import psutil

from governor.adapters.machine.control_group import cores_granted, group_mount, unified_path
from governor.adapters.machine.host_watch import PROC, Poller
from governor.adapters.machine.mounts import Mount
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Event
from governor.core.events.machine import HostSample, NodeUse, ProcessUse

PERIOD_S: Final = 1.0
# Eight ranks with 32 loader workers each are 264 processes; this is nearly twice that. A process takes 25 us of the
# sampler's thread (three files of /proc, and the list of its children): at most 13 ms a second in all.
PROCESSES_MAX: Final = 512
# A rank's children are those of any of its threads, and it may have hundreds. Those of its main thread, which has the
# loader's workers, are looked up every time, the others' so seldom.
ALL_THREADS_EVERY: Final = 10
THREADS_MAX: Final = 4096  # Of one rank.
FILE_BYTES_MAX: Final = 16 * 1024
CORES_MAX: Final = 8192
NS_PER_TICK: Final = NS_PER_S // os.sysconf("SC_CLK_TCK")

T = TypeVar("T")
Wanted = Sequence[Sequence[Sequence[ProcessId]]]  # The ranks of each run of each user.


class Look(NamedTuple):
    """`cut`: ranks below which not every process was looked at, or which were not themselves."""

    node: NodeUse
    processes: tuple[ProcessUse, ...]
    cut: frozenset[ProcessId]


class _Pids(NamedTuple):
    """`is_whole`: there are no more."""

    pids: frozenset[int]
    is_whole: bool


class _Stat(NamedTuple):
    name: str
    state: str
    cpu_ns: int
    start_ticks: int


@dataclass(slots=True)
class HostUseWatch:
    """A source of the loop. `ranks`: the processes of the live runs, by user and run, asked on the loop's thread."""

    ranks: Callable[[], Wanted]
    proc: Path = PROC
    newest: NodeUse | None = None  # For the metrics.
    groups: Mount | None = field(default_factory=group_mount)
    _wanted: Wanted = ()
    _turn: int = 0
    # Below each rank, as the last look at all of its threads found them.
    _below: dict[int, _Pids] = field(default_factory=dict)
    _poller: Poller[Look] = field(init=False)

    def __post_init__(self) -> None:
        self._poller = Poller("host", PERIOD_S, self.look)

    def poll(self, at: MonoNs) -> list[Event]:
        self._wanted = self.ranks()
        found = self._poller.take()
        if found is None:
            return []
        self.newest = found.node
        return [HostSample(at, found.node, found.processes, cut=found.cut)]

    def look(self) -> Look:
        """Look now. Processes that have ended, or whose pid is another's by now, are left out.

        Users take turns, a user's runs do, and a run's ranks: each rank before any worker, and then a worker of each.
        So one with more than its share has the others' looked at all the same.
        """
        wanted, all_threads = self._wanted, self._turn % ALL_THREADS_EVERY == 0
        ranks = {rank for user in wanted for run in user for rank in run}
        pids = {rank.pid for rank in ranks}
        self._turn += 1
        self._below = {pid: below for pid, below in self._below.items() if pid in pids}
        whole: set[ProcessId] = set()
        turns = _in_turn(
            _in_turn(
                _in_turn(self._of_rank(rank, pids, whole, all_threads=all_threads) for rank in run) for run in user
            )
            for user in wanted
        )
        found: list[ProcessUse] = []
        for place, use in enumerate(turns):
            if place >= PROCESSES_MAX:
                break
            if use is not None:
                found.append(use)
        return Look(node_use(self.proc), tuple(found), frozenset(ranks - whole))

    def close(self) -> None:
        self._poller.close()

    def _of_rank(
        self, rank: ProcessId, ranks: set[int], whole: set[ProcessId], *, all_threads: bool
    ) -> Iterator[ProcessUse | None]:
        """The rank, its children and theirs: a forkserver's workers are its grandchildren. Read as they are asked for.

        None: it has ended meanwhile. `ranks`: pids that have turns of their own. Adds to `whole` where nothing is left.
        """
        use = self._use(rank.pid, rank, rank)
        yield use
        if use is None:
            self._below.pop(rank.pid, None)
            whole.add(rank)
            return
        seen = set(ranks)
        near = self._near(rank.pid, all_threads=all_threads)
        is_whole = near.is_whole
        for pid in sorted(near.pids - seen):
            yield self._use(pid, rank)
        seen |= near.pids
        for pid in sorted(near.pids):
            below = _children_of(self.proc, pid, pid)
            is_whole &= below.is_whole
            for child in sorted(below.pids - seen):
                yield self._use(child, rank)
            seen |= below.pids
        if is_whole:
            whole.add(rank)

    def _near(self, pid: int, *, all_threads: bool) -> _Pids:
        own = _children_of(self.proc, pid, pid)
        if all_threads or pid not in self._below:
            threads = _threads(self.proc, pid)
            found = [_children_of(self.proc, pid, thread) for thread in threads[:THREADS_MAX]]
            is_whole = len(threads) <= THREADS_MAX and all(one.is_whole for one in found)
            self._below[pid] = _Pids(frozenset().union(*(one.pids for one in found)), is_whole)
        below = self._below[pid]
        return _Pids(own.pids | below.pids, own.is_whole and below.is_whole)

    def _use(self, pid: int, rank: ProcessId, expected: ProcessId | None = None) -> ProcessUse | None:
        directory = f"{self.proc}/{pid}"
        stat = _stat(_read(f"{directory}/stat"))
        if stat is None or (expected is not None and stat.start_ticks != expected.start_ticks):
            return None
        waits = _read(f"{directory}/schedstat").split()
        return ProcessUse(
            expected or ProcessId(pid, stat.start_ticks, rank.boot_id),
            rank,
            stat.name,
            stat.state,
            stat.cpu_ns,
            _number(waits[1]) if len(waits) > 1 else None,
            _read_bytes(_read(f"{directory}/io")),
            _cores(_read(f"{directory}/status")) if expected is not None else None,
            self._cores_granted(directory) if expected is not None else None,
            _number(waits[0]) if len(waits) > 1 else None,
        )

    def _cores_granted(self, directory: str) -> float | None:
        path = unified_path(_read(f"{directory}/cgroup"))
        return cores_granted(path, self.groups) if path is not None and self.groups is not None else None


def _read(path: str) -> bytes:
    """Empty if there is none, or it is another user's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, FILE_BYTES_MAX)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _stat(raw: bytes) -> _Stat | None:
    """Of /proc/PID/stat. A name may hold spaces and parentheses: fields count from the last of these."""
    end = raw.rfind(b")")
    fields = raw[end + 2 :].split()
    if len(fields) < 20:
        return None
    name = raw[raw.find(b"(") + 1 : end].decode("utf-8", "replace")
    ticks = (int(fields[11]) + int(fields[12])) * NS_PER_TICK
    return _Stat(name, fields[0].decode("ascii", "replace"), ticks, int(fields[19]))


def _cores(raw: bytes) -> frozenset[int] | None:
    """Of /proc/PID/status, the cores on which a process may run: "0-3,8"."""
    _, _, rest = raw.partition(b"Cpus_allowed_list:")
    found: set[int] = set()
    for span in rest.partition(b"\n")[0].strip().split(b","):
        first, _, last = span.partition(b"-")
        low, high = _number(first), _number(last or first)
        if low is None or high is None or not low <= high < CORES_MAX:
            return None
        found.update(range(low, high + 1))
    return frozenset(found)


def _read_bytes(raw: bytes) -> int | None:
    for line in raw.splitlines():
        if line.startswith(b"read_bytes:"):
            return _number(line[len(b"read_bytes:") :].strip())
    return None


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= 20 else None


def _threads(proc: Path, pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"{proc}/{pid}/task")]
    except OSError:
        return []


def _children_of(proc: Path, pid: int, thread: int) -> _Pids:
    """None of a process that has ended. The kernel tells a page of them at a time."""
    text = b""
    try:
        fd = os.open(f"{proc}/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return _Pids(frozenset(), is_whole=True)
    try:
        while len(text) < FILE_BYTES_MAX and (chunk := os.read(fd, FILE_BYTES_MAX - len(text))):
            text += chunk
    except OSError:
        pass
    finally:
        os.close(fd)
    is_whole = len(text) < FILE_BYTES_MAX
    words = text.split() if is_whole else text.split()[:-1]  # The last may be half a number.
    return _Pids(frozenset(child for word in words if (child := _number(word)) is not None), is_whole)


def _in_turn(of: Iterable[Iterator[T]]) -> Iterator[T]:
    """One of each, then the next of each, until none has any."""
    waiting = deque(of)
    while waiting:
        one = waiting.popleft()
        for item in one:
            yield item
            waiting.append(one)
            break


# --- the whole machine -------------------------------------------------------------------------------------


def node_use(proc: Path = PROC) -> NodeUse:
    """Whatever the kernel does not show, as in a container, is None."""
    cpu = _ask(psutil.cpu_times)
    memory, swap = _ask(psutil.virtual_memory), _ask(psutil.swap_memory)
    disks, cards = _ask(psutil.disk_io_counters), _ask(lambda: psutil.net_io_counters(pernic=True))
    wires = [card for name, card in (cards or {}).items() if name != "lo"]
    return NodeUse(
        cores=psutil.cpu_count(),
        cpu_busy_s=None if cpu is None else cpu.user + cpu.system + cpu.nice + cpu.irq + cpu.softirq + cpu.steal,
        cpu_iowait_s=None if cpu is None else cpu.iowait,
        memory_available_bytes=None if memory is None else memory.available,
        memory_total_bytes=None if memory is None else memory.total,
        swap_used_bytes=None if swap is None else swap.used,
        disk_read_bytes=None if disks is None else disks.read_bytes,
        disk_written_bytes=None if disks is None else disks.write_bytes,
        network_received_bytes=sum(card.bytes_recv for card in wires) if wires else None,
        network_sent_bytes=sum(card.bytes_sent for card in wires) if wires else None,
        cpu_pressure_s=_pressure(proc, "cpu"),
        io_pressure_s=_pressure(proc, "io"),
        memory_pressure_s=_pressure(proc, "memory"),
    )


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    # What psutil does not understand of a file is a RuntimeError or a ValueError there.
    except (OSError, RuntimeError, ValueError, psutil.Error):
        return None


def _pressure(proc: Path, what: str) -> float | None:
    """The `some` line's total, which is in microseconds."""
    for line in _read(f"{proc}/pressure/{what}").splitlines():
        if line.startswith(b"some "):
            _, _, total = line.rpartition(b"total=")
            known = _number(total.strip())
            return None if known is None else known / 1e6
    return None
