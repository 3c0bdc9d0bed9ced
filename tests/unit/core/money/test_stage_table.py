"""The table by stage, of runs that differ: who is above the line is below it, and the total has each run once."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import MTOK, NS_PER_HOUR, BootNs, DurationNs, MonoNs, usd
from governor.core.events.streams import StreamOpened
from governor.core.money.expected import ExpectedCost, WindowRow
from governor.core.money.expected import row_of as window_of
from governor.core.money.reports.cost import Sum
from governor.core.money.reports.stage_row import StageRow, total_of
from governor.core.money.reports.stage_table import StageTally
from governor.core.money.token_windows import TokenMeter, Window
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import make_node, peer
from tests.unit.core.money.test_waste import a_world, end, stage_row, stage_rows, steps, until
from tests.unit.cost.stages_file import spent, windows

ALL_IN = ExpectedCost(usd_micros_per_mtok_all_in=2_000_000)
NO_PLAN = ExpectedCost()


def enter(tally: StageTally, run: str, stage: str, count: int, usd_each: str, plan: ExpectedCost) -> None:
    """So many windows of a million tokens and an hour, and their charges."""
    for one in spent(run, stage, usd_each, count):
        tally.enter_charges(Sum(one, 1))
    for _, _, row in windows(run, stage, count, MTOK, usd_each, 1, plan):
        tally.enter_window(run, row)


def row_of(*runs: tuple[str, int, str, ExpectedCost]) -> StageRow:
    tally = StageTally()
    for run, count, usd_each, plan in runs:
        enter(tally, run, "s", count, usd_each, plan)
    [row] = tally.rows()
    return row


def test_a_run_without_an_all_in_plan_is_in_no_drift_from_it() -> None:
    """$1 a million of $2 expected: half of it, however dear another run was that has no plan."""
    row = row_of(("planned", 2, "1.00", ALL_IN), ("free", 5, "70.00", NO_PLAN))
    assert (row.drift_all_in, row.unplanned_all_in_runs) == (Fraction(-1, 2), 1)
    assert row.per_mtok_all_in == Fraction(352_000_000, 7), "of all of them"
    assert row_of(("free", 5, "70.00", NO_PLAN)).drift_all_in is None


def test_an_all_in_drift_holds_each_run_against_its_own_plan() -> None:
    """Both on their plan, of which one is ten times the other: no drift, though one trained some tokens twice."""
    tally = StageTally()
    enter(tally, "dear", "s", 1, "20.00", replace(ALL_IN, usd_micros_per_mtok_all_in=20_000_000))
    enter(tally, "cheap", "s", 4, "2.00", ALL_IN)
    assert tally.rows()[0].drift_all_in == 0
    [_, (_, _, again)] = windows("again", "s", 2, MTOK, "4.00", 1, ALL_IN, wasted=[0, MTOK])
    for one in spent("again", "s", "4.00", 1):
        tally.enter_charges(Sum(one, 1))
    tally.enter_window("again", replace(again, window=replace(again.window, from_tokens=0, to_tokens=MTOK)))
    assert tally.rows()[0].drift_all_in == 0


def test_a_launch_that_failed_before_its_first_token_has_its_money_in_the_drift() -> None:
    tally = StageTally()
    enter(tally, "planned", "s", 2, "2.00", ALL_IN)
    for one in spent("crashed", "s", "1.00", 4):
        tally.enter_charges(Sum(one, 1))
    tally.enter_plan("crashed", ALL_IN)
    [row] = tally.rows()
    assert (row.drift_all_in, row.unplanned_all_in_runs) == (1, 0)


def test_runs_that_each_burn_as_their_ceilings_allow_have_a_burn_rate_of_one() -> None:
    """$1 for each of 100 millions, all of them trained; $0.10 for each of 1,000, of which 10 are."""
    row = row_of(
        ("dear", 100, "1.00", ExpectedCost(ceiling_usd_micros=usd(100), tokens_goal=100 * MTOK)),
        ("cheap", 10, "0.10", ExpectedCost(ceiling_usd_micros=usd(100), tokens_goal=1_000 * MTOK)),
    )
    assert row.burn_rate == 1


def test_a_stage_lands_nowhere_while_a_run_in_it_trains_to_an_unknown_goal() -> None:
    goal = ExpectedCost(tokens_goal=4 * MTOK)
    assert row_of(("known", 2, "1.00", goal)).lands_at_usd_micros == usd(4)
    row = row_of(("known", 2, "1.00", goal), ("free", 1, "1.00", NO_PLAN))
    assert row.lands_at_usd_micros is None


def test_tokens_that_are_being_trained_again_are_still_to_be_paid_for() -> None:
    """Three of ten millions are trained, and the next attempt is at one: nine are left, at $1."""
    for open_tokens in (0, MTOK // 2):
        tally = StageTally()
        enter(tally, "r", "s", 3, "1.00", ExpectedCost(tokens_goal=10 * MTOK))
        progress = 3 * MTOK + open_tokens
        tally.enter_open("r", "s", TokenMeter(progress_tokens=progress, last_total=MTOK, from_tokens=3 * MTOK))
        assert tally.rows()[0].lands_at_usd_micros == usd(3 + 9)


def test_the_total_has_a_run_of_two_stages_and_its_ceiling_once() -> None:
    tally, plan = StageTally(), ExpectedCost(ceiling_usd_micros=usd(20), tokens_goal=10 * MTOK)
    enter(tally, "r", "one", 2, "1.00", plan)
    enter(tally, "r", "two", 1, "1.00", replace(plan, began_tokens=2 * MTOK))
    enter(tally, "other", "two", 1, "1.00", plan)
    rows = tally.rows()
    assert [(row.runs, row.ceiling_usd_micros) for row in rows] == [(1, usd(20)), (2, usd(40))]
    total = total_of(rows)
    assert (total.runs, total.ceiling_usd_micros) == (2, usd(40))


def test_the_total_tells_how_many_of_its_tokens_have_no_expected_price() -> None:
    row = row_of(("planned", 2, "1.00", ALL_IN), ("free", 5, "1.00", NO_PLAN))
    assert total_of([row]).unplanned_tokens == row.unplanned_tokens == 5 * MTOK


def test_what_a_stage_trained_is_its_own_as_its_money_is() -> None:
    """$0.016 for nine steps of one stage and $0.011 for ten of the next, far less than a window in all."""
    world = a_world()
    world.hear(stage="one")
    steps(world, range(1, 10), began=6)
    until(world, 16)
    end(world)
    until(world, 17)
    world.hear(attempt="a2", peer=peer(200), stage="two")
    steps(world, range(10, 20), began=18)
    until(world, 28)
    rows = {stage: stage_row(world, stage) for stage in ("one", "two")}
    assert {name: (row.tokens, row.actual_usd_micros) for name, row in rows.items()} == {
        "one": (90_000, 16_000),
        "two": (100_000, 11_000),
    }
    assert [row.per_mtok_all_in for row in rows.values()] == [Fraction(1_600_000, 9), 110_000]


def test_a_stage_that_has_only_trained_again_keeps_its_row_when_the_next_begins() -> None:
    """It trains the last three of nine steps again. Over a restart, and once the next one trains, its row is as it was.

    The next trains the same three, and two more. It has a step a second as the others, behind 2 s of start.
    """
    world = a_world()
    world.hear(stage="one")
    steps(world, range(1, 10), began=2)
    until(world, 12)
    end(world)
    world.hear(attempt="a2", peer=peer(200), stage="two")
    steps(world, range(7, 10), began=14)
    until(world, 18)
    end(world)
    [before] = [row for row in stage_rows(world) if row.stage == "two"]
    assert (before.tokens, before.wasted_tokens, before.actual_usd_micros) == (0, 30_000, 6_000)
    assert (before.per_mtok_all_in, before.tokens_per_s) == (200_000, 10_000)
    until(world, 20)
    world.hear(attempt="a3", peer=peer(300), stage="three")
    recent = list(world.node.runs["llama"].money.windows)
    rows = [stage_rows(world)]
    world.restart()
    world.tick()
    world.hear(attempt="a3", peer=peer(300), stage="three")
    steps(world, range(7, 12), began=22)
    until(world, 28)
    rows.append(stage_rows(world))
    assert [[row for row in told if row.stage == "two"] for told in rows] == [[before], [before]]
    [last] = [row for row in rows[1] if row.stage == "three"]
    assert (last.tokens, last.wasted_tokens, last.actual_usd_micros) == (20_000, 30_000, 8_000)
    assert recent == [], "it is no sample of a price or a speed"
    assert [(kept["from_tokens"], kept["to_tokens"]) for kept in world.windows] == [(0, 90_000), (90_000, 90_000)]


@pytest.mark.parametrize(
    ("stage", "before", "wasted", "told"),
    [
        ("two", 0, 5, {"two": 8}),  # The state is of before it closed,
        ("two", 0, 8, {"two": 8}),
        ("three", 8, 8, {"two": 8}),  # or of after.
        ("three", 8, 11, {"two": 8, "three": 3}),
    ],
)
def test_a_window_without_progress_that_closes_while_it_is_read_is_counted_once(
    stage: str, before: int, wasted: int, told: dict[str, int]
) -> None:
    tally = StageTally()
    enter(tally, "r", "one", 1, "1.00", NO_PLAN)
    again = Window(MTOK, MTOK, DurationNs(NS_PER_HOUR), usd(1), 8)
    tally.enter_window("r", WindowRow("two", "a2", again, NO_PLAN, wasted_to=8))
    meter = TokenMeter(progress_tokens=MTOK, from_tokens=MTOK, wasted_before=before, wasted_tokens=wasted)
    tally.enter_open("r", stage, meter)
    assert {row.stage: row.wasted_tokens for row in tally.rows() if row.wasted_tokens} == told


def test_a_window_without_progress_is_no_sample_of_a_forecast_or_a_steady_price() -> None:
    """Nine of ten millions are left, at the dollar that the first has cost; the last stage spends no more."""
    plan, tally = ExpectedCost(tokens_goal=10 * MTOK, ceiling_usd_micros=usd(90)), StageTally()
    enter(tally, "r", "one", 1, "1.00", plan)
    alone = tally.rows()[0]
    again = Window(MTOK, MTOK, DurationNs(NS_PER_HOUR // 2), usd(7), MTOK // 4)
    tally.enter_window("r", WindowRow("two", "a2", again, plan, wasted_to=MTOK // 4))
    one, two = tally.rows()
    assert one == replace(alone, used=one.used)
    assert (one.lands_at_usd_micros, two.lands_at_usd_micros) == (usd(10), None)
    assert (two.per_mtok_steady, two.drift, two.burn_rate, two.expected_usd_micros) == (None, None, None, None)
    assert (two.wasted_tokens, two.wasted_usd_micros, two.ceiling_usd_micros) == (MTOK // 4, usd(7), usd(90))


def test_a_window_without_progress_has_no_price_where_none_was_known() -> None:
    tally = StageTally()
    for one in spent("r", "s", "1.00", 1):
        tally.enter_charges(Sum(one, 1))
    again = Window(MTOK, MTOK, DurationNs(NS_PER_HOUR), usd(1), 8, is_unpriced=True)
    tally.enter_window("r", WindowRow("s", "a2", again, ExpectedCost(began_tokens=MTOK), wasted_to=8))
    assert (tally.rows()[0].per_mtok_all_in, tally.rows()[0].unpriced_tokens) == (None, 8)


def test_what_a_windows_start_has_cost_is_not_told_as_trained_twice() -> None:
    """It may be another stage's: of $10, nine are a launch's that ended before its first step."""
    tally = StageTally(from_the_beginning=False)
    window = Window(0, MTOK, DurationNs(NS_PER_HOUR), usd(10), MTOK, start_usd_micros=usd(9))
    tally.enter_window("r", WindowRow("s", "a3", window, NO_PLAN))
    assert tally.rows()[0].wasted_usd_micros == usd("0.50")


def test_a_window_that_a_stages_end_cuts_short_is_no_sample_of_a_price_or_a_speed() -> None:
    """Two windows of two steps, and a step that takes a minute: an evaluation. A launch of another stage follows it."""
    world = World(make_node(budget=Budget(window_tokens=20_000), price_usd_micros_per_hour=usd("3.60"), cloud="none"))
    world.tick()
    world.hear(stage="one")
    steps(world, range(1, 5), began=2)
    steps(world, range(5, 6), began=66, first=5)
    managed = world.node.runs["llama"]
    before = managed.run.paid_tokens.last(), list(managed.money.windows)
    world.hear(attempt="a2", peer=peer(200), stage="two")
    assert [kept.data["to_tokens"] for kept in world.node.windows_uncommitted] == [50_000], "its stage has the tokens"
    assert (managed.run.paid_tokens.last(), list(managed.money.windows)) == before == (100_000, before[1])
    assert len(before[1]) == 2


def test_ranks_of_one_attempt_that_name_two_stages_cut_no_window() -> None:
    world = a_world()
    world.hear(stage="one")
    steps(world, range(1, 4), began=2)
    world.hear(stage="two", connection=ConnectionId(9))
    assert world.node.windows_uncommitted == []


def test_a_hello_of_the_same_stage_cuts_no_window() -> None:
    world = a_world()
    world.hear(stage="one")
    steps(world, range(1, 4), began=2)
    world.hear(attempt="a2", peer=peer(200), stage="one")
    world.hear(attempt="a3", peer=peer(300), stage=None)
    until(world, 30)
    assert world.windows == []


def test_of_the_open_window_what_another_run_has_paid_for_is_no_stages() -> None:
    """Three steps of the open window are its own, and two in their midst were lent."""
    meter, now = TokenMeter(window_tokens=MTOK), BootNs(0)
    meter.begin(0, usd(0), now)
    for number in range(1, 6):
        now = BootNs(number * NS_PER_HOUR)
        if number in (3, 4):
            meter.lend(number * MTOK // 10, now)
        else:
            meter.add(number * MTOK // 10, MTOK // 10, usd(number), now)
    assert meter.open_window.lent_tokens == 2 * MTOK // 10
    tally = StageTally()
    tally.enter_open("r", "s", meter)
    assert [(row.stage, row.tokens) for row in tally.rows()] == [("s", 3 * MTOK // 10)]


def test_a_log_that_is_opened_for_another_stage_cuts_the_window_of_the_one_before() -> None:
    world, *writers = a_world(), (peer(200).process,), (peer(300).process,)
    world.play(StreamOpened(MonoNs(world.mono), "log", 1000, stage="one", processes=writers[0]))
    steps(world, range(1, 4), began=2, run="log", connection=None)
    end(world, "log")
    world.play(StreamOpened(MonoNs(world.mono), "log", 1000, stage="two", processes=writers[1]))
    kept = [window_of(one.data) for one in world.node.windows_uncommitted]
    assert [(row.stage, row.window.tokens) for row in kept] == [("one", 30_000)]
