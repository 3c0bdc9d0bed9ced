"""How long ranks waited for a processor that other processes than the run's used.

The kernel tells how long a rank's main thread could have run and had no core (schedstat), and what each process and the
whole machine used. A wait is the others' doing only so far as they used the rank's cores: a run whose own threads want
more cores than it has waits for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S
from governor.core.events.machine import HostSample, ProcessUse

STALE_NS: Final = 30 * NS_PER_S


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Of one rank, over the time since the last call."""

    frac: float  # Of that time: what it waited because of others.
    waited_frac: float  # All of its waiting.
    others_cores: float  # Cores that others used, of those on which the rank may run.
    ready_frac: float = 1.0  # Of that time: when its main thread ran or waited for a core. An upper bound.


@dataclass(slots=True)
class _Sums:
    """Nanoseconds. `own` and `own_wait`: of all processes of the run that may run on the rank's cores."""

    seen: int = 0
    wait: int = 0
    ran: int = 0
    own: int = 0
    own_wait: int = 0
    others: int = 0
    cores: float = 0.0

    def told(self) -> QueueWait | None:
        if not self.seen or not self.cores:
            return None
        own, waited = self.own / self.seen, self.wait / self.seen
        others = min(self.others / self.seen, self.cores - own)
        if others <= 0:
            return None
        # With more threads than cores each one loses its part of what the others took. Else none waits for its like.
        is_crowded = own + self.own_wait / self.seen > self.cores
        lost = min(waited, others / self.cores if is_crowded else others, 1.0)
        return QueueWait(lost, waited, others, min(1.0, waited + self.ran / self.seen))


@dataclass(slots=True)
class QueueTime:
    _last: HostSample | None = None
    _sums: dict[int, _Sums] = field(default_factory=dict)  # By rank.

    def see(self, sample: HostSample, ranks: Mapping[ProcessId, int]) -> None:
        """Take one look at the run's processes. `ranks`: their numbers."""
        last, self._last = self._last, sample
        if last is None or not 0 < sample.at - last.at <= STALE_NS:
            return
        if sample.node.cpu_busy_s is None or last.node.cpu_busy_s is None:
            return
        if sample.cut or last.cut:
            return  # What the run's processes used that were not looked at would be told as others'.
        before = {one.process: one for one in last.processes}
        used = {one.process: _used(one, before.get(one.process)) for one in sample.processes}
        busy = int((sample.node.cpu_busy_s - last.node.cpu_busy_s) * NS_PER_S)
        others = max(0, busy - sum(used.values()))
        mains = {one.process: one for one in sample.processes if one.process in ranks}
        for process, one in mains.items():
            cores = _cores(one, sample)
            wait = _waited(one, before.get(process))
            if not cores or wait is None:
                continue
            beside = {other for other, main in mains.items() if _meet(one, main)}
            sums = self._sums.setdefault(ranks[process], _Sums())
            sums.seen += sample.at - last.at
            sums.wait += wait
            sums.ran += _ran(one, before[process])
            sums.others += others
            sums.cores = cores
            sums.own += sum(used[each.process] for each in sample.processes if each.rank in beside)
            sums.own_wait += sum(_waited(mains[other], before.get(other)) or 0 for other in beside)

    def told(self, rank: int) -> QueueWait | None:
        """Since this rank's was taken last. None: nothing is known, or others used none of its cores."""
        sums = self._sums.get(rank)
        return sums.told() if sums is not None else None

    def take(self, rank: int) -> QueueWait | None:
        told = self.told(rank)
        self._sums.pop(rank, None)
        return told


def _used(now: ProcessUse, before: ProcessUse | None) -> int:
    """A process that is new began since the last look, or was not looked at: then all of it counts as the run's."""
    return max(0, now.cpu_ns - (before.cpu_ns if before is not None else 0))


def _ran(now: ProcessUse, before: ProcessUse) -> int:
    """Of the main thread. Where the kernel does not tell it, that of all threads: no less."""
    if now.core_run_ns is None or before.core_run_ns is None:
        return _used(now, before)
    return max(0, now.core_run_ns - before.core_run_ns)


def _waited(now: ProcessUse, before: ProcessUse | None) -> int | None:
    if before is None or now.core_wait_ns is None or before.core_wait_ns is None:
        return None
    return max(0, now.core_wait_ns - before.core_wait_ns)


def _cores(one: ProcessUse, sample: HostSample) -> float:
    """On how many it may run at once. 0: unknown.

    The kernel counts the wait for the next period of a control group's limit like one for a core. A run that uses all
    that it is granted waits for itself, however busy the machine is.
    """
    told = [cores for cores in (one.cores_at_once, sample.node.cores) if cores]
    return float(min(told, default=0))


def _meet(one: ProcessUse, other: ProcessUse) -> bool:
    return one.cores is None or other.cores is None or not one.cores.isdisjoint(other.cores)
