"""Which scalar is the loss, where the loop does not say: the one that the model returns, else the one that backward()
starts from.

Only numbers and detached scalars are kept, and the numbers of the operations that made them: never a graph.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

BLIND = (
    "costgov: neither loss nor gradient is seen in %d steps: return the loss from the model, or pass it "
    "through shim.loss(loss) before backward() (COSTGOV_REQUIRED=1: not training)"
)
DEPTH_MAX = 3  # (loss, (logits, caches)) is 2.
VALUES_MAX = 64  # A model that returns every layer's states has its loss among the first or the last of them.
UNNAMED_MAX = 4
WALK_MAX = 8
# Operations that leave a loss what it is, but for a factor: the mean over micro-steps, a loss scale, a change of dtype.
_FACTORS = frozenset(("DivBackward0", "MulBackward0", "ToCopyBackward0", "CloneBackward0", "ViewBackward0"))

# The sequence number of an operation, and which of its results: a compiled model is one operation with several.
_Place = Tuple[int, int]
_Known = Tuple[Any, _Place]  # A number or detached scalar, and where it was made.


class LossSource:
    """One micro-step's loss. `told`: the loop reports its backward passes with their loss, so that nothing is sought.

    A scalar that the model returns under the name `loss`, or alone, is the loss. One among other outputs may as well
    be a part of it: it is the loss if backward() starts from it, by a factor. Else the loss is what backward() starts
    from, before a gradient scaler; the sum, where it is called more than once between two forward passes.

    A loop may drop a micro-step whose loss it does not like: what the model returned is no loss where backward() never
    starts. That can be told where it has started after each forward pass before.
    """

    def __init__(self) -> None:
        self.told = False
        self.seeks = True  # Whether it matters what backward() starts from.
        self.holds = False  # Whether take() has something to return or to forget.
        self.is_certain = False  # A loss was told or returned as such: that one is missing means something.
        self._named: Any = None
        self._unnamed: List[_Known] = []
        self._scaled: Optional[_Known] = None
        self._started: Any = None
        self._began = False  # A backward pass, since the last forward pass.
        self._pairs: Optional[bool] = None  # The first forward pass had one of its own. None: there was none.

    @property
    def is_returned(self) -> bool:
        """Whether the model has returned its loss, as far as it is known: then the loop computes none."""
        return self._named is not None

    def after_forward(self, output: Any) -> None:
        """Look for a loss in what the model returned."""
        if self.told:
            return
        named = self._named = loss_in(output)
        self.seeks, self.holds = named is None, True
        if named is not None:
            self.is_certain = True
            self._unnamed = []
        else:
            self._unnamed = scalars_in(output)

    def before_scale(self, loss: Any) -> None:
        """A gradient scaler is about to multiply `loss`."""
        if self.seeks:
            self._scaled, self.holds = _known(loss), True

    def begin_backward(self) -> None:
        """backward() starts, from wherever."""
        self._began = True

    def before_backward(self, root: Any) -> None:
        """backward() starts from `root`."""
        if not self.seeks or not is_scalar(root):
            return
        self.holds = True
        loss = own(root)
        if self._unnamed or self._scaled is not None:
            path = _path(root)
            for value, place in self._unnamed:
                if place in path:
                    self._named, self.seeks = value, False
                    return
            if self._scaled is not None and self._scaled[1] in path:
                loss = self._scaled[0]
        if loss is not None:
            self._started = loss if self._started is None else self._started + loss

    def tell(self) -> None:
        """The loop tells its loss itself: forget what was found."""
        self.told = self.is_certain = True
        self.take()

    def take(self) -> Any:
        """Return the loss, or None, and forget it."""
        is_dropped = self._is_dropped()
        loss = self._named
        if loss is None:
            loss = self._started
        if self._unnamed:
            if loss is None and len(self._unnamed) == 1:
                loss = self._unnamed[0][0]
            self._unnamed = []
        self._named = self._started = self._scaled = None
        self.seeks, self.holds = not self.told, False
        self._began = False
        return None if is_dropped else loss

    def _is_dropped(self) -> bool:
        """Whether the loop has made no backward pass of what the model returned, as it did the first time."""
        if self._named is None and not self._unnamed:
            return False
        if self._pairs is None:
            self._pairs = self._began
        return self._pairs and not self._began


def is_scalar(value: Any) -> bool:
    """Return whether `value` is a tensor of one element."""
    return hasattr(value, "detach") and hasattr(value, "numel") and value.numel() == 1


def loss_in(output: Any) -> Any:
    """Return the scalar loss in a forward pass's output, as own() does; never keeps anything larger alive."""
    loss = output if hasattr(output, "detach") else getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is None or not hasattr(loss, "detach") or loss.numel() != 1:
        return None
    return own(loss)


def own(value: Any) -> Any:
    """Return the scalar as this rank has it: its number where it is on the host, else detached.

    None for one that only a collective could complete.
    """
    placements = getattr(value, "placements", None)
    if placements is None:
        return value.item() if getattr(value, "is_cpu", False) else value.detach()
    return value.detach().to_local() if all(one.is_replicate() for one in placements) else None


def scalars_in(output: Any) -> List[_Known]:
    """Return the scalars with a graph in tuples, lists, dicts and dataclasses, the first few."""
    found: List[_Known] = []
    left = VALUES_MAX
    level = [output]
    for _ in range(DEPTH_MAX):
        deeper: List[Any] = []
        for container in level:
            for value in _values(container)[:left]:
                left -= 1
                if not hasattr(value, "detach"):
                    deeper.append(value)
                elif getattr(value, "requires_grad", False) and is_scalar(value):
                    known = _known(value)
                    if known is not None and len(found) < UNNAMED_MAX:
                        found.append(known)
        level = deeper
    return found


def _values(container: Any) -> List[Any]:
    if isinstance(container, (tuple, list)):
        return list(container[:VALUES_MAX])
    if isinstance(container, dict):
        return list(container.values())
    fields = getattr(type(container), "__dataclass_fields__", None)
    return [getattr(container, name, None) for name in fields] if fields else []


def _known(value: Any) -> Optional[_Known]:
    """None for what was not computed, or on a PyTorch that does not number its operations."""
    number = getattr(getattr(value, "grad_fn", None), "_sequence_nr", None)
    if number is None or not is_scalar(value):
        return None
    kept = own(value)
    return None if kept is None else (kept, (number(), getattr(value, "output_nr", 0)))


def _path(root: Any) -> List[_Place]:
    """Return the operations behind `root` that only put a factor to a scalar, and the one before."""
    places: List[_Place] = []
    node, result = getattr(root, "grad_fn", None), getattr(root, "output_nr", 0)
    while node is not None and len(places) < WALK_MAX and hasattr(node, "_sequence_nr"):
        places.append((node._sequence_nr(), result))
        if node.name() not in _FACTORS:
            break
        inputs = node.next_functions
        node, result = inputs[0] if inputs else (None, 0)
    return places
