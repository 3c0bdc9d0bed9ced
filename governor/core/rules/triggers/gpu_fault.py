"""A GPU of the run has a hardware fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import MonoNs
from governor.core.events.hardware import FATAL_XIDS, FIGURES_STALE_NS, GpuFigures
from governor.core.events.inputs import Event
from governor.core.events.machine import GpuSample
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import Run

LOST: Final = "gpu_lost"
ECC: Final = "uncorrected_ecc"
XID: Final = "fatal_xid"


@dataclass(slots=True)
class _State:
    # The reason, the GPU, and the XID or how many errors.
    fault: tuple[str, str, int] | None = None
    told_at: MonoNs | None = field(default=None, metadata=UNKEPT)
    # By GPU: its XIDs and its uncorrected errors so far. After a restart both counts begin anew.
    xids: dict[str, int] = field(default_factory=dict, metadata=UNKEPT)
    ecc: dict[str, int] = field(default_factory=dict, metadata=UNKEPT)


class GpuFault(Trigger):
    """The driver tells one of three faults of a GPU that is known to be the run's.

    *The GPU is lost*: it has fallen off the bus. *An XID* after which NVIDIA's catalogue asks for a reset of the GPU or
    a restart of the machine at once: 46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 158
    (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). All others are left out: 13, 31, 43, 45 and 94 are
    mostly the program's own. *Uncorrected ECC errors* grew: what was computed with them may be wrong.

    It fires until the attempt ends: none of these mends itself. A new launch on the same GPU will meet it again.

    Misses: what happened before the run's first sample or while the governor was down; NVSwitch faults (SXid), which
    are in the kernel's log alone; GPUs that are not known to be the run's, as in a container that shows no processes
    and a trainer that does not name its GPUs. UNKNOWN without the driver's figures for 30 s. Resets at each attempt.
    """

    KIND: ClassVar[str] = "gpu_fault"
    KEYS: ClassVar[tuple[Key, ...]] = ()
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({GpuSample})
    MEANING: ClassVar[tuple[str, ...]] = (
        "a GPU of the run is lost, has an XID error that needs a reset, or has new uncorrected memory errors",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> None:
        if not isinstance(event, GpuSample) or not event.figures or not event.uuids:
            return
        self._state.told_at = event.at
        for gpu, figures in zip(event.uuids, event.figures, strict=True):
            fault = self._fault(gpu, figures)
            if self._state.fault is None:
                self._state.fault = fault

    def _fault(self, gpu: str, figures: GpuFigures) -> tuple[str, str, int] | None:
        """What is new. A count that went back began anew, with a sampler or a driver: all of it is new, of XIDs."""
        state, found = self._state, None
        if figures.is_lost:
            found = (LOST, gpu, 0)
        total = figures.ecc_uncorrected_total
        if total is not None:
            if total > state.ecc.get(gpu, total):
                found = (ECC, gpu, total - state.ecc[gpu])
            state.ecc[gpu] = total
        if figures.xid_total is not None:
            before = state.xids.get(gpu, figures.xid_total)
            new = figures.xid_total - before if figures.xid_total >= before else figures.xid_total
            state.xids[gpu] = figures.xid_total
            fatal = [xid for xid in figures.xids[max(0, len(figures.xids) - new) :] if xid in FATAL_XIDS]
            if fatal:
                found = (XID, gpu, fatal[0])
        return found

    def judge(self, at: MonoNs, run: Run) -> Finding:
        fault, told_at = self._state.fault, self._state.told_at
        if fault is None:
            return QUIET if told_at is not None and at - told_at <= FIGURES_STALE_NS else unknown("no_gpu_figures")
        reason, gpu, count = fault
        if reason == LOST:
            return firing(reason, f"GPU {gpu} is lost: it has fallen off the bus", {"gpu": gpu})
        if reason == ECC:
            text = f"GPU {gpu} has {count} new uncorrected memory error{'' if count == 1 else 's'}"
            return firing(reason, text, {"gpu": gpu, "errors": count})
        return firing(reason, f"GPU {gpu} has XID {count}: {FATAL_XIDS.get(count, '')}", {"gpu": gpu, "xid": count})

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        told_at = self._state.told_at
        if self._state.fault is not None or told_at is None or at - told_at > FIGURES_STALE_NS:
            return FOREVER
        return MonoNs(told_at + FIGURES_STALE_NS)
