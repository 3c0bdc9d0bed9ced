"""What the governor starts itself, known by pid and start time: readers, the GPU sampler, the commands of a cloud.

What it inherits does not tell: a stop command by way of `runuser`, `su` or `sudo` gets its limits from PAM. Such a
command may also leave its work behind (`setsid stop-later &`). The orphan comes to us, without its parents and without
a mark. So does what the launched command starts and leaves, but that keeps the command's mark.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from governor.adapters.machine.processes import mark_of, stat_of
from governor.core.base.units import NS_PER_S
from trainer_shim.mark import PART_BITS

_STARTED: set[tuple[int, int]] = set()
_OPEN: dict[int, int] = {}  # What may leave orphans now, by its object's id: since which tick of the boot clock.
_LOCK: Final = threading.Lock()


class OwnProcess(subprocess.Popen[bytes]):
    """A process that is the governor's, whatever it drops of what it has inherited. Not for the launched command.

    `may_leave`: it may leave orphans, which are the governor's too, until `note_left`. Nobody waits for those.
    """

    def __init__(self, *args: Any, may_leave: bool = False, **kwargs: Any) -> None:
        with _LOCK:
            _OPEN[id(self)] = _ticks()
        process = None
        try:
            super().__init__(*args, **kwargs)
            process = _now(self.pid)
        finally:
            with _LOCK:
                _STARTED.difference_update([known for known in _STARTED if _now(known[0]) != known])
                if process is not None:
                    _STARTED.add(process)
                if process is None or not may_leave:
                    del _OPEN[id(self)]

    def note_left(self) -> None:
        """It has ended: what it has left until now is known, and nothing more is its own."""
        with _LOCK:
            _STARTED.update(_orphans())
            _OPEN.pop(id(self), None)


def own_processes() -> frozenset[tuple[int, int]]:
    """Pids and start times of those that live, and perhaps of some that have ended. From any thread.

    To be asked after the process table was read: what had come to us by then is known.
    """
    with _LOCK:
        _STARTED.update(_orphans())
        return frozenset(_STARTED)


def _orphans() -> Iterator[tuple[int, int]]:
    """What came to us without a mark, or with ours, of what began while one that may leave some was under way."""
    if not _OPEN:
        return
    since, ours = min(_OPEN.values()), mark_of(os.getpid())
    with contextlib.suppress(OSError):  # No descriptor is free.
        for name in os.listdir("/proc"):
            stat = stat_of(int(name)) if name.isdigit() else None
            if stat is None or stat.ppid != os.getpid() or stat.start_ticks < since or stat.state in "ZX":
                continue
            mark = mark_of(int(name))
            if mark is not None and (mark == ours or mark.bit_length() < PART_BITS):
                yield int(name), stat.start_ticks


def _ticks() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // NS_PER_S


def _now(pid: int) -> tuple[int, int] | None:
    stat = stat_of(pid)
    return (pid, stat.start_ticks) if stat is not None else None
