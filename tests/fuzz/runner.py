"""Plays inputs into a target and finds what must not happen: an exception, a hang, memory that grows."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Protocol

SLOW_S = 1.0  # An input that takes longer is a finding.
# But for a person's own commands, which play as long as the file says: a million steps a case, or a log of forty years.
# Nobody else waits for them.
PLAYED_SLOW_S = {"tests": 20.0, "replay": 5.0}
HANG_FACTOR = 10.0  # By then it is ended, and the next one begins.
WARM = 0.2  # The part of the inputs after which memory should not grow.
SHOWN_CHARS = 600


class Target(Protocol):
    """One entry point for bytes of strangers. State lives from one `begin` to the next: `block` inputs."""

    name: str
    share: float  # Of all inputs.
    block: int

    def begin(self, work: Path) -> None:
        """Forget everything. `work` is an empty directory."""

    def draw(self, random: Random) -> Any:
        """The next input."""

    def play(self, one: Any) -> None:
        """Give it to the product. Raises if the product does, or if what comes out is not as documented."""

    def end(self) -> None: ...


class HungError(BaseException):
    """Raised in the middle of an input. No guard of the product may catch it."""


@dataclass
class Finding:
    """The first input of a kind, and how many more of the kind there were."""

    number: int
    what: str
    shown: str
    trace: str
    count: int = 1


@dataclass
class Figures:
    target: str
    inputs: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    rss_warm_kib: int = 0
    rss_end_kib: int = 0
    rss_peak_kib: int = 0  # At most a block's end, before the allocator gave back what it kept.
    findings: dict[str, Finding] = field(default_factory=dict)


def rss_kib() -> int:
    """What is in use: the C library first gives back what was freed. It keeps megabytes of it for the next input."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # Another C library has no such call.
        ctypes.CDLL(None).malloc_trim(0)
    return _resident_kib()


def _resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def run(target: Target, work: Path, seed: int, inputs: range, only: bool = False) -> Figures:
    """Play these inputs. `only`: the last one alone counts; those before it in its block make its state."""
    figures = Figures(target.name)
    first = inputs[0] // target.block * target.block
    warm = inputs[0] + round(len(inputs) * WARM)
    crashed: list[BaseException] = []
    began_s = time.monotonic()
    is_open = False
    with _thread_faults_in(crashed), _alarms():
        for number in range(first, inputs[-1] + 1):
            if number % target.block == 0:
                figures.rss_peak_kib = max(figures.rss_peak_kib, _resident_kib())
                if is_open:
                    target.end()
                target.begin(_emptied(work))
                is_open = True
            one = target.draw(Random(f"{target.name}/{seed}/{number}"))
            found = _play(target, one, crashed, figures)
            counts = number >= inputs[0] and (not only or number == inputs[-1])
            figures.inputs += counts
            if only and counts:
                print(repr(one))
            if found is not None and counts:
                _note(figures, number, one, found)
            if isinstance(found, HungError):
                target.end()
                target.begin(_emptied(work))
            if number == warm:
                figures.rss_warm_kib = rss_kib()
    target.end()
    figures.seconds = time.monotonic() - began_s
    figures.rss_peak_kib = max(figures.rss_peak_kib, _resident_kib())
    figures.rss_end_kib = rss_kib()
    return figures


def _play(target: Target, one: Any, crashed: list[BaseException], figures: Figures) -> BaseException | None:
    began_s = time.thread_time(), time.monotonic()
    slow_s = PLAYED_SLOW_S.get(target.name, SLOW_S)
    signal.setitimer(signal.ITIMER_REAL, HANG_FACTOR * slow_s)
    found: BaseException | None = None
    try:
        target.play(one)
    except (Exception, HungError) as error:  # noqa: BLE001 - whatever comes is a finding.
        found = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_s = time.thread_time() - began_s[0]  # Other work on this machine is nobody's fault.
    figures.slowest_s = max(figures.slowest_s, took_s)
    if crashed:
        found = crashed[0]
        crashed.clear()
    if found is None and took_s > slow_s:
        found = TimeoutError(f"took {took_s:.2f} s of processor")
    return found


def _note(figures: Figures, number: int, one: Any, error: BaseException) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames if "/governor/" in frame.filename
    ]
    places = places or [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-1:]]
    kind = f"{type(error).__name__} at {places[-1] if places else '?'}"
    known = figures.findings.get(kind)
    if known is not None:
        known.count += 1
        return
    trace = "".join(traceback.format_exception(error))[-4_000:]
    figures.findings[kind] = Finding(number, f"{kind}: {str(error)[:200]}", repr(one)[:SHOWN_CHARS], trace)


@contextlib.contextmanager
def _thread_faults_in(crashed: list[BaseException]) -> Iterator[None]:
    before = threading.excepthook

    def note(fault: threading.ExceptHookArgs) -> None:
        if fault.exc_value is not None:
            crashed.append(fault.exc_value)

    threading.excepthook = note
    try:
        yield
    finally:
        threading.excepthook = before


@contextlib.contextmanager
def _alarms() -> Iterator[None]:
    def hung(_number: int, _frame: FrameType | None) -> None:
        raise HungError("it was still played after ten times what it may take")

    before: Any = signal.signal(signal.SIGALRM, hung)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _emptied(work: Path) -> Path:
    work.mkdir(exist_ok=True)
    for entry in sorted(work.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return work


def table(all_figures: list[Figures], say: Callable[[str], None] = print) -> None:
    rss = f"{'RSS warm':>10} {'RSS end':>10} {'kept, most':>10}"
    say(f"{'target':<12} {'inputs':>9} {'seconds':>8} {'slowest':>9} {rss}  findings")
    for one in all_figures:
        rss = " ".join(f"{kib / 1024:>6.1f} MiB" for kib in (one.rss_warm_kib, one.rss_end_kib, one.rss_peak_kib))
        say(
            f"{one.target:<12} {one.inputs:>9,} {one.seconds:>8.1f} {one.slowest_s * 1000:>6.0f} ms {rss}"
            f"  {len(one.findings)}"
        )
    total = sum(one.inputs for one in all_figures)
    say(f"{'all':<12} {total:>9,} {sum(one.seconds for one in all_figures):>8.1f}")
    for one in all_figures:
        for finding in one.findings.values():
            say(f"\n{one.target} --only {finding.number} ({finding.count} times): {finding.what}\n  {finding.shown}")
            say(finding.trace)
