"""Losses and norms: numbers read at once where they are on the host, tensors kept small where they are not."""

from __future__ import annotations

from typing import Any, Optional

ELSEWHERE = object()  # A loss that is there, on a device that nobody can read without waiting.


def readable(loss: Any, keeps_tensor: bool) -> Any:
    """Return a float, a detached scalar tensor that a device timer will bring home, ELSEWHERE, or None = no loss."""
    if isinstance(loss, (int, float)):
        return float(loss)
    if loss is None or not hasattr(loss, "detach") or loss.numel() != 1:
        return None
    value = loss.detach()
    if value.is_cpu:
        return value.item()
    return value.float().reshape(()) if keeps_tensor else ELSEWHERE


def loss_in(output: Any) -> Any:
    """Return the detached scalar loss in a forward pass's output; never keeps anything larger alive."""
    loss = output if hasattr(output, "detach") else getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is None or not hasattr(loss, "detach") or loss.numel() != 1:
        return None
    return loss.detach()


def host_number(value: Any) -> Optional[float]:
    """Return a number that is already on the host, None for anything that one would have to wait for."""
    if value is None or isinstance(value, (int, float)):
        return value
    if hasattr(value, "detach") and value.is_cpu and value.numel() == 1:
        return float(value.item())
    return None
