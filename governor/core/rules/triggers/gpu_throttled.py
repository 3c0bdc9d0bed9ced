"""Heat or power supply hold a GPU of the run down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration
from governor.core.events.hardware import FIGURES_STALE_NS, GpuFigures
from governor.core.events.inputs import Event
from governor.core.events.machine import GpuSample
from governor.core.rules.gpu_window import Window
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import Run

GPUS_MAX: Final = 64  # Four times the widest node sold.
WARMING_UP: Final = unknown("warming_up")


@dataclass(slots=True)
class _State:
    windows: defaultdict[str, Window]
    told_at: MonoNs | None = field(default=None, metadata=UNKEPT)
    newest: dict[str, GpuFigures] = field(default_factory=dict, metadata=UNKEPT)
    finding: Finding = field(default=WARMING_UP, metadata=UNKEPT)


class GpuThrottled(Trigger):
    """The driver says for much of the last `window` that a GPU of the run runs slower than its clocks allow.

    Counted are the reasons of NVML that no owner asks for: hardware slowdown, heat (software and hardware thermal
    slowdown) and power brake, which the rack's supply asserts. A power cap or clocks that somebody set are not, and an
    idle GPU's low clocks are not either. In step-locked training one slow GPU slows all of them.

    Misses: slowness without such a reason; reasons that come and go between two looks, a second apart. UNKNOWN until a
    window is full, where the driver tells no reasons, and without figures for 30 s. Resets at each attempt.
    """

    KIND: ClassVar[str] = "gpu_throttled"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("window", "duration", "5m", "The time that is looked at: longer than a fan takes to answer.", "10s"),
        Key("share_frac", "frac", 0.5, "Fires when a GPU was held down for this part of it."),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({GpuSample})
    LIMITS: ClassVar[tuple[str, ...]] = ("share_frac",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "heat, the power supply or the hardware itself hold a GPU of the run down for {share_frac} of the last "
        "{window}",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._window_ns: DurationNs = params["window"]
        self._share_frac: float = params["share_frac"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State(defaultdict(lambda: Window(self._window_ns)))

    def _restored(self) -> None:
        if self._state.windows:
            self._state.finding = self._read()

    def observe(self, event: Event, run: Run) -> None:
        if not isinstance(event, GpuSample) or not event.figures:
            return
        state = self._state
        last, state.told_at = state.told_at, event.at
        names = event.uuids or tuple(map(str, range(len(event.figures))))
        told = {
            name: figures
            for name, figures in zip(names[:GPUS_MAX], event.figures, strict=False)
            if figures.clock_reasons is not None
        }
        for name in [name for name in state.windows if name not in told]:
            del state.windows[name]
        before, state.newest = state.newest, told
        if last is not None and 0 < event.at - last <= FIGURES_STALE_NS:
            span_ns = event.at - last
            for name in told.keys() & before.keys():  # A sample holds until the next: recordings leave some out.
                state.windows[name].add((span_ns, span_ns if before[name].throttles else 0))
        elif last is not None:
            state.windows.clear()
        state.finding = self._read()

    def _read(self) -> Finding:
        state = self._state
        shares = {name: window.share for name, window in state.windows.items()}
        known = {name: share for name, share in shares.items() if share is not None}
        if not known:
            return WARMING_UP
        gpu = max(known, key=lambda name: known[name])
        if known[gpu] < self._share_frac:
            return QUIET if len(known) == len(shares) else WARMING_UP
        newest = state.newest.get(gpu, GpuFigures())
        why = ", ".join(newest.throttles) or "not now"
        clocks = newest.sm_clock_mhz, newest.sm_clock_max_mhz
        at = f"; {clocks[0]:.0f} of {clocks[1]:.0f} MHz" if clocks[0] is not None and clocks[1] is not None else ""
        over = format_duration(self._window_ns)
        return firing(
            "held_down",
            f"GPU {gpu} is held down for {known[gpu]:.0%} of the last {over} ({why}{at})",
            {
                "gpu": gpu,
                "share_frac": known[gpu],
                "limit_frac": self._share_frac,
                "window_s": self._window_ns / NS_PER_S,
                "reasons": list(newest.throttles),
                "sm_clock_mhz": clocks[0],
                "sm_clock_max_mhz": clocks[1],
                "temperature_c": newest.temperature_c,
                "share_frac_by_gpu": known,
            },
        )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        told_at = self._state.told_at
        if told_at is None or at - told_at > FIGURES_STALE_NS:
            return unknown("no_gpu_figures")
        return self._state.finding if self._state.newest else unknown("no_reasons_told")

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        told_at = self._state.told_at
        return FOREVER if told_at is None or at - told_at > FIGURES_STALE_NS else MonoNs(told_at + FIGURES_STALE_NS)
