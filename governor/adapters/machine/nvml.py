"""GPU readings by NVML, sampled in a separate process: a wedged driver blocks in the kernel, where no thread can end.

`nvml_process` is that process. It writes one JSON object per line.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.own_process import OwnProcess
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.hardware import FIGURE_BOUNDS, NAMED, read_figures
from governor.ports import Clock, GpuReading

# Ten missed samples: older figures would pass for present ones.
SILENT_AFTER_S = 10.0
# Resets of a GPU take up to a minute. A sampler that hangs outside of the kernel ends, and a new one asks anew.
GIVEN_UP_AFTER_S = 120.0
# A driver being reinstalled is back in minutes. A crash loop must cost nothing.
RESTART_PERIOD_S = 30.0
LINE_BYTES_MAX = 256 * 1024  # 16 GPUs × 128 processes are below 64 KiB.
MEMORY_BYTES_MAX = 2**50
_SAMPLER_MODULE = "governor.adapters.machine.nvml_process"
_NO_DRIVER_EXIT_CODE = 3  # nvml_process.NO_DRIVER_EXIT_CODE; that module is loaded by the sampler alone.


class NvmlSampler:
    """`ports.Gpus`. Starts the sampler at once and after each crash; never more than one at a time."""

    def __init__(
        self, command: Sequence[str] | None = None, clock: Clock | None = None,
        given_up_after_s: float = GIVEN_UP_AFTER_S,
    ) -> None:  # fmt: skip
        self._given_up_after_s = given_up_after_s
        self._given_up: str | None = None  # The line about a sampler that is being ended.
        self._command = tuple(command or (sys.executable, "-m", _SAMPLER_MODULE))
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._readings: Sequence[GpuReading] | None = None
        self._word = "GPU sampler is starting"
        self._answered_at: MonoNs = self._clock.mono()
        self._has_driver = True
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._follow, name="gpus", daemon=True)
        self._reader.start()

    def fileno(self) -> int | None:
        return self._event_fd if self._has_driver else None

    def read(self) -> Sequence[GpuReading] | None:
        # Nothing new: the newest sample counts until it is too old.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        with self._lock:
            return None if self._silence_s() > SILENT_AFTER_S else self._readings

    @property
    def status(self) -> str:
        with self._lock:
            silence_s = self._silence_s()
            if self._given_up is not None:
                return f"{self._given_up}; silent for {silence_s:.0f} s"
            if self._has_driver and silence_s > SILENT_AFTER_S:
                return f"GPU sampler silent for {silence_s:.0f} s"
            return self._word

    def close(self) -> None:
        """End the sampler. One that is stuck in the driver is abandoned: it ends when the driver releases it."""
        self._closing.set()
        with self._lock:
            child = self._child
        if child is not None:
            child.kill()
        self._reader.join(1.0)
        if not self._reader.is_alive():
            os.close(self._event_fd)

    def _silence_s(self) -> float:
        return (self._clock.mono() - self._answered_at) / NS_PER_S

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                exit_code = self._follow_one()
            except OSError as error:
                self._publish(f"GPU sampler does not start: {error.strerror}", None)
                exit_code = 1
            if exit_code == _NO_DRIVER_EXIT_CODE:
                self._has_driver = False
                return
            self._closing.wait(RESTART_PERIOD_S)

    def _follow_one(self) -> int:
        # A checkout that is not installed can run it, too.
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with OwnProcess(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        ) as child:  # fmt: skip
            with self._lock:
                self._child = child
            # close() may have looked for a child just before this one started.
            if self._closing.is_set():
                child.kill()
            stdout = child.stdout
            assert stdout is not None
            while self._speaks(child) and (line := stdout.readline(LINE_BYTES_MAX)):
                self._read_line(line)
            child.wait()  # One that sits in the kernel is waited for here, and by nobody else.
        if not self._closing.is_set() and child.returncode != _NO_DRIVER_EXIT_CODE:
            self._publish(f"GPU sampler ended with code {child.returncode}", None)
        return child.returncode

    def _speaks(self, child: subprocess.Popen[bytes]) -> bool:
        """Wait for its next line. False: it is given up, and killed. Only the driver can then keep it from ending."""
        assert child.stdout is not None
        if select.select([child.stdout], [], [], self._given_up_after_s)[0]:
            return True
        with self._lock:
            self._given_up = f"the GPU driver hangs: sampler {child.pid} is abandoned"
        child.kill()
        return False

    def _read_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            readings = None if message.get("gpus") is None else tuple(_reading(gpu) for gpu in message["gpus"])
            self._publish(str(message["status"]), readings)
        except (ValueError, TypeError, KeyError, AttributeError):
            self._publish("GPU sampler writes what we cannot read", None)

    def _publish(self, word: str, readings: Sequence[GpuReading] | None) -> None:
        with self._lock:
            self._word, self._readings, self._answered_at = word, readings, self._clock.mono()
            self._given_up = None
        os.eventfd_write(self._event_fd, 1)


def absent_figures(readings: Sequence[GpuReading]) -> list[str]:
    """What some GPU that is not lost does not tell: of an older driver, under MIG, or by its kind."""
    there = [reading for reading in readings if not reading.figures.is_lost]
    absent = ["load"] if any(reading.busy_frac is None for reading in there) else []
    absent += ["processes"] if any(reading.pids is None for reading in there) else []
    return absent + [
        word for name, word in NAMED.items() if any(getattr(reading.figures, name) is None for reading in there)
    ]


def _plausible(name: str, value: Any) -> Any:
    bound = FIGURE_BOUNDS.get(name)
    return value if bound is None or type(value) not in (int, float) else _within(value, bound)


def _within(told: Any, bound: float) -> Any:
    """What no driver in its right mind tells is not known."""
    return told if told is None or 0 <= told <= bound else None


def _reading(gpu: dict[str, Any]) -> GpuReading:
    told = gpu.get("figures", {})
    figures = read_figures({name: _plausible(name, value) for name, value in told.items()})
    if figures is None:
        raise ValueError("figures")
    total = _within(gpu["memory_total_bytes"], MEMORY_BYTES_MAX)
    return GpuReading(
        uuid=str(gpu["uuid"]), name=str(gpu["name"]), busy_frac=_within(gpu["busy_frac"], 1.0),
        memory_used_bytes=_within(gpu["memory_used_bytes"], total or MEMORY_BYTES_MAX),
        memory_total_bytes=total or None,
        pids=None if gpu["pids"] is None else tuple(gpu["pids"]), figures=figures,
    )  # fmt: skip
