"""A GPU of the run stands nearly idle while the run trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events.inputs import Event, Step
from governor.core.events.machine import GpuSample
from governor.core.rules.triggers.base import Key
from governor.core.runs.intake import PAUSES
from governor.core.runs.state import Run

STALE_NS: Final = DurationNs(120 * NS_PER_S)  # Loggers sample every 2 to 60 s: two of the slowest missed.
GPUS_MAX: Final = 64  # Four times the widest node sold.
BUCKETS: Final = 20  # Of a window: it moves on in steps of a twentieth, whatever the rhythm of the samples.
RHYTHM_STEPS: Final = 20
WARMING_UP: Final = unknown("warming_up")


class _Window:
    """How busy one GPU was over its last stretch of training, in whole nanoseconds: sums do not drift."""

    __slots__ = ("_bucket_ns", "_buckets", "_busy_ns", "_size_ns", "_span_ns")

    def __init__(self, size_ns: int) -> None:
        self._size_ns = size_ns
        self._bucket_ns = size_ns // BUCKETS
        self._buckets: deque[tuple[int, int]] = deque()
        self._span_ns = self._busy_ns = 0

    def add(self, span_ns: int, busy_ns: int) -> None:
        self._span_ns += span_ns
        self._busy_ns += busy_ns
        if self._buckets and self._buckets[-1][0] < self._bucket_ns:
            last_span_ns, last_busy_ns = self._buckets.pop()
            span_ns, busy_ns = span_ns + last_span_ns, busy_ns + last_busy_ns
        self._buckets.append((span_ns, busy_ns))
        while self._span_ns - self._buckets[0][0] >= self._size_ns:
            gone_span_ns, gone_busy_ns = self._buckets.popleft()
            self._span_ns -= gone_span_ns
            self._busy_ns -= gone_busy_ns

    @property
    def busy_frac(self) -> float | None:
        """None until it is full."""
        return self._busy_ns / self._span_ns if self._span_ns >= self._size_ns else None

    def snapshot(self) -> list[list[int]]:
        return [list(bucket) for bucket in self._buckets]


class GpuStarvation:
    """How busy each GPU of the run was over the last `window` of training, in NVML's sense: any kernel ran.

    Where it is known whose GPUs they are (the daemon: by the processes on them, or by name), any *one* below
    `floor_frac` is enough: the others then wait for it in their collectives, at 100 %, and the mean shows nothing. A
    log lists all GPUs of its node, most of them unused or a neighbour's: there the *busiest* is judged. Left out are:
    evaluation, saving, compilation, start-up; everything between two steps that lie more than `pause_times` the
    median step apart, and more than `pause_min` (an unmarked evaluation; a hang is another trigger's); and what came
    before the first step, as soon as that has come. A job that logs no step at all is judged from its start, once
    its busiest GPU has been seen to work a little (`begun_frac`): a GPU that has not begun starves of nothing.

    Misses: a GPU that spins in a collective or runs tiny kernels is busy; in a log, one starved GPU of several, and
    all of them beside a neighbour's busy one. UNKNOWN without samples for two minutes, until a window is full, while
    no rank is connected, and before anything has begun. Starts anew with each attempt.
    """

    KIND: ClassVar[str] = "gpu_starvation"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Starved jobs (2 x A6000 for 2.9 h, no loss ever) stood at 0.04. The busiest GPU of healthy language-model
        # runs was never below 0.52 over five minutes.
        Key("floor_frac", "frac", 0.1, "Fires when a GPU was busy for less than this part of the window."),
        Key("window", "duration", "5m", "Training time that is averaged: longer than a shard download.", "10s"),
        Key("begun_frac", "frac", 0.01, "Before the first step: GPUs less busy than this have not begun."),
        Key("pause_times", "number", 5, "Steps further apart than so many times the median have a pause between.", 2),
        Key("pause_min", "duration", "60s", "And further apart than this: below it no pause is worth its name."),
    )
    STEPPED: ClassVar[bool] = False  # A starved job may finish no step at all.
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, GpuSample})
    LIMITS: ClassVar[tuple[str, ...]] = ("floor_frac",)
    SAYS: ClassVar[tuple[str, ...]] = (
        "a GPU that is known to be the run's, or of a log's GPUs the busiest, is busy for less than {floor_frac} of "
        "the last {window} of training",
        "Evaluation, saving and starting are left out, and so is what lies between two steps that are more than "
        "{pause_times} times the median step and more than {pause_min} apart. A job without any step is judged once "
        "its busiest GPU is busy for {begun_frac} of the time.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._floor_frac: float = params["floor_frac"]
        self._window_ns: DurationNs = params["window"]
        self._begun_frac: float = params["begun_frac"]
        self._pause_times: float = params["pause_times"]
        self._pause_min_ns: DurationNs = params["pause_min"]
        self._windows: dict[str, _Window] = {}
        self._gaps_ns = Reservoir(RHYTHM_STEPS)
        self._start()

    def _start(self) -> None:
        self._windows.clear()
        self._has_stepped = False
        self._are_own = False  # The GPUs are known to be the run's, not merely its node's.
        self._sampled_at: MonoNs | None = None
        self._stepped_at: MonoNs | None = None
        self._gaps_ns.clear()  # Between steps, as they came.
        # Since the last step: whether they were of training is known with the next.
        self._pending_ns = 0
        self._pending: dict[str, tuple[int, int]] = {}  # Of each GPU: nanoseconds in which it was seen, and busy.
        self._finding = WARMING_UP

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            if isinstance(event, GpuSample):
                self._sample(event, run)
            return False
        settles = self._has_stepped and self._pending_ns > 0
        if settles:
            self._settle(event.at)
        elif not self._has_stepped:
            self._has_stepped = True
            self._drop_pending()
            self._windows.clear()
            self._finding = WARMING_UP
        self._stepped_at = event.at
        return settles and self._finding.is_firing

    def _sample(self, sample: GpuSample, run: Run) -> None:
        last, self._sampled_at = self._sampled_at, sample.at
        if last is None or not 0 < sample.at - last <= STALE_NS or _is_paused(run):
            return
        span_ns = sample.at - last
        self._are_own = bool(sample.uuids)
        self._pending_ns += span_ns
        for place, frac in enumerate(sample.busy_frac[:GPUS_MAX]):
            name = sample.uuids[place] if sample.uuids else str(place)
            if frac is not None and 0 <= frac <= 1:  # NaN fails too.
                seen_ns, busy_ns = self._pending.get(name, (0, 0))
                self._pending[name] = seen_ns + span_ns, busy_ns + round(frac * span_ns)
            else:
                self._pending.pop(name, None)
                self._windows.pop(name, None)  # What is not told is not remembered either.
        if not self._has_stepped:
            self._take()

    def _settle(self, at: MonoNs) -> None:
        """A step has come: what was sampled since the last one was training, or a pause."""
        usual_ns = self._pause_times * (self._gaps_ns.median() or 0.0)
        if self._stepped_at is not None:
            self._gaps_ns.add(at - self._stepped_at)
        if self._pending_ns > max(usual_ns, self._pause_min_ns):
            self._drop_pending()
        else:
            self._take()

    def _drop_pending(self) -> None:
        self._pending_ns = 0
        self._pending.clear()

    def _take(self) -> None:
        self._windows = {name: window for name, window in self._windows.items() if name in self._pending}
        for name, (seen_ns, busy_ns) in self._pending.items():
            window = self._windows.get(name)
            if window is None:
                window = self._windows[name] = _Window(self._window_ns)
            window.add(seen_ns, min(busy_ns, seen_ns))
        self._drop_pending()
        self._finding = self._read()

    def _read(self) -> Finding:
        by_gpu = {name: window.busy_frac for name, window in self._windows.items()}
        known = {name: frac for name, frac in by_gpu.items() if frac is not None}
        if not known or len(known) < len(by_gpu):
            return WARMING_UP
        is_any = self._are_own and self._has_stepped  # Before the first step some wait for others by design.
        gpu = (min if is_any else max)(known, key=lambda name: known[name])
        if not self._has_stepped and known[gpu] < self._begun_frac:
            return unknown("not_begun")
        if known[gpu] >= self._floor_frac:
            return QUIET
        over = format_duration(self._window_ns)
        which = f"GPU {gpu} is" if is_any else f"the busiest GPU, {gpu}, is"
        return Finding(
            Reading.FIRING,
            "gpu_starved",
            f"{which} busy for {known[gpu]:.1%} of the last {over} of training (limit {self._floor_frac:.0%})",
            {
                "gpu": gpu,
                "busy_frac": known[gpu],
                "floor_frac": self._floor_frac,
                "window_s": self._window_ns / NS_PER_S,
                "busy_frac_by_gpu": known,
                "has_stepped": self._has_stepped,
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if self._sampled_at is None or at - self._sampled_at > STALE_NS:
            return unknown("no_gpu_samples")
        return unknown("no_connection") if run.is_cut_off() else self._finding

    def new_attempt(self, run: Run) -> None:
        self._start()

    def snapshot(self) -> Mapping[str, Any]:
        # Samples since the last step are not kept: whether they were of training nobody can tell any more.
        windows = {name: window.snapshot() for name, window in self._windows.items()}
        return {"has_stepped": self._has_stepped, "are_own": self._are_own, "windows": windows}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._start()
        self._has_stepped, self._are_own = bool(snapshot["has_stepped"]), bool(snapshot["are_own"])
        for name, buckets in snapshot["windows"].items():
            window = self._windows[str(name)] = _Window(self._window_ns)
            for span_ns, busy_ns in buckets:
                window.add(int(span_ns), int(busy_ns))
        if self._windows:
            self._finding = self._read()


def _is_paused(run: Run) -> bool:
    """A rank, or the log, says that it does something else than training."""
    if run.jsonl_only:
        return run.stream.phase in PAUSES
    return any(rank.phase in PAUSES for rank in run.ranks.values() if rank.connected)
