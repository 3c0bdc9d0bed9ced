"""Processes of other PID namespaces of this boot, as ours shows them.

A container numbers its processes for itself. They have a number in every namespace around theirs too, and from there
all of them are seen. From beside or from within nothing is: who is not seen from there may well live.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from governor.core.base.identity import ProcessId

# The machine's own, around all others: PROC_PID_INIT_INO in include/linux/proc_ns.h, unchanged since 3.8.
INITIAL: Final = 0xEFFFFFFC
_FILE_BYTES_MAX: Final = 16 * 1024


class OtherNamespaces:
    """Where processes of other namespaces stand in ours, by `proc`, which has to be our own."""

    def __init__(self, boot_id: str, proc: str) -> None:
        self._boot_id = boot_id
        self._proc = proc
        self.own = _namespace_of(f"{proc}/self") or 0  # 0: this kernel does not show it.
        self._located: dict[ProcessId, ProcessId | None] = {}  # What is gone, or not seen from here, stays so.

    def locate(self, target: ProcessId) -> ProcessId | None:
        """See `ports.Processes.locate`, for a process of this boot and of another namespace."""
        if target not in self._located:
            try:
                self._located[target] = self._look(target)
            except OSError:  # We are out of descriptors. Blind is not gone.
                return None
        return self._located[target]

    def _look(self, target: ProcessId) -> ProcessId | None:
        found = [
            pid
            for name in os.listdir(self._proc)
            if name.isdigit() and (pid := int(name)) and self._may_be(pid, target)
        ]
        if len(found) == 1:
            return ProcessId(found[0], target.start_ticks, self._boot_id, self.own)
        return target if not found and self._sees_all() else None

    def _may_be(self, pid: int, target: ProcessId) -> bool:
        """Two containers may start a process of the same number in the same tick. The inode tells them apart."""
        numbers = _numbers_within(_read(f"{self._proc}/{pid}/status"))
        if target.pid not in numbers or _ticks(_read(f"{self._proc}/{pid}/stat")) != target.start_ticks:
            return False
        inode = _namespace_of(f"{self._proc}/{pid}")  # Of its innermost namespace. None: not ours to read.
        return inode in (None, target.pid_ns) or target.pid in numbers[:-1]

    def _sees_all(self) -> bool:
        """Whether who is not seen is gone. Not where /proc hides other users' processes, root's pid 1 first of all."""
        return self.own == INITIAL and bool(_read(f"{self._proc}/1/stat"))


def _numbers_within(status: bytes) -> list[int]:
    """A process's numbers in the namespaces within ours, its innermost last. Empty for a process of ours."""
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            return [int(number) for number in line.split()[2:]]
    return []


def _ticks(stat: bytes) -> int | None:
    fields = stat[stat.rfind(b")") + 2 :].split()
    return int(fields[19]) if len(fields) >= 20 else None


def _namespace_of(directory: str) -> int | None:
    try:
        return os.stat(f"{directory}/ns/pid").st_ino
    except OSError:
        return None


def _read(path: str) -> bytes:
    """Empty where the process is gone, or hidden. OSError where the fault is ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return b""
    try:
        return os.read(fd, _FILE_BYTES_MAX)
    except OSError:  # It vanished after the open.
        return b""
    finally:
        os.close(fd)
