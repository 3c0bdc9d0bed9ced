"""Stacks of a process by py-spy: neither its variables nor its arguments.

It is asked for one process at a time, whose identity is looked at before and after: a number may be another's by then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from governor.core.base.identity import ProcessId
from governor.core.base.printable import printable

INSTALL: Final = "py-spy is not installed: pip install 'costgov[evidence]'"
OUTPUT_BYTES_MAX: Final = 4 * 1024 * 1024
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


def take(targets: Sequence[Target], within_s: float) -> list[Stacks]:
    """Look at each process, all at once, and end what has not answered in time."""
    found = program()
    if found is None:
        return [Stacks(target, problem=INSTALL) for target in targets]
    begun = [(target, _identity_problem(target)) for target in targets]
    started = [(target, problem or _start(found, target)) for target, problem in begun]
    return [
        Stacks(target, problem=child) if isinstance(child, str) else _finish(target, child, within_s)
        for target, child in started
    ]


def _start(found: str, target: Target) -> subprocess.Popen[bytes] | str:
    command = [found, "dump", "--nonblocking", "--json", "--pid", str(target.process.pid)]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return f"py-spy does not start: {error.strerror}"


def _finish(target: Target, child: subprocess.Popen[bytes], within_s: float) -> Stacks:
    try:
        output, complaint = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Stacks(target, problem=f"py-spy has not answered within {within_s:g} s")
    gone = _identity_problem(target)
    if gone is not None:
        return Stacks(target, problem=gone)
    if child.returncode != 0:
        return Stacks(target, problem=_why(complaint, target))
    if len(output) > OUTPUT_BYTES_MAX:
        return Stacks(target, problem="py-spy says more than is kept")
    threads = _threads(output)
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
