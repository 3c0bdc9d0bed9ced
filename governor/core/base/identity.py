"""Identities of processes, connections and runs that cannot be reused unnoticed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NewType

from governor.core.base.units import DurationNs, is_whole

# Run names become metric labels, file names and provider tokens. The pattern is valid in all of them.
RUN_CHARS_MAX: Final = 128
RUN_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:@+-]{{0,{RUN_CHARS_MAX - 1}}}")
# A run's scheduler job, as its label has it. The scheduler's adapter knows which of these are ids.
JOB_LABEL: Final = "scheduler_job"
JOB_CHARS_MAX: Final = 384  # "kubernetes:", a namespace of 63, a kind, and a name of 253.
JOB_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:/+-]{{0,{JOB_CHARS_MAX - 1}}}")
SLURM: Final = "slurm"

TRAINING_DIGITS_MAX: Final = 9  # Of its number in an attempt's name.
MARK_PART_BITS: Final = 20  # trainer_shim.mark.PART_BITS

ConnectionId = NewType("ConnectionId", int)  # Counted up by the inbox, never reused within one governor.


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process, identified for all time: a pid alone can be reused, a pid with its start time cannot.

    `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot `boot_id`. A container numbers its processes
    for itself: `pid_ns` is the inode of the PID namespace in which `pid` was read.
    """

    pid: int
    start_ticks: int
    boot_id: str
    pid_ns: int = 0  # 0: nobody has noted it, as in an older journal.


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A scheduler's job in which a run is, as the run says. Its scheduler is asked whether that is so."""

    name: str  # As the scheduler takes it: "4711", "4711_2", "ml/llm-7b-0".
    uid: int  # The run's user, who must be the job's.
    is_seen: bool = False  # By our journal, the scheduler has known it. If it does not any more, it is over.
    scheduler: str = SLURM
    # Control groups of the run's ranks, as the kernel has said. None: our own launch or costgov.toml names the job.
    places: tuple[str, ...] | None = None

    @property
    def full_name(self) -> str:
        """With its scheduler before it. That of Slurm goes without saying."""
        return self.name if self.scheduler == SLURM else f"{self.scheduler}:{self.name}"


def job_parts(full_name: str) -> tuple[str, str]:
    """The scheduler and the name as that takes it, of "kubernetes:ml/llm-7b-0". A bare name is Slurm's."""
    scheduler, colon, name = full_name.partition(":")
    return (scheduler, name) if colon else (SLURM, full_name)


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """What start-up learned of the scheduler of this machine."""

    name: str = ""  # "slurm", "kubernetes". Empty: none that we can ask.
    job: str = ""  # The one in which this governor itself is, by its launch or by costgov.toml: "kubernetes:ml/llm-0".
    bound_ns: DurationNs = DurationNs(0)  # Within which an ended job has given its nodes back.
    node: str = ""  # What the scheduler calls this machine.
    drains: bool = False  # A node whose hardware failed is taken from the scheduler.


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection as the kernel reports it (SO_PEERCRED); no message can change it."""

    process: ProcessId
    uid: int
    gid: int | None = None  # None: whoever made this did not ask the kernel (a recording, a simulation).


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One row of the process table, from /proc. `state` may change while the process lives."""

    process: ProcessId
    ppid: int
    uid: int
    pgid: int
    sid: int
    state: str  # R, S, D, Z, T, …
    argv: tuple[str, ...]  # Empty for kernel threads and zombies.
    cgroup: str
    mark: int = 0  # What it inherited from a launch (trainer_shim/mark.py). 0: nothing.


@dataclass(frozen=True, slots=True)
class Clue:
    """What a process of our own user shows besides: whose it may be where it has inherited nothing."""

    mark: int  # In its environment. 0: none.
    directory: str  # In which it works.


def carries(its: int, mark: int) -> bool:
    """Whether a process with the mark `its` was started by the launch with this mark, or by a launch within it."""
    while its > mark:
        its >>= MARK_PART_BITS
    return mark > 0 and its == mark


def training_of(attempt: str) -> tuple[str, int | None]:
    """ATTEMPT+1 is the second training of the processes of launch ATTEMPT. None: the name does not say which it is."""
    launch, plus, number = attempt.rpartition("+")
    if plus and is_whole(number) and len(number) <= TRAINING_DIGITS_MAX:
        return launch, int(number)
    return attempt, None


def is_next_training(attempt: str, before: str) -> bool:
    """Whether the name says that it is a later training of the same launch."""
    (launch, number), (launch_before, number_before) = training_of(attempt), training_of(before)
    return launch == launch_before and (number or 0) > (number_before or 0)
