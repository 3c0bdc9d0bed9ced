"""No process of a test run outlives it: however pytest ends, SIGKILL included, what its tests started is ended.

Every process that a test starts inherits a mark in its environment. A watcher in a session of its own waits for the end
of pytest, and then kills what carries the mark, and what those have started. A run that ends by itself and leaves
something behind fails, and says what.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "CG_TEST_RUN"  # Runs within runs add theirs: a drill starts pytest, too.
ENDING_S = 5.0  # Whatever was told to end when pytest did may take so long before it counts as left behind.
KILLED_S = 60.0  # On a machine that does nothing else, milliseconds; a process on a frozen disk stays.


def begin() -> str:
    """Mark this process's children from now on, and start the watcher."""
    mark = secrets.token_hex(8)
    os.environ[MARK] = ":".join(filter(None, [os.environ.get(MARK), mark]))
    argv = [sys.executable, "-S", "-E", __file__, str(os.getpid()), mark]
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    os.posix_spawn(sys.executable, argv, unmarked, file_actions=nowhere, setsid=True)  # It outlives us: no Popen.
    return mark


def left(mark: str) -> dict[int, str]:
    """The processes that carry the mark and those below them, with their command lines."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z":
                    continue
                parents[int(entry.name)] = int(parent)
                if mark.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue  # It has ended, or is another user's and no child of ours.
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return {pid: _command(pid) for pid in sorted(found)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def still_there(mark: str, for_s: float) -> dict[int, str]:
    """What is left when nothing is, or else after so long."""
    deadline = time.monotonic() + for_s
    while (found := left(mark)) and time.monotonic() < deadline:
        _wait_for_any(found)
    return found


def kill(mark: str) -> None:
    """Until nothing is left: a launcher may start ranks again while it is killed."""
    deadline = time.monotonic() + KILLED_S
    while (found := left(mark)) and time.monotonic() < deadline:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _wait_for_any(found)


def _wait_for_any(pids: dict[int, str]) -> None:
    ends = list(_opened(pids))
    try:
        select.select(ends, [], [], 0.2)
    finally:
        for end in ends:
            os.close(end)


def _opened(pids: dict[int, str]) -> Iterator[int]:
    for pid in pids:
        try:
            yield os.pidfd_open(pid)
        except ProcessLookupError:
            continue


def main(watched: int, mark: str) -> None:
    try:
        end = os.pidfd_open(watched)
    except ProcessLookupError:
        pass
    else:
        select.select([end], [], [])
    kill(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
