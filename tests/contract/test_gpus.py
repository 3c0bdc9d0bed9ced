"""Every Gpus: the newest sample, and nothing rather than an old one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import pytest

from governor.adapters.machine.nvml import SILENT_AFTER_S, NvmlSampler
from governor.core.base.units import NS_PER_S
from governor.ports import GpuReading, Gpus
from tests.contract.fakes import FakeClock, FakeGpus

SAFETY_S = 30
ONE = GpuReading("GPU-1", "H100", 0.97, 60_000_000_000, (11, 12))
TWO = GpuReading("GPU-2", "H100", None, None, ())

RELAY = """
import sys
for line in open(sys.argv[1], "rb", buffering=0):
    if line == b"crash\\n":
        sys.exit(9)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


class World(Protocol):
    gpus: Gpus

    def sample(self, *readings: GpuReading) -> None: ...
    def go_silent(self) -> None: ...
    def close(self) -> None: ...


class RealWorld:
    """The real reader over a sampler process that says what the test writes into a pipe."""

    def __init__(self, directory: Path) -> None:
        fifo = directory / "fifo"
        os.mkfifo(fifo)
        self._clock = FakeClock()
        self.gpus = NvmlSampler([sys.executable, "-S", "-c", RELAY, str(fifo)], self._clock)
        self._pipe = fifo.open("wb", buffering=0)

    def say(self, line: bytes) -> None:
        self._pipe.write(line + b"\n")
        fd = self.gpus.fileno()
        assert fd is not None
        assert select.select([fd], [], [], SAFETY_S)[0]

    def sample(self, *readings: GpuReading) -> None:
        status = f"{len(readings)} GPUs"
        self.say(json.dumps({"status": status, "gpus": [asdict(reading) for reading in readings]}).encode())

    def go_silent(self) -> None:
        self._clock.advance(round((SILENT_AFTER_S + 2) * NS_PER_S))

    def close(self) -> None:
        self.gpus.close()
        self._pipe.close()


class FakeWorld:
    def __init__(self, directory: Path) -> None:
        self.gpus = FakeGpus()

    def sample(self, *readings: GpuReading) -> None:
        self.gpus.offer(readings)

    def go_silent(self) -> None:
        self.gpus.silence("GPU sampler silent for 12 s")

    def close(self) -> None:
        self.gpus.close()


@pytest.fixture(params=[RealWorld, FakeWorld])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = request.param(tmp_path)
    yield world
    world.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealWorld]:
    world = RealWorld(tmp_path)
    yield world
    world.close()


def is_ready(gpus: Gpus) -> bool:
    fd = gpus.fileno()
    return fd is not None and bool(select.select([fd], [], [], 0)[0])


def test_before_the_first_sample_there_is_none(world: World) -> None:
    assert world.gpus.read() is None


def test_a_sample_is_announced_once_and_stands_until_the_next(world: World) -> None:
    world.sample(ONE, TWO)
    assert is_ready(world.gpus)
    assert tuple(world.gpus.read() or ()) == (ONE, TWO)
    assert not is_ready(world.gpus)
    assert tuple(world.gpus.read() or ()) == (ONE, TWO)
    assert world.gpus.status == "2 GPUs"
    world.sample(TWO)
    assert tuple(world.gpus.read() or ()) == (TWO,)


def test_a_silent_sampler_has_no_readings_and_says_so(world: World) -> None:
    world.sample(ONE)
    world.go_silent()
    assert world.gpus.read() is None
    assert world.gpus.status == "GPU sampler silent for 12 s"


def test_a_crashed_sampler_is_named(real: RealWorld) -> None:
    real.sample(ONE)
    real.gpus.read()
    real.say(b"crash")
    assert real.gpus.read() is None
    assert real.gpus.status == "GPU sampler ended with code 9"


@pytest.mark.parametrize("line", [b"garbage", b"[]", b"{}", b'{"status": "x", "gpus": [{}]}', b'{"gpus": 3}'])
def test_a_sampler_that_talks_nonsense_has_no_readings(real: RealWorld, line: bytes) -> None:
    real.say(line)
    assert real.gpus.read() is None
    assert real.gpus.status == "GPU sampler writes what we cannot read"


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({"busy_frac": 4e7, "memory_used_bytes": 2**63 - 1, "memory_total_bytes": 0}, (None, None, None, 71.0)),
        ({"memory_used_bytes": 80_000_000_001, "memory_total_bytes": 80_000_000_000}, (0.5, None, 8e10, 71.0)),
        ({"busy_frac": -1, "figures": {"temperature_c": -(2**31)}}, (None, 4, 8e10, None)),
        ({"busy_frac": float("nan"), "figures": {"temperature_c": 2**32 - 1}}, (None, 4, 8e10, None)),
    ],
)
def test_what_no_gpu_can_have_is_absent(
    real: RealWorld, told: dict[str, object], known: tuple[float | None, ...]
) -> None:
    sane = {
        "uuid": "GPU-1", "name": "H100", "busy_frac": 0.5, "memory_used_bytes": 4,
        "memory_total_bytes": 80_000_000_000, "pids": [], "figures": {"temperature_c": 71.0},
    }  # fmt: skip
    real.say(json.dumps({"gpus": [sane | told], "status": "ok"}).encode())
    (one,) = real.gpus.read() or ()
    assert (one.busy_frac, one.memory_used_bytes, one.memory_total_bytes, one.figures.temperature_c) == known


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    gpus = NvmlSampler([str(tmp_path / "missing")], FakeClock())
    fd = gpus.fileno()
    assert fd is not None
    assert select.select([fd], [], [], SAFETY_S)[0]
    assert gpus.status == "GPU sampler does not start: No such file or directory"
    gpus.close()


def test_the_sampler_itself_ends_with_its_governor() -> None:
    """On a machine without a driver it says so and ends; with one it samples until its stdin ends."""
    child = subprocess.run(
        [sys.executable, "-m", "governor.adapters.machine.nvml_process"], stdin=subprocess.DEVNULL, capture_output=True,
        timeout=SAFETY_S, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    first = json.loads(child.stdout.splitlines()[0])
    if child.returncode == 3:
        assert first == {"status": "no NVIDIA driver", "gpus": None}
    else:
        assert child.returncode == 0
        assert len(first["gpus"]) > 0
