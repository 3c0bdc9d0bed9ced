"""Stacks of a process by py-spy: neither its variables nor its arguments.

It is asked for one process at a time, whose identity is looked at before and after: a number may be another's by then.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from governor.core.base.identity import ProcessId
from governor.core.base.printable import printable

INSTALL: Final = "py-spy is not installed: pip install 'costgov[evidence]'"
AT_ONCE_MAX: Final = 8
OUTPUT_BYTES_MAX: Final = 4 * 1024 * 1024
COMPLAINT_BYTES_MAX: Final = 64 * 1024
_PIECE_BYTES: Final = 64 * 1024
THREADS_MAX: Final = 64
FRAMES_MAX: Final = 64
_TEXT_CHARS_MAX: Final = 200
_YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_DENIED: Final = ("permission denied", "operation not permitted")


@dataclass(frozen=True, slots=True)
class Target:
    """A process of the run, as the kernel named it when it announced itself."""

    rank: int
    process: ProcessId
    uid: int


@dataclass(frozen=True, slots=True)
class Thread:
    name: str
    frames: tuple[str, ...]  # Innermost first, "file.py:function:line".
    is_active: bool
    has_gil: bool

    def row(self) -> dict[str, Any]:
        return {"name": self.name, "active": self.is_active, "gil": self.has_gil, "frames": list(self.frames)}


@dataclass(frozen=True, slots=True)
class Stacks:
    """What one process showed, or why it showed nothing."""

    target: Target
    threads: tuple[Thread, ...] = ()
    problem: str | None = None

    def row(self) -> dict[str, Any]:
        threads = [thread.row() for thread in self.threads]
        return {"rank": self.target.rank, "pid": self.target.process.pid, "threads": threads, "problem": self.problem}


def program() -> str | None:
    """py-spy of our own environment, else of PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


@dataclass(slots=True)
class _Look:
    child: subprocess.Popen[bytes]
    output: bytearray = field(default_factory=bytearray)
    complaint: bytearray = field(default_factory=bytearray)
    is_late: bool = False

    @property
    def is_too_long(self) -> bool:
        return len(self.output) > OUTPUT_BYTES_MAX or len(self.complaint) > COMPLAINT_BYTES_MAX


def take(targets: Sequence[Target], within_s: float, found: str | None) -> list[Stacks]:
    """Look at each process, AT_ONCE_MAX at a time, by the py-spy that was `found`. Whoever is late is ended."""
    if found is None:
        return [Stacks(target, problem=INSTALL) for target in targets]
    told: list[Stacks] = []
    for first in range(0, len(targets), AT_ONCE_MAX):
        begun = [(target, _identity_problem(target)) for target in targets[first : first + AT_ONCE_MAX]]
        started = [(target, problem or _start(found, target)) for target, problem in begun]
        _read([look for _, look in started if isinstance(look, _Look)], within_s)
        told += [
            Stacks(target, problem=look) if isinstance(look, str) else _finish(target, look, within_s)
            for target, look in started
        ]
    return told


def _start(found: str, target: Target) -> _Look | str:
    command = [found, "dump", "--nonblocking", "--json", "--pid", str(target.process.pid)]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return f"py-spy does not start: {error.strerror}"
    return _Look(child)


def _read(looks: Sequence[_Look], within_s: float) -> None:
    """Read what they say, and end each that says too much or is late. None of them lives on."""
    deadline = time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        for look in looks:
            for pipe, kept in ((look.child.stdout, look.output), (look.child.stderr, look.complaint)):
                assert pipe is not None, "both are pipes"
                selector.register(pipe, selectors.EVENT_READ, (look, kept))
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                look, kept = key.data
                kept += (piece := os.read(key.fd, _PIECE_BYTES))
                if not piece or look.is_too_long:
                    selector.unregister(key.fileobj)
                if look.is_too_long:
                    look.child.kill()
    for look in looks:
        try:
            look.child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            look.is_late = True
            look.child.kill()
            look.child.wait()
        for pipe in (look.child.stdout, look.child.stderr):
            if pipe is not None:
                pipe.close()


def _finish(target: Target, look: _Look, within_s: float) -> Stacks:
    if look.is_late:
        return Stacks(target, problem=f"py-spy has not answered within {within_s:g} s")
    gone = _identity_problem(target)
    if gone is not None:
        return Stacks(target, problem=gone)
    if look.is_too_long:
        return Stacks(target, problem="py-spy says more than is kept")
    if look.child.returncode != 0:
        return Stacks(target, problem=_why(bytes(look.complaint), target))
    threads = _threads(bytes(look.output))
    if threads is None:
        return Stacks(target, problem="py-spy answers in a form that we do not know")
    return Stacks(target, threads)


def _identity_problem(target: Target) -> str | None:
    """Why it is not the process that announced itself, or not its user's. None: it is."""
    pid = target.process.pid
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        uid = os.stat(f"/proc/{pid}").st_uid
        start_ticks = int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return "the process has ended, or is not to be seen from here"
    if start_ticks != target.process.start_ticks:
        return "the process has ended; its number is another's"
    if uid not in (target.uid, 0):  # A process that may not be traced is root's in /proc.
        return f"the process is of uid {uid} now, and the run of uid {target.uid}"
    return None


def _why(complaint: bytes, target: Target) -> str:
    text = printable(complaint.decode("utf-8", "replace"), " ")
    if not any(word in text.lower() for word in _DENIED):
        return f"py-spy: {' '.join(text.split())[-_TEXT_CHARS_MAX:]}"
    if os.geteuid() not in (0, target.uid):
        return f"not permitted: the process is of uid {target.uid}, and you are uid {os.geteuid()}"
    try:
        scope = int(_YAMA.read_text())
    except (OSError, ValueError):
        scope = 0
    if scope and os.geteuid() != 0:
        return f"not permitted: {_YAMA} is {scope}; run this as root"
    return "not permitted: it needs CAP_SYS_PTRACE"


def _threads(output: bytes) -> tuple[Thread, ...] | None:
    """Read its JSON. Locals and the command line, where it has them, are left out."""
    try:
        rows = json.loads(output)
        found = tuple(
            Thread(
                name=_text(row.get("thread_name") or "?"),
                frames=tuple(_frame(frame) for frame in row["frames"][:FRAMES_MAX]),
                is_active=row.get("active") is True,
                has_gil=row.get("owns_gil") is True,
            )
            for row in rows[:THREADS_MAX]
        )
        return tuple(sorted(found, key=lambda thread: thread.name != "MainThread"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _frame(frame: dict[str, Any]) -> str:
    file = str(frame.get("short_filename") or frame.get("filename") or "?")
    return _text(f"{os.path.basename(file)}:{frame.get('name') or '?'}:{frame.get('line') or 0}")


def _text(value: object) -> str:
    return printable(str(value))[:_TEXT_CHARS_MAX]
