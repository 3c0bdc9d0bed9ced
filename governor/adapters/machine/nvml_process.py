"""The process that asks NVML. It writes one JSON object per line to stdout until stdin ends.

`python -m governor.adapters.machine.nvml_process [PERIOD_S]`. It imports little: its memory is paid on every node. A
call into a wedged driver never returns; then this process says nothing more, and its reader knows what that means.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

from governor.core.events.hardware import XIDS_KEPT, GpuFigures

SAMPLE_PERIOD_S = 1.0  # NVML averages busy over up to a second.
PROCESSES_PER_GPU_MAX = 128
XIDS_PER_LOOK_MAX = 64  # A storm of them must not hold up the figures.
NO_DRIVER = "no NVIDIA driver"
NO_DRIVER_EXIT_CODE = 3  # Distinct from a crash, after which a restart is worthwhile.
ALL_LINKS = 2**32 - 1
KIB = 1024
# NVML_ERROR_UNINITIALIZED, _DRIVER_NOT_LOADED, _LIB_RM_VERSION_MISMATCH.
GONE = frozenset({1, 9, 18})
FIELD_TYPES = {1: "uiVal", 2: "ulVal", 3: "ullVal"}  # nvmlValueType_t, of the unsigned ones.


class DriverGone(Exception):  # noqa: N818 - the condition is the name.
    """The driver was unloaded or replaced: only a new process can ask the new one."""


class Gpu:
    """One GPU: its handle, what never changes, and the counters of the last look."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._index = nvml, index
        self.is_lost = False
        self._meet()
        self._counters: dict[str, tuple[float, int]] = {}  # When and what it was at the last look.
        self.xid_total: int | None = None
        self.xids: deque[int] = deque(maxlen=XIDS_KEPT)

    def _meet(self) -> None:
        nvml = self._nvml
        self._handle = self._try(nvml.nvmlDeviceGetHandleByIndex, self._index)
        self._uuid = self._ask(nvml.nvmlDeviceGetUUID)
        self._name = self._ask(nvml.nvmlDeviceGetName)
        self._max_mhz = [
            self._ask(nvml.nvmlDeviceGetMaxClockInfo, kind) for kind in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM)
        ]

    @property
    def key(self) -> int | None:
        """By which an event names its GPU."""
        return None if self._handle is None else ctypes.cast(self._handle, ctypes.c_void_p).value

    def register(self, events: Any) -> None:
        if self._handle is None:
            return
        with contextlib.suppress(self._nvml.NVMLError):  # A driver or a user without this right: XIDs stay unknown.
            self._nvml.nvmlDeviceRegisterEvents(self._handle, self._nvml.nvmlEventTypeXidCriticalError, events)
            self.xid_total = 0

    def note_xid(self, xid: int) -> None:
        self.xid_total = (self.xid_total or 0) + 1
        self.xids.append(xid)

    def look(self, *, asks_pcie: bool) -> dict[str, Any]:
        """Everything that it tells now. `asks_pcie`: it may take 40 ms where the driver does not count bytes."""
        nvml = self._nvml
        self.is_lost = False
        if self._handle is None:  # Lost before we began: it may be back.
            self._meet()
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses)
        figures = self._figures(asks_pcie=asks_pcie)
        if self.is_lost:  # What it told before it was lost, in this very look, is no figure of now.
            busy = memory = processes = None
            figures = GpuFigures(xid_total=self.xid_total, xids=tuple(self.xids), is_lost=True)
        return {
            "uuid": _text(self._uuid),
            "name": _text(self._name),
            "busy_frac": None if busy is None else busy.gpu / 100,
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "pids": None if processes is None else [int(process.pid) for process in processes][:PROCESSES_PER_GPU_MAX],
            "figures": figures.told(),
        }

    def _figures(self, *, asks_pcie: bool) -> GpuFigures:
        nvml = self._nvml
        power_mw, limit_mw = self._ask(nvml.nvmlDeviceGetPowerUsage), self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
        mig = self._ask(nvml.nvmlDeviceGetMigMode)
        ecc = [
            self._ask(nvml.nvmlDeviceGetTotalEccErrors, kind, nvml.NVML_VOLATILE_ECC)
            for kind in (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        ]
        return GpuFigures(
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=self._max_mhz[0],
            memory_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            memory_clock_max_mhz=self._max_mhz[1],
            clock_reasons=self._reasons(),
            ecc_corrected_total=ecc[0],
            ecc_uncorrected_total=ecc[1],
            xid_total=self.xid_total,
            xids=tuple(self.xids),
            is_mig=None if mig is None else mig[0] == 1,
            **self._rates(asks_pcie=asks_pcie),
        )

    def _reasons(self) -> int | None:
        new: int | None = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons)
        # Its name before driver 535.
        return new if new is not None else self._ask(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons)

    def _rates(self, *, asks_pcie: bool) -> dict[str, Any]:
        nvml = self._nvml
        asked = {
            "pcie_rx_bytes_per_s": (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
            "pcie_tx_bytes_per_s": (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
            "nvlink_rx_bytes_per_s": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            "nvlink_tx_bytes_per_s": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        }
        answers = self._ask(nvml.nvmlDeviceGetFieldValues, list(asked.values())) or [None] * len(asked)
        now_s, rates = time.monotonic(), dict[str, float | None]()
        for (name, (field, _)), answer in zip(asked.items(), answers, strict=True):
            unit = 1 if field in (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES) else KIB
            rates[name] = self._rate(name, now_s, _value(answer), unit)
        if asks_pcie and not self._counters.keys() & {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"}:
            for name, kind in (("pcie_rx_bytes_per_s", nvml.NVML_PCIE_UTIL_RX_BYTES),
                               ("pcie_tx_bytes_per_s", nvml.NVML_PCIE_UTIL_TX_BYTES)):  # fmt: skip
                kilobytes = self._ask(nvml.nvmlDeviceGetPcieThroughput, kind)
                rates[name] = None if kilobytes is None else kilobytes * 1000.0
        return rates

    def _rate(self, name: str, now_s: float, total: int | None, unit: int) -> float | None:
        """Bytes a second since the last look. None at first, and where the counter went back or wrapped."""
        before = self._counters.pop(name, None)
        if total is None:
            return None
        self._counters[name] = now_s, total
        if before is None or total < before[1] or now_s <= before[0]:
            return None
        return (total - before[1]) * unit / (now_s - before[0])

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        if self._handle is None or self.is_lost:
            return None
        return self._try(question, self._handle, *arguments)

    def _try(self, question: Callable[..., Any], *arguments: Any) -> Any:
        nvml = self._nvml
        try:
            return question(*arguments)
        except nvml.NVMLError as error:
            if error.value in GONE:
                raise DriverGone(str(error)) from error
            # Otherwise this GPU or this driver does not tell it: the value is absent, the others stay.
            self.is_lost = self.is_lost or error.value == nvml.NVML_ERROR_GPU_IS_LOST
            return None


def main(stdin: IO[bytes], stdout: IO[bytes], period_s: float = SAMPLE_PERIOD_S) -> int:
    """Sample until stdin ends, that is, until the governor ends. Exit code 3: this machine has nothing to sample."""
    try:
        import pynvml
    except ImportError:
        return _end(stdout, "nvidia-ml-py is not installed", NO_DRIVER_EXIT_CODE)
    try:
        pynvml.nvmlInit()
        gpus = [Gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        events = _event_set(pynvml, gpus)
        return _sample(stdin, stdout, period_s, pynvml, gpus, events)
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return _end(stdout, NO_DRIVER, NO_DRIVER_EXIT_CODE)
    except (pynvml.NVMLError, DriverGone) as error:
        return _end(stdout, f"NVML: {error}", 1)


def _sample(
    stdin: IO[bytes], stdout: IO[bytes], period_s: float, nvml: Any, gpus: Sequence[Gpu], events: Any
) -> int:  # fmt: skip
    turn = 0
    while True:
        _take_events(nvml, gpus, events)
        turn = (turn + 1) % max(1, len(gpus))
        looks = [gpu.look(asks_pcie=place == turn) for place, gpu in enumerate(gpus)]
        message = {"status": f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}", "gpus": looks}
        stdout.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        stdout.flush()
        if select.select([stdin], [], [], period_s)[0] and not stdin.read(1):
            return 0


def _event_set(nvml: Any, gpus: Sequence[Gpu]) -> Any:
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError:
        return None
    for gpu in gpus:
        gpu.register(events)
    return events


def _take_events(nvml: Any, gpus: Sequence[Gpu], events: Any) -> None:
    """The XIDs since the last look. It waits for none."""
    if events is None:
        return
    by_key = {gpu.key: gpu for gpu in gpus}
    for _ in range(XIDS_PER_LOOK_MAX):
        try:
            event = nvml.nvmlEventSetWait_v2(events, 0)
        except nvml.NVMLError:  # NVML_ERROR_TIMEOUT: there is none. Or the driver tells no more.
            return
        gpu = by_key.get(ctypes.cast(event.device, ctypes.c_void_p).value)
        if gpu is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
            gpu.note_xid(int(event.eventData))


def _value(answer: Any) -> int | None:
    """An answer's number, if this GPU has the field."""
    if answer is None or answer.nvmlReturn != 0 or answer.valueType not in FIELD_TYPES:
        return None
    return int(getattr(answer.value, FIELD_TYPES[answer.valueType]))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "unknown")


def _end(stdout: IO[bytes], status: str, exit_code: int) -> int:
    stdout.write(json.dumps({"status": status, "gpus": None}).encode() + b"\n")
    stdout.flush()
    return exit_code


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        sys.exit(main(sys.stdin.buffer, sys.stdout.buffer, *map(float, sys.argv[1:2])))
