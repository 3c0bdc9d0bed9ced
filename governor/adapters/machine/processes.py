"""The process table of this machine, and signals that cannot hit the wrong process.

Reads only stat, status, cmdline, cgroup and limits, which everybody may read for processes of another uid.
Never reads environ, fd, cwd or exe. Under `hidepid` identity cannot be read; such a process is DENIED, never gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeGuard, TypeVar

from governor.adapters.machine.command_lines import CommandLines
from governor.adapters.machine.pid_namespace import OtherNamespaces
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.ports import Sent

# More than any real command line. A process may write megabytes into its own.
ARGV_BYTES_MAX = 64 * 1024
# stat, status and cgroup are below 4 KiB. Deep cgroup trees may be longer.
PROC_BYTES_MAX = 16 * 1024
# A table of 10,000 processes takes half of this, and a halt can afford one such wait. Beside ten busy loops on one
# core, a table of a hundred took 0.4 s, so a machine that does not schedule us can exceed the bound too.
LOOK_BOUND_S = 1.0
_UNKNOWN_CGROUP = ""
_PF_KTHREAD = 0x00200000  # include/linux/sched.h; unchanged since its introduction.

T = TypeVar("T")


def proc_advice(error: OSError) -> str:
    """What helps where /proc cannot be read, or does not show us."""
    own = "mount the /proc of its own PID namespace, as `unshare --mount-proc` does"
    return own if error.errno == errno.ENODATA else "mount /proc"


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that say who a process is."""

    state: str
    ppid: int
    pgid: int
    sid: int
    start_ticks: int
    is_kernel_thread: bool = False


def parse_stat(raw: bytes) -> Stat | None:
    """Read /proc/PID/stat. Fields count from the last parenthesis: a command name may hold spaces and parentheses."""
    fields = raw[raw.rfind(b")") + 2 :].split()
    if len(fields) < 20:  # Torn: the process vanished during the read.
        return None
    state, ppid, pgid, sid = fields[0].decode("ascii"), int(fields[1]), int(fields[2]), int(fields[3])
    return Stat(state, ppid, pgid, sid, int(fields[19]), bool(int(fields[6]) & _PF_KTHREAD))


def parse_cgroup(raw: bytes) -> str:
    """Return the unified path, or systemd's named path if the unified hierarchy is empty (hybrid machines)."""
    unified = named = _UNKNOWN_CGROUP
    for line in raw.decode("utf-8", "surrogateescape").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            unified = path
        elif controllers == "name=systemd":
            named = path
    return unified if unified not in (_UNKNOWN_CGROUP, "/") else named or unified


def parse_mark(raw: bytes) -> int:
    """Read the soft value of RLIMIT_LOCKS from /proc/PID/limits. 0: unlimited, as it is without a mark."""
    start = raw.find(b"\nMax file locks")
    soft = raw[start + 15 : start + 60].split()[:1] if start >= 0 else []
    return int(soft[0]) if soft and soft[0].isdigit() else 0


def stat_of(pid: int) -> Stat | None:
    """None where the process is gone, or no descriptor is free."""
    with contextlib.suppress(OSError):
        return parse_stat(_read(f"/proc/{pid}/stat") or b"")
    return None


def mark_of(pid: int) -> int | None:
    """As `parse_mark`. None where the process is gone, or no descriptor is free."""
    with contextlib.suppress(OSError):
        limits = _read(f"/proc/{pid}/limits")
        return parse_mark(limits) if limits is not None else None
    return None


