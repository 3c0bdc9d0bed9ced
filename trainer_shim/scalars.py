"""Numbers for a step's frame: an engine's own, losses, norms and memory. None is waited for."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, NamedTuple, Optional

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
ELSEWHERE = object()  # A loss on a device that cannot be read without waiting.


class EngineFacts(NamedTuple):
    """What an engine knows about the step it just ended. None = it does not say."""

    step: int  # Absolute optimizer updates.
    applied: Optional[bool] = None
    grad_norm: Any = None  # Number or tensor; must be None when it is known to be stale.
    lr: Optional[float] = None
    loss_scale: Optional[float] = None
    skipped_steps: Optional[int] = None


def readable(loss: Any, keeps_tensor: bool) -> Any:
    """Return a float, a detached scalar tensor that a device timer will bring home, ELSEWHERE, or None = no loss."""
    if isinstance(loss, (int, float)):
        return float(loss)
    if loss is None or not hasattr(loss, "detach") or loss.numel() != 1:
        return None
    if loss.is_cpu:
        return loss.item()
    return loss.detach().float().reshape(()) if keeps_tensor else ELSEWHERE


def host_number(value: Any) -> Optional[float]:
    """Return a number that is on the host already; None for what one would have to wait for."""
    if value is None or isinstance(value, (int, float)):
        return value
    if hasattr(value, "detach") and value.is_cpu and value.numel() == 1:
        return float(value.item())
    return None


def put_scalars(fields: Dict[str, Any], loss: Optional[float], norm: Optional[float]) -> Optional[bool]:
    """Add what is known to a step frame's fields. Where `grad_finite` is there, `norm` is but a sample.

    Return whether the gradient is finite; None where that is not known.
    """
    if loss is not None:
        fields["loss"] = loss
    is_sample = fields.pop("grad_finite", None)
    if norm is None:
        return None
    is_finite = norm - norm == 0.0
    if is_sample:
        fields["grad_finite"] = is_finite
    else:
        fields["grad_norm"] = norm
    return is_finite


def put_facts(fields: Dict[str, Any], facts: EngineFacts) -> None:
    """Add what the engine says of itself to a step frame's fields."""
    _, applied, _, lr, loss_scale, skipped_steps = facts  # One look: by name in a loop it costs thrice as much.
    if lr is not None:
        fields["lr"] = lr
    if loss_scale is not None:
        fields["loss_scale"] = loss_scale
    if skipped_steps is not None:
        fields["skipped_steps"] = skipped_steps
    if applied is not None:
        fields["applied"] = applied


def is_sound(fields: Dict[str, Any]) -> bool:
    """Whether a step frame's loss is there where one is expected, and it and the gradient are finite."""
    loss = fields.get("loss")
    if loss is None:
        loss = _VANISHED if fields.get("loss_expected") else 0.0
    norm = fields.get("grad_norm") or 0.0
    if fields.get("grad_finite") is False:
        return False
    return bool(loss - loss == 0.0 and norm - norm == 0.0)  # inf - inf and nan - nan are nan: no call, no import.


_VANISHED = float("nan")


def put_memory(fields: Dict[str, Any]) -> None:
    """Add what is known of this process's memory to a step frame's fields, without touching the device."""
    rss = rss_bytes()
    if rss is not None:
        fields["rss_bytes"] = rss
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    # The allocator's own counters: no device call. The nested form skips flattening ~200 entries.
    stats = torch.cuda.memory_stats_as_nested_dict()
    if stats:
        fields["mem_allocated_bytes"] = int(stats["allocated_bytes"]["all"]["current"])
        fields["mem_reserved_bytes"] = int(stats["reserved_bytes"]["all"]["current"])


def rss_bytes() -> Optional[int]:
    """Return the resident set, or None where /proc is not there."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None
