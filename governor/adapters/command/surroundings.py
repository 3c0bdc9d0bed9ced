"""What processes of our own user show that the service never reads: their environment, and the directory they are in.

A server that is older than the run (tmux, screen, a user's systemd, atd) starts what the run asks it for. Nothing of
that is inherited from the run, but the environment where it was handed over: it has the mark of the launch too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from governor.adapters.machine.processes import parse_stat
from governor.core.base.identity import Clue, ProcessId

MARK: Final = "COSTGOV_MARK"  # Set in the command's environment: what trainer_shim.mark sets as a limit.
# Reading an environment needs the memory map of its process, which a wedged driver may hold for ever.
LOOK_BOUND_S: Final = 1.0
ENVIRON_BYTES_MAX: Final = 1024 * 1024
STAT_BYTES_MAX: Final = 4096
MARK_DIGITS_MAX: Final = 19


def here() -> str:
    """The directory that we are in; empty where there is none any more."""
    try:
        return os.getcwd()
    except OSError:  # It was removed: nobody else is in it.
        return ""


@dataclass(slots=True)
class Surroundings:
    """`daemon.process_killer.Surroundings` of this user. Whatever may not be read shows nothing."""

    directory: str = field(default_factory=here)  # Where the command was started.
    _stuck: threading.Thread | None = None

    def clues(self, of: Iterable[ProcessId]) -> Mapping[ProcessId, Clue]:
        wanted, found = tuple(of), dict[ProcessId, Clue]()
        if not wanted or (self._stuck is not None and self._stuck.is_alive()):
            return found

        def look() -> None:
            found.update((process, clue) for process in wanted if (clue := _clue(process)) is not None)

        thread = threading.Thread(target=look, name="environ", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # No thread is available.
            return found
        thread.join(LOOK_BOUND_S)
        self._stuck = thread if thread.is_alive() else None
        return dict(found) if self._stuck is None else {}


def _clue(process: ProcessId) -> Clue | None:
    try:
        # The open directory stays this process's even if its pid is reused.
        directory = os.open(f"/proc/{process.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        stat = parse_stat(_read("stat", directory, STAT_BYTES_MAX))
        if stat is None or stat.start_ticks != process.start_ticks:
            return None
        return Clue(_mark_in(_read("environ", directory, ENVIRON_BYTES_MAX)), os.readlink("cwd", dir_fd=directory))
    except OSError:  # Another user's, a program with rights of its own, or gone.
        return None
    finally:
        os.close(directory)


def _mark_in(environ: bytes) -> int:
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == MARK.encode():
            return int(value) if value.isdigit() and len(value) <= MARK_DIGITS_MAX else 0
    return 0


def _read(name: str, directory: int, bytes_max: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.read(fd, bytes_max)
    finally:
        os.close(fd)
