"""A run's own saves, measured from its steps, and what another interval would be worth to it."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.save_interval import HOURS_PER_FAILURE, SAVE_S_MAX, Saves, advice, mtbf_s
from governor.core.base.units import UsdMicros
from governor.core.engine.node import Node
from governor.core.events.inputs import PhaseChange
from governor.core.views.status import run_status
from tests.unit.core.engine.test_run_forecast import shown
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick


def saving(every: int, took_s: float, times: int) -> Node:
    """A step a second; after each `every` of them a save that holds training up."""
    node = make_node(cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1), PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    now = 0.0
    for number in range(1, every * times + 1):
        saves = took_s if number % every == 0 else 0.0
        now += 1 + saves
        play(node, a_step(number, when=now, step_s=1 + saves, checkpoint_s=saves))
    play(node, tick(now))
    return node


def test_the_rhythm_is_what_passes_between_two_saves_and_what_a_save_takes() -> None:
    saves = saving(600, 30.0, 4).runs["llama"].run.saves
    assert (saves.took_s.median(), saves.between_s.median()) == (30.0, 600.0)


def test_two_saves_are_needed_and_those_of_two_attempts_are_none() -> None:
    node = saving(600, 30.0, 1)
    assert run_status(node.runs["llama"], at(700))["saves"] is None
    play(node, hello(0, 5000, world_size=1, attempt="a2"))
    play(node, a_step(601, when=5001, attempt_step=1, checkpoint_s=30.0))
    assert run_status(node.runs["llama"], at(5001))["saves"] is None, "4,300 s of it nobody trained"


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), -1.0, 1e308, 5e-324, 2 * SAVE_S_MAX])
def test_a_save_that_cannot_be_is_none(hostile: float) -> None:
    saves = Saves()
    saves.observe(at(1), hostile)
    saves.observe(at(2), hostile)
    assert advice(saves, gpus=8, restart_s=0, rate_usd_micros_per_hour=None) is None


def test_the_assumed_failure_rate_is_that_of_its_source() -> None:
    """16,384 GPUs for 54 days, 419 unexpected interruptions: one in 3.09 hours."""
    assert mtbf_s(16_384) == pytest.approx(3.093 * 3600, rel=1e-3)
    assert mtbf_s(1) == HOURS_PER_FAILURE * 3600 == mtbf_s(0)


def test_saving_far_too_often_costs_what_the_saves_take() -> None:
    """30 s of every 630 stand still, on one GPU that hardly ever fails: nearly all of 4.76 % of $98.32/h could stay."""
    told = advice(
        saving(600, 30.0, 4).runs["llama"].run.saves,
        gpus=1,
        restart_s=0,
        rate_usd_micros_per_hour=UsdMicros(98_320_000),
    )
    assert told is not None
    assert told.saved_usd_micros_per_hour == pytest.approx(98_320_000 * 30 / 630, rel=0.02)
    assert told.best_interval_s == pytest.approx((2 * 30 * HOURS_PER_FAILURE * 3600) ** 0.5, rel=0.01)


def test_a_person_reads_what_is_measured_what_is_assumed_and_what_follows() -> None:
    node = saving(600, 30.0, 4)
    [line] = [line for line in shown(node, 2520) if "saves for" in line]
    assert line == (
        "llama: saves for 30.0s every 10m 0s; with a failure every 2111d 13h (assumed from Llama 3's) saving every "
        "29h 3m would lose least, $4.63/h less than now"
    )


def test_without_a_price_the_interval_is_told_and_no_money() -> None:
    node = saving(600, 30.0, 4)
    node.runs["llama"].run.spend_rate_usd_micros_per_hour = None
    [line] = [line for line in shown(node, 2520) if "saves for" in line]
    assert line.endswith("would lose least")
