"""The gradient of one rank: the norm by which the loop clips, else whether a sample of it is finite.

A sample is never shown as a norm: it says `grad_finite` alone. It costs tens of microseconds and is taken at one step
in eight. After one that is not finite it is taken at every step, since rules count such steps in a row.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Tuple

from trainer_shim.lifetime import keeping

SAMPLED_MAX = 8  # Parameters. A loss that is not a number reaches the gradient of nearly all of them.
SMALL = 4_096  # Elements of one that are read: biases and norms whole, of larger ones the first.
PERIOD_STEPS = 8
PERIOD_STEPS_MAX = 1_024
COST_NS_MAX = 100_000  # A sample that takes longer is taken half as often.


class Gradients:
    """What is known of the gradient of the step at hand. On the training thread alone; nothing waits for a device."""

    def __init__(self, torch: Any, optimizers: List[Any]) -> None:
        self._torch = torch
        self._optimizers = [keeping.known(one) for one in optimizers]  # torch's own functions know us.
        self._watched = {id(p) for optimizer in optimizers for p in _parameters(optimizer)}
        self._sampled: Optional[List[Callable[[], Any]]] = None
        self._norm: Any = None
        self._sample: Any = None
        self._period = PERIOD_STEPS
        self._due = 1  # Steps until the next sample.

    def clipped(self, parameters: Any, norm: Any) -> None:
        """The loop clips the gradient of `parameters`, whose total norm this is."""
        first = parameters[0] if isinstance(parameters, (list, tuple)) and parameters else parameters
        if hasattr(first, "detach") and id(first) not in self._watched:
            return  # Of another model.
        if getattr(norm, "placements", None) is not None:
            self._sample = norm.detach().to_local()  # This rank's part: finite or not, and no more.
            return
        norm = norm.detach() if hasattr(norm, "detach") else norm
        if self._norm is None:
            self._norm = norm
        else:  # One model, clipped in parts.
            self._norm = (self._norm**2 + norm**2) ** 0.5

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to use the gradient: sample it, where nobody has told its norm."""
        if self._norm is not None or self._sample is not None or optimizer is not self._optimizers[-1]():
            return
        self._due -= 1
        if self._due > 0 or getattr(optimizer, "grad_scale", None) is not None:
            return  # A fused optimizer would unscale it, and skip what is not finite.
        begun_ns = time.perf_counter_ns()
        self._sample = self._take_sample()
        if time.perf_counter_ns() - begun_ns > COST_NS_MAX:
            self._period = min(2 * self._period, PERIOD_STEPS_MAX)
        else:
            self._period = max(self._period // 2, PERIOD_STEPS)
        self._due = self._period

    def take(self) -> Tuple[Any, Any]:
        """Return (norm, sample) of the step that ends, each a number, a scalar tensor or None, and forget them."""
        found = self._norm, self._sample
        self._norm = self._sample = None
        return found

    def doubt(self) -> None:
        """The last sample was not finite: take one at the next step."""
        self._due = 1

    def _take_sample(self) -> Any:
        if self._sampled is None:
            living = [one for one in (known() for known in self._optimizers) if one is not None]
            self._sampled = [keeping.known(p) for p in _choose([p for one in living for p in _parameters(one)])]
        grads = [grad for grad in map(_gradient, [known() for known in self._sampled]) if grad is not None]
        if not grads:
            self._sampled = None  # Frozen, or not yet used: choose anew.
            return None
        torch = self._torch
        with torch.no_grad():
            # The largest of absolute values: unlike a sum of squares it overflows in no dtype. A norm of each would
            # cost ten times as much on the host.
            return torch.cat(grads).abs_().max()


def _parameters(optimizer: Any) -> List[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _choose(parameters: List[Any]) -> List[Any]:
    """Return some of one device and dtype, small ones where there are enough, from all over the model."""
    used = [p for p in parameters if _gradient(p) is not None]
    alike = [p for p in used if (p.device, p.dtype) == (used[0].device, used[0].dtype)]
    small = [p for p in alike if p.numel() <= SMALL]
    among = small if len(small) >= SAMPLED_MAX else alike
    return among[:: -(-len(among) // SAMPLED_MAX)] if among else []


def _gradient(parameter: Any) -> Any:
    """Return a part of the parameter's gradient as this rank has it, in one dimension, or None."""
    grad = None if parameter is None else parameter.grad
    if grad is None:
        return None
    if hasattr(grad, "to_local"):
        grad = grad.detach().to_local()
    size = grad.numel()
    if size == 0 or grad.is_sparse:
        return None
    if not grad.is_contiguous():
        return (grad if size <= SMALL else grad[0]).reshape(-1)[:SMALL]
    if size > SMALL:
        return grad.as_strided((SMALL,), (1,))
    return grad if grad.dim() == 1 else grad.view(-1)