class LinuxProcesses:
    """`ports.Processes` over /proc and pidfds of the running boot.

    Reading a command line needs the memory map of its process. A wedged driver or file system can hold that map for
    ever (`ps` hangs then). So a separate thread reads them. Past its bound, tables use the command lines seen before,
    by this look too: on a busy machine a crowd takes longer than the bound.
    `table` and `facts` raise OSError if we ourselves are out of descriptors or memory: blind is not empty. So does a
    table that does not show us.
    """

    def __init__(self, boot_id: str, proc: str = "/proc", look_bound_s: float = LOOK_BOUND_S) -> None:
        self._boot_id = boot_id
        self._proc = proc
        self._others = OtherNamespaces(boot_id, proc)
        self._look_bound_s = look_bound_s
        self._lines = CommandLines()  # From the newest complete table, and read since.
        self._reading = self._lines  # Of the look under way, which may be stuck.
        self._stuck: threading.Thread | None = None

    @property
    def is_stuck(self) -> bool:
        """Command lines cannot be read: a memory map is locked, or we are not scheduled. Tables show earlier ones."""
        return self._stuck is not None and self._stuck.is_alive()

    @property
    def pid_ns(self) -> int:
        """The PID namespace whose numbers these are: an inode; 0 where the kernel does not show it."""
        return self._others.own

    def locate(self, target: ProcessId) -> ProcessId | None:
        if target.boot_id != self._boot_id or target.pid_ns == self.pid_ns:
            return target
        return replace(target, pid_ns=self.pid_ns) if target.pid_ns == 0 else self._others.locate(target)

    def _is_here(self, target: ProcessId | None) -> TypeGuard[ProcessId]:
        return target is not None and (target.boot_id, target.pid_ns) == (self._boot_id, self.pid_ns)

    def table(self) -> Mapping[int, ProcessFacts]:
        return self._bounded(self._scan)

    def facts(self, pid: int) -> ProcessFacts | None:
        return self._bounded(lambda with_argv: self._look(pid, self._lines if with_argv else None))

    def _bounded(self, look: Callable[[bool], T]) -> T:
        """Return look(True) if its thread ends within the bound, else look(False), which cannot hang."""
        if self.is_stuck:  # At most one thread is ever lost to the kernel.
            return look(False)
        seen: list[T] = []

        def look_beside() -> None:
            # Out of descriptors: the second look raises the error in the caller's thread.
            with contextlib.suppress(OSError):
                seen.append(look(True))

        thread = threading.Thread(target=look_beside, name="proc", daemon=True)
        try:
            thread.start()
        # No thread can be started. The process that forks so much may be the one to halt.
        except RuntimeError:
            return look(False)
        thread.join(self._look_bound_s)
        if seen:
            return seen[0]
        if thread.is_alive():
            self._stuck = thread
        return look(False)

    def require_own(self) -> None:
        """OSError where the numbers shown are not ours: `unshare --pid` leaves the /proc of the processes outside."""
        link = f"{self._proc}/self"
        if not os.path.lexists(link):  # It is no /proc at all.
            return
        shown = ""
        with contextlib.suppress(OSError):  # There we have no number.
            shown = os.readlink(link)
        if shown != str(os.getpid()):
            us = f"we are pid {os.getpid()} and {shown or 'nobody'} there"
            raise OSError(errno.ENODATA, f"it is of another PID namespace ({us})", self._proc)

    def _scan(self, with_argv: bool) -> dict[int, ProcessFacts]:
        found: dict[int, ProcessFacts] = {}
        lines = CommandLines(self._lines) if with_argv else None
        self._reading = lines or self._reading
        for name in os.listdir(self._proc):
            if name.isdigit():
                facts = self._look(int(name), lines)
                if facts is not None:
                    found[facts.process.pid] = facts
        self.require_own()
        if os.getpid() not in found:  # Something is mounted over it. An empty table would mean "all are gone".
            raise OSError(errno.ENODATA, f"{self._proc} does not show the governor itself")
        if lines is not None:
            lines.forget_before()
            self._lines = lines
        return found

    def _look(self, pid: int, lines: CommandLines | None) -> ProcessFacts | None:
        try:
            # The open directory stays this process's even if its pid is reused, so all reads concern one process.
            directory = os.open(f"{self._proc}/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            _raise_if_blind(error)
            return None
        try:
            return self._facts(pid, directory, lines)
        finally:
            os.close(directory)

    def _facts(self, pid: int, directory: int, lines: CommandLines | None) -> ProcessFacts | None:
        stat = parse_stat(_read("stat", directory) or b"")
        if stat is None:
            return None
        process = ProcessId(pid, stat.start_ticks, self._boot_id, self.pid_ns)
        if stat.is_kernel_thread:  # A large machine has hundreds, and no halt ends one.
            return ProcessFacts(process, stat.ppid, 0, stat.pgid, stat.sid, stat.state, (), _UNKNOWN_CGROUP)
        uid = _status_field(_read("status", directory), b"\nUid:")
        if uid is None:
            return None
        # The effective uid, as SO_PEERCRED reports it: sudo below a trainer is not the trainer's process.
        effective = int(uid.split()[1])
        if lines is not None:
            argv = lines.keep(process, effective, _read("cmdline", directory, ARGV_BYTES_MAX) or b"")
        else:
            argv = self._reading.by_process.get(process) or self._lines.by_process.get(process, ())
        return ProcessFacts(
            process=process,
            ppid=stat.ppid,
            uid=effective,
            pgid=stat.pgid,
            sid=stat.sid,
            state=stat.state,
            argv=argv,
            cgroup=parse_cgroup(_read("cgroup", directory) or b""),
            mark=parse_mark(_read("limits", directory) or b""),
        )

    def send(self, target: ProcessId, signum: signal.Signals) -> Sent:
        place = self.locate(target)
        if not self._is_here(place):
            return Sent.DENIED if place is None else Sent.GONE
        target = place
        try:
            with _pidfd(target.pid) as pidfd:
                # The comparison follows the opening of the handle, so the pid cannot be reused between check and
                # signal.
                stat = self.stat(target.pid)
                if stat is None:
                    return Sent.GONE if has_exited(pidfd) else Sent.DENIED
                if stat.start_ticks != target.start_ticks:
                    return Sent.NOT_OURS
                signal.pidfd_send_signal(pidfd, signum)
                return Sent.SENT
        except ProcessLookupError:
            return Sent.GONE
        except OSError as error:
            # EINVAL: the number now names a thread of another process. The rest means "not now": EPERM, EMFILE,
            # seccomp.
            return Sent.NOT_OURS if error.errno == errno.EINVAL else Sent.DENIED

    def is_gone(self, target: ProcessId) -> bool:
        place = self.locate(target)
        if not self._is_here(place):
            return place is not None  # Of a namespace that is not seen from here nothing is known.
        target = place
        try:
            with _pidfd(target.pid) as pidfd:
                stat = self.stat(target.pid)
                if stat is not None and stat.start_ticks != target.start_ticks:
                    return True
                # The pidfd stands for the whole thread group: a main thread can be a zombie while others hold the GPU.
                return has_exited(pidfd)
        except ProcessLookupError:
            return True
        except OSError as error:
            # Any other error leaves it unknown, and unknown is not gone.
            return error.errno == errno.EINVAL

    def catches(self, target: ProcessId, signum: signal.Signals) -> bool | None:
        place = self.locate(target)
        if not self._is_here(place):
            return None
        target = place
        try:
            status = _read(f"{self._proc}/{target.pid}/status")
            stat = self.stat(target.pid)
        except OSError:
            return None
        caught = _status_field(status, b"\nSigCgt:")
        if caught is None or stat is None or stat.start_ticks != target.start_ticks:
            return None
        return bool(int(caught, 16) >> (signum - 1) & 1)

    def watch(self, target: ProcessId) -> int | None:
        """See the port. None also if no descriptor is free, so ask `is_gone` before concluding that it ended."""
        place = self.locate(target)
        if not self._is_here(place):
            return None
        target = place
        try:
            pidfd = os.pidfd_open(target.pid)
        except OSError:
            return None
        if self._is(target, pidfd):
            return pidfd
        os.close(pidfd)
        return None

    def _is(self, target: ProcessId, pidfd: int) -> bool:
        try:
            stat = self.stat(target.pid)
        except OSError:
            return False
        return stat is not None and stat.start_ticks == target.start_ticks and not has_exited(pidfd)

    def stat(self, pid: int) -> Stat | None:
        """Identity and parentage alone: a quarter of the cost of `facts`. OSError if we are out of descriptors."""
        return parse_stat(_read(f"{self._proc}/{pid}/stat") or b"")


def _read(path: str, directory: int | None = None, bytes_max: int = PROC_BYTES_MAX) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        _raise_if_blind(error)
        return None
    try:
        return os.read(fd, bytes_max)
    except OSError as error:  # ESRCH: it vanished after the open.
        _raise_if_blind(error)
        return None
    finally:
        os.close(fd)


def _raise_if_blind(error: OSError) -> None:
    """Raise the error if the fault is ours. A process that vanished or is forbidden raises nothing."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error  # A table without its processes would mean "all are gone".


def _status_field(status: bytes | None, label: bytes) -> bytes | None:
    if status is None:
        return None
    start = status.find(label)
    if start < 0:
        return None
    start += len(label)
    return status[start : status.find(b"\n", start)].strip()


def has_exited(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)
