"""A mark that everything inherits which a process starts, so that a halt finds it wherever it went.

A process leaves its tree by two forks and a session of its own, its name by an exec, its environment by `env -i`. It
keeps its resource limits through all of these. The mark is the soft value of one that no kernel since 2.4.25 enforces,
RLIMIT_LOCKS. Everybody may read it in /proc/PID/limits, a service with CAP_KILL alone too.
"""

from __future__ import annotations

import os
import time
from typing import List, Mapping, Optional, Tuple

RLIMIT_LOCKS = 10  # Python's module has no name for it.
# A launch within a launch appends bits of its own, so it belongs to the outer one too. Of so many bits no two launches
# have the same ones by chance. The second level has room for half as many, and a third for none.
MARK_BITS = 40
# By so many, `governor.core.base.identity.carries` goes from a launch to the launch around it.
PART_BITS = 20
MARK_MAX = 2**63 - 1

_OF_THIS_PROCESS: List[Tuple[int, Optional[int]]] = []  # At most one: pid and mark.


def mark_this_process() -> Optional[int]:
    """Mark this process and all that it starts from now on. None where there is no room for a mark."""
    if not _OF_THIS_PROCESS or _OF_THIS_PROCESS[0][0] != os.getpid():  # A fork is marked anew.
        _OF_THIS_PROCESS[:] = [(os.getpid(), _begin())]
    return _OF_THIS_PROCESS[0][1]


class ChildMark:
    """A mark for one child and what it starts.

    We never have it ourselves: a child that another thread starts meanwhile would have it too.
    """

    def __init__(self) -> None:
        self.mark, self._limits = _next_limits()  # None: there is no room.

    def take(self) -> None:
        """Mark the calling process. For the child, between fork and exec: it never raises, and takes no lock."""
        try:
            if self._limits is not None:
                import resource

                resource.setrlimit(RLIMIT_LOCKS, self._limits)
        except (ImportError, OSError, ValueError):  # A sandbox that refuses it.
            pass


def next_mark(soft: int, hard: int, random: int) -> Optional[int]:
    """The mark of a launch with these limits (-1: infinite), by a number of MARK_BITS. None: there is no room."""
    outer = max(soft, 0)
    most = hard if hard >= 0 else MARK_MAX
    for bits in (MARK_BITS, PART_BITS):
        own = random % (1 << bits) | 1 << (bits - 1)  # Of full length, and so not 0.
        if (mark := outer << bits | own) <= most:
            return mark
    return None


def _next_limits() -> Tuple[Optional[int], Optional[Tuple[int, int]]]:
    try:
        import resource

        soft, hard = resource.getrlimit(RLIMIT_LOCKS)
    except (ImportError, OSError, ValueError):  # Not Linux, a sandbox that refuses it.
        return None, None
    mark = next_mark(soft, hard, int.from_bytes(os.urandom(MARK_BITS // 8), "big"))
    return mark, None if mark is None else (mark, hard)


def _begin() -> Optional[int]:
    mark, limits = _next_limits()
    if limits is not None:
        import resource

        try:
            resource.setrlimit(RLIMIT_LOCKS, limits)
        except (OSError, ValueError):
            return None
    return mark


# --- the lock of a launch ----------------------------------------------------------------------------------
# By it the next launch learns that somebody lives whom /proc does not show there: in another container. `costgov run`
# has its command inherit a descriptor. Launchers close what they have inherited before they start their ranks
# (subprocess does), so each rank takes the lock anew when it begins to be watched.

LAUNCH_LOCK = "COSTGOV_LAUNCH_LOCK"  # In the command's environment: its path.
_TRIES = 25  # 50 ms in all: attach() waits for them.
_TRY_AGAIN_S = 0.002

_HELD: List[int] = []  # Held until this process ends, and by what it forks: at most one.


def join_launch(environ: Mapping[str, str]) -> None:
    """Hold it as long as we live. Does nothing outside `costgov run`, or where the file is another user's."""
    path = environ.get(LAUNCH_LOCK)
    if not path or _HELD:
        return
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (ImportError, OSError):
        return
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # Who asks whether somebody holds it has it alone for some microseconds.
            if left:
                time.sleep(_TRY_AGAIN_S)
        except OSError:
            break
        else:
            _HELD.append(descriptor)
            return
    os.close(descriptor)
