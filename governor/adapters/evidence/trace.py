"""A short profile, read back: which operators and kernels took the time, how much communication hid behind computing.

A trace is a file of the trainer's user: its size is bounded, and what does not fit the form is left out. Two megabytes
of it may unpack to what takes all of the node's memory. So a process reads it that has a bound of memory and of time,
and is the first to go where memory lacks: `python -P -m` this file.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from governor.adapters.machine.regular_file import open_of_user
from governor.core.base.printable import printable
from trainer_shim.evidence.profile import FOLDER

COMPRESSED_BYTES_MAX: Final = 64 << 20
BYTES_MAX: Final = 64 << 20
TOO_LARGE: Final = f"it unpacks to more than {BYTES_MAX >> 20} MB, or takes too much memory: profile fewer steps"
READ_S: Final = 90.0
_READER: Final = "governor.adapters.evidence.trace"
_READER_MEMORY_BYTES_MAX: Final = 1 << 30
_READER_CPU_TIME_MAX_S: Final = 60
TOP: Final = 10
_NAME_CHARS_MAX: Final = 90
_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_COMMUNICATION: Final = ("nccl", "gloo", "c10d::", "all_reduce", "allreduce", "allgather", "reduce_scatter")

Span = tuple[float, float]


class TraceUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """One line: why the profile cannot be shown."""


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    seconds: float  # Of operators their own time: without what they call.
    calls: int


@dataclass(frozen=True, slots=True)
class Profile:
    """`wall_s`: from the first event to the last. `on_device`: whether kernels were seen; else it is the CPU's."""

    wall_s: float
    on_device: bool
    operators: tuple[Item, ...]
    kernels: tuple[Item, ...]
    communication_s: float
    hidden_s: float  # Of communication_s, while something else was computed.
    left_out: int = 0

    def row(self) -> dict[str, Any]:
        def items(of: Sequence[Item]) -> list[dict[str, Any]]:
            return [{"name": one.name, "s": round(one.seconds, 6), "calls": one.calls} for one in of]

        return {
            "wall_s": round(self.wall_s, 6), "on_device": self.on_device, "operators": items(self.operators),
            "kernels": items(self.kernels), "communication_s": round(self.communication_s, 6),
            "hidden_s": round(self.hidden_s, 6), "left_out": self.left_out,
        }  # fmt: skip


def read_profile(path: str, uid: int) -> Profile:
    """Read the trace that a rank of this user's has named. TraceUnreadable where that cannot be.

    A rank may name whatever it likes, and we may be root: it is read where the shim writes profiles, and nowhere else.
    """
    try:
        fd = open_of_user(path, uid, FOLDER)
    except OSError as error:
        raise TraceUnreadable(f"{printable(path)}: {error.strerror}") from error
    except ValueError as error:  # No path can have this name.
        raise TraceUnreadable(f"{printable(path)}: no path") from error
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > COMPRESSED_BYTES_MAX:
            raise TraceUnreadable(f"{printable(path)}: larger than a profile is")
        told = _told_by_reader(file)
    if "profile" not in told:
        raise TraceUnreadable(f"{printable(path)}: {told['problem']}")
    found = told["profile"]
    items = {name: tuple(Item(**one) for one in found[name]) for name in ("operators", "kernels")}
    return Profile(**{**found, **items})


def _told_by_reader(file: Any) -> dict[str, Any]:
    """What a process of bounded memory and time says of it."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _READER], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=READ_S, check=False,
        )  # fmt: skip
        told: dict[str, Any] = json.loads(done.stdout)
    except OSError as error:
        return {"problem": f"its reader cannot be started: {error.strerror}"}
    except (ValueError, subprocess.TimeoutExpired):  # Ended by its bounds.
        return {"problem": TOO_LARGE}
    return told


def profile_of(events: Iterable[Any]) -> Profile:
    """Add up a Chrome trace's events."""
    operators: dict[Any, list[tuple[Span, str]]] = {}
    device: list[tuple[Span, str]] = []
    left_out = 0
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        start, lasts, name = event.get("ts"), event.get("dur"), event.get("name")
        if not (_is_time(start) and _is_time(lasts) and isinstance(name, str)):
            left_out += 1
            continue
        assert start is not None
        assert lasts is not None
        spanned = ((start / 1e6, (start + lasts) / 1e6), printable(name)[:_NAME_CHARS_MAX])
        if event.get("cat") in _DEVICE:
            device.append(spanned)
        elif event.get("cat") in ("cpu_op", "user_annotation"):
            operators.setdefault(str(event.get("tid")), []).append(spanned)
    own = [one for thread in operators.values() for one in _own_times(thread)]
    seen = device or [one for thread in operators.values() for one in thread]
    ends = [span for thread in (*operators.values(), device) for span, _ in thread]
    communication = _joined(span for span, name in seen if _is_communication(name))
    computing = _joined(span for span, name in seen if not _is_communication(name))
    return Profile(
        wall_s=max((end for _, end in ends), default=0.0) - min((begin for begin, _ in ends), default=0.0),
        on_device=bool(device),
        operators=_top(own),
        kernels=_top((name, end - begin) for (begin, end), name in device),
        communication_s=_length(communication),
        hidden_s=_overlap(communication, computing) if device else 0.0,
        left_out=left_out,
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _is_communication(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _COMMUNICATION)


def _own_times(thread: list[tuple[Span, str]]) -> list[tuple[str, float]]:
    """Of one thread's nested spans, each one's time without those inside it."""
    thread.sort(key=lambda one: (one[0][0], -one[0][1]))
    own: list[list[Any]] = []
    open_: list[tuple[float, int]] = []  # The end of each span that is open, and its place in `own`.
    for (begin, end), name in thread:
        while open_ and open_[-1][0] <= begin:
            open_.pop()
        if open_:
            own[open_[-1][1]][1] -= min(end, open_[-1][0]) - begin
        open_.append((end, len(own)))
        own.append([name, end - begin])
    return [(name, max(0.0, seconds)) for name, seconds in own]


def _top(spent: Iterable[tuple[str, float]]) -> tuple[Item, ...]:
    sums: dict[str, tuple[float, int]] = {}
    for name, seconds in spent:
        before, calls = sums.get(name, (0.0, 0))
        sums[name] = before + seconds, calls + 1
    items = [Item(name, seconds, calls) for name, (seconds, calls) in sums.items()]
    return tuple(sorted(items, key=lambda one: (-one.seconds, one.name))[:TOP])


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _overlap(ours: Sequence[Span], theirs: Sequence[Span]) -> float:
    """How long both ran, each a list of spans that do not touch, in order."""
    total, place = 0.0, 0
    for begin, end in ours:
        while place < len(theirs) and theirs[place][1] <= begin:
            place += 1
        at = place
        while at < len(theirs) and theirs[at][0] < end:
            total += min(end, theirs[at][1]) - max(begin, theirs[at][0])
            at += 1
    return total


# --- the process that reads -----------------------------------------------------------------------------------


def _confine() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, _READER_MEMORY_BYTES_MAX), (resource.RLIMIT_CPU, _READER_CPU_TIME_MAX_S),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
    ):  # fmt: skip
        _, hard = resource.getrlimit(what)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _read() -> dict[str, Any]:
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
    _confine()
    gc.disable()  # JSON has no cycles, and looking for them takes longer than all else.
    sys.stdout.write(json.dumps(_read()))
