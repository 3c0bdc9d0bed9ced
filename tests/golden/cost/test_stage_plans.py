"""`costgov cost stages` beside the plan: like with like, and from a run's launch on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from governor.core.base.units import MTOK, NS_PER_HOUR, usd
from governor.core.money.expected import ExpectedCost, plan_row
from tests.golden.cost.conftest import Call
from tests.golden.cost.test_stages import half_open
from tests.unit.cost.stages_file import spent, windows, write_stages


def started_up(plan: ExpectedCost, run: str = "r", stage: str = "s") -> list[Any]:
    """Three windows of an hour and $1; the first has a second hour and dollar, in which the run starts."""
    first, *others = windows(run, stage, 3, MTOK, "1.00", 1, plan)
    start = {"start_ns": NS_PER_HOUR, "start_usd_micros": usd(1)}
    window = replace(first[2].window, duration_ns=2 * NS_PER_HOUR, usd_micros=usd(2), **start)
    return [(*first[:2], replace(first[2], window=window)), *others]


def test_like_stands_beside_like(state_dir: Path, costgov: Call) -> None:
    """$4 for 3M, all-in as planned, of which $1 is a start: $1 a million and 278 tokens/s while it trains."""
    plan = ExpectedCost(1_000_000, 278.0, None, None, usd_micros_per_mtok_all_in=1_333_333)
    write_stages(state_dir / "costgov.db", spent("r", "s", "1.00", 4), started_up(plan))
    document = json.loads(costgov("stages", "--json").out)
    for row in (document["stages"][0], document["total"]):
        assert (row["expected_usd"], row["expected_usd_kind"], row["actual_usd"]) == ("3.999999", "all_in", "4.000000")
    [row] = document["stages"]
    assert (row["expected_usd_per_mtok"], row["usd_per_mtok_steady_stage"]) == ("1.000000", "1.000000")
    assert (row["expected_usd_per_mtok_all_in"], row["usd_per_mtok_all_in"]) == ("1.333333", "1.333333")
    assert (row["expected_tokens_per_s"], row["tokens_per_s"]) == ("278.0", "277.8")


def test_expected_dollars_of_two_kinds_have_no_sum(state_dir: Path, costgov: Call) -> None:
    steady, all_in = ExpectedCost(1_000_000), ExpectedCost(usd_micros_per_mtok_all_in=1_333_333)
    told = [*started_up(steady, "a", "one"), *started_up(all_in, "b", "two")]
    write_stages(state_dir / "costgov.db", [*spent("a", "one", "1.00", 4), *spent("b", "two", "1.00", 4)], told)
    document = json.loads(costgov("stages", "--json").out)
    assert [(row["expected_usd"], row["expected_usd_kind"]) for row in (*document["stages"], document["total"])] == [
        ("3.000000", "steady"), ("3.999999", "all_in"), (None, None),
    ]  # fmt: skip
    assert "$3.00 steady" in costgov("stages").out


def test_a_stage_that_got_its_all_in_price_half_way_is_expected_by_the_steady_one(
    state_dir: Path, costgov: Call
) -> None:
    both = ExpectedCost(1_000_000, usd_micros_per_mtok_all_in=1_333_333)
    early = windows("r", "s", 2, MTOK, "1.00", 1, ExpectedCost(1_000_000))
    late = windows("r", "s", 2, MTOK, "1.00", 1, replace(both, began_tokens=2 * MTOK))
    write_stages(state_dir / "costgov.db", spent("r", "s", "1.00", 4), [*early, *late])
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["expected_usd"], row["expected_usd_kind"], row["unplanned_tokens"]) == ("4.000000", "steady", 0)


def test_a_run_that_was_planned_half_way_says_so(state_dir: Path, costgov: Call) -> None:
    """Before [expected] stood in its policy: ten millions for $1; then as many at $0.10 for which $0.09 was planned."""
    before = windows("late", "s", 10, MTOK, "0.10", 1, ExpectedCost())
    after = windows("late", "s", 10, MTOK, "0.10", 1, ExpectedCost(90_000, None, None, None, 10 * MTOK))
    write_stages(state_dir / "costgov.db", spent("late", "s", "0.10", 20), [*before, *after])
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["expected_usd"], row["unplanned_tokens"]) == ("0.900000", 10 * MTOK)
    assert (row["expected_usd_per_mtok"], row["drift_stage_frac"]) == ("0.090000", "0.111111")
    assert (row["lands_at_usd"], row["ceiling_usd"], row["burn_rate"]) == (None, None, None)
    assert "s: for 10,000,000 of its tokens no price was expected; they count as actual alone" in costgov("stages").out


def test_a_ceiling_is_known_from_the_launch_on(state_dir: Path, costgov: Call) -> None:
    """Two runs whose first window is not full, with half a million tokens and with none; $0.50 of $2 each."""
    plan = plan_row(ExpectedCost(ceiling_usd_micros=usd(2)))
    runs = {"r": half_open(0) | {"plan": plan}, "q": {"run": "q", "stage": "s", "tokens": None, "plan": plan}}
    charges = [*spent("r", "s", "0.50", 1), *spent("q", "s", "0.50", 1)]
    write_stages(state_dir / "costgov.db", charges, [], runs)
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["ceiling_usd"], row["used_percent"], row["unlimited_runs"]) == ("4.000000", "25.0000", 0)
    assert "known ceiling" not in costgov("stages").out


def test_a_run_younger_than_a_window_is_held_against_its_plan(state_dir: Path, costgov: Call) -> None:
    """Half a million of two in half an hour and for 50 cents: it lands at $2, a quarter dearer than planned."""
    plan = ExpectedCost(400_000, 300.0, usd(4), 2 * MTOK, 0, 800_000)
    begun = half_open(0) | {"plan": plan_row(plan)}
    begun["tokens"]["step_usd_micros"] = usd("0.50")
    write_stages(state_dir / "costgov.db", spent("r", "s", "0.50", 1), [], {"r": begun})
    [row] = json.loads(costgov("stages", "--json").out)["stages"]
    assert (row["expected_usd"], row["expected_usd_kind"], row["drift_all_in_frac"]) == (
        "0.400000",
        "all_in",
        "0.249978",
    )
    assert (row["burn_rate"], row["lands_at_usd"]) == ("0.500000", "2.00")
