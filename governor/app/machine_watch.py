"""What watches the machine itself: its GPUs, memory, load, other governors, the provider's notice, our own files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from governor.adapters.machine.gpu_watch import GpuWatch
from governor.adapters.machine.host_use import HostUseWatch
from governor.adapters.machine.host_watch import GovernorWatch, MemoryWatch, NoticeWatch, OwnFileWatch, UidRangeWatch
from governor.adapters.machine.oom_kills import OomKillWatch
from governor.core.base.identity import ProcessId
from governor.core.base.shares import user_of
from governor.core.engine.node import Node
from governor.core.views.metrics import GpuMetrics, MachineMetrics
from governor.ports import Clock, Gpus, Processes
from governor.remote_ports import Cloud

log = structlog.get_logger("costgov")


def _tell_gpus(unread: str | None) -> None:
    if unread is None:
        log.info("gpus_read_again")
    else:
        log.warning("gpus_unread", reason=unread)


@dataclass(slots=True)
class MachineWatch:
    """Built once. `sources` go to the loop, in their order."""

    node: Node
    gpus: Gpus
    processes: Processes
    clock: Clock
    cloud: Cloud | None
    attended: Callable[[], tuple[ProcessId, ...]]  # What `costgov run` has launched.
    own_files: Sequence[OwnFileWatch]
    host: HostUseWatch = field(init=False)
    gpu_watch: GpuWatch = field(init=False)
    _closing: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = HostUseWatch(lambda: ranks_by_user(self.node))
        self.gpu_watch = GpuWatch(self.gpus, self.processes, self.attended, tell=_tell_gpus)

    def sources(self) -> list[Any]:
        exclusive = self.node.facts.exclusive
        memory, oom_kills = MemoryWatch(self._pids), OomKillWatch(self._pids)
        notices, uids = NoticeWatch(self.cloud, self.clock), UidRangeWatch()
        self._closing = [memory, oom_kills, notices, uids, self.host, *self.own_files]
        return [
            self.gpu_watch,
            *((memory,) if exclusive else (memory, oom_kills)),  # `costgov run` counts for its command.
            self.host,
            notices,
            *self.own_files,
            GovernorWatch(self.processes, ("run", "daemon") if exclusive else ("run",), os.getpid()),
            uids,
        ]

    def close(self) -> None:
        for one in reversed(self._closing):
            one.close()

    def metrics(self) -> MachineMetrics:
        """What the samplers know now. Nothing that they do not."""
        readings = self.gpus.read() or ()
        gpus = tuple(
            GpuMetrics(
                place, one.uuid, one.busy_frac, one.memory_used_bytes, one.memory_total_bytes,
                None if one.pids is None else len(one.pids), one.figures,
            )
            for place, one in enumerate(readings)
        )  # fmt: skip
        return MachineMetrics(gpus, self.host.newest)

    def _pids(self) -> dict[str, int]:
        """One process of each live run. Its control group is the run's."""
        return {name: processes[0].pid for name, processes in self._live().items() if processes}

    def _live(self) -> dict[str, tuple[ProcessId, ...]]:
        return {name: managed.processes() for name, managed in self.node.runs.items() if managed.run.alive}


def ranks_by_user(node: Node) -> list[list[tuple[ProcessId, ...]]]:
    """The ranks of each live run of each user, as the host sampler shares its look. A range of uids is one user's."""
    users: dict[int, list[tuple[ProcessId, ...]]] = {}
    for managed in node.runs.values():
        if managed.run.alive:
            users.setdefault(user_of(node.uid_ranges, managed.run.uid), []).append(managed.processes())
    return list(users.values())
