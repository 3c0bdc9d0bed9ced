"""The machine's clocks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from governor.core.base.units import NS_PER_S, BootNs, MonoNs, WallNs

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    """`ports.Clock` over CLOCK_MONOTONIC, CLOCK_BOOTTIME and CLOCK_REALTIME of this boot."""

    def __init__(self) -> None:
        # Read once: it cannot change under a living process, and a container may hide /proc/sys later.
        self._boot_id = ""
        self._problem: OSError | None = None
        try:
            self._boot_id = BOOT_ID_PATH.read_text(encoding="ascii").strip()
        except OSError as error:
            self._problem = error

    def mono(self) -> MonoNs:
        return MonoNs(time.monotonic_ns())

    def boot(self) -> BootNs:
        return BootNs(time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def wall(self) -> WallNs:
        return WallNs(time.time_ns())

    @property
    def boot_id(self) -> str:
        """Raises OSError if /proc could not be read. The times need no /proc."""
        if self._problem is not None:
            raise self._problem
        return self._boot_id


def boot_of_ticks(start_ticks: int) -> BootNs:
    """The moment of /proc/PID/stat's field 22, on CLOCK_BOOTTIME. At most a tick (10 ms) too early."""
    return BootNs(start_ticks * NS_PER_S // os.sysconf("SC_CLK_TCK"))
