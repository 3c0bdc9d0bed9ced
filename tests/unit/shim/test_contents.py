"""What a checkpoint holds at least, counted without torch: a bound that a whole one never misses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainer_shim.engines.base import counted


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
