"""How a training ended, as it was seen: by its ranks, by the process that waited for it, in its last output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import DurationNs, MonoNs

COMPLETED: Final = "completed"  # Of a run whose ranks all said that they had trained to the end: one word in all views.


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a rank's code did not catch. Its process ends of it, unless it is another thread's."""

    name: str  # Of its class: "torch.OutOfMemoryError".
    text: str  # Its first line.
    place: str | None = None  # "train.py:main:31".
    thread: str | None = None  # None: the main thread.


@dataclass(frozen=True, slots=True)
class RankFailed:
    at: MonoNs
    connection: ConnectionId
    run: str
    rank: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class LastLine:
    """A line among the command's last ones. `what`: its meaning, None where that is not known.

    `signum`: the signal of which a launcher, a shell or the DataLoader says that a process died.
    """

    what: str | None
    text: str
    is_late: bool = False
    rank: int | None = None
    signum: int | None = None
    is_oom: bool = False  # It says that the kernel killed a process for want of memory.
    is_raised: bool = False  # It is the end of the last Python traceback.
    is_exit_code: bool = False  # The signal is that of an exit code, as a launcher says it.


@dataclass(frozen=True, slots=True)
class OomKills:
    """Processes that the kernel killed for want of memory, while the command ran.

    `is_own`: counted for the control group of `costgov run`; else for the machine, and whose they were is unknown.
    """

    count: int
    is_own: bool
    before_end: DurationNs | None = None  # How long before the command's end the last one was seen.


@dataclass(frozen=True, slots=True)
class CommandEndSeen:
    """`costgov run` has looked at the end of its command, after it."""

    at: MonoNs
    run: str
    processes: tuple[ProcessId, ...]  # The command's.
    exit_code: int  # As a shell reports it.
    died_of: str | None = None  # The signal that ended the command itself.
    died_below: str | None = None  # The signal that its exit code stands for, as a shell reports that of its child.
    passed_on: str | None = None  # The signal that `costgov run` was sent, and passed on.
    passed_on_before: DurationNs = DurationNs(0)  # So long before the end.
    oom_kills: OomKills | None = None  # None: it cannot be known here.
    last_lines: tuple[LastLine, ...] = ()  # In the order in which they were printed.


@dataclass(frozen=True, slots=True)
class OomKillsSeen:
    """The control group of a run's processes counts more processes that the kernel killed for want of memory."""

    at: MonoNs
    run: str
    count: int  # Since this attempt was first looked at.


@dataclass(frozen=True, slots=True)
class CommandLeft:
    """`costgov run` ends behind its command, and has told what that has left: nobody waits for it any more."""

    at: MonoNs
    lock: int | None = None  # The stamp of its launch's lock. None: there is none, or its end was not seen.


EndEvent = RankFailed | CommandEndSeen | OomKillsSeen | CommandLeft


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the last attempt ended. `cause` None: nothing was seen of it."""

    exit_code: int | None  # None: nobody waited for the command.
    cause: str | None
