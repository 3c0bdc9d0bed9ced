"""No process of a test run outlives it: however pytest ends, SIGKILL included, what its tests started is ended.

The mark of a run is the soft limit of a resource that no kernel since 2.4.25 enforces, RLIMIT_LOCKS. Every process
inherits it: through a fork, an exec with any environment, a session of its own and a change of user. Only a process
that sets this very limit loses it. Everybody may read it in /proc. A watcher in a session of its own waits for the end
of pytest, and then kills what has the mark. A run that ends by itself and leaves something behind fails, and says what.
"""

from __future__ import annotations

import os
import resource
import secrets
import select
import signal
import sys
import time
from pathlib import Path

RLIMIT_LOCKS = 10  # Python's module has no name for it.
LIMIT = "Max file locks"
# A run within a run appends its own bits, so its processes are the outer run's, too. 63 bits hold three such runs.
MARK_BITS = 20
MARK_MAX = 2**63 - 1
ENDING_S = 5.0  # Whatever was told to end when pytest did may take so long before it counts as left behind.
KILLED_S = 60.0  # On a machine that does nothing else, milliseconds; a process on a frozen disk stays.


def begin() -> int:
    """Start the watcher, and mark this process and its children from now on."""
    soft, hard = resource.getrlimit(RLIMIT_LOCKS)
    outer = 0 if soft == resource.RLIM_INFINITY else soft
    used = set(_marks().values())
    mark = outer
    while mark == outer or any(_is_of(other, mark) for other in used):
        mark = outer << MARK_BITS | secrets.randbelow(2**MARK_BITS - 1) + 1
    assert mark <= MARK_MAX, "runs within runs within runs within runs"
    argv = [sys.executable, "-S", "-E", __file__, str(os.getpid()), str(mark)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    os.posix_spawn(sys.executable, argv, os.environ, file_actions=nowhere, setsid=True)  # It outlives us: no Popen.
    resource.setrlimit(RLIMIT_LOCKS, (mark, hard))
    return mark


def left(mark: int) -> dict[int, str]:
    """The processes that have the mark, without the one that asks, with their command lines."""
    found = sorted(pid for pid, its in _marks().items() if _is_of(its, mark))
    return {pid: _command(pid) for pid in found if pid != os.getpid()}


def _is_of(its: int, mark: int) -> bool:
    while its > mark:
        its >>= MARK_BITS
    return its == mark


def _marks() -> dict[int, int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {pid: mark for pid in pids if (mark := _mark(pid))}


def _mark(pid: int) -> int:
    """0: it has none, or has ended."""
    try:
        if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z":
            return 0
        limits = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return 0
    soft = limits.partition(LIMIT)[2].split()[:1]
    return int(soft[0]) if soft and soft[0].isdigit() else 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def still_there(mark: int, for_s: float) -> dict[int, str]:
    """What is left when nothing is, or else after so long."""
    deadline = time.monotonic() + for_s
    while (found := left(mark)) and time.monotonic() < deadline:
        ends = [end for pid in found if (end := _opened(pid, mark)) is not None]
        _wait_for_any(ends)
    return found


def kill(mark: int) -> None:
    """Until nothing is left: a launcher may start ranks again while it is killed."""
    deadline = time.monotonic() + KILLED_S
    while (found := left(mark)) and time.monotonic() < deadline:
        ends = [end for pid in found if (end := _opened(pid, mark)) is not None]
        for end in ends:
            try:
                signal.pidfd_send_signal(end, signal.SIGKILL)
            except OSError:
                continue  # It has ended, or we may not: the others are still to be ended.
        _wait_for_any(ends)


def _wait_for_any(ends: list[int]) -> None:
    try:
        select.select(ends, [], [], 0.2)
    finally:
        for end in ends:
            os.close(end)


def _opened(pid: int, mark: int) -> int | None:
    """Its pidfd. The mark is read again with the pidfd in hand, so that a pid that was reused is nobody's."""
    try:
        end = os.pidfd_open(pid)
    except OSError:
        return None
    if _is_of(_mark(pid), mark):
        return end
    os.close(end)
    return None


def main(watched: int, mark: int) -> None:
    # The watcher of a run within a run is not the outer run's to end: it ends by itself.
    resource.setrlimit(RLIMIT_LOCKS, (resource.getrlimit(RLIMIT_LOCKS)[1],) * 2)
    try:
        end = os.pidfd_open(watched)
    except ProcessLookupError:
        pass
    else:
        select.select([end], [], [])
    kill(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
