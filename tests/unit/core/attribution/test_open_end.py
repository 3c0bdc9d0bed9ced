"""A phase that is cut: what one of its like takes is the phase's. Beyond that it hung where something tells so."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.attribution.rows import time_row, whole_of
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.metering import charge_verdict
from governor.core.events.fetch import Fetch
from governor.core.events.inputs import Beat, Bye, PhaseChange, TrainerExited
from governor.core.views.status import run_status
from governor.reports.terminal import stands_still_text
from tests.unit.core.attribution.test_account import World, account_of, seconds, step, steps, sums_hold
from tests.unit.core.attribution.test_account_cut import cut, restarted
from tests.unit.core.engine.test_step import a_step
from tests.unit.core.money.test_waste import a_world, until

WAYS = ["halt", "ceiling", "killed", "seen to end"]


def phase(world: World, name: str) -> None:
    world.play(PhaseChange(MonoNs(world.mono), a_step(1).connection, "llama", 0, name))


def stand(world: World, to_s: int, name: str, *, in_data: bool, seq: int = 1_000) -> None:
    """Beats of a rank whose hooks do not move."""
    since = MonoNs(world.mono)
    connection = a_step(1).connection
    assert connection is not None
    for second in range(since // NS_PER_S + 1, to_s + 1):
        until(world, second)
        fetch = Fetch(since, NS_PER_S // 10) if in_data else None
        world.play(Beat(MonoNs(world.mono), connection, "llama", 0, seq, name, since, fetch=fetch))


def hang_row(world: World) -> dict[str, Any]:
    rows = time_row(whole_of(account_of(world)))["causes"]
    return next(row for row in rows if row["cause"] == "hang")


def never_stepped(*, in_data: bool) -> World:
    world = a_world()
    world.hear()
    phase(world, "train")
    stand(world, 101, "train", in_data=in_data)
    return world


def trained() -> World:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    return world


@pytest.mark.parametrize("way", WAYS)
def test_a_first_batch_that_never_comes_is_no_start(way: str) -> None:
    world = never_stepped(in_data=True)
    cut(world, way)
    told = seconds(world)
    assert told["hang"] == pytest.approx(39, abs=2), "beyond a minute, which a slow store may take"
    assert told["hang"] + told["start_up"] == sum(told.values())
    row = hang_row(world)
    assert row["confidence"] == "medium"
    assert "rank 0 stood still in start-up, where it waited for data, for 1m " in row["evidence"]
    sums_hold(world)


@pytest.mark.parametrize("way", WAYS)
def test_a_start_of_which_nobody_knows_more_is_unknown(way: str) -> None:
    world = never_stepped(in_data=False)
    cut(world, way)
    assert seconds(world)["unknown"] == pytest.approx(39, abs=2), "it may have compiled"
    sums_hold(world)


def test_a_slow_first_step_is_no_hang_when_it_comes() -> None:
    world = never_stepped(in_data=True)
    assert seconds(world)["hang"] > 30, "so far"
    step(world, 1, step_s=1.0)
    until(world, 103)
    assert "hang" not in seconds(world)


@pytest.mark.parametrize(("name", "cause"), [("eval", "evaluation"), ("checkpoint", "checkpoint_stall")])
@pytest.mark.parametrize("way", WAYS)
def test_a_phase_is_as_those_seen_before_and_then_stands_still(way: str, name: str, cause: str) -> None:
    world = trained()
    phase(world, name)
    stand(world, 13, name, in_data=False)
    phase(world, "train")
    step(world, 11, step_s=1.0, data_s=0.1)
    now_s = world.mono // NS_PER_S
    phase(world, name)
    stand(world, now_s + 60, name, in_data=False, seq=2_000)
    cut(world, way)
    told = seconds(world)
    assert told["hang"] == pytest.approx(55, abs=3)
    assert told[cause] == pytest.approx(8, abs=3)
    assert hang_row(world)["confidence"] == "medium"
    sums_hold(world)


def test_the_first_evaluation_that_is_cut_early_is_one() -> None:
    world = trained()
    phase(world, "eval")
    stand(world, 40, "eval", in_data=False)
    cut(world, "halt")
    assert seconds(world)["evaluation"] == pytest.approx(30, abs=1)


def test_a_rule_that_halts_it_has_the_evaluation_up_to_its_last_hook() -> None:
    world = trained()
    phase(world, "eval")
    for second in range(11, 30):
        stand(world, second, "eval", in_data=False, seq=2_000 + second)
    stand(world, 110, "eval", in_data=False, seq=3_000)
    charge_verdict(world.node, world.node.runs["llama"], "hang", MonoNs(world.mono))
    told = seconds(world)
    assert told["evaluation"] == pytest.approx(20, abs=1)
    assert told["hang"] == pytest.approx(80, abs=1)
    assert "stood still in evaluation for 1m" in hang_row(world)["evidence"]
    sums_hold(world)


def test_an_evaluation_whose_hooks_move_is_one_however_long() -> None:
    world = trained()
    phase(world, "eval")
    for second in range(11, 300):
        stand(world, second, "eval", in_data=True, seq=2_000 + second)
    cut(world, "halt")
    assert seconds(world)["evaluation"] == pytest.approx(289, abs=1)


def test_what_a_phase_of_its_like_takes_is_kept_over_a_restart() -> None:
    world = trained()
    phase(world, "eval")
    stand(world, 13, "eval", in_data=False)
    phase(world, "train")
    before = account_of(world).silences
    assert before.longest
    restarted(world, 3)
    assert account_of(world).silences == before


def test_before_the_first_step_a_view_says_that_none_comes_and_how_to_look() -> None:
    world = never_stepped(in_data=True)
    row = run_status(world.node.runs["llama"], MonoNs(world.mono))
    text = stands_still_text(row)
    assert text is not None
    assert text.startswith("no step for 1m 4")
    assert text.endswith("costgov evidence llama")
    (hang,) = (one for one in row["time"]["causes"] if one["cause"] == "hang")
    assert hang["confidence"] == "medium"


def test_a_run_that_ended_well_in_its_last_evaluation_has_not_hung() -> None:
    world = trained()
    phase(world, "eval")
    stand(world, 100, "eval", in_data=True)
    connection = a_step(1).connection
    assert connection is not None
    world.play(Bye(MonoNs(world.mono), connection, "llama", 0, 9, completed=True))
    world.play(TrainerExited(MonoNs(world.mono), "llama", exit_code=0))
    assert "hang" not in seconds(world)
