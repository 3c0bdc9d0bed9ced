"""What is tried out of a plain loop's state: all that can be refused, without the bulk of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines import state_file

EMPTY = object()


class Array:
    """numpy's, as far as it is cut."""

    __array_interface__ = None

    def __init__(self, *shape: int, has_objects: bool = False) -> None:
        self.shape, self.ndim, self.dtype = shape, len(shape), SimpleNamespace(hasobject=has_objects)

    def __getitem__(self, key: tuple[slice, ...]) -> Array:
        return Array(*(len(range(size)[part]) for size, part in zip(self.shape, key, strict=True)))


def tried(value: Any) -> Any:
    return state_file._without_values(value, EMPTY)


def test_of_a_large_array_one_element_is_tried() -> None:
    state = tried({"replay": [Array(1000, 84, 84), (Array(9),)], "raw": b"x" * 1000, "step": 7})
    assert state["replay"][0].shape == (1, 1, 1)
    assert state["replay"][1][0].shape == (1,)
    assert (state["raw"], state["step"]) == (b"x", 7)


@pytest.mark.parametrize("array", [Array(), Array(5, has_objects=True)])
def test_a_single_number_and_objects_are_tried_as_they_are(array: Array) -> None:
    assert tried([array]) == [array]


def test_a_container_that_holds_itself_is_tried_to_a_depth() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found, depth = tried(loop), 0
    while isinstance(found, list) and found and found is not loop:
        found, depth = found[0], depth + 1
    assert 1 <= depth <= 8
