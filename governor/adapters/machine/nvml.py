"""GPU readings by NVML, sampled in a separate process: a wedged driver blocks in the kernel, where no thread can end.

`python -m governor.adapters.machine.nvml` is that process. It writes one JSON object per line to stdout until stdin
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from governor.adapters.machine.clock import SystemClock
from governor.adapters.machine.own_process import OwnProcess
from governor.core.base.units import NS_PER_S, MonoNs
from governor.ports import Clock, GpuReading

# NVML averages busy over up to a second. Half of the time is missed, but rules judge minutes.
SAMPLE_PERIOD_S = 2.0
# Five missed samples: older figures would pass for present ones.
SILENT_AFTER_S = 10.0
# A driver being reinstalled is back in minutes. A crash loop must cost nothing.
RESTART_PERIOD_S = 30.0
LINE_BYTES_MAX = 256 * 1024  # 16 GPUs × 128 processes are below 64 KiB.
PROCESSES_PER_GPU_MAX = 128
NO_DRIVER = "no NVIDIA driver"
_SAMPLER_MODULE = "governor.adapters.machine.nvml"
# Distinct from a crash, after which a restart is worthwhile.
_NO_DRIVER_EXIT_CODE = 3


class NvmlSampler:
    """`ports.Gpus`. Starts the sampler at once and after each crash; never more than one at a time."""

    def __init__(self, command: Sequence[str] | None = None, clock: Clock | None = None) -> None:
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
            while line := stdout.readline(LINE_BYTES_MAX):
                self._read_line(line)
            child.wait()
        if not self._closing.is_set() and child.returncode != _NO_DRIVER_EXIT_CODE:
            self._publish(f"GPU sampler ended with code {child.returncode}", None)
        return child.returncode

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
        os.eventfd_write(self._event_fd, 1)


def _reading(gpu: dict[str, Any]) -> GpuReading:
    return GpuReading(
        uuid=str(gpu["uuid"]), name=str(gpu["name"]), busy_frac=gpu["busy_frac"],
        memory_used_bytes=gpu["memory_used_bytes"], power_w=gpu["power_w"],
        pids=None if gpu["pids"] is None else tuple(gpu["pids"]), memory_total_bytes=gpu["memory_total_bytes"],
    )  # fmt: skip


# --- the sampler process ---------------------------------------------------------------------------------


def main(stdin: IO[bytes], stdout: IO[bytes]) -> int:
    """Sample until stdin ends, that is, until the governor ends. Exit code 3: this machine has nothing to sample."""
    try:
        import pynvml
    except ImportError:
        return _write_status(stdout, "nvidia-ml-py is not installed", _NO_DRIVER_EXIT_CODE)
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return _write_status(stdout, NO_DRIVER, _NO_DRIVER_EXIT_CODE)
    except pynvml.NVMLError as error:
        return _write_status(stdout, f"NVML: {error}", 1)
    while True:
        gpus = [_sample(pynvml, handle) for handle in handles]
        message = {"status": f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}", "gpus": gpus}
        stdout.write(json.dumps(message).encode() + b"\n")
        stdout.flush()
        if select.select([stdin], [], [], SAMPLE_PERIOD_S)[0] and not stdin.read(1):
            return 0


def _sample(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(question: Callable[[Any], Any]) -> Any:
        try:
            return question(handle)
        # This GPU does not support it, or is lost: its value is absent, the other GPUs' stay.
        except nvml.NVMLError:
            return None

    busy = ask(nvml.nvmlDeviceGetUtilizationRates)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    power_mw = ask(nvml.nvmlDeviceGetPowerUsage)
    processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses)
    return {
        "uuid": _text(ask(nvml.nvmlDeviceGetUUID)),
        "name": _text(ask(nvml.nvmlDeviceGetName)),
        "busy_frac": None if busy is None else busy.gpu / 100,
        "memory_used_bytes": None if memory is None else int(memory.used),
        "memory_total_bytes": None if memory is None else int(memory.total),
        "power_w": None if power_mw is None else power_mw / 1000,
        "pids": None if processes is None else [int(process.pid) for process in processes][:PROCESSES_PER_GPU_MAX],
    }


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "unknown")


def _write_status(stdout: IO[bytes], status: str, exit_code: int) -> int:
    stdout.write(json.dumps({"status": status, "gpus": None}).encode() + b"\n")
    stdout.flush()
    return exit_code


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
