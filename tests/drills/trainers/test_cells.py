"""Cells of the table that no other drill has: a real governor, a fault, the halt, and its resume command."""

from __future__ import annotations

import importlib.util

import pytest

from tests.drills.trainers.harness import bench
from tests.drills.trainers.registry import TRAINERS

STEPS = 60


# At 40 the framework itself saves the NaN, and makes room for it.
@pytest.mark.parametrize(
    ("name", "fault", "at"), [("lightning-ddp", "nan", 40), ("accelerate-naming", "nan", 40), ("trl-sft", "nan", 34)]
)
def test_the_halt_holds_and_its_work_goes_on(name: str, fault: str, at: int) -> None:
    trainer = TRAINERS[name]
    for package in trainer.packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    with bench(trainer, STEPS, at) as played:
        cell = played.cell(fault)
    assert cell.ok, "\n".join([str(cell.as_json()), *(text[-3000:] for text in cell.outputs)])
