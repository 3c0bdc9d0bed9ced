"""What the governor starts itself, known by pid and start time: readers, the GPU sampler, the commands of a cloud.

What it inherits does not tell: a stop command by way of `runuser`, `su` or `sudo` gets its limits from PAM.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from typing import Any, Final

from governor.adapters.machine.processes import parse_stat

STAT_BYTES_MAX: Final = 16 * 1024

_STARTED: set[tuple[int, int]] = set()
_LOCK: Final = threading.Lock()


class OwnProcess(subprocess.Popen[bytes]):
    """A process that is the governor's, whatever it drops of what it has inherited. Not for the launched command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        process = _now(self.pid)
        with _LOCK:
            _STARTED.difference_update([known for known in _STARTED if _now(known[0]) != known])
            if process is not None:
                _STARTED.add(process)


def own_processes() -> frozenset[tuple[int, int]]:
    """Pids and start times of those that live, and perhaps of some that have ended. From any thread."""
    with _LOCK:
        return frozenset(_STARTED)


def _now(pid: int) -> tuple[int, int] | None:
    stat = None
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        stat = parse_stat(file.read(STAT_BYTES_MAX))
    return (pid, stat.start_ticks) if stat is not None else None
