"""Forward passes that no optimizer step follows: is what the model returns, or the loss that is told, finite?

A loop that drops a loss that is not finite by itself calls neither backward() nor step(), so that no loss of it is
seen. Nothing is looked at before more passes went by than several steps take, and then once a second: a look may wait
for the device. Outputs count only where the first one was finite, since some models pad theirs with NaN.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any, List, Optional

from trainer_shim.progress import Progress

from .losses import loss_in

PERIOD_NS = 1_000_000_000
ELEMENTS = 1_024  # Of a tensor, from all over it.
TENSORS_MAX = 16


class Outputs:
    """Of the model and, where the loop tells it, the loss. On the training thread alone."""

    def __init__(self, progress: Progress, period_ns: int = PERIOD_NS) -> None:
        self._progress = progress
        self._period_ns = period_ns
        self._trusts: Optional[bool] = None  # Whether the first output was finite. None: there was none.
        self._due_ns = 0

    def after_forward(self, output: Any) -> None:
        """A forward pass returned `output`."""
        if self._trusts is None and output is not None:
            self._trusts = False  # Also where it cannot be looked at.
            self._trusts = is_finite(output) is True
        elif self._progress.is_stepless and self._is_due():
            loss = loss_in(output)
            if loss is not None or self._trusts:
                self._note(is_finite(output if loss is None else loss))

    def told(self, loss: Any) -> None:
        """The loop told its loss."""
        if self._progress.is_stepless and self._is_due():
            self._note(is_finite(loss))

    def _is_due(self) -> bool:
        return time.monotonic_ns() >= self._due_ns

    def _note(self, finite: Optional[bool]) -> None:
        if finite is not None:
            self._due_ns = time.monotonic_ns() + self._period_ns
            self._progress.saw_output(finite)


def is_finite(output: Any) -> Optional[bool]:
    """Whether a sample of it has neither NaN nor +inf; -inf may be a mask. None: there is nothing to look at."""
    if isinstance(output, (int, float)):
        return math.isfinite(output)
    torch = sys.modules.get("torch")
    if torch is None or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        return None  # A look would break a capture off.
    tensors = [one for one in _parts(output)[:TENSORS_MAX] if _is_readable(one)]
    with torch.no_grad():
        largest = [float(_sample(one).float().max()) for one in tensors]
    return all(not math.isnan(one) and one != math.inf for one in largest) if largest else None


def _parts(output: Any) -> List[Any]:
    if isinstance(output, (tuple, list)):
        return list(output)
    if hasattr(output, "detach"):
        return [output]
    return list(output.values() if isinstance(output, dict) else getattr(output, "__dict__", {}).values())


def _is_readable(value: Any) -> bool:
    # What is sharded only a collective could complete.
    return hasattr(value, "is_floating_point") and not hasattr(value, "to_local") and (
        bool(value.is_floating_point()) and value.numel() > 0 and value.device.type != "meta"
    )  # fmt: skip


def _sample(value: Any) -> Any:
    flat = value.detach().flatten()
    return flat[:: -(-flat.numel() // ELEMENTS)]
