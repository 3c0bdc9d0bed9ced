"""Reads a trace from standard input, in a process of its own: `python -P -m governor.adapters.evidence.trace_reader`.

A trace is a file of the trainer's user, and two megabytes of it may unpack to what takes all of the node's memory. This
process has a bound of memory and of time, and is the first to go where memory lacks.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import resource
import sys
import zlib
from dataclasses import asdict
from typing import Any, Final

from governor.adapters.evidence.trace import BYTES_MAX, TOO_LARGE, profile_of

MEMORY_BYTES_MAX: Final = 1 << 30
CPU_TIME_MAX_S: Final = 60


def confine() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES_MAX), (resource.RLIMIT_CPU, CPU_TIME_MAX_S), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):  # fmt: skip
        _, hard = resource.getrlimit(what)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def read() -> dict[str, Any]:
    """The profile, or the problem."""
    try:
        data = gzip.GzipFile(fileobj=sys.stdin.buffer).read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            return {"problem": TOO_LARGE}
        document = json.loads(data)
        events = document.get("traceEvents") if isinstance(document, dict) else None
        if not isinstance(events, list):
            return {"problem": "no trace"}
        return {"profile": asdict(profile_of(events))}
    except MemoryError:
        return {"problem": TOO_LARGE}
    except (OSError, EOFError, ValueError, RecursionError, OverflowError, zlib.error) as error:
        return {"problem": f"no trace ({type(error).__name__})"}


if __name__ == "__main__":
    confine()
    gc.disable()  # JSON has no cycles, and looking for them takes longer than all else.
    sys.stdout.write(json.dumps(read()))
