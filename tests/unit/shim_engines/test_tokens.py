"""Counting tokens: what the user said first, the batch's shape next, nothing rather than a guess."""

from __future__ import annotations

import pytest

from trainer_shim.tokens import TokenCount, count_elements


class Batch:
    """The part of a tensor that counting looks at."""

    def __init__(self, *shape: int, dtype: str = "torch.int64") -> None:
        self.shape = shape
        self.dtype = dtype


@pytest.mark.parametrize(
    ("args", "kwargs", "tokens"),
    [
        ((Batch(4, 16), Batch(4, 16)), {}, 64),
        ((), {"attention_mask": Batch(4, 17), "input_ids": Batch(4, 16)}, 64),
        (({"labels": Batch(4, 1), "input_ids": Batch(4, 16)},), {}, 64),
        (((Batch(4, 16), Batch(4, 16)),), {}, 64),
        ((Batch(4, 16, 32, dtype="torch.float32"), Batch(4, 16)), {}, 64),
        ((Batch(8, 3, 224, 224, dtype="torch.float32"),), {}, None),
        ((Batch(4, 16, dtype="torch.bfloat16"),), {}, None),
        ((), {}, None),
    ],
)
def test_the_first_integer_matrix_is_the_batch(args: tuple, kwargs: dict, tokens: int | None) -> None:
    assert count_elements(args, kwargs) == tokens


def test_micro_steps_add_up_and_replicas_multiply() -> None:
    count = TokenCount(None, None, replicas=8)
    for _ in range(4):
        count.add((Batch(2, 100),), {})

    assert count.take() == 4 * 200 * 8
    assert count.take() is None, "a step without a batch has no count, not zero"


def test_a_constant_wins_and_a_function_comes_next() -> None:
    constant = TokenCount(1_000, None, replicas=8)
    constant.add((Batch(2, 100),), {})
    assert constant.take() == 1_000

    function = TokenCount(None, lambda batch, scale: batch.shape[0] * scale, replicas=2)
    function.add((Batch(2, 100),), {"scale": 7})
    assert function.take() == 28
