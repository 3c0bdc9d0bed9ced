"""The part of an optimizer's step that ZeRO-Offload computes on the CPU, with the copies of the weights behind it.

The engine's optimizer calls the one that was given for each group of parameters. Before its first call the engine may
have waited for the device; from there on the host itself computes and copies, and its clock is right. Without an
offloaded optimizer in the configuration nothing is hooked. SuperOffload's and ZenFlow's, which compute beside the
training, call no optimizer there.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

from trainer_shim.engines import hooks
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter
from trainer_shim.timing import StepTimes, seconds


class Offload:
    """Counts the time from the first step on the CPU to the end of the engine's, without the collectives in it."""

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        self._ns = 0  # In this training step.
        self._began_ns: Optional[int] = None
        self._comm_ns = 0  # Of this training step, when it began.

    @guarded()
    def begin(self, *_: Any) -> None:
        """The optimizer is about to step on the CPU."""
        if self._began_ns is None:
            self._began_ns, self._comm_ns = time.monotonic_ns(), self._meter.clock.comm_ns

    @guarded()
    def end(self) -> None:
        """The engine's optimizer has stepped, or has not: a step with an overflow."""
        began_ns, self._began_ns = self._began_ns, None
        if began_ns is not None:
            took_ns = time.monotonic_ns() - began_ns
            self._ns += max(0, took_ns - (self._meter.clock.comm_ns - self._comm_ns))

    @guarded()
    def put(self, fields: Dict[str, Any], times: StepTimes) -> None:
        """Put `offload_s`."""
        ns, self._ns = self._ns, 0
        fields["offload_s"] = seconds(min(ns, times.step_ns))


@guarded()
def watch(engine: Any, meter: StepMeter, undo: hooks.Undo) -> None:
    """Time the optimizer of `engine` until `undo`, if its configuration offloads it."""
    outer = getattr(engine, "optimizer", None)
    inner = getattr(outer, "optimizer", None)
    if inner is None or not is_offloaded(engine) or not hasattr(inner, "register_step_pre_hook"):
        return
    found = Offload(meter)
    hooks.replace(undo, outer, "step", hooks.around(_step, found))
    undo.add(inner.register_step_pre_hook(found.begin).remove)
    undo.add(meter.overlapping.add(found.put))


def is_offloaded(engine: Any) -> bool:
    """Whether the configuration has an `offload_optimizer` with a device."""
    asked = getattr(engine, "zero_offload_optimizer", None)
    device = getattr(asked() if asked is not None else None, "device", None)
    return device is not None and str(getattr(device, "value", device)) != "none"


def _step(found: Offload, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    finally:
        found.end()
