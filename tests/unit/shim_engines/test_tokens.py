"""Counting tokens: what the user said first, the batch's shape next, nothing rather than a guess."""

from __future__ import annotations

import pytest

from trainer_shim.tokens import Replicas, TokenCount, find_batch


class Batch:
    """The part of a tensor that counting looks at."""

    def __init__(self, *shape: int, dtype: str = "torch.int64") -> None:
        self.shape = shape
        self.dtype = dtype
        self.is_meta = False


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
    batch = find_batch(args, kwargs)
    assert (None if batch is None else batch.shape[0] * batch.shape[1]) == tokens


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


def test_who_sees_what_is_asked_with_the_first_batch_and_once() -> None:
    asked = []

    def find(batch: object) -> Replicas | None:
        asked.append(batch)
        return None if len(asked) == 1 else Replicas(4, "the drill", 3)

    count, batch = TokenCount(None, None, None), Batch(2, 100)
    count.ask(find)
    count.add((Batch(2, 16, 32),), {})
    assert not asked, "there is nothing to count yet"
    count.add((batch,), {})
    assert count.take() is None, "that was no batch to train on"
    for _ in range(3):
        count.add((batch,), {})
        assert (count.take(), count.own) == (800, 200)
    assert asked == [batch, batch]


def test_tokens_are_absent_where_nothing_shows_who_sees_what() -> None:
    for function in (None, lambda batch: batch.shape[0]):
        count = TokenCount(None, function, None)
        count.ask(lambda _: Replicas(None, "pass data_parallel_size="))
        count.add((Batch(2, 100),), {})
        assert (count.take(), count.own) == (None, None)


@pytest.mark.parametrize("found", [Replicas(1, "one rank", 0), Replicas(4, "data_parallel_size=")])
def test_a_rank_tells_its_own_only_where_others_see_others_and_it_knows_its_place(found: Replicas) -> None:
    count = TokenCount(None, None, None)
    count.ask(lambda _: found)
    count.add((Batch(2, 100),), {})
    assert (count.take(), count.own) == (200 * (found.ranks or 0), None)


def test_a_tensor_without_data_is_no_batch() -> None:
    empty = Batch(2, 100)
    empty.is_meta = True
    assert find_batch((empty,), {}) is None
