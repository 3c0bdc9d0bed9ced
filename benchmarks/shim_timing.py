"""What the benchmarks of the shim share: a governor that only listens, timed calls, rows less what bare calls cost."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge

from benchmarks.table import Row

DRAIN = (
    "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.bind(sys.argv[1])\ns.listen(8)\n"
    "print('listening', flush=True)\nwhile True:\n    c, _ = s.accept()\n    while c.recv(65536):\n        pass\n"
)


@contextlib.contextmanager
def listening(path: str) -> Iterator[None]:
    """Someone listens at `path`, and reads whatever comes."""
    listener = subprocess.Popen([sys.executable, "-c", DRAIN, path], stdout=subprocess.PIPE)
    try:
        assert listener.stdout is not None
        listener.stdout.readline()
        yield
    finally:
        listener.kill()
        listener.wait()


def samples_us(call: Callable[[], object], steps: int, pace_s: float = 0.0) -> list[float]:
    """Time `steps` calls, in microseconds, each begun `pace_s` after the last one ended."""
    times = []
    for _ in range(steps):
        until = time.perf_counter() + pace_s
        while time.perf_counter() < until:
            pass
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1e3)
    return times


def summary(runs: list[list[float]], minus_us: float = 0.0) -> dict[str, float]:
    """Return the median run's median and p99, less what the same calls cost without the shim."""
    return {
        "median_us": statistics.median(statistics.median(run) for run in runs) - minus_us,
        "p99_us": statistics.median(sorted(run)[int(len(run) * 0.99)] for run in runs) - minus_us,
        "runs": len(runs),
    }


def gauges(count: int) -> Callable[[], None]:
    """prometheus-client: `count` gauges set."""
    registry = CollectorRegistry()
    mine = [Gauge(f"bench_{index}", "A figure of the step.", registry=registry) for index in range(count)]

    def write() -> None:
        for gauge in mine:
            gauge.set(0.5)

    return write


def shim_row(
    name: str,
    one: dict[str, float],
    aim: str = "",
    peer: str = "",
    theirs: float | None = None,
    note: str = "",
    unit: str = "us/step",
) -> Row:
    """One line of the table."""
    return Row(name, unit, one["median_us"], one["p99_us"], int(one["runs"]), aim, peer, theirs, note)
