"""What the samplers cost, and whether a wedged GPU driver delays the loop: `python -m benchmarks.bench_samplers`.

The real GPU sampler process at 1 Hz against the tests' stub of libnvidia-ml with eight GPUs, whose answers cost
nothing: a real driver's own time comes on top. The look at processes, as its thread in the governor does it once a
second, with eight ranks of seven workers each. Then a real `costgov daemon` is pinged over its control socket at random
times, with the stub answering and with a call that never returns, in turn: a loop that is held up answers late.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.service import SAFETY_S, Service, cpu_s, read_line, rss_mb
from benchmarks.table import Row, program, row
from governor.adapters.machine.host_use import HostUseWatch
from governor.adapters.machine.nvml_process import SAMPLE_PERIOD_S
from governor.adapters.machine.processes import stat_of
from governor.core.base.identity import ProcessId
from tests.nvml_stub import Driver, build

GPUS = 8
WORKERS = 7
WINDOW_S = 10.0
WINDOWS = 3
LOOKS = 60
PINGS = 300
ROUNDS = 3
RANK = f"""
import subprocess, sys
program = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
workers = [subprocess.Popen(program, stdin=subprocess.PIPE) for _ in range({WORKERS})]
print("{{}}", flush=True)
sys.stdin.read()
"""


def sampler(driver: Driver) -> list[Row]:
    with subprocess.Popen(driver.command(SAMPLE_PERIOD_S), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        for _ in range(3):
            read_line(child)
        used, memory = [], []
        for _ in range(WINDOWS):
            begun_s, before_s = time.monotonic(), cpu_s(child.pid)
            while time.monotonic() - begun_s < WINDOW_S:
                read_line(child)
            used.append(100 * (cpu_s(child.pid) - before_s) / (time.monotonic() - begun_s))
            memory.append(rss_mb(child.pid))
        assert child.stdin is not None
        child.stdin.close()
        child.wait(SAFETY_S)
    what = f"GPU sampler, {GPUS} stub GPUs at 1 Hz"
    return [
        row(f"{what}: CPU", "% of a core", used, aim="with the next < 1"),
        row(f"{what}: RSS", "MiB", memory, aim="< 40"),
    ]


@contextmanager
def ranks(count: int) -> Iterator[tuple[ProcessId, ...]]:
    children = [
        subprocess.Popen([sys.executable, "-S", "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        for child in children:
            read_line(child)
        yield tuple(ProcessId(child.pid, stat.start_ticks, "") for child in children if (stat := stat_of(child.pid)))
    finally:
        for child in children:
            child.kill()  # Its workers end with their input.
            child.wait()


def processes() -> Row:
    with ranks(GPUS) as known:
        watch = HostUseWatch(lambda: [[known]])
        watch.poll(0)  # type: ignore[arg-type]  # What it is to look at.
        watch.close()
        used = []
        for _ in range(LOOKS):
            before_ns = time.thread_time_ns()
            found = watch.look().processes
            used.append(100 * (time.thread_time_ns() - before_ns) / 1e9)
            assert len(found) == GPUS * (1 + WORKERS), len(found)
    return row(f"use of the node and {GPUS * (1 + WORKERS)} processes at 1 Hz: CPU", "% of a core", used)


def sees(service: Service, word: str) -> bool:
    told = service.ask({"cmd": "status"})
    return told is not None and told["governor"]["gpu_status"] == word


def answers_ms(service: Service, generator: random.Random) -> list[float]:
    found = []
    for _ in range(PINGS):
        select.select([], [], [], generator.uniform(0.001, 0.02))
        begun_ns = time.monotonic_ns()
        assert service.ask({"cmd": "ping"}) is not None
        found.append((time.monotonic_ns() - begun_ns) / 1e6)
    return found


def loop(driver: Driver) -> Row:
    generator = random.Random(1)
    sound, wedged = list[float](), list[float]()
    with Service() as service:
        service.until(lambda: sees(service, f"{GPUS} GPUs"), "the stub's GPUs")
        for _ in range(ROUNDS):
            sound += answers_ms(service, generator)
            driver.tell(0, wedged=1)
            select.select([], [], [], 2 * SAMPLE_PERIOD_S)
            wedged += answers_ms(service, generator)
            driver.tell(0, wedged=None)
            select.select([], [], [], 2 * SAMPLE_PERIOD_S)
    what = "governor answers while the GPU driver is wedged"
    return row(what, "ms", wedged, aim="p99 < 20", peer="driver answers", peer_samples=sound)


def measure() -> Sequence[Row]:
    with tempfile.TemporaryDirectory(prefix="costgov-bench-") as directory:
        build(Path(directory))
        driver = Driver(Path(directory), GPUS)
        os.environ.update(driver.environ())  # The daemon's own sampler inherits it.
        return [*sampler(driver), processes(), loop(driver)]


if __name__ == "__main__":
    program(__doc__, measure)
