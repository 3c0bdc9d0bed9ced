"""Which scalar is the loss, and what is known of a gradient: with objects that look like tensors, without torch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from trainer_shim.sight.gradients import Gradients
from trainer_shim.sight.losses import UNNAMED_MAX, VALUES_MAX, LossSource, scalars_in


class Node:
    """An operation of a graph."""

    def __init__(self, name: str, number: int, *inputs: Node) -> None:
        self._name, self._number = name, number
        self.next_functions = tuple((one, 0) for one in inputs)

    def name(self) -> str:
        return self._name

    def _sequence_nr(self) -> int:
        return self._number


@dataclasses.dataclass
class Scalar:
    """A tensor of `size` elements."""

    value: float
    grad_fn: Node | None = None
    size: int = 1
    output_nr: int = 0

    @property
    def requires_grad(self) -> bool:
        return self.grad_fn is not None

    def numel(self) -> int:
        return self.size

    def detach(self) -> Scalar:
        return Scalar(self.value, None, self.size)

    def __add__(self, other: Scalar) -> Scalar:
        return Scalar(self.value + other.value)


def loss(value: float = 2.0, number: int = 7) -> Scalar:
    return Scalar(value, Node("NllLossBackward0", number))


def taken(source: LossSource) -> Any:
    found = source.take()
    return None if found is None else found.value


def test_a_scalar_among_other_outputs_is_the_loss_if_backward_starts_from_it() -> None:
    source = LossSource()
    returned = loss(4.0)
    assert returned.grad_fn is not None
    source.after_forward((Scalar(0.0, Node("Mm", 6), 99), returned))
    source.before_backward(Scalar(2.0, Node("DivBackward0", 9, Node("MulBackward0", 8, returned.grad_fn))))
    assert taken(source) == 4.0, "as the model returned it, not as the loop has divided it"
    assert taken(source) is None


def test_of_several_results_of_one_operation_it_is_the_one_that_backward_starts_from() -> None:
    """A compiled model is one operation, and returns parts of its loss beside the loss."""
    source = LossSource()
    compiled = Node("CompiledFunctionBackward", 7)
    part, returned = Scalar(0.5, compiled), Scalar(4.0, compiled)
    returned.output_nr = 1
    root = Node("DivBackward0", 8)
    root.next_functions = ((compiled, 1),)
    source.after_forward((part, returned))
    source.before_backward(Scalar(2.0, root))
    assert taken(source) == 4.0


def test_one_from_which_it_does_not_start_is_a_part_of_the_loss_at_most() -> None:
    source = LossSource()
    part = loss(0.25)
    assert part.grad_fn is not None
    source.after_forward({"logits": Scalar(0.0, Node("Mm", 6), 99), "aux": part})
    source.before_backward(Scalar(2.0, Node("AddBackward0", 9, Node("NllLossBackward0", 8), part.grad_fn)))
    assert taken(source) == 2.0


def test_a_loss_that_is_told_or_returned_as_such_is_not_counted_again() -> None:
    source = LossSource()
    source.after_forward({"loss": loss(3.0), "aux": loss(1.0, 8)})
    source.before_backward(loss(9.0, 9))
    assert taken(source) == 3.0
    source.tell()
    source.after_forward((loss(5.0),))
    source.before_backward(loss(6.0))
    assert taken(source) is None


def test_a_scaled_loss_is_shown_unscaled_and_several_as_their_sum() -> None:
    source = LossSource()
    first = loss(2.0)
    assert first.grad_fn is not None
    source.before_scale(first)
    source.before_backward(Scalar(2048.0, Node("MulBackward0", 8, first.grad_fn)))
    source.before_backward(loss(math.nan, 9))
    assert math.isnan(taken(source)), "a NaN does not hide behind the other"


def test_what_is_missing_means_something_only_where_the_loop_has_said_what_its_loss_is() -> None:
    source = LossSource()
    source.after_forward((loss(),))
    source.before_backward(loss())
    assert not source.is_certain
    source.after_forward(loss())
    assert source.is_certain


@pytest.mark.parametrize("returns", ["named", "unnamed"])
@pytest.mark.parametrize(("alone", "taken_of"), [(0, [3.0, None, 3.0]), (1, [3.0, 9.0, 3.0])])
def test_a_loss_that_the_loop_drops_is_none(returns: str, alone: int, taken_of: list[float | None]) -> None:
    """The first forward pass of a loop shows whether each has a backward pass of its own."""
    source = LossSource()

    def forward(value: float) -> Scalar:
        made = loss(value)
        source.after_forward({"loss": made} if returns == "named" else (made,))
        return made

    for _ in range(alone):
        forward(1.0)
        assert taken(source) == 1.0
    found = []
    for value in (3.0, 9.0, 3.0):
        made = forward(value)
        if value != 9.0:
            source.begin_backward()
            source.before_backward(made)
        found.append(taken(source))
    assert found == taken_of


def test_the_search_ends_in_any_output() -> None:
    assert len(scalars_in([loss(number=n) for n in range(100)])) == UNNAMED_MAX
    assert scalars_in([Scalar(0.0)] * VALUES_MAX + [loss()]) == []
    deep: Any = loss()
    for _ in range(9):
        deep = (deep, 1.0, "text", None)
    assert scalars_in(deep) == []
    circle: list[Any] = []
    circle.append(circle)
    assert scalars_in(circle) == []


@dataclasses.dataclass
class Optimizer:
    param_groups: list[dict[str, Any]]
    grad_scale: Any = None


def test_norms_of_a_model_clipped_in_parts_are_one_and_those_of_another_model_are_none() -> None:
    ours, theirs = Scalar(0.0), Scalar(0.0)
    gradients = Gradients(None, [Optimizer([{"params": [ours]}])])
    gradients.clipped([ours], 3.0)
    gradients.clipped([ours], 4.0)
    gradients.clipped([theirs], 100.0)
    gradients.clipped(theirs, math.nan)
    assert gradients.take() == (5.0, None)
    assert gradients.take() == (None, None)
