"""wrap_loader: the loader itself, with a position."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator

import pytest

from trainer_shim.loader import wrap_loader


class Shuffled:
    """Eight batches in an order drawn from the global generator at each epoch, as samplers do."""

    batch_size = 3

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        order = list(range(8))
        random.shuffle(order)
        return iter(order)


def unsized() -> Iterator[int]:
    yield from range(3)


class Stream:
    """A loader without a length."""

    def __iter__(self) -> Iterator[int]:
        return unsized()


def test_it_is_the_loader_it_wraps() -> None:
    loader = Shuffled()
    wrapped = wrap_loader(loader)

    assert sorted(wrapped) == list(range(8))
    assert len(wrapped) == 8
    assert wrapped.batch_size == 3
    assert wrap_loader(wrapped) is wrapped
    with pytest.raises(AttributeError, match="absent"):
        _ = wrapped.absent


def test_a_loader_without_a_length_has_none() -> None:
    wrapped = wrap_loader(Stream())

    assert wrapped, "truth is the loader's own: no length, always true"
    with pytest.raises(TypeError):
        len(wrapped)
    assert [list(wrapped), list(wrapped)] == [[0, 1, 2], [0, 1, 2]]


def test_epochs_and_batches_are_counted() -> None:
    wrapped = wrap_loader(Shuffled())
    for _ in range(2):
        list(wrapped)
    third = iter(wrapped)
    next(third)

    assert wrapped.epoch == 2
    assert wrapped.batches == 1


def test_a_restored_position_gives_the_batches_that_were_left() -> None:
    random.seed(4)
    wrapped = wrap_loader(Shuffled())
    list(wrapped)
    running = iter(wrapped)
    head = [next(running) for _ in range(5)]
    state = json.loads(json.dumps(wrapped.state_dict()))  # It travels as JSON.
    tail = list(running)

    random.seed(99)
    again = wrap_loader(Shuffled())
    again.load_state_dict(state)
    assert list(again) == tail
    assert again.epoch == 1
    assert sorted(head + tail) == list(range(8))


def test_what_a_framework_has_fetched_ahead_is_still_to_come() -> None:
    wrapped = wrap_loader(Stream())
    running = iter(wrapped)
    assert [next(running), next(running)] == [0, 1]
    wrapped.hold_back(lambda: 1)
    state = wrapped.state_dict()
    again = wrap_loader(Stream())
    again.load_state_dict(state)
    assert list(again) == [1, 2]
    wrapped.hold_back(lambda: 5)
    assert wrapped.state_dict()["batches"] == 0
    wrapped.hold_back(lambda: 1 // 0)
    assert wrapped.state_dict()["batches"] == 2, "it cannot be known"


def test_restoring_leaves_the_generators_as_they_were() -> None:
    wrapped = wrap_loader(Shuffled())
    next(iter(wrapped))
    state = wrapped.state_dict()
    random.seed(5)
    expected = random.random()

    random.seed(5)
    again = wrap_loader(Shuffled())
    again.load_state_dict(state)
    next(iter(again))
    assert random.random() == expected, "the order was drawn from the old state, not from the present one"


def test_a_running_iterator_follows_a_restored_position() -> None:
    wrapped = wrap_loader(Stream())
    wrapped.load_state_dict({"epoch": 3, "batches": 2, "epoch_rng": None})
    running = iter(wrapped)
    assert next(running) == 2
    wrapped.load_state_dict({"epoch": 3, "batches": 1, "epoch_rng": None})
    assert list(running) == [1, 2]
    assert wrapped.epoch == 3


def test_a_position_beyond_a_shorter_data_set_ends_the_epoch() -> None:
    wrapped = wrap_loader(Stream())
    wrapped.load_state_dict({"epoch": 0, "batches": 50, "epoch_rng": None})

    assert list(wrapped) == []
    assert list(wrapped) == [0, 1, 2]
    assert wrapped.epoch == 1


def test_an_iterator_that_hands_out_nothing_begins_no_epoch() -> None:
    """Lightning makes one to see whether it can."""
    wrapped = wrap_loader(Shuffled())
    iter(wrapped)
    list(wrapped)
    assert wrapped.epoch == 0
    next(iter(wrapped))
    assert wrapped.epoch == 1


@pytest.mark.parametrize(("counts", "iterators"), [(None, 1), (False, 1), (False, 2), (True, 1)])
def test_at_the_end_of_an_epoch_nothing_is_left_of_it_unless_a_framework_is_through_with_it(
    counts: bool | None, iterators: int
) -> None:
    random.seed(4)
    first = wrap_loader(Shuffled())
    list(first)
    state, generators = first.state_dict(), random.getstate()
    following = list(first)
    random.setstate(generators)
    again = wrap_loader(Shuffled())
    if counts is not None:
        again.count_epochs(counts)
    again.load_state_dict(state)
    iterator = [iter(again) for _ in range(iterators)][-1]
    is_through = bool(counts) or iterators > 1
    assert list(iterator) == (following if is_through else [])
    if not is_through:
        assert list(again) == following
    assert again.epoch == 1


def _drawn_beside_others(loader: Iterable[int]) -> list[list[int]]:
    """As Lightning goes: it makes iterators, callbacks draw, it makes another one, and takes from the last alone."""
    random.seed(3)
    iter(loader)
    random.random()
    epochs = []
    for _ in range(2):
        batches = iter(loader)
        random.random()
        epochs.append(list(batches))
    return epochs


def test_an_iterator_draws_when_it_is_made_as_that_of_the_loader_itself_does() -> None:
    wrapped = wrap_loader(Shuffled())
    assert _drawn_beside_others(wrapped) == _drawn_beside_others(Shuffled())
    assert wrapped.epoch == 1, "one that nothing is taken from is no epoch"


def test_a_position_that_is_loaded_behind_an_iterator_decides_what_that_hands_out() -> None:
    first = wrap_loader(Shuffled())
    random.seed(4)
    seen = iter(first)
    before = [next(seen) for _ in range(5)]
    position = json.loads(json.dumps(first.state_dict()))
    second = wrap_loader(Shuffled())
    goes_on = iter(second)
    second.load_state_dict(position)
    assert list(goes_on) == list(seen)
    assert len({*before}) == 5


def test_an_iterator_of_before_hands_out_no_order_of_before_where_the_loaded_epoch_is_through() -> None:
    """Its order was drawn at another place of the run, and the epoch that begins now draws its own."""
    first = wrap_loader(Shuffled())
    list(first)
    position = json.loads(json.dumps(first.state_dict()))
    orders = []
    for is_made_before in (False, True):
        again = wrap_loader(Shuffled())
        again.count_epochs(True)
        random.seed(4)
        batches = iter(again) if is_made_before else None
        again.load_state_dict(position)
        random.seed(5)
        orders.append(list(batches if batches is not None else again))
    assert orders[0] == orders[1]


def test_lightnings_look_whether_there_is_an_iterator_draws_nothing() -> None:
    def _check_dataloader_iterable(loader: Iterable[int]) -> None:
        iter(loader)

    wrapped = wrap_loader(Shuffled())
    random.seed(6)
    before = random.getstate()
    _check_dataloader_iterable(wrapped)
    assert random.getstate() == before
    iter(wrapped)
    assert random.getstate() != before


def test_what_is_set_on_it_is_set_on_the_loader() -> None:
    loader = Shuffled()
    wrapped = wrap_loader(loader)
    wrapped.batch_size = 7
    wrapped.batches = 2
    assert (loader.batch_size, "batches" in vars(loader)) == (7, False)
    del wrapped.batch_size
    assert loader.batch_size == 3, "the class's"
