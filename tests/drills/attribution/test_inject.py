"""A handful of the injected bottlenecks. All of them, often: `python -m tests.drills.attribution.inject --repeat 2`."""

from __future__ import annotations

import importlib.util

import pytest

from tests.drills.attribution.compare import FALSE_FRAC
from tests.drills.attribution.inject import AMOUNT, play

STEPS = 24
# A processor that others use as well moves shares by more than the 15 % of a run that has it for itself.
NEAR_FRAC = 0.35
PLAYED = [
    ("none", "ddp"), ("data", "ddp"), ("slow", "ddp"), ("neighbour", "ddp"), ("collective", "fsdp2"),
    ("saves", "deepspeed"), ("bubble", "pipeline"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "engine"), PLAYED)
def test_an_injected_bottleneck_has_its_name_and_its_share(name: str, engine: str) -> None:
    if importlib.util.find_spec("deepspeed" if engine in ("deepspeed", "pipeline") else "torch") is None:
        pytest.skip(f"needs {engine}")
    row = play(name, engine, amount=5 * AMOUNT if name == "saves" else 2 * AMOUNT, steps=STEPS)
    assert row.sums, row
    assert row.is_right, row
    assert abs(row.error or 0.0) < NEAR_FRAC, row
    assert row.unknown_share < 0.05, row


def test_who_waits_for_data_beside_other_tenants_is_no_straggler() -> None:
    """Two ranks compute alike, each beside a hog on its core. One of them waits for its data."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    row = play("uneven", "ddp", amount=2 * AMOUNT, steps=STEPS)
    assert row.sums, row
    assert row.is_right, row
    assert row.told.get("straggler", 0.0) < FALSE_FRAC * row.loop_s, row
    assert row.told.get("load_imbalance", 0.0) < FALSE_FRAC * row.loop_s, row
