"""Why batches come late: what the loader's processes did while ranks waited for data.

Figures are sums over the host sampler's looks, once a second, of the windows in which data starved the run. One worker
of each kind, measured on a machine with two cores: a CPU-bound one used 85 % of a core; one that read past the page
cache 42 %, half of its time in disk sleep, with a storage pressure of 29 %; a sleeping one 1 %, without pressure.
A wait for the network and a sleep look the same from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from governor.core.base.units import NS_PER_S
from governor.core.events.machine import HostSample, NodeUse, ProcessUse

WORKER: Final = "pt_data_worker"  # torch calls its loader's processes so.
LOOKS_MIN: Final = 3  # Fewer say nothing.
GAP_MAX_NS: Final = 5 * NS_PER_S  # Looks further apart are no neighbours.
SEEN_FRAC: Final = 0.1  # Of the looks: a loader that is seldom there is none.
CUT_FRAC: Final = 0.1  # Of the looks: with more of them cut, who was not seen may have been there.
ACTIVE_FRAC: Final = 0.2  # Of a core: an older torch's workers have no name, and a resource tracker does nothing.
BUSY_FRAC: Final = 0.6
QUIET_FRAC: Final = 0.25
DISK_FRAC: Final = 0.2
PRESSURE_FRAC: Final = 0.15
READS_MIN: Final = 1_000_000  # Bytes a second, of all workers.
CORES_BUSY_FRAC: Final = 0.9
FIGURES: Final = (
    "looks", "ns", "worker_looks", "worker_ns", "cpu_ns", "runs", "disk", "read_bytes", "core_ns", "busy_ns",
    "pressure_ns", "cut",
)  # fmt: skip
FIGURE_MAX: Final = 2**63
UNSEEN: Final = (
    "below the ranks are too many processes to look at each, and no loader worker was among those looked at: "
    "what the loader does is unknown"
)


class Loader(NamedTuple):
    """`kind`: cpu, disk, outside, no_workers; None: the figures do not say. `next_step` None: as of any starvation."""

    kind: str | None
    evidence: str
    next_step: str | None


@dataclass(slots=True)
class LoaderUse:
    """`pending`: since the last window was closed. It is kept where data starved that window."""

    kept: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    _before: HostSample | None = None

    def look(self, sample: HostSample) -> None:
        before, self._before = self._before, sample
        if before is None or not 0 < sample.at - before.at <= GAP_MAX_NS:
            return
        passed_ns = sample.at - before.at
        known = {one.process: one for one in before.processes}
        pairs = [(known[one.process], one) for one in sample.processes if one.process in known]
        if all(now.process != now.rank for _, now in pairs):
            return  # No rank was seen twice.
        told = self.pending
        _add(told, "looks", 1)
        _add(told, "ns", passed_ns)
        _add(told, "cut", bool(sample.cut or before.cut))
        for was, now in _workers(pairs, passed_ns):
            _add(told, "worker_looks", 1)
            _add(told, "worker_ns", passed_ns)
            _add(told, "cpu_ns", now.cpu_ns - was.cpu_ns)
            _add(told, "runs", now.state == "R")
            _add(told, "disk", now.state == "D")
            _add(told, "read_bytes", (now.read_bytes or 0) - (was.read_bytes or 0))
        _add_node(told, before.node, sample.node, passed_ns)

    def close(self, *, starved: bool) -> None:
        if starved:
            for name, value in self.pending.items():
                _add(self.kept, name, value)
        self.pending = {}


def _workers(pairs: Iterable[tuple[ProcessUse, ProcessUse]], passed_ns: int) -> list[tuple[ProcessUse, ProcessUse]]:
    below = [(was, now) for was, now in pairs if now.process != now.rank]
    named = [(was, now) for was, now in below if now.name == WORKER]
    return named or [
        (was, now) for was, now in below if now.state == "D" or now.cpu_ns - was.cpu_ns >= ACTIVE_FRAC * passed_ns
    ]


def _add_node(told: dict[str, int], was: NodeUse, now: NodeUse, passed_ns: int) -> None:
    if now.cores and now.cpu_busy_s is not None and was.cpu_busy_s is not None:
        _add(told, "core_ns", now.cores * passed_ns)
        _add(told, "busy_ns", round((now.cpu_busy_s - was.cpu_busy_s) * NS_PER_S))
    if now.io_pressure_s is not None and was.io_pressure_s is not None:
        _add(told, "pressure_ns", round((now.io_pressure_s - was.io_pressure_s) * NS_PER_S))


def _add(told: dict[str, int], name: str, value: int) -> None:
    """Counters of the kernel may go back; what they lost then is no use."""
    told[name] = min(told.get(name, 0) + max(0, value), FIGURE_MAX)


def loader_of(told: Mapping[str, int]) -> Loader | None:
    """What the figures say. None: nobody has looked often enough."""
    looks, ns = told.get("looks", 0), told.get("ns", 0)
    if looks < LOOKS_MIN or ns <= 0:
        return None
    worker_looks, worker_ns = told.get("worker_looks", 0), told.get("worker_ns", 0)
    is_cut = told.get("cut", 0) > CUT_FRAC * looks
    if worker_looks < SEEN_FRAC * looks or worker_ns <= 0:
        if is_cut:
            return Loader(None, UNSEEN, None)
        return Loader(
            "no_workers", "no loader worker was seen below the ranks: the loop makes its batches itself",
            "start loader workers (num_workers), so that batches are made while the model computes",
        )  # fmt: skip
    cpu, runs = told.get("cpu_ns", 0) / worker_ns, told.get("runs", 0) / worker_looks
    disk, pressure = told.get("disk", 0) / worker_looks, told.get("pressure_ns", 0) / ns
    reads = told.get("read_bytes", 0) * NS_PER_S / ns
    count = max(1, round(worker_looks / looks))
    least = "at least " if is_cut else ""
    seen = (
        f"{least}{count} loader worker{'' if count == 1 else 's'} at {cpu:.0%} of a core{'' if count == 1 else ' each'}"
    )
    if disk >= DISK_FRAC or (pressure >= PRESSURE_FRAC and reads >= READS_MIN):
        return Loader(
            "disk",
            f"{seen}, {disk:.0%} of looks in disk sleep, reading {reads / 1e6:,.0f} MB/s, storage pressure"
            f" {pressure:.0%}",
            "read from a faster or a local disk, in larger pieces; more workers read further ahead",
        )
    if max(cpu, runs) >= BUSY_FRAC:
        is_full = told.get("busy_ns", 0) >= CORES_BUSY_FRAC * told.get("core_ns", 0) > 0
        step = "tokenise beforehand: every core is busy, and more workers have none" if is_full else None
        return Loader(
            "cpu",
            f"{seen}, running or waiting for a core in {runs:.0%} of looks",
            step or "add workers, or tokenise beforehand",
        )
    if max(cpu, runs) < QUIET_FRAC and disk < DISK_FRAC / 2:
        return Loader(
            "outside", f"{seen}, not in disk sleep: it waits outside this machine, or sleeps",
            "look at what the loader waits for: the network, a server, a lock; more workers overlap such waits",
        )  # fmt: skip
    return Loader(None, f"{seen}, {disk:.0%} of looks in disk sleep", None)


def restored_use(row: object) -> LoaderUse:
    """TypeError or ValueError where it is not one of ours."""
    if not isinstance(row, Mapping) or not set(row) <= set(FIGURES):
        raise ValueError("figures of a loader")
    if not all(type(value) is int and 0 <= value <= FIGURE_MAX for value in row.values()):
        raise ValueError("figures of a loader")
    return LoaderUse(kept=dict(row))
