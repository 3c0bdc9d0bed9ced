"""How many tokens a step consumed, from what the user said or from the shape of the batch."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

_INTEGER_DTYPES = frozenset(("torch.int64", "torch.int32", "torch.int16", "torch.uint8", "torch.int8"))
_is_integer: Dict[Any, bool] = {}  # By dtype: asking one for its name costs as much as all the rest here.
_USUAL_NAMES = ("input_ids", "tokens", "idx", "x", "inputs")


class TokenCount:
    """Counts one step's tokens of the whole global batch.

    In order: a constant per step, the user's function of the forward pass's arguments (tokens of this rank's
    micro-batch), or the size of the first [batch, sequence] integer tensor found there. Absent, never guessed,
    when none of them answers. `replicas` = ranks that see different tokens.
    """

    def __init__(self, per_step: Optional[int], function: Optional[Callable[..., int]], replicas: int) -> None:
        self.per_step = per_step
        self._replicas = replicas
        self._function = function
        self._micro = 0
        self._counted = False

    def count_for(self, replicas: int) -> None:
        """So many ranks see different tokens."""
        self._replicas = replicas

    def add(self, args: Any, kwargs: Any) -> None:
        """Count one micro-step's arguments."""
        if self.per_step is not None:
            return
        if self._function is not None:
            found: Optional[int] = int(self._function(*args, **kwargs))
        else:
            found = count_elements(args, kwargs)
        if found is not None:
            self._micro += found
            self._counted = True

    def take(self) -> Optional[int]:
        """Return the step's tokens and start the next step."""
        if self.per_step is not None:
            return self.per_step
        counted = self._micro * self._replicas if self._counted else None
        self._micro = 0
        self._counted = False
        return counted


def count_elements(args: Any, kwargs: Any) -> Optional[int]:
    """Return B*T of the first [B, T] integer tensor among `args`, `kwargs` and one level of mapping, list or tuple."""
    for value in args:
        found = _size(value)
        if found is None:
            found = _inside(value)
        if found is not None:
            return found
    return _inside(kwargs)


def _inside(value: Any) -> Optional[int]:
    if isinstance(value, (tuple, list)):
        candidates = list(value[:4])
    elif hasattr(value, "keys"):
        candidates = [value[name] for name in _USUAL_NAMES if name in value]
        candidates = candidates or list(value.values())[:8]
    else:
        return None
    for candidate in candidates:
        found = _size(candidate)
        if found is not None:
            return found
    return None


def _size(value: Any) -> Optional[int]:
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != 2:
        return None
    dtype = value.dtype
    known = _is_integer.get(dtype)
    if known is None:
        known = _is_integer[dtype] = str(dtype) in _INTEGER_DTYPES
    return int(shape[0]) * int(shape[1]) if known else None
