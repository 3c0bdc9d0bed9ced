"""Cells of loops that people write themselves: a NaN under a real governor, the halt, and its resume command."""

from __future__ import annotations

import pytest

from tests.drills.components import needs
from tests.drills.trainers.harness import bench
from tests.drills.trainers.registry import TRAINERS

needs("torch")
STEPS = 50


@pytest.mark.parametrize("name", ["nanogpt-ddp", "fsdp2"])
def test_a_nan_is_halted_and_the_resume_command_goes_on_bit_for_bit(name: str) -> None:
    """fsdp2: the NaN weights of the halt lie in .distcp files, and are found there."""
    with bench(TRAINERS[name], STEPS) as at:
        cell = at.cell("nan")
    assert cell.ok, "\n".join([str(cell.as_json()), *(text[-3000:] for text in cell.outputs)])
    if name == "fsdp2":
        assert "NOT FINITE" in cell.outputs[0]
