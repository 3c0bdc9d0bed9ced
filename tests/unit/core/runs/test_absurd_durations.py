"""A duration beyond all time ends nobody: neither the run nor the governor that watches it."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import UsdMicros
from governor.core.events.inputs import PhaseChange
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick


@pytest.mark.parametrize("seconds", [1.7e308, 1e300, 1e10])
def test_a_step_of_more_than_thirty_years_is_no_step_time(seconds: float) -> None:
    node = make_node(budget=Budget(ceiling_usd_micros=UsdMicros(10**12)))
    play(node, tick(0), hello(0), PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    for number in range(1, 30):
        play(node, a_step(number), tick(number))
    for number in range(30, 90):
        play(node, a_step(number, step_s=seconds), tick(number))
    assert node.runs["llama"].run.step_times.median() == 1.0
