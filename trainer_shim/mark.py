"""A mark that everything inherits which a process starts, so that a halt finds it wherever it went.

A process leaves its tree by two forks and a session of its own, its name by an exec, its environment by `env -i`. It
keeps its resource limits through all of these. The mark is the soft value of one that no kernel since 2.4.25 enforces,
RLIMIT_LOCKS. Everybody may read it in /proc/PID/limits, a service with CAP_KILL alone too.
"""

from __future__ import annotations

import os
from typing import List, Optional, Tuple

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
        _OF_THIS_PROCESS[:] = [(os.getpid(), _begin()[0])]
    return _OF_THIS_PROCESS[0][1]


class Marked:
    """Within it, whatever this process starts has the mark; the process itself has it only so long."""

    def __init__(self) -> None:
        self.mark: Optional[int] = None
        self._before: Optional[Tuple[int, int]] = None

    def __enter__(self) -> Optional[int]:
        self.mark, self._before = _begin()
        return self.mark

    def __exit__(self, *_: object) -> None:
        if self.mark is not None and self._before is not None:
            import resource

            resource.setrlimit(RLIMIT_LOCKS, self._before)


def next_mark(soft: int, hard: int, random: int) -> Optional[int]:
    """The mark of a launch with these limits (-1: infinite), by a number of MARK_BITS. None: there is no room."""
    outer = max(soft, 0)
    most = hard if hard >= 0 else MARK_MAX
    for bits in (MARK_BITS, PART_BITS):
        own = random % (1 << bits) | 1 << (bits - 1)  # Of full length, and so not 0.
        if (mark := outer << bits | own) <= most:
            return mark
    return None


def _begin() -> Tuple[Optional[int], Optional[Tuple[int, int]]]:
    try:
        import resource

        soft, hard = resource.getrlimit(RLIMIT_LOCKS)
        mark = next_mark(soft, hard, int.from_bytes(os.urandom(MARK_BITS // 8), "big"))
        if mark is not None:
            resource.setrlimit(RLIMIT_LOCKS, (mark, hard))
    except (ImportError, OSError, ValueError):  # Not Linux, a sandbox that refuses it.
        return None, None
    return mark, (soft, hard)
