"""wrap_loader() of DataLoaders that draw by more than the process's generators: the order goes on, or it is said."""

from __future__ import annotations

import json

import pytest

from tests.drills.components import needs

WARM = ("torch", "torch.utils.data")

needs("torch", "accelerate")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("generator", None),
        ("workers", "workers of persistent_workers=True begin anew: what they draw themselves (augmentation) differs"),
        ("seedable", None),
        ("set_epoch", "the script set epoch 0, and the data goes on in epoch 2: begin the loop at loader.epoch"),
    ],
)
def test_the_order_goes_on_in_a_later_epoch(run_ranks, kind: str, said: str | None) -> None:
    told = run_ranks("loader_orders.py", json.dumps({"kind": kind}))[0]
    assert told["again"] == told["whole"]
    assert told["epoch"] == 3
    if said is None:
        assert "costgov:" not in told["log"]
    else:
        assert told["log"].count(said) == 1
