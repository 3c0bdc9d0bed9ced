"""Cells of the table that no other drill has: a real governor, a fault, the halt, and its resume command."""

from __future__ import annotations

import importlib.util

import pytest

from tests.drills.trainers.harness import bench
from tests.drills.trainers.registry import TRAINERS

STEPS = 50


@pytest.mark.parametrize(("name", "fault"), [("lightning-ddp", "nan")])
def test_the_halt_holds_and_its_work_goes_on(name: str, fault: str) -> None:
    trainer = TRAINERS[name]
    for package in trainer.packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    with bench(trainer, STEPS) as at:
        cell = at.cell(fault)
    assert cell.ok, "\n".join([str(cell.as_json()), *(text[-3000:] for text in cell.outputs)])
