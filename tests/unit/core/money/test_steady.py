"""Expected against actual, like with like: a planner's steady price against the steady one, all-in against all-in."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from governor.core.base.policy import Budget, Expected, PolicySet
from governor.core.base.units import MTOK, NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.engine.node_journal import persist
from governor.core.engine.run_forecast import outlook
from governor.core.money.expected import ExpectedCost, WindowRow, row_of, window_row
from governor.core.money.reports.cost import Sum
from governor.core.money.reports.stage_row import StageRow
from governor.core.money.reports.stage_table import StageTally
from governor.core.money.steady import steady_per_mtok
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.money.waste import SpendSplit
from governor.core.views.status import run_status
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, make_node, peer
from tests.unit.core.money.test_waste import end, steps, until
from tests.unit.cost.stages_file import spent


def window(index: int, seconds: float, *, usd_micros: int | None = None, **changes: int) -> Window:
    """A million tokens for a tenth of a cent a second."""
    cost = round(seconds * 1_000) if usd_micros is None else usd_micros
    made = Window(index * MTOK, (index + 1) * MTOK, DurationNs(round(seconds * NS_PER_S)), UsdMicros(cost), 0)
    return replace(made, **changes)  # type: ignore[arg-type]


START = {"start_ns": 60 * NS_PER_S, "start_tokens": MTOK // 4, "start_usd_micros": 60_000}


def test_the_median_of_clean_windows_is_the_price() -> None:
    """A start, a stall of a minute and a million of which a third was trained twice do not move it."""
    told = [
        window(0, 63, **START),
        window(1, 4),
        window(2, 64),
        window(3, 6, wasted_tokens=MTOK // 2),
        window(4, 4.1),
        window(5, 3.9),
    ]
    assert steady_per_mtok(told) == 4_050  # Between 4,000 and 4,100: of 3,900, 4,000, 4,100 and 64,000.


def test_few_windows_speak_by_the_sum_between_their_starts() -> None:
    """3 s for three quarters of a million after the start, and 6 s for a million and a half, half of it again."""
    told = [window(0, 63, **START), window(1, 6, wasted_tokens=MTOK // 2)]
    assert steady_per_mtok(told) == Fraction(9_000 * 4, 9)
    assert steady_per_mtok(told[:1]) == 4_000
    assert steady_per_mtok([window(0, 60, start_ns=60 * NS_PER_S, start_tokens=MTOK, start_usd_micros=60_000)]) is None
    assert steady_per_mtok([window(0, 4, usd_micros=0)] * 5) is None, "the price was unknown"
    assert steady_per_mtok([]) is None


def a_world(expected: Expected) -> World:
    node = make_node(budget=Budget(window_tokens=20_000), cloud="none", price_usd_micros_per_hour=UsdMicros(3_600_000))
    node.policies = PolicySet((replace(node.policies.policies[0], expected=expected),), "digest")
    world = World(node)
    world.tick()
    return world


def row_by_journal(world: World) -> StageRow:
    """As `costgov cost stages` reads it."""
    world.take([persist(world.node, MonoNs(world.mono))])
    tally = StageTally()
    for charge in world.charges.values():
        tally.enter_charges(Sum(charge, 1))
    for data in world.windows:
        tally.enter_window("llama", row_of(data))
    kept = world.runs["llama"]
    tally.enter_open("llama", kept["stage"], TokenMeter.restored(kept["tokens"], same_boot=False))
    return next(row for row in tally.rows() if row.tokens)


def test_a_run_on_plan_has_no_drift_however_it_starts_and_restarts() -> None:
    """10,000 tokens a second at $0.001: $0.1 a million, as planned, after starts of a minute and of half a minute.

    By hand: 60 s to the end of the first step and 14 s for as many more; another launch from 80 s on, whose first step
    ends at 110 and whose 11th at 120: 114 s, $0.114. It trains steps 14 and 15 again: 260,000 tokens, 240,000 of
    progress. $0.438 a million all-in, as much above $0.40.
    """
    world = a_world(Expected(100_000, None, 400_000))
    world.hear()
    steps(world, range(1, 16), began=60)
    end(world)
    until(world, 80)
    world.hear(attempt="a2", peer=peer(200))
    steps(world, range(14, 25), began=110)
    world.tick()
    managed = world.node.runs["llama"]
    told, row = run_status(managed, MonoNs(world.mono)), row_by_journal(world)
    assert told["usd_per_mtok_steady"] == pytest.approx(0.1)
    assert told["drift_frac"] == pytest.approx(0.0)
    assert row.per_mtok_steady == 100_000
    assert row.drift == 0
    assert row.actual_usd_micros == 114_000
    assert row.per_mtok_all_in == Fraction(114_000 * MTOK, 260_000)
    assert row.per_mtok_useful == Fraction(114_000 * MTOK, 240_000)
    assert row.expected_per_mtok_all_in == 400_000
    assert row.drift_all_in == Fraction(114_000 * 100, 26) / 400_000 - 1
    assert told["drift_all_in_frac"] == pytest.approx(float(row.drift_all_in))
    assert told["expected_usd_per_mtok_all_in"] == 0.4
    last = outlook(managed, MonoNs(world.mono)).last_pace
    assert last is not None
    assert last.drift_frac == pytest.approx(0.0)


def test_two_runs_of_a_stage_are_each_held_against_their_own_plan() -> None:
    """Six millions at $1 and four at $3, both as planned. The median of all windows would be $1, of $1.80 expected."""
    tally = StageTally()
    for run, count, price in (("small", 6, 1_000_000), ("large", 4, 3_000_000)):
        for index in range(count):
            made = window(index, 10, usd_micros=price)
            tally.enter_window(run, WindowRow("s", "a1", made, ExpectedCost(price)))
    [row] = tally.rows()
    assert row.drift == 0
    assert row.per_mtok_steady == row.expected_per_mtok == 1_800_000


def test_a_row_of_the_journal_keeps_the_start_and_the_plan_and_an_older_one_has_neither() -> None:
    plan = ExpectedCost(4_000, usd_micros_per_mtok_all_in=5_000)
    row = WindowRow("s", "a1", window(0, 63, **START), plan)
    assert row_of(window_row(row)) == row
    plain = window_row(WindowRow("s", "a1", window(1, 4), ExpectedCost(4_000)))
    assert not {"start_ns", "start_tokens", "start_usd_micros", "expected_usd_micros_per_mtok_all_in"} & plain.keys()
    assert row_of(plain).window == window(1, 4)


def test_a_meter_of_an_older_journal_counts_its_open_window_as_a_start() -> None:
    meter = TokenMeter(window_tokens=MTOK)
    meter.begin(0, UsdMicros(0), hello().at)  # type: ignore[arg-type]
    meter.add(MTOK // 4, MTOK // 4, UsdMicros(60_000), 60 * NS_PER_S, None, MonoNs(1))  # type: ignore[arg-type]
    older = {name: value for name, value in meter.snapshot().items() if name not in NEW}
    again = TokenMeter.restored(older, same_boot=True)
    assert (again.start_ns, again.start_tokens) == (60 * NS_PER_S, MTOK // 4)
    closed = again.add(MTOK, MTOK // 4, UsdMicros(63_000), 63 * NS_PER_S, None, MonoNs(1))  # type: ignore[arg-type]
    assert closed is not None
    assert (closed.steady_tokens, closed.steady_ns, closed.steady_usd_micros) == (0, 0, 0)


NEW = ("start_ns", "start_tokens", "start_usd_micros", "first_step_at", "step_usd_micros")


@pytest.mark.parametrize(("seconds", "lands_at"), [([4, 4, 0, 4, 0, 4, 0], 6_000_000), ([0] * 7, None)])
def test_windows_of_lines_that_came_together_land_at_the_rate_of_those_that_took_time(
    seconds: list[int], lands_at: int | None
) -> None:
    """At $1 a second. Without the first window 6M took 12 s, so the last three of 10M take 6 s and $6."""
    tally = StageTally()
    for index, one in enumerate(seconds):
        row = WindowRow("s", "a", window(index, one, usd_micros=one * 1_000_000), ExpectedCost(tokens_goal=10 * MTOK))
        tally.enter_window("r", row)
    [told] = tally.rows()
    assert told.lands_at_usd_micros == lands_at


def test_a_window_that_has_closed_is_not_waste_and_speed_again_with_the_open_one() -> None:
    """Its waste and its time are in the window; an open window of before it closed has the same ones."""
    tally, second = StageTally(), DurationNs(NS_PER_S)
    window = Window(0, 1_000_000, second, UsdMicros(5), 200_000)
    tally.enter_window("r", WindowRow("s", "a1", window, ExpectedCost()))
    tally.enter_open("r", "s", TokenMeter(progress_tokens=900_000, wasted_tokens=200_000, spent_ns=NS_PER_S))
    tally.enter_open("r", "s", TokenMeter(progress_tokens=1_200_000, wasted_tokens=200_000, spent_ns=NS_PER_S))
    (row,) = tally.rows()
    assert (row.tokens, row.wasted_tokens, row.tokens_per_s) == (1_200_000, 200_000, 1_200_000.0)


@pytest.mark.parametrize(
    ("windows_unpriced", "split"), [(True, None), (False, SpendSplit(unpriced_ns={"s": NS_PER_S}, has_begun=True))]
)
def test_a_stage_that_had_no_price_for_a_while_has_no_price_of_its_tokens(
    windows_unpriced: bool, split: SpendSplit | None
) -> None:
    """$4 for two million tokens, and some that nobody knows: by its windows, or by the run's own time."""
    tally = StageTally()
    for one in spent("r", "s", "1.00", 4):
        tally.enter_charges(Sum(one, 1))
    for number, is_unpriced in enumerate((windows_unpriced, False)):
        start = number * 1_000_000
        window = Window(start, start + 1_000_000, DurationNs(NS_PER_S), UsdMicros(4), 0, is_unpriced=is_unpriced)
        tally.enter_window("r", WindowRow("s", "a1", window, ExpectedCost(1, usd_micros_per_mtok_all_in=1)))
    if split is not None:
        tally.enter_split("r", split)
    (row,) = tally.rows()
    prices = (row.per_mtok_useful, row.per_mtok_all_in, row.drift_all_in, row.lands_at_usd_micros, row.used)
    assert (row.actual_usd_micros, prices) == (4_000_000, (None,) * 5)
