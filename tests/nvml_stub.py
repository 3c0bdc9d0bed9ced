"""A stub of libnvidia-ml, built from nvml_stub.c, so that the real sampler process runs where no driver is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("gcc")
NO_COMPILER = "the stub of libnvidia-ml needs gcc: apt-get install gcc libc6-dev"
HEALTHY: Mapping[str, int] = {
    "busy": 97, "memory_used": 60 << 30, "memory_total": 80 << 30, "power_mw": 640_500, "limit_mw": 700_000,
    "sm_mhz": 1_755, "sm_max_mhz": 1_980, "mem_mhz": 2_619, "mem_max_mhz": 2_619, "reasons": 4, "celsius": 61,
    "ecc_corrected": 5, "ecc_uncorrected": 0, "mig": 0, "processes": 1, "xids": 0,
    "pcie_rx": 0, "pcie_tx": 0, "nvlink_rx_kib": 0, "nvlink_tx_kib": 0,
}  # fmt: skip


def build(directory: Path, *flags: str) -> None:
    """Build libnvidia-ml.so.1 in the directory."""
    assert COMPILER is not None, NO_COMPILER
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", *flags, "-o", library, SOURCE], check=True)


class Driver:
    """The stub's file. `tell` changes what all GPUs, or one, say from the next look on; None: not supported."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self._file = directory / "nvml_stub.txt"
        self._lines: dict[tuple[str, int], int] = {}
        self._pids: dict[int, tuple[int, ...]] = {}
        self.tell(count=count)
        for gpu in range(count):
            self.tell(gpu, **HEALTHY)

    def tell(self, gpu: int = -1, pids: tuple[int, ...] | None = None, **figures: int | None) -> None:
        for key, value in figures.items():
            if value is None:
                self._lines.pop((key, gpu), None)
            else:
                self._lines[key, gpu] = value
        if pids is not None:
            self._pids[gpu] = pids
        lines = [f"{key} {of} {value}" for (key, of), value in self._lines.items()]
        lines += [f"pid {of} {pid}" for of, known in self._pids.items() for pid in known]
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self._file)  # Whole at every look.

    def environ(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.directory), "NVML_STUB": str(self._file)}

    def command(self, period_s: float) -> list[str]:
        """The real sampler process against this driver."""
        variables = [f"{name}={value}" for name, value in self.environ().items()]
        module = "governor.adapters.machine.nvml_process"
        return ["/usr/bin/env", *variables, sys.executable, "-m", module, str(period_s)]


def path_with(driver: Driver) -> dict[str, str]:
    """The environment for a whole governor against this driver."""
    return {**os.environ, **driver.environ()}
