"""What holds a rank back from outside its program: a GPU whose clock is held down, and other users of its processor.

Samples come about once a second, a rank's steps when they end. What the samples say is added up until a window of steps
is divided; then it is a share of what the rank computed in it, and never more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.parts import RankSums
from governor.core.attribution.queue_time import QueueTime, QueueWait
from governor.core.base.units import MonoNs
from governor.core.events.hardware import FATAL_XIDS, FIGURES_STALE_NS, GpuFigures

GPUS_MAX: Final = 64  # Four times the widest node sold.
IDLE_CLOCK: Final = 0x1  # NVML's reason: nothing runs, so the clock says nothing of the pace.
# Less of a window than this is noise: a healthy rank waits 1 to 2 % of its time for a processor.
OTHERS_MIN_FRAC: Final = 0.05
STEPS_MIN: Final = 3  # A window of fewer steps tells no pace.
PACE_WEIGHT: Final = 0.3  # Of the newest window.
CLOCK_WEIGHT: Final = 0.1  # Of the newest look: clocks move with the load.

Losses = Mapping[int, Mapping[Cause, int]]  # By rank.
NO_LOSSES: Final[Losses] = {}


@dataclass(slots=True)
class Clock:
    """One GPU's, as last told, and the one it had when nothing held it down."""

    figures: GpuFigures
    free_mhz: float | None = None
    lost_ns: int = 0  # Of all ranks on it: what evidence names is the GPU with most.

    def see(self, figures: GpuFigures) -> None:
        self.figures = figures
        mhz = figures.sm_clock_mhz
        if not mhz or figures.clock_reasons is None or figures.throttles or figures.clock_reasons & IDLE_CLOCK:
            return
        self.free_mhz = mhz if self.free_mhz is None else self.free_mhz + CLOCK_WEIGHT * (mhz - self.free_mhz)

    @property
    def full_mhz(self) -> float | None:
        return self.free_mhz or self.figures.sm_clock_max_mhz

    @property
    def lost_frac(self) -> float | None:
        """How much of its clock is held down now. None: the driver does not tell."""
        figures = self.figures
        if figures.clock_reasons is None:
            return None
        if not figures.throttles:
            return 0.0
        if figures.sm_clock_mhz is None or not self.full_mhz:
            return None
        return max(0.0, 1.0 - figures.sm_clock_mhz / self.full_mhz)

    def text(self, gpu: str) -> str:
        now, full = self.figures.sm_clock_mhz or 0.0, self.full_mhz or 0.0
        return f"{gpu}: SM clock {now:,.0f} of {full:,.0f} MHz, {' and '.join(self.figures.throttles)}"


@dataclass(slots=True)
class _Held:
    """Of one rank, since its steps were last divided."""

    seen_ns: int = 0  # Time in which its GPU's clock was told.
    lost_ns: int = 0  # Of it, by the clock.


