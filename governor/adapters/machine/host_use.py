"""What the machine and the processes of its runs use, once a second: the node's figures from psutil, processes' from
/proc.

A separate thread reads; the loop takes what there is. Only processes of known runs are looked at, and those below them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from governor.adapters.machine.control_group import cores_granted, group_mount, unified_path
from governor.adapters.machine.host_watch import PROC, Poller
from governor.adapters.machine.mounts import Mount
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Event
from governor.core.events.machine import HostSample, NodeUse, ProcessUse

PERIOD_S: Final = 1.0
# A rank with 16 workers, eight times, and as many again.
PROCESSES_MAX: Final = 256
# A rank's children are those of any of its threads, and it may have hundreds. Those of its main thread, which has the
# loader's workers, are looked up every time, the others' so seldom.
ALL_THREADS_EVERY: Final = 10
FILE_BYTES_MAX: Final = 16 * 1024
CORES_MAX: Final = 8192
NS_PER_TICK: Final = NS_PER_S // os.sysconf("SC_CLK_TCK")

Ranks = Mapping[int, ProcessId]  # By pid.


class _Stat(NamedTuple):
    name: str
    state: str
    cpu_ns: int
    start_ticks: int


@dataclass(slots=True)
class HostUseWatch:
    """A source of the loop. `ranks`: the processes of the live runs, asked on the loop's thread."""

    ranks: Callable[[], Sequence[ProcessId]]
    proc: Path = PROC
    newest: NodeUse | None = None  # For the metrics.
    groups: Mount | None = field(default_factory=group_mount)
    _wanted: Sequence[ProcessId] = ()
    _turn: int = 0
    # Below each rank, as the last look at all of its threads found them.
    _below: dict[int, frozenset[int]] = field(default_factory=dict)
    _poller: Poller[tuple[NodeUse, tuple[ProcessUse, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        self._poller = Poller("host", PERIOD_S, self.look)

    def poll(self, at: MonoNs) -> list[Event]:
        self._wanted = self.ranks()
        found = self._poller.take()
        if found is None:
            return []
        self.newest, processes = found
        return [HostSample(at, self.newest, processes)]

    def look(self) -> tuple[NodeUse, tuple[ProcessUse, ...]]:
        """Look now. Processes that have ended, or whose pid is another's by now, are left out."""
        ranks = list(self._wanted)[:PROCESSES_MAX]
        found = [use for rank in ranks if (use := self._use(rank.pid, rank, rank)) is not None]
        alive = {use.rank.pid for use in found}
        all_threads, self._turn = self._turn % ALL_THREADS_EVERY == 0, self._turn + 1
        self._below = {pid: below for pid, below in self._below.items() if pid in alive}
        for rank in ranks:
            if rank.pid not in alive:
                continue
            for pid in self._children(rank.pid, all_threads=all_threads):
                if len(found) >= PROCESSES_MAX:
                    return node_use(self.proc), tuple(found)
                use = self._use(pid, rank)
                if use is not None and pid not in alive:
                    found.append(use)
        return node_use(self.proc), tuple(found)

    def close(self) -> None:
        self._poller.close()

    def _children(self, pid: int, *, all_threads: bool) -> list[int]:
        """The children of a rank and theirs: a forkserver's workers are its grandchildren."""
        own = set(_children_of(self.proc, pid, pid))
        if all_threads or pid not in self._below:
            threads = _threads(self.proc, pid)
            self._below[pid] = frozenset(child for thread in threads for child in _children_of(self.proc, pid, thread))
        near = own | self._below[pid]
        return sorted(near | {child for one in near for child in _children_of(self.proc, one, one)})

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


def _children_of(proc: Path, pid: int, thread: int) -> Iterator[int]:
    for word in _read(f"{proc}/{pid}/task/{thread}/children").split():
        child = _number(word)
        if child is not None:
            yield child


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
