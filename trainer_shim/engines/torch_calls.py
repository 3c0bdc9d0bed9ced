"""What a loop calls of PyTorch itself, seen from the process's own functions: backward(), a gradient scaler, clipping.

They are wrapped while a loop is attached that needs it. Each wrapper looks, and calls what was there; under a compiler
and on other threads it does not even look.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, List

from trainer_shim.guard import guarded
from trainer_shim.meter import StepMeter
from trainer_shim.sight.gradients import Gradients
from trainer_shim.sight.losses import LossSource

from . import compiling, hooks

_LOSSES_MAX = 8  # Of one call of torch.autograd.backward().


class TorchCalls:
    """Tells a meter and a Gradients what it sees, from `meter`'s thread alone. `close()` ends that for good."""

    def __init__(self, torch: Any, meter: StepMeter, gradients: Gradients, on_skip: Callable[[Any], None]) -> None:
        self.is_compiling = compiling.is_compiling_of(torch)
        self.tracing, self.compiler = compiling.tracing_of(torch)
        self._meter = meter
        self._gradients = gradients
        self._on_skip = on_skip
        self.thread = meter.progress.main_thread_id
        self.depth = 0
        self.is_open = True

    def close(self) -> None:
        """See nothing any more: somebody may have wrapped our wrappers, and these stay."""
        self.is_open = False

    @property
    def losses(self) -> LossSource:
        """What wants to know where backward() starts."""
        return self._meter.losses

    def is_ours(self) -> bool:
        """Whether the call comes from the loop, not from inside a backward pass, and somebody still looks."""
        return self.is_open and not self.depth and threading.get_ident() == self.thread

    def backward(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Look at what the pass starts from, and time it. Checkpointing calls backward() inside of it."""
        meter = self._meter
        if meter.losses.seeks:
            self._look_at_roots(args[0] if args else kwargs.get("tensors"))
        is_timed = meter.enter_unreported_backward()
        self.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.depth -= 1
            if is_timed:
                meter.exit_unreported_backward()

    @guarded()
    def _look_at_roots(self, roots: Any) -> None:
        if not self._meter.evaluating:
            for root in roots[:_LOSSES_MAX] if isinstance(roots, (tuple, list)) else (roots,):
                self._meter.losses.before_backward(root)

    @guarded()
    def scale(self, loss: Any) -> None:
        """A gradient scaler multiplies a loss."""
        if not self._meter.evaluating:
            self._meter.losses.before_scale(loss)

    def step(self, original: Callable[..., Any], scaler: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """A gradient scaler steps `optimizer`, or does not, where its gradient is not finite."""
        before = self._meter.progress.attempt_step
        result = original(scaler, optimizer, *args, **kwargs)
        if self.is_open and self._meter.progress.attempt_step == before:
            self._on_skip(optimizer)
        return result

    @guarded()
    def clip(self, parameters: Any, norm: Any) -> None:
        """A gradient of this total norm is clipped."""
        self._gradients.clipped(parameters, norm)


_Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def watch(torch: Any, calls: TorchCalls, undo: hooks.Undo) -> None:
    """Wrap the functions until `undo`."""
    import torch.nn.utils.clip_grad as clipping

    hooks.replace(undo, torch.autograd, "backward", _backward(calls))  # Tensor.backward() calls it by this name.
    for scaler in _scalers(torch):
        hooks.replace(undo, scaler, "scale", _scale(calls))
        hooks.replace(undo, scaler, "step", _step(calls))
    if hasattr(clipping, "_clip_grads_with_norm_"):  # From 2.6 on. clip_grad_norm_() ends in it, however imported.
        hooks.replace(undo, clipping, "_clip_grads_with_norm_", _clip(calls))
        if hasattr(torch.nn.utils, "clip_grads_with_norm_"):
            hooks.replace(undo, torch.nn.utils, "clip_grads_with_norm_", _clip(calls))
    else:
        hooks.replace(undo, clipping, "clip_grad_norm_", _clip_whole(calls))
        hooks.replace(undo, torch.nn.utils, "clip_grad_norm_", _clip_whole(calls))
    undo.add(calls.close)


# Under a compiler the wrappers must be no more than what they call: is_compiling() is a constant there.


def _backward(calls: TorchCalls) -> _Make:
    tracing, compiler = calls.tracing, calls.compiler
    losses, get_ident, thread = calls.losses, threading.get_ident, calls.thread

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if tracing() or compiler._is_compiling_flag:
                return original(*args, **kwargs)
            losses.begin_backward()
            if calls.depth or not calls.is_open or get_ident() != thread:  # As is_ours(), without the call.
                return original(*args, **kwargs)
            return calls.backward(original, args, kwargs)

        return backward

    return make


def _scale(calls: TorchCalls) -> _Make:
    is_compiling = calls.is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            if not is_compiling() and calls.is_ours():
                calls.scale(outputs)
            return original(scaler, outputs)

        return scale

    return make


def _step(calls: TorchCalls) -> _Make:
    is_compiling = calls.is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not calls.is_ours():
                return original(scaler, optimizer, *args, **kwargs)
            return calls.step(original, scaler, optimizer, args, kwargs)

        return step

    return make


def _clip(calls: TorchCalls) -> _Make:
    is_compiling = calls.is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and calls.is_ours():
                calls.clip(parameters, total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return clip

    return make


def _clip_whole(calls: TorchCalls) -> _Make:
    is_compiling = calls.is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not calls.is_ours():
                return original(parameters, *args, **kwargs)
            parameters = [parameters] if hasattr(parameters, "detach") else list(parameters)
            norm = original(parameters, *args, **kwargs)
            calls.clip(parameters, norm)
            return norm

        return clip

    return make


def _scalers(torch: Any) -> List[Any]:
    """Return the classes that define scale(): torch.cuda.amp's is its own on older versions, else derived."""
    found = [getattr(getattr(torch, "amp", None), "GradScaler", None)]
    found.append(getattr(torch.cuda.amp, "GradScaler", None))
    return [scaler for scaler in found if scaler is not None and "scale" in vars(scaler)]


def instrument(meter: StepMeter, optimizers: List[Any], undo: hooks.Undo, on_skip: Callable[[Any], None]) -> Gradients:
    """See the losses and norms of a loop around `optimizers`, whatever its model returns.

    `on_skip` gets the optimizer that a gradient scaler has not stepped.
    """
    import torch

    gradients = Gradients(torch, optimizers)
    watch(torch, TorchCalls(torch, meter, gradients, on_skip), undo)
    return gradients
