"""Why trainings end: what frameworks, the kernel and launchers say when one does, and what it means.

The wording is theirs: PyTorch 2.0 to 2.13 (c10d's ProcessGroupNCCL, the CUDA allocator, the DataLoader, torchrun),
DeepSpeed 0.19, NCCL 2.18 to 2.27, Slurm 21 to 25, glibc and bash. Only what is in the table is given a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """`what` completes "ended by …". `is_late`: it often follows another rank's failure.

    `is_oom`: the kernel killed a process for want of memory.
    """

    what: str
    words: re.Pattern[str]
    is_late: bool = False
    is_oom: bool = False


def _known(what: str, *words: str, is_late: bool = False, is_oom: bool = False) -> KnownFailure:
    return KnownFailure(what, re.compile("|".join(words)), is_late, is_oom)


# The first that matches counts, so the special ones come first.
KNOWN_FAILURES: Final = (
    _known(
        "too little shared memory (/dev/shm)",
        r"insufficient shared memory \(shm\)", r"workers are out of shared memory", r"unable to (mmap|allocate) shared",
        r"unable to write to file </torch_",
    ),
    _known("a full disk", r"No space left on device", r"\[Errno 28\]", r"Disk quota exceeded"),
    _known(
        "out of GPU memory",
        r"CUDA out of memory", r"HIP out of memory", r"torch\.(cuda\.)?OutOfMemoryError", r"CUBLAS_STATUS_ALLOC_FAILED",
        r"CUDA error: out of memory",
    ),
    _known("faulty GPU memory (uncorrectable ECC error)", r"uncorrectable ECC", r"CUDA error: .*ECC"),
    _known("an illegal access to GPU memory", r"an illegal memory access was encountered"),
    _known("a failed assertion on the GPU", r"CUDA error: device-side assert triggered"),
    _known("a GPU that is gone", r"GPU is lost", r"fallen off the bus", r"CUDA error: .*device unavailable"),
    _known(
        "the kernel's out-of-memory killer",
        r"oom[-_]kill event", r"OOM Killed", r"oom_kill_process", r"Out of memory: Killed process",
        is_oom=True,
    ),
    _known("too little main memory", r"DefaultCPUAllocator: (can't|not enough)", r"(^|\W)MemoryError\b"),
    _known(
        "a collective that timed out",
        r"Watchdog caught collective operation timeout", r"Timed out waiting .* for (recv|send) operation",
        r"Some NCCL operations have failed or timed out", is_late=True,
    ),
    _known(
        "an NCCL error",
        r"NCCL error", r"NCCL Error", r"nccl(System|Unhandled|Internal|Remote|InvalidUsage)\w*Error",
        r"torch\.distributed\.DistBackendError", r"NCCL watchdog thread terminated", is_late=True,
    ),
    _known(
        "a lost connection to another rank",
        r"Connection (reset|closed) by peer", r"torch\.distributed\.DistNetworkError", r"\[Errno 104\]", is_late=True,
    ),
    _known("a segmentation fault", r"Segmentation fault", r"Signal 11 \(SIGSEGV\)"),
    _known("a bus error", r"Bus error", r"Signal 7 \(SIGBUS\)"),
)  # fmt: skip


def known_failure(text: str) -> KnownFailure | None:
    return next((known for known in KNOWN_FAILURES if known.words.search(text)), None)
