"""A GPU of the run stands nearly idle while the run trains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.reservoir import Reservoir
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events.inputs import Event, Step
from governor.core.events.machine import GpuSample
from governor.core.rules.gpu_window import Window
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.intake import PAUSES
from governor.core.runs.state import Run

# Loggers sample every 2 to 60 s, so two samples of the slowest logger are missing.
STALE_NS: Final = DurationNs(120 * NS_PER_S)
GPUS_MAX: Final = 64  # Four times the widest node sold.
RHYTHM_STEPS: Final = 20
WARMING_UP: Final = unknown("warming_up")


@dataclass(slots=True)
class _State:
    has_stepped: bool
    are_own: bool  # The GPUs are known to be the run's, not only its node's.
    windows: defaultdict[str, Window]
    sampled_at: MonoNs | None = field(default=None, metadata=UNKEPT)
    stepped_at: MonoNs | None = field(default=None, metadata=UNKEPT)
    # Intervals between steps.
    gaps_ns: Reservoir = field(default_factory=lambda: Reservoir(RHYTHM_STEPS), metadata=UNKEPT)
    # GPU time since the last step. The next step shows whether it was training. It is lost at a restart.
    pending_ns: int = field(default=0, metadata=UNKEPT)
    pending: dict[str, tuple[int, int]] = field(default_factory=dict, metadata=UNKEPT)  # By GPU: ns seen, and ns busy.
    finding: Finding = field(default=WARMING_UP, metadata=UNKEPT)


class GpuStarvation(Trigger):
    """How busy each GPU of the run was over the last `window` of training, in NVML's sense: any kernel ran.

    The daemon knows the run's own GPUs, by the processes on them or by name. There *one* GPU below `floor_frac` is
    enough: the others wait for it in their collectives at 100 %, so the mean shows nothing. A log lists all GPUs of its
    node, most of them unused or a neighbour's. There the *busiest* GPU is judged.

    Not counted: evaluation, saving, compilation, start-up; the time between two steps that lie more than `pause_times`
    the median step and more than `pause_min` apart (an unmarked evaluation; `hang` covers hangs); and the time before
    the first step, once that has come. A job that logs no step is judged from its start, once its busiest GPU has
    worked a little (`begun_frac`): a GPU that has not begun is not starved.

    Misses: a GPU that spins in a collective or runs tiny kernels is busy; in a log, one starved GPU of several, and all
    of them beside a neighbour's busy one. UNKNOWN without samples for two minutes, until a window is full, while no
    rank is connected, and before any GPU has begun. Resets at each attempt.
    """

    KIND: ClassVar[str] = "gpu_starvation"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Starved jobs (2 x A6000 for 2.9 h, no loss ever) had 0.04. The busiest GPU of healthy language-model runs was
        # never below 0.52 over five minutes.
        Key("floor_frac", "frac", 0.1, "Fires when a GPU was busy for less than this part of the window."),
        Key("window", "duration", "5m", "Training time that is averaged: longer than a shard download.", "10s"),
        Key("begun_frac", "frac", 0.01, "Before the first step: GPUs less busy than this have not begun."),
        Key("pause_times", "number", 5, "Steps further apart than so many times the median have a pause between.", 2),
        Key("pause_min", "duration", "60s", "And further apart than this: below it no pause is worth its name."),
    )
    STEPPED: ClassVar[bool] = False  # A starved job may finish no step at all.
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step, GpuSample})
    LIMITS: ClassVar[tuple[str, ...]] = ("floor_frac",)
    MEANING: ClassVar[tuple[str, ...]] = (
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
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(has_stepped=False, are_own=False, windows=defaultdict(lambda: Window(self._window_ns)))

    def _restored(self) -> None:
        if self._state.windows:
            self._state.finding = self._read()

    def observe(self, event: Event, run: Run) -> bool:
        state = self._state
        if not isinstance(event, Step):
            if isinstance(event, GpuSample):
                self._sample(event, run)
            return False
        settles = state.has_stepped and state.pending_ns > 0
        if settles:
            self._settle(event.at)
        elif not state.has_stepped:
            state.has_stepped = True
            self._drop_pending()
            state.windows.clear()
            state.finding = WARMING_UP
        state.stepped_at = event.at
        return settles and state.finding.is_firing

    def _sample(self, sample: GpuSample, run: Run) -> None:
        state = self._state
        last, state.sampled_at = state.sampled_at, sample.at
        if last is None or not 0 < sample.at - last <= STALE_NS or _is_paused(run):
            return
        span_ns = sample.at - last
        state.are_own = bool(sample.uuids)
        state.pending_ns += span_ns
        for place, frac in enumerate(sample.busy_frac[:GPUS_MAX]):
            name = sample.uuids[place] if sample.uuids else str(place)
            if frac is not None and 0 <= frac <= 1:  # NaN fails too.
                seen_ns, busy_ns = state.pending.get(name, (0, 0))
                state.pending[name] = seen_ns + span_ns, busy_ns + round(frac * span_ns)
            else:
                state.pending.pop(name, None)
                # A sample without this GPU's value ends its window too.
                state.windows.pop(name, None)
        if not state.has_stepped:
            self._take()

    def _settle(self, at: MonoNs) -> None:
        """Settle the samples since the last step: they were training, or a pause."""
        state = self._state
        usual_ns = self._pause_times * (state.gaps_ns.median() or 0.0)
        if state.stepped_at is not None:
            state.gaps_ns.add(at - state.stepped_at)
        if state.pending_ns > max(usual_ns, self._pause_min_ns):
            self._drop_pending()
        else:
            self._take()

    def _drop_pending(self) -> None:
        state = self._state
        state.pending_ns = 0
        state.pending.clear()

    def _take(self) -> None:
        state = self._state
        for name in [name for name in state.windows if name not in state.pending]:
            del state.windows[name]
        for name, (seen_ns, busy_ns) in state.pending.items():
            state.windows[name].add((seen_ns, min(busy_ns, seen_ns)))
        self._drop_pending()
        state.finding = self._read()

    def _read(self) -> Finding:
        state = self._state
        by_gpu = {name: window.share for name, window in state.windows.items()}
        known = {name: frac for name, frac in by_gpu.items() if frac is not None}
        if not known or len(known) < len(by_gpu):
            return WARMING_UP
        is_any = state.are_own and state.has_stepped  # Before the first step some GPUs wait for others by design.
        gpu = (min if is_any else max)(known, key=lambda name: known[name])
        if not state.has_stepped and known[gpu] < self._begun_frac:
            return unknown("not_begun")
        if known[gpu] >= self._floor_frac:
            return QUIET
        over = format_duration(self._window_ns)
        which = f"GPU {gpu} is" if is_any else f"the busiest GPU, {gpu}, is"
        return firing(
            "gpu_starved",
            f"{which} busy for {known[gpu]:.1%} of the last {over} of training (limit {self._floor_frac:.0%})",
            {
                "gpu": gpu,
                "busy_frac": known[gpu],
                "floor_frac": self._floor_frac,
                "window_s": self._window_ns / NS_PER_S,
                "busy_frac_by_gpu": known,
                "has_stepped": state.has_stepped,
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if self._state.sampled_at is None or at - self._state.sampled_at > STALE_NS:
            return unknown("no_gpu_samples")
        return unknown("no_connection") if run.is_cut_off() else self._state.finding

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        sampled_at = self._state.sampled_at
        if sampled_at is None or at - sampled_at > STALE_NS:
            return FOREVER
        return MonoNs(sampled_at + STALE_NS)


def _is_paused(run: Run) -> bool:
    """A rank, or the log, reports a phase other than training."""
    if run.jsonl_only:
        return run.stream.phase in PAUSES
    return any(rank.phase in PAUSES for rank in run.ranks.values() if rank.connected)
