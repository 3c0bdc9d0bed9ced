"""Counting tokens: what the user said first, the batch's shape next, nothing rather than a guess."""

from __future__ import annotations

import pytest

from trainer_shim.tokens import Replicas, TokenCount, find_batch


class Batch:
    """The part of a tensor that counting looks at."""

    def __init__(self, *shape: int, dtype: str = "torch.int64", nonzero: int = 0, is_cpu: bool = True) -> None:
        self.shape = shape
        self.nonzero = nonzero
        self.is_cpu = is_cpu
        self.dtype = dtype
        self.is_meta = False

    def count_nonzero(self) -> int:
        return self.nonzero


@pytest.mark.parametrize(
    ("args", "kwargs", "tokens"),
    [
        ((Batch(4, 16), Batch(4, 16)), {}, 64),
        ((), {"attention_mask": Batch(4, 17), "input_ids": Batch(4, 16)}, 64),
        (({"labels": Batch(4, 1), "input_ids": Batch(4, 16)},), {}, 64),
        (({"my_tokens": Batch(4, 16)},), {}, 64),
        (((Batch(4, 16), Batch(4, 16)),), {}, 64),
        ((Batch(4, 16, 32, dtype="torch.float32"), Batch(4, 16)), {}, 64),
        ((Batch(8, 3, 224, 224, dtype="torch.float32"),), {}, None),
        ((Batch(4, 16, dtype="torch.bfloat16"),), {}, None),
        ((), {}, None),
    ],
)
def test_the_first_integer_matrix_is_the_batch(args: tuple, kwargs: dict, tokens: int | None) -> None:
    batch, _ = find_batch(args, kwargs)
    assert (None if batch is None else batch.shape[0] * batch.shape[1]) == tokens


def test_micro_steps_add_up_and_replicas_multiply() -> None:
    count = TokenCount(None, None, replicas=8)
    for _ in range(4):
        count.add((Batch(2, 100),), {})

    assert count.take() == 4 * 200 * 8
    assert count.take() is None, "a step without a batch has no count, not zero"


def test_where_the_count_is_unknown_so_is_its_padding() -> None:
    """Sent alone it was multiplied by one."""
    count = TokenCount(None, None, replicas=None)
    count.add((), {"input_ids": Batch(2, 100), "attention_mask": Batch(2, 100, nonzero=150)})
    assert (count.take(), count.nonpad) == (None, None)


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
        assert count.take() == 800
    assert asked == [batch, batch]
    assert (count.own_total, count.share) == (600, Replicas(4, "the drill", 3))
    count.restart()
    assert count.own_total == 0


def test_tokens_are_absent_where_nothing_shows_who_sees_what() -> None:
    for function in (None, lambda batch: batch.shape[0]):
        count = TokenCount(None, function, None)
        count.ask(lambda _: Replicas(None, "pass data_parallel_size="))
        count.add((Batch(2, 100),), {})
        assert (count.take(), count.share, count.nonpad) == (None, None, None)
        assert count.own_total == 0


@pytest.mark.parametrize("found", [Replicas(1, "one rank", 0), Replicas(4, "data_parallel_size=")])
def test_a_rank_tells_its_own_only_where_others_see_others_and_it_knows_its_place(found: Replicas) -> None:
    count = TokenCount(None, None, None)
    count.ask(lambda _: found)
    count.add((Batch(2, 100),), {})
    assert (count.take(), count.share) == (200 * (found.ranks or 0), None)


def test_a_tensor_without_data_is_no_batch() -> None:
    empty = Batch(2, 100)
    empty.is_meta = True
    assert find_batch((empty,), {}) == (None, {})


def test_an_attention_mask_tells_what_is_no_padding() -> None:
    count = TokenCount(None, None, 4)
    for nonzero in (150, 170):
        count.add((), {"input_ids": Batch(2, 100), "attention_mask": Batch(2, 100, nonzero=nonzero)})
    assert (count.take(), count.nonpad) == (1_600, 320)
    frame: dict[str, int] = {}
    count.put_nonpad(frame, count.nonpad)
    assert frame == {"tokens_nonpad": 1_280}
    count.add(({"input_ids": Batch(1, 9), "position_ids": Batch(1, 9)},), {})
    assert (count.take(), count.nonpad) == (36, 9), "packed: a row of several sequences has no padding"


@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"attention_mask": Batch(2, 101)},
        {"attention_mask": Batch(2, 1, 100, 100)},
        {"attention_mask": Batch(2, 100, is_cpu=False)},
        {"position_ids": Batch(2, 100)},
    ],
)
def test_padding_is_unknown_where_nothing_tells_it_in_one_micro_step(beside: dict[str, Batch]) -> None:
    """A mask on a device that nobody times would have to be waited for."""
    count = TokenCount(None, None, 1)
    count.add((), {"input_ids": Batch(2, 100), "attention_mask": Batch(2, 100, nonzero=150)})
    count.add((), {"input_ids": Batch(2, 100), **beside})
    assert (count.take(), count.nonpad) == (400, None)
    count.add((), {"input_ids": Batch(2, 100), "attention_mask": Batch(2, 100, nonzero=150)})
    assert (count.take(), count.nonpad) == (200, 150)


def test_a_mask_on_a_device_is_summed_there_unless_a_graph_is_captured() -> None:
    count = TokenCount(None, None, 1)
    for may_sum, wanted in ((True, 150), (False, None)):
        count.may_sum = lambda may_sum=may_sum: may_sum
        count.add((), {"input_ids": Batch(2, 100), "attention_mask": Batch(2, 100, nonzero=150, is_cpu=False)})
        assert (count.take(), count.nonpad) == (200, wanted)


def test_a_running_total_without_padding_ends_with_the_first_step_that_does_not_tell() -> None:
    count = TokenCount(None, None, None)
    count.ask(lambda _: Replicas(2, "the drill", 0))
    told = []
    for nonpad in (150, 100, None, 50):
        count.add((Batch(2, 100),), {})
        count.take()
        frame: dict[str, int] = {}
        count.put_nonpad(frame, nonpad)
        told.append(frame.get("nonpad_own_total"))
    assert told == [150, 250, None, None]
    count.restart()
    frame = {}
    count.put_nonpad(frame, 50)
    assert frame["nonpad_own_total"] == 50, "known again from a checkpoint on"
