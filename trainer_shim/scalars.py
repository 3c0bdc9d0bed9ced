"""Losses and norms: numbers read at once where they are on the host, tensors kept small where they are not."""

from __future__ import annotations

from typing import Any, Dict, Optional

ELSEWHERE = object()  # A loss that is there, on a device that nobody can read without waiting.


def readable(loss: Any, keeps_tensor: bool) -> Any:
    """Return a float, a detached scalar tensor that a device timer will bring home, ELSEWHERE, or None = no loss."""
    if isinstance(loss, (int, float)):
        return float(loss)
    if loss is None or not hasattr(loss, "detach") or loss.numel() != 1:
        return None
    if loss.is_cpu:
        return loss.item()
    return loss.detach().float().reshape(()) if keeps_tensor else ELSEWHERE


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


def told_sound(fields: Dict[str, Any]) -> bool:
    """Whether a step frame's loss is there where one is expected, and it and the gradient norm are finite."""
    loss = fields.get("loss")
    if loss is None:
        loss = _VANISHED if fields.get("loss_expected") else 0.0
    norm = fields.get("grad_norm") or 0.0
    return bool(loss - loss == 0.0 and norm - norm == 0.0)  # inf - inf and nan - nan are nan: no call, no import.


_VANISHED = float("nan")
