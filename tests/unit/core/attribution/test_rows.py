"""What every view tells of a run's time: sums, and one advice for each cause."""

from __future__ import annotations

from governor.core.attribution.causes import LOST
from governor.core.attribution.rows import ADVICE, time_row, whole_of
from governor.core.base.units import MonoNs
from tests.unit.core.attribution.test_account import account_of, end, steps
from tests.unit.core.money.test_waste import a_world, until


def test_every_cause_has_its_advice() -> None:
    assert set(ADVICE) == set(LOST)


def test_a_row_adds_up() -> None:
    world = a_world()
    until(world, 5)
    world.hear()
    steps(world, range(1, 31), began=6, data_s=0.4, forward_s=0.1)
    end(world)
    row = time_row(whole_of(account_of(world), MonoNs(world.mono)))
    assert row["wall_s"] == 30.0, "it holds the node from its hello on"
    assert abs(row["productive_s"] + sum(cause["s"] for cause in row["causes"]) - row["wall_s"]) < 1e-6
    assert abs(row["productive_usd"] + sum(cause["usd"] for cause in row["causes"]) - row["usd"]) < 1e-9
    assert row["causes"][0]["cause"] == "data_starvation"
