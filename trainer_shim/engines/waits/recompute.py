"""The part of a backward pass in which activation checkpointing computes again what the forward pass left out.

torch.utils.checkpoint has two ways. The reentrant one is an autograd function that keeps what it calls again in its
context; DeepSpeed's is made like it. The other makes a frame with a function that computes again. Both are wrapped for
the process. What runs on a device behind the host is only launched then: nothing is hooked.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Dict, Set

from trainer_shim.engines import hooks
from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter
from trainer_shim.timing import NOT_TRAINING, StepTimes, seconds

_DEEPSPEED = "deepspeed.runtime.activation_checkpointing.checkpointing"


class Recompute:
    """Counts the time in recomputations, without the collectives in them: those are communication."""

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        self._ns = 0  # In this step.
        self._seen = False
        self._inside: Set[int] = set()  # Threads that recompute: what is checkpointed may checkpoint a part of itself.
        self._lock = threading.Lock()
        self._open = True

    def close(self) -> None:
        """Count nothing any more: what was made before keeps our wrappers."""
        self._open = False

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, whose calls are recomputations."""

        def recompute(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not self._open or thread in self._inside:
                return original(*args, **kwargs)
            self._inside.add(thread)
            comm_ns, began_ns = self._meter.clock.comm_ns, time.monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:  # It ends by an exception where it has computed all that is needed.
                self._inside.discard(thread)
                self._leave(time.monotonic_ns() - began_ns, comm_ns)

        return recompute

    @guarded()
    def _leave(self, took_ns: int, comm_before_ns: int) -> None:
        clock = self._meter.clock
        if clock.part in NOT_TRAINING:
            return
        with self._lock:
            self._seen = True
            self._ns += max(0, took_ns - (clock.comm_ns - comm_before_ns))

    @guarded()
    def put(self, fields: Dict[str, Any], times: StepTimes) -> None:
        """Put `recompute_s`, once something was seen: a checkpointing of the model's own is not."""
        ns, self._ns = self._ns, 0
        if self._seen:
            fields["recompute_s"] = seconds(min(ns, times.step_ns))


def watch(meter: StepMeter, undo: hooks.Undo) -> None:
    """Time the recomputations of the process until `undo`."""
    import torch.utils.checkpoint as checkpointing

    found = Recompute(meter)
    if hasattr(checkpointing, "_CheckpointFrame"):  # From 2.1 on.
        hooks.replace(undo, checkpointing._CheckpointFrame, "__init__", _frame(found))
    for module in (checkpointing, sys.modules.get(_DEEPSPEED)):
        function = getattr(module, "CheckpointFunction", None)
        if function is not None:
            hooks.replace(undo, function, "backward", _backward(found))
    undo.add(found.close)
    undo.add(meter.overlapping.add(found.put))


def _frame(found: Recompute) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(frame: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
            original(frame, found.timed(recompute_fn), *args, **kwargs)

        return init

    return make


def _backward(found: Recompute) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(context: Any, *grads: Any) -> Any:
            function = getattr(context, "run_function", None)
            if function is None:
                return original(context, *grads)
            context.run_function = found.timed(function)
            try:
                return original(context, *grads)
            finally:
                context.run_function = function

        return backward

    return make