@dataclass(slots=True)
class HardwareTime:
    """Owned by the run's account. `evidence`: by cause, the last that was seen of it."""

    evidence: dict[Cause, str] = field(default_factory=dict)
    # Since then a GPU of the run has a fault that does not mend itself. 0: since an earlier boot.
    fault_at: MonoNs | None = None
    queue: QueueTime = field(default_factory=QueueTime)
    _clocks: dict[str, Clock] = field(default_factory=dict)
    _free_mhz: dict[str, float] = field(default_factory=dict)  # By GPU, as the journal had it.
    _xids: dict[str, int] = field(default_factory=dict)  # How many each GPU had told.
    _lost: set[str] = field(default_factory=set)
    _is_next_attempt: bool = False  # Of a fault: the attempt that it hit is over.
    _steps_since: int = 0  # Of a fault.
    _of_rank: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _at: MonoNs | None = None
    _held: dict[int, _Held] = field(default_factory=dict)
    _pace_ns: dict[int, int] = field(default_factory=dict)  # What a rank computes in a step with a free clock.

    # --- what samplers tell --------------------------------------------------------------------------------

    def see_gpus(self, at: MonoNs, figures: Mapping[str, GpuFigures], of_rank: Mapping[int, tuple[str, ...]]) -> None:
        """Take one look at the run's GPUs. `figures`: by the GPU's name; `of_rank`: on which ones each rank computes.

        A sample holds until the next one: what was since the last is as that one said.
        """
        passed_ns = at - self._at if self._at is not None else 0
        self._at = at
        if 0 < passed_ns <= FIGURES_STALE_NS:
            self._count(passed_ns)
        self._clocks = {name: clock for name, clock in self._clocks.items() if name in figures}
        self._xids = {name: count for name, count in self._xids.items() if name in figures}
        self._lost &= figures.keys()
        for name, told in list(figures.items())[:GPUS_MAX]:
            self._clocks.setdefault(name, Clock(told, self._free_mhz.get(name))).see(told)
            self._see_fault(at, name, told)
        self._of_rank = dict(of_rank)

    def _count(self, passed_ns: int) -> None:
        for rank, names in self._of_rank.items():
            clocks = [self._clocks[name] for name in names if name in self._clocks]
            told = [(frac, clock) for clock in clocks if (frac := clock.lost_frac) is not None]
            if not told:
                continue
            frac, slowest = max(told, key=lambda one: one[0])
            held = self._held.setdefault(rank, _Held())
            held.seen_ns += passed_ns
            lost_ns = int(frac * passed_ns)
            held.lost_ns += lost_ns
            if lost_ns:
                slowest.lost_ns += lost_ns
                worst = max(self._clocks, key=lambda name: self._clocks[name].lost_ns)
                if self._clocks[worst] is slowest:
                    self.evidence[Cause.THROTTLING] = slowest.text(worst)

    def _see_fault(self, at: MonoNs, name: str, figures: GpuFigures) -> None:
        """A GPU that is lost, or told an XID that needs a reset. A count that went back began anew."""
        fault = "it has fallen off the bus" if figures.is_lost and name not in self._lost else None
        if figures.is_lost:
            self._lost.add(name)
        if (total := figures.xid_total) is not None:
            before = self._xids.get(name, total)
            new = total - before if total >= before else total
            self._xids[name] = total
            fatal = [xid for xid in figures.xids[max(0, len(figures.xids) - new) :] if xid in FATAL_XIDS]
            fault = f"XID {fatal[0]}, {FATAL_XIDS[fatal[0]]}" if fatal else fault
        if fault is None or self.fault_at is not None:
            return
        self.fault_at, self._steps_since, self._is_next_attempt = at, 0, False
        self.evidence[Cause.HARDWARE] = f"{name}: {fault}"

    def fault_halts(self, at: MonoNs) -> None:
        """A rule halts the run for a fault. Ranks may have gone on meanwhile, as those do that save."""
        if self.fault_at is None:
            self.fault_at, self._steps_since, self._is_next_attempt = at, 0, False

    def until_fault(self, at: MonoNs) -> MonoNs:
        """Up to when the time before `at` is no fault's."""
        return at if self.fault_at is None else min(self.fault_at, at)

    def stepped(self, began: MonoNs) -> None:
        """A step has ended. The next attempt's first one ends a fault's time; and whoever goes on is not held up."""
        if self.fault_at is None:
            return
        self._steps_since += began > self.fault_at
        if self._is_next_attempt or self._steps_since >= STEPS_MIN:
            self.fault_at = None

    # --- what it cost --------------------------------------------------------------------------------------

    def begin_attempt(self) -> None:
        """Other processes, and perhaps other steps. What is known of the GPUs stays."""
        self._of_rank, self._at, self._is_next_attempt = {}, None, True
        self._held.clear()
        self._pace_ns.clear()
        self.queue = QueueTime()

    def losses(self, ranks: Mapping[int, RankSums]) -> Losses:
        """What each rank's steps of one window lost, out of what it computed in them, as far as is known by now."""
        found = dict[int, Mapping[Cause, int]]()
        for rank, sums in ranks.items():
            computed = computed_ns(sums)
            throttled = self._throttled_ns(rank, sums, computed)
            losses = {
                Cause.THROTTLING: throttled,
                Cause.OTHER_TENANTS: self._queued_ns(sums, computed, throttled, self.queue.told(rank)),
            }
            found[rank] = {cause: ns for cause, ns in losses.items() if ns}
        return found

    def take(self, ranks: Mapping[int, RankSums]) -> Losses:
        """The same of a window that is divided now: the next one begins."""
        found = self.losses(ranks)
        for rank, sums in ranks.items():
            wait, held = self.queue.take(rank), self._held.pop(rank, _Held())
            if wait is not None and Cause.OTHER_TENANTS in found[rank]:
                self.evidence[Cause.OTHER_TENANTS] = (
                    f"rank {rank} waited for a processor {wait.waited_frac:.0%} of its time, "
                    f"while others used {wait.others_cores:.1f} of its cores"
                )
            if held.seen_ns and not held.lost_ns and sums.steps >= STEPS_MIN:
                newest = computed_ns(sums) // sums.steps
                pace_ns = self._pace_ns.get(rank, newest)
                self._pace_ns[rank] = pace_ns + int(PACE_WEIGHT * (newest - pace_ns))
        return found

    def _throttled_ns(self, rank: int, sums: RankSums, computed: int) -> int:
        """By the clock's ratio; no more than its steps took longer, where its pace with a free clock is known."""
        held, pace_ns = self._held.get(rank), self._pace_ns.get(rank)
        if held is None or not held.lost_ns:
            return 0
        lost = int(computed * min(1.0, held.lost_ns / held.seen_ns))
        return lost if pace_ns is None else max(0, min(lost, computed - pace_ns * sums.steps))

    def _queued_ns(self, sums: RankSums, computed: int, throttled: int, wait: QueueWait | None) -> int:
        """Spread over the time in which the rank's main thread had work, as the kernel tells it.

        A sleep is none of it: in a collective, for data, or in the loop's code. What was computed is all of it.
        """
        if wait is None:
            return 0
        left = computed - throttled
        ready = max(computed, int(wait.ready_frac * sums.total_ns), 1)
        lost = min(left, int(wait.frac * sums.total_ns * left / ready))
        return lost if lost >= OTHERS_MIN_FRAC * sums.total_ns else 0

    # --- the journal ---------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain JSON, empty if there is nothing to tell."""
        told = {cause.value: text for cause, text in self.evidence.items()}
        free = self._free_mhz | {name: one.free_mhz for name, one in self._clocks.items() if one.free_mhz is not None}
        row: dict[str, Any] = {
            "evidence": told,
            "free_mhz": free,
            "pace_ns": {str(rank): ns for rank, ns in self._pace_ns.items()},
            "lost": sorted(self._lost),
        }
        if self.fault_at is not None:
            row |= {"fault_at": self.fault_at, "is_next": self._is_next_attempt, "steps_since": self._steps_since}
        return {name: value for name, value in row.items() if value or name == "fault_at"}

    @classmethod
    def restored(cls, row: Mapping[str, Any], *, same_boot: bool) -> HardwareTime:
        """That there is a fault is no moment: it outlives a boot. How fast clocks and steps are may have changed then.

        An older journal has the fault's moment and the evidence alone.
        """
        fault_at = row.get("fault_at")
        found = cls({Cause(name): str(text) for name, text in row.get("evidence", {}).items()})
        if fault_at is not None:
            found.fault_at = MonoNs(int(fault_at) if same_boot else 0)
            found._is_next_attempt = bool(row.get("is_next"))
            found._steps_since = int(row.get("steps_since", 0))
        if same_boot:
            found._free_mhz = {str(name): float(mhz) for name, mhz in row.get("free_mhz", {}).items()}
            found._pace_ns = {int(rank): int(ns) for rank, ns in row.get("pace_ns", {}).items()}
            found._lost = {str(name) for name in row.get("lost", ())}
        return found


def computed_ns(sums: RankSums) -> int:
    """What the steps computed or waited for others without saying so: all but recompute, offload, communication."""
    working = sums.working_ns - min(sums.recompute_ns, sums.parts[part.BACKWARD]) - sums.offloaded_ns
    return working - min(sums.communication_ns, working)
