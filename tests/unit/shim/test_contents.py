"""What a checkpoint holds, counted without torch: at least, and of ZeRO-3's parts what is a parameter's."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines.base import counted, good_record, watched
from trainer_shim.progress import Progress
from trainer_shim.sight.weights import has_values, local_part


@dataclass
class Tensor:
    count: int
    width: int
    requires_grad: bool = True

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.width


@dataclass
class Partitioned(Tensor):
    """As under ZeRO-3: its own shape is empty."""

    ds_numel: int = 1000


@dataclass
class Optimizer:
    state: dict[Any, dict[str, Any]] = field(default_factory=dict)


def test_trained_parameters_count_at_half_width_at_most_and_state_as_it_is() -> None:
    parameters = [Tensor(100, 4), Tensor(10, 1), Partitioned(0, 2)]
    adam = Optimizer({0: {"step": 7, "exp_avg": Tensor(100, 4), "exp_avg_sq": Tensor(100, 4)}})
    assert counted(parameters, [adam]) == {"parameters": 1110, "bytes_min": 200 + 10 + 2000 + 800}


def test_frozen_parameters_may_be_left_out_and_nothing_to_train_says_nothing() -> None:
    frozen = Tensor(7_000_000_000, 2, requires_grad=False)
    assert counted([frozen, Tensor(16, 4)], [None]) == {"parameters": 16, "bytes_min": 32}
    assert counted([frozen], []) == {}


@dataclass
class Groups:
    param_groups: list[dict[str, list[Any]]]
    state: dict[Any, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Wrapped:
    optimizer: Any
    bit16_groups: list[list[Any]] | None = None


@dataclass(eq=False)
class Key(Tensor):
    """As torch's tensors: one is only itself, and a key of a dict."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def test_a_judge_that_requires_a_gradient_and_is_not_trained_may_be_left_out() -> None:
    weight, judge = Key(100, 4), Key(1_000_000, 4)
    alone = {"parameters": 100, "bytes_min": 200}
    assert counted([weight, judge], [Groups([{"params": [weight]}])]) == alone
    assert counted([weight, judge], [Wrapped(Groups([{"params": [weight]}]))]) == alone
    both = [{"params": [weight, judge]}]
    moments = {weight: {"exp_avg": Tensor(100, 4)}}
    assert counted([weight, judge], [Groups(both, moments)]) == {"parameters": 100, "bytes_min": 600}, "never stepped"
    assert counted([weight, judge], [Groups(both, moments)], has_state=False) == alone
    assert counted([weight, judge], [Groups(both)])["parameters"] == 1_000_100


def test_of_optimizers_with_flat_copies_what_requires_a_gradient_is_counted() -> None:
    weight, judge, flat = Key(100, 2), Key(50, 2), Key(100, 4)
    inner = Groups([{"params": [flat]}], {flat: {"exp_avg": Tensor(100, 4)}})
    assert counted([weight, judge], [Wrapped(inner)]) == {"parameters": 150, "bytes_min": 700}
    assert counted([weight, judge], [Wrapped(inner, [[weight]])]) == {"parameters": 100, "bytes_min": 600}


def test_what_an_optimizer_holds_is_watched_whatever_requires_a_gradient_now() -> None:
    """A GAN's judge requires none while the other one steps; a sentinel requires one and is trained by nobody."""
    judge, sentinel = Key(50, 4, requires_grad=False), Key(1, 4)
    named = [("judge", judge), ("sentinel", sentinel)]
    assert watched(named, [Groups([{"params": [judge]}])]) == [("judge", judge)]
    assert watched(named, [Wrapped(Groups([{"params": [judge]}]))]) == [("judge", judge)]


def test_where_an_optimizer_holds_copies_what_requires_a_gradient_is_watched_too() -> None:
    weight, frozen, flat = Key(100, 2), Key(50, 2, requires_grad=False), Key(100, 4)
    named = [("weight", weight), ("frozen", frozen)]
    for optimizer in (None, Groups([]), Wrapped(Groups([{"params": [flat]}]))):
        assert watched(named, [optimizer]) == [("weight", weight)]


class Part:
    """Of ZeRO-3: all ranks have equally many elements. Those after the parameter's end are as memory was."""

    def __init__(self, *elements: float) -> None:
        self.elements, self.ds_numel = elements, len(elements)
        self.device = SimpleNamespace(type="cpu")

    def detach(self) -> Part:
        return self

    def reshape(self, _: int) -> Part:
        return self

    def numel(self) -> int:
        return len(self.elements)

    def __getitem__(self, key: slice) -> Part:
        return Part(*self.elements[key])


@dataclass
class OfRank:
    ds_tensor: Part
    ds_numel: int
    ds_zero_partition_rank: int


NAN = float("nan")


@pytest.mark.parametrize(
    ("whole", "rank", "elements", "own"),
    [
        (8, 0, (1.0, 2.0), (1.0, 2.0)),
        (8, 3, (1.0, 2.0), (1.0, 2.0)),
        (7, 3, (1.0, NAN), (1.0,)),
        (7, 2, (1.0, 2.0), (1.0, 2.0)),
        (5, 2, (1.0, NAN), (1.0,)),
        (5, 3, (NAN, NAN), ()),
        (1, 3, (NAN,), ()),
    ],
)
def test_what_pads_the_last_ranks_parts_is_no_weight(
    whole: int, rank: int, elements: tuple[float, ...], own: tuple[float, ...]
) -> None:
    assert local_part(OfRank(Part(*elements), whole, rank)).elements == own


def test_of_a_part_of_which_nobody_knows_whose_it_is_all_is_looked_at() -> None:
    parameter = OfRank(Part(1.0, 2.0), 3, 1)
    del parameter.ds_zero_partition_rank
    assert local_part(parameter).elements == (1.0, 2.0)


def test_of_a_part_that_is_swapped_out_nobody_has_the_values() -> None:
    """As DeepSpeed's AsyncPartitionedParameterSwapper leaves it: a buffer of one element in its place."""
    parameter = OfRank(Part(1.0, 2.0), 8, 0)
    assert has_values(parameter)
    parameter.ds_tensor.elements = (1.0,)
    assert not has_values(parameter)


@pytest.mark.parametrize(("are_finite", "said"), [(None, [{}]), (True, [{"own_finite": True}]), (False, [])])
def test_what_was_seen_of_the_weights_is_said_of_the_checkpoint(are_finite: bool | None, said: list[Any]) -> None:
    """Broken ones are not named as good. Where they could not be looked at nothing is said of them."""
    progress = Progress(0)
    progress.saw_weights(are_finite)
    meter: Any = SimpleNamespace(announces_saves=True, progress=progress, tokens_total=0, tokens_known=False)
    record = good_record(meter, 8, "/ck/8")
    found = [] if record is None else [{name: record[name] for name in record if name.endswith("finite")}]
    assert found == said
