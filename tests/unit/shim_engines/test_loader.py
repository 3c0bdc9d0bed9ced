"""wrap_loader: the loader itself, with a position."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from trainer_shim.loader import position_of, prepare, wrap_loader


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
    assert position_of(wrapped).batches == 1


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
    position_of(wrapped).hold_back(lambda: 1)
    state = wrapped.state_dict()
    again = wrap_loader(Stream())
    again.load_state_dict(state)
    assert list(again) == [1, 2]
    position_of(wrapped).hold_back(lambda: 5)
    assert wrapped.state_dict()["batches"] == 0
    position_of(wrapped).hold_back(lambda: 1 // 0)
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
        position_of(again).count_epochs(counts)
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
        position_of(again).count_epochs(True)
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
    assert loader.batch_size == 7
    del wrapped.batch_size
    assert loader.batch_size == 3, "the class's"


class OwnLoader:
    """A script's loader, with names that are ours, too."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batches = ["a", "b", "c"]
        self.starts = [0]
        self.index = self.loader = self.running = "the script's"
        self.placed: object = None

    def __iter__(self) -> Iterator[str]:
        return iter([f"{one}{self.epoch}" for one in self.batches])

    def __getitem__(self, number: int) -> str:
        return self.batches[number]

    def prepare(self) -> str:
        return "the script's"

    make = hold_back = count_epochs = start_epoch = ask = load = state = prepare

    def load_state_dict(self, state: object) -> None:
        self.placed = state


def test_each_name_of_the_loader_stays_the_scripts() -> None:
    loader = OwnLoader()
    wrapped: Any = wrap_loader(loader)
    list(wrapped)
    named = [name for name in {*vars(loader), *vars(OwnLoader)} if not name.startswith("_")]
    assert [name for name in named if getattr(wrapped, name) != getattr(loader, name)] == ["load_state_dict"]
    wrapped.epoch = 5
    wrapped.batches = ["d"]
    assert list(wrapped) == ["d5"]
    assert wrapped[0] == "d"
    assert [name for name in vars(wrapped) if not name.startswith("_")] == []


def test_a_state_that_is_not_ours_is_the_loaders(capsys: pytest.CaptureFixture[str]) -> None:
    loader = OwnLoader()
    wrapped = wrap_loader(loader)
    next(iter(wrapped))
    ours = wrapped.state_dict()
    for state in ({"pos": 3}, {"epoch": 1}, ["of torchdata"]):
        wrapped.load_state_dict(ours)
        assert loader.placed != state
        wrapped.load_state_dict(state)
        assert loader.placed == state
        assert list(wrapped) == ["a0", "b0", "c0"], "it has its place from the script"
    assert "a wrapped loader was given its own state" in capsys.readouterr().err


def test_an_epoch_of_the_loaders_own_is_back_before_its_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """A loop begins at `loader.epoch`. One that sets another epoch learns in which the data goes on."""
    first: Any = wrap_loader(OwnLoader())
    for epoch in range(3):
        first.epoch = epoch
        batches = iter(first)
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    for sets in (False, True):
        again: Any = wrap_loader(OwnLoader())
        again.load_state_dict(state)
        assert again.epoch == 2
        if sets:
            again.epoch = 0
        assert list(again) == ["b2", "c2"]
        said = "the script set epoch 0, and the data goes on in epoch 2"
        assert (said in capsys.readouterr().err) == sets


class Lengthy:
    """As a DataLoader's iterator: with a length and attributes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Lengthy:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


class OfLengthy:
    def __iter__(self) -> Lengthy:
        return Lengthy(2)

    def __len__(self) -> int:
        return 8


def test_an_iterator_has_the_length_and_the_attributes_of_the_loaders_own() -> None:
    wrapped = wrap_loader(OfLengthy())
    batches: Any = iter(wrapped)
    assert (len(batches), batches.left) == (8, 2)
    batches.left = 1
    assert list(batches) == [0]
    assert (len(batches), batches.left) == (8, 0)
    wrapped.load_state_dict({"epoch": 0, "batches": 1, "epoch_rng": None})
    waiting: Any = iter(wrapped)
    assert len(waiting) == 8, "of one that is not there before the first batch"
    assert list(waiting) == [0]
    with pytest.raises(TypeError):
        len(iter(wrap_loader(Stream())))
    with pytest.raises(AttributeError):
        _ = iter(wrap_loader(Stream())).left


def test_a_loader_can_what_its_type_can() -> None:
    listed: Any = wrap_loader([1, 2, 3])
    assert (listed[1], len(listed), 3 in listed, list(reversed(listed))) == (2, 3, True, [3, 2, 1])
    assert not wrap_loader([])
    for one in (Shuffled(), OwnLoader()):
        with pytest.raises(TypeError):
            next(wrap_loader(one))
    with pytest.raises(TypeError):
        wrap_loader(Shuffled())[0]


def test_what_is_an_iterator_itself_goes_on_where_it_is() -> None:
    wrapped: Any = wrap_loader(unsized())
    assert next(wrapped) == 0
    assert position_of(wrapped).batches == 1
    assert list(wrapped) == [1, 2]
    assert (position_of(wrapped).epoch, position_of(wrapped).batches) == (0, 3)
    with pytest.raises(StopIteration):
        next(wrapped)
    restarts: Any = wrap_loader(Lengthy(2))
    assert [next(restarts), next(restarts)] == [1, 0]


def test_a_copy_has_the_position_and_what_its_type_can() -> None:
    wrapped: Any = wrap_loader(OwnLoader())
    next(iter(wrapped))
    position_of(wrapped).hold_back(lambda: 0)
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert (copied[0], position_of(copied).batches) == ("a", 1)
        assert position_of(copied).loader is not position_of(wrapped).loader


def test_what_a_framework_puts_in_its_place_decides_what_it_can() -> None:
    wrapped: Any = wrap_loader(Shuffled())
    prepare(wrapped, lambda _: Stream())
    assert list(wrapped) == [0, 1, 2]
    with pytest.raises(TypeError):
        len(wrapped)
