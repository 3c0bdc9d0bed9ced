"""How many tokens a step consumed, from what the user said or from the shape of the batch."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

_INTEGER_DTYPES = frozenset(("torch.int64", "torch.int32", "torch.int16", "torch.uint8", "torch.int8"))
_is_integer: Dict[Any, bool] = {}  # By dtype: asking one for its name costs as much as all the rest here.
_USUAL_NAMES = ("input_ids", "tokens", "idx", "x", "inputs")


class Replicas(NamedTuple):
    """How many ranks see different tokens. None: nothing shows it."""

    ranks: Optional[int]
    why: str  # What shows it, or what to pass instead.
    place: Optional[int] = None  # This rank's among them. Ranks that see the same tokens have the same one.


Finder = Callable[[Any], Optional[Replicas]]  # None: that is no batch to train on. The next one may be.


class TokenCount:
    """Counts one step's tokens of the whole global batch.

    In order: a constant per step, the user's function of the forward pass's arguments (tokens of this rank's
    micro-batch), or the size of the first [batch, sequence] integer tensor found there. Absent, never guessed,
    when none of them answers. `replicas` = ranks that see different tokens; None: not known.
    """

    def __init__(
        self, per_step: Optional[int], function: Optional[Callable[..., int]], replicas: Optional[int]
    ) -> None:
        self.per_step = per_step
        self.own_total = 0  # This rank's, since attach() or the last resume.
        self.share: Optional[Replicas] = None  # Where other ranks see others: how many, and this one's place.
        self.ranks = replicas
        # Of the last step taken, this rank's tokens that are no padding: a count, or a tensor of it. None: unknown.
        self.nonpad: Any = None
        # Whether a tensor on a device may be summed now; None: what is summed there cannot be read without waiting.
        self.may_sum: Optional[Callable[[], bool]] = None
        self._find: Optional[Finder] = None
        self._function = function
        self._micro = 0
        self._counted = False
        self._nonpad: Any = 0
        self._own_nonpad: Optional[int] = 0  # As `own_total`; None: in some step of these it was not known.

    def ask(self, find: Finder) -> None:
        """Ask `find` when the first batch is here: groups and wrappers may come after attach()."""
        self._find = find

    def add(self, args: Any, kwargs: Any) -> None:
        """Count one micro-step's arguments."""
        if self.per_step is not None:
            return
        if self._function is None:
            batch, beside = find_batch(args, kwargs)
            if batch is None:
                return
            found = int(batch.shape[0]) * int(batch.shape[1])
        else:
            batch, beside = None, {}
            found = int(self._function(*args, **kwargs))
        if self._find is not None:
            replicas = self._find(batch if batch is not None else find_batch(args, kwargs)[0])
            if replicas is None:
                return
            self._find = None
            self.ranks = replicas.ranks
            if replicas.ranks is not None and replicas.ranks > 1 and replicas.place is not None:
                self.share = replicas
        self._micro += found
        self._counted = True
        if self._nonpad is not None:
            real = self._real(batch, beside) if beside else None
            self._nonpad = None if real is None else self._nonpad + real

    def take(self) -> Optional[int]:
        """Return the step's tokens and start the next step."""
        if self.per_step is not None:
            return self.per_step
        is_known = self._counted and self.ranks is not None
        counted = self._micro * (self.ranks or 0) if is_known else None
        self.own_total += self._micro if is_known else 0
        self.nonpad = self._nonpad if is_known else None
        self._micro = self._nonpad = 0
        self._counted = False
        return counted

    def put_own(self, fields: Dict[str, Any]) -> None:
        """Add this rank's own total to a step's frame, where other ranks see others."""
        if self.share is not None:
            fields["tokens_own_total"] = self.own_total

    def put_nonpad(self, fields: Dict[str, Any], nonpad: Optional[float]) -> None:
        """Add what `nonpad` has become, by now on the host, to its step's frame. Steps come in order."""
        if nonpad is None:
            self._own_nonpad = None
            return
        fields["tokens_nonpad"] = int(nonpad) * (self.ranks or 1)
        if self._own_nonpad is not None:
            self._own_nonpad += int(nonpad)
            if self.share is not None:
                fields["nonpad_own_total"] = self._own_nonpad

    def restart(self) -> None:
        """Training goes on from a checkpoint, which knows what all ranks trained before it."""
        self.own_total = self._own_nonpad = 0

    def _real(self, batch: Any, beside: Any) -> Any:
        """Return the tokens of `batch` that are no padding: a count, or a tensor of it. None: nothing tells."""
        if "attention_mask" not in beside or beside["attention_mask"] is None:
            # Packed: all sequences in one row, told apart by their positions.
            packed = int(batch.shape[0]) == 1 and "position_ids" in beside and beside["position_ids"] is not None
            return int(batch.shape[1]) if packed else None
        mask = beside["attention_mask"]
        if getattr(mask, "shape", None) != batch.shape:
            return None
        if getattr(mask, "is_cpu", True):
            return int(mask.count_nonzero())
        return mask.count_nonzero() if self.may_sum is not None and self.may_sum() else None


def find_batch(args: Any, kwargs: Any) -> Tuple[Any, Any]:
    """Return the first [B, T] integer tensor among `args`, `kwargs` and one level of mapping, list or tuple.

    With it comes the mapping in which what belongs to it has names.
    """
    for value in args:
        if _is_batch(value):
            return value, kwargs
        found = _inside(value)
        if found is not None:
            return found, value if hasattr(value, "keys") else kwargs
    return _inside(kwargs), kwargs


def _inside(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        candidates = list(value[:4])
    elif hasattr(value, "keys"):
        candidates = [value[name] for name in _USUAL_NAMES if name in value]
        candidates = candidates or list(value.values())[:8]
    else:
        return None
    for candidate in candidates:
        if _is_batch(candidate):
            return candidate
    return None


def _is_batch(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != 2:
        return False
    dtype = value.dtype
    known = _is_integer.get(dtype)
    if known is None:
        known = _is_integer[dtype] = str(dtype) in _INTEGER_DTYPES
    return known and not getattr(value, "is_meta", False)  # Without data: somebody asks for shapes only.
