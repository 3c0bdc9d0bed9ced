"""The orphans of the command come to us: a process that leaves the command's tree stays below `costgov run`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass, field
from typing import Final

from governor.adapters.command.init_process import has_children
from governor.adapters.machine.control_group import OwnGroup
from governor.adapters.machine.own_process import own_processes
from governor.adapters.machine.processes import mark_of, stat_of
from governor.adapters.machine.service import has_cap_kill
from governor.core.base.identity import carries
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Event
from governor.core.halt.adopted import Adoption
from governor.ports import Processes
from trainer_shim.mark import ChildMark, mark_this_process

PR_SET_CHILD_SUBREAPER: Final = 36
# A tick's worth. A fork bomb's rest is reaped at the next one.
REAPED_AT_ONCE_MAX: Final = 1_000
# A look at all of /proc takes milliseconds.
LOOK_NS: Final = 5 * NS_PER_S
LEFT_NS: Final = 60 * NS_PER_S


def adopt_orphans() -> bool:
    """Have the kernel make us the parent of every orphan below us. False where it cannot: they go to init, as ever."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


@dataclass(frozen=True, slots=True)
class BeforeChildren:
    """What was so before we started anything."""

    limit: ChildMark  # For the command: of the limits that we were started with.
    is_alone: bool  # The orphans that come to us will be our command's alone, and what we start ourselves.

    @classmethod
    def look(cls) -> BeforeChildren:
        """Also take a limit that all inherits which we start and is not the command."""
        is_alone = not has_children() and os.getpid() != 1
        limit = ChildMark()
        mark_this_process()
        return cls(limit, is_alone)


def adoption(command_pid: int, mark: int, *, is_alone: bool) -> Adoption:
    """Of the orphans of a command that has just started."""
    stat = stat_of(command_pid)
    since = stat.start_ticks if stat is not None else 0
    return Adoption(
        os.getpid(), command_pid, mark, since, is_alone, own_processes, uid=os.geteuid(), may_end_all=has_cap_kill()
    )


@dataclass(slots=True)
class Reaper:
    """A source of the loop that has no events: it reaps the orphans that have ended, and none of our own children.

    What has the command's mark, or is in its control group, and is not the command was started by it or below it, and
    nobody else waits for it. A child of which neither is known may be our own. Whoever started one of those takes it
    within seconds, so one that stays is an orphan too.
    """

    command_pid: int
    mark: int | None
    group: OwnGroup | None = None
    _waiting: dict[int, MonoNs] = field(default_factory=dict)  # Ended children that may be our own, and since when.
    _look_at: MonoNs = MonoNs(0)

    def poll(self, at: MonoNs) -> list[Event]:
        with contextlib.suppress(ChildProcessError):  # There is no child.
            for _ in range(REAPED_AT_ONCE_MAX):
                # A look that takes nothing: whoever started this child waits for it.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    self._waiting.clear()
                    break
                if not self._is_orphan(ended.si_pid):
                    self._look_behind(at)  # The kernel shows this one first until it is taken.
                    break
                _reap(ended.si_pid)
        return []

    def _look_behind(self, at: MonoNs) -> None:
        if at < self._look_at:
            return
        self._look_at = MonoNs(at + LOOK_NS)
        ended = [pid for pid in _ended_children() if pid != self.command_pid]
        orphans = {pid for pid in ended if self._is_orphan(pid)}
        self._waiting = {pid: self._waiting.get(pid, at) for pid in ended if pid not in orphans}
        for pid in (*orphans, *(pid for pid, since in self._waiting.items() if at - since >= LEFT_NS)):
            _reap(pid)

    def _is_orphan(self, pid: int) -> bool:
        if pid == self.command_pid:
            return False
        is_marked = self.mark is not None and carries(mark_of(pid) or 0, self.mark)
        return is_marked or (self.group is not None and self.group.holds(pid))


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _ended_children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is not None and stat.ppid == os.getpid() and stat.state == "Z":
                found.append(int(name))
    return found


def send_to_marked(
    processes: Processes, mark: int | None, signum: signal.Signals, adoption: Adoption | None = None
) -> None:  # fmt: skip
    """Signal whatever carries the mark, where it went. Without a governor nobody looks again."""
    if mark is None:
        return
    with contextlib.suppress(OSError):  # The process table cannot be read.
        table = processes.table()
        for facts in (table if adoption is None else adoption.marked(table)).values():
            if carries(facts.mark, mark) and facts.process.pid != os.getpid():
                processes.send(facts.process, signum)
