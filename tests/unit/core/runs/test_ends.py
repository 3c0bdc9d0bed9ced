"""The cause of an end: what is nearest to it comes first, and nothing is said that was not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.ends import CommandEndSeen, Failure, LastLine, OomKills
from governor.core.runs.ends import NEAR_NS, QUOTED_CHARS_MAX, cause_of

SEEN = CommandEndSeen(MonoNs(1), "r", (), 1)
KILLED = replace(SEEN, exit_code=137, died_of="SIGKILL")
NCCL = Failure("torch.distributed.DistBackendError", "NCCL error in: x.cpp:1, remote process exited")
OOM = Failure("torch.OutOfMemoryError", "CUDA out of memory.", "train.py:main:3")
ONE = OomKills(1, is_own=True, before_end=DurationNs(2 * NS_PER_S))
BY_RANK = LastLine(
    None, "failed (exitcode: -9) local_rank: 1 (pid: 3) of binary: x", rank=1, signum=9, is_exit_code=True
)
TIMED_OUT = LastLine("a collective that timed out", "Watchdog caught …", is_late=True, rank=0)
RAISED = LastLine(None, "ValueError: 3", is_raised=True)
WARNED = LastLine("a full disk", "WARNING: No space left on device, going on without")
RETRIED = LastLine("a lost connection to another rank", "hub: Connection reset by peer, retrying", is_late=True)
PROMPT = LastLine("a segmentation fault", "INFO eval prompt: explain Segmentation fault in C")
# Its meaning is worded otherwise than the table's: what is decided hangs on no word.
SLURM = LastLine("want of memory", "slurmstepd: error: Detected 1 oom_kill event", is_oom=True)
SHELL = LastLine(None, "train.sh: line 3:  4711 Killed                  python train.py", signum=9)
SENT = "SIGINT was sent to costgov run, which passed it on"
TORCHRUN = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2"


def seen(**facts: Any) -> CommandEndSeen:
    return replace(SEEN, **facts)


@pytest.mark.parametrize(
    ("failures", "end", "cause"),
    [
        ({}, None, None),
        ({}, SEEN, None),
        (
            {1: OOM}, None,
            "out of GPU memory on rank 1 (torch.OutOfMemoryError: CUDA out of memory., at train.py:main:3)",
        ),
        ({0: Failure("KeyError", "'x'")}, SEEN, "rank 0 raised KeyError: 'x'"),
        # The others only lose their peer.
        (
            {0: NCCL, 2: NCCL, 1: OOM}, SEEN,
            "out of GPU memory on rank 1 (torch.OutOfMemoryError: CUDA out of memory., at train.py:main:3); "
            "2 more ranks failed",
        ),
        # A rank that the kernel killed says nothing, and its peers do.
        (
            {0: NCCL}, seen(last_lines=(BY_RANK,), oom_kills=ONE),
            "SIGKILL of local rank 1, by the kernel's out-of-memory killer: "
            "the control group of costgov run counted an out-of-memory kill 2.0s before the end",
        ),
        (
            {}, replace(KILLED, oom_kills=OomKills(0, is_own=True)),
            "SIGKILL; no out-of-memory kill was counted in the control group of costgov run",
        ),
        (
            {}, replace(KILLED, oom_kills=OomKills(0, is_own=False)),
            "SIGKILL; no out-of-memory kill was counted on the machine",
        ),
        (
            {}, replace(KILLED, oom_kills=OomKills(2, is_own=False)),
            "SIGKILL; the machine counted 2 out-of-memory kills, of what process is not known",
        ),
        (
            {}, replace(KILLED, oom_kills=replace(ONE, before_end=DurationNs(11_500_000_000))),
            "SIGKILL; the control group of costgov run counted an out-of-memory kill 11.5s before the end",
        ),
        ({}, seen(oom_kills=replace(ONE, before_end=DurationNs(NEAR_NS + 1))), None),
        (
            {}, replace(KILLED, oom_kills=replace(ONE, count=2)),
            "SIGKILL, by the kernel's out-of-memory killer: "
            "the control group of costgov run counted 2 out-of-memory kills 2.0s before the end",
        ),
        ({}, KILLED, "SIGKILL; whether for want of memory cannot be read here"),
        (
            {}, seen(exit_code=137, died_below="SIGKILL"),
            "SIGKILL of a process below it; whether for want of memory cannot be read here",
        ),
        (
            {}, seen(exit_code=134, died_of="SIGABRT", last_lines=(replace(BY_RANK, rank=None),)),
            "SIGKILL of a process below it; whether for want of memory cannot be read here",
        ),
        # A shell's line is less than a traceback, unless the end itself is SIGKILL. A launcher's exit code is more.
        (
            {}, seen(last_lines=(SHELL,)),
            "SIGKILL of a process below it; whether for want of memory cannot be read here",
        ),
        ({}, seen(last_lines=(SHELL, RAISED)), 'its output says "ValueError: 3"'),
        ({0: NCCL}, seen(last_lines=(SHELL,)), f"an NCCL error on rank 0 ({NCCL.name}: {NCCL.text})"),
        ({}, replace(KILLED, last_lines=(SHELL, RAISED)), "SIGKILL; whether for want of memory cannot be read here"),
        (
            {}, seen(last_lines=(BY_RANK, RAISED)),
            "SIGKILL of local rank 1; whether for want of memory cannot be read here",
        ),
        (
            {}, seen(last_lines=(replace(SHELL, is_raised=True),)),
            "SIGKILL of a process below it; whether for want of memory cannot be read here",
        ),
        ({}, seen(exit_code=139, died_below="SIGSEGV"), "SIGSEGV of a process below it, by the exit code"),
        (
            {}, seen(oom_kills=ONE),
            "the kernel's out-of-memory killer: "
            "the control group of costgov run counted an out-of-memory kill 2.0s before the end",
        ),
        (
            {}, seen(exit_code=134, died_of="SIGABRT", last_lines=(TIMED_OUT,)),
            'a collective that timed out on rank 0 (its output says "Watchdog caught …")',
        ),
        ({}, seen(exit_code=134, died_of="SIGABRT"), "SIGABRT"),
        ({}, seen(last_lines=(RAISED,)), 'its output says "ValueError: 3"'),
        # The end of a traceback comes before a line that may be a warning, and has its own meaning.
        ({}, seen(last_lines=(WARNED, RAISED)), 'its output says "ValueError: 3"'),
        ({}, seen(exit_code=139, died_of="SIGSEGV", last_lines=(WARNED, RAISED)), 'its output says "ValueError: 3"'),
        (
            {}, seen(last_lines=(PROMPT, LastLine("a full disk", "OSError: [Errno 28]", is_raised=True))),
            'a full disk (its output says "OSError: [Errno 28]")',
        ),
        # Another line is a cause only of an end by a signal.
        ({}, seen(exit_code=3, last_lines=(PROMPT,)), f'its output says "{PROMPT.text}"'),
        ({}, seen(last_lines=(RETRIED,)), f'its output says "{RETRIED.text}"'),
        ({0: NCCL}, seen(last_lines=(WARNED,)), f"an NCCL error on rank 0 ({NCCL.name}: {NCCL.text})"),
        (
            {}, seen(exit_code=139, died_below="SIGSEGV", last_lines=(RETRIED, PROMPT)),
            f'a segmentation fault (its output says "{PROMPT.text}")',
        ),
        (
            {}, seen(last_lines=(TIMED_OUT, replace(BY_RANK, signum=6))),
            'a collective that timed out on rank 0 (its output says "Watchdog caught …")',
        ),
        ({}, seen(passed_on="SIGINT", last_lines=(RETRIED,)), SENT),
        (
            {}, replace(KILLED, last_lines=(SLURM,), oom_kills=OomKills(0, is_own=True)),
            f'SIGKILL, by the kernel\'s out-of-memory killer: its output says "{SLURM.text}"',
        ),
        (
            {}, replace(KILLED, last_lines=(replace(SLURM, what="no out-of-memory killer", is_oom=False),)),
            "SIGKILL; whether for want of memory cannot be read here",
        ),
        ({}, seen(exit_code=143, passed_on="SIGTERM"), "SIGTERM was sent to costgov run, which passed it on"),
        (
            {0: Failure("KeyboardInterrupt", "")}, seen(exit_code=130, passed_on="SIGINT"),
            "SIGINT was sent to costgov run, which passed it on",
        ),
        # It was survived, and the end came later of something else.
        ({}, seen(exit_code=3, passed_on="SIGHUP", last_lines=(RAISED,)), 'its output says "ValueError: 3"'),
        (
            {}, seen(exit_code=137, died_of="SIGKILL", passed_on="SIGTERM", oom_kills=OomKills(0, is_own=True)),
            "SIGKILL; no out-of-memory kill was counted in the control group of costgov run",
        ),
        ({0: NCCL}, seen(passed_on="SIGINT"), f"an NCCL error on rank 0 ({NCCL.name}: {NCCL.text})"),
        # It was not, whatever the others lost by it.
        ({0: NCCL}, seen(exit_code=130, died_below="SIGINT", passed_on="SIGINT", last_lines=(RAISED,)), SENT),
        ({}, seen(exit_code=130, died_of="SIGINT", passed_on="SIGINT"), SENT),
        ({}, seen(exit_code=3, passed_on="SIGINT"), SENT),
        # Python's and torchrun's own ends of it.
        ({0: Failure("KeyboardInterrupt", "")}, seen(passed_on="SIGINT"), SENT),
        ({}, seen(passed_on="SIGINT", last_lines=(replace(RAISED, text="[rank0]: KeyboardInterrupt"),)), SENT),
        ({}, seen(passed_on="SIGINT", last_lines=(replace(RAISED, text=TORCHRUN),)), SENT),
        ({0: Failure("OSError", "x", thread="pin")}, SEEN, "thread pin of rank 0 raised OSError: x"),
    ],
)  # fmt: skip
def test_the_cause(failures: dict[int, Failure], end: CommandEndSeen | None, cause: str | None) -> None:
    assert cause_of(failures, end) == cause


def test_a_cause_is_one_short_line() -> None:
    said = cause_of({0: Failure("E", "x" * 10_000)})
    assert said is not None
    assert len(said) < QUOTED_CHARS_MAX + 30
