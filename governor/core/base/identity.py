"""Who is who: processes, connections and runs, by identities that cannot be reused behind our back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NewType

# Run names become metric labels, file names and provider tokens: what all of them take.
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")

ConnectionId = NewType("ConnectionId", int)  # Counted up by the inbox, never reused within one governor.


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process for all time: a pid is only a number, its start makes it somebody.

    `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot `boot_id`.
    """

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Peer:
    """What the kernel says of the other end of a connection (SO_PEERCRED); no message can change it."""

    process: ProcessId
    uid: int


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One row of the process table as /proc shows it. While it lives, `state` may differ from one look to the next."""

    process: ProcessId
    ppid: int
    uid: int
    pgid: int
    sid: int
    state: str  # R, S, D, Z, T, …
    argv: tuple[str, ...]  # Empty for kernel threads and zombies.
    cgroup: str
