"""Two equal runs are told equal, whatever their noise and their length; a real slow-down is found."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest

from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import Whole, time_row
from governor.core.base.units import NS_PER_S
from governor.reports.run.compare import CAUSES, OUTSIDE, SMALL, compare_document, is_regression
from governor.reports.run.facts import RunFacts, speed_of
from governor.reports.run.series import RunSeries
from governor.reports.run.windows import StepFigures, correlation_time, interval
from tests.golden.run_report_cases import account, hello, step, whole_run

STEPS = 600
RUNS = 16
PARTS_S = (0.1, 0.05, 0.3, 0.5, 0.05)  # Data, loop, forward, backward, optimizer.


def simulated(seed: int, *, drifts: bool, slower: float = 1.0, steps: int = STEPS) -> RunFacts:
    """Each part has noise of 5 % of its own; a run that drifts has one of 3 % beside, correlated from step to step."""
    draw, state, series = random.Random(seed), 0.0, RunSeries()
    for number in range(1, steps + 1):
        state = 0.95 * state + draw.gauss(0, 0.01) if drifts else 0.0
        data, loop, forward, backward, optimizer = (
            s * slower * abs(draw.gauss(1, 0.05)) * (1 + state) for s in PARTS_S
        )
        parts = (data, loop, forward, backward, optimizer, None, None, None)
        length = data + loop + forward + backward + optimizer
        norm = abs(draw.gauss(1, 0.1))
        series.windows.add(StepFigures(number, length, 8_000, parts, None, 2.0 + draw.gauss(0, 0.01), norm))
    series.stability.steps = steps
    return RunFacts(f"r{seed}", {"time": account()}, "ended", None, None, 22.0, series=series)


@pytest.mark.parametrize("drifts", [False, True])
def test_equal_runs_fail_no_comparison(drifts: bool) -> None:
    runs = [simulated(seed, drifts=drifts) for seed in range(RUNS)]
    pairs = [(a, b) for a in runs for b in runs if a is not b]
    failed = sum(is_regression(compare_document(a, b)) for a, b in pairs)
    assert failed <= 0.02 * len(pairs), f"{failed} of {len(pairs)}"


@pytest.mark.parametrize(("drifts", "steps"), [(False, STEPS), (True, 5 * STEPS)])
def test_three_per_cent_slower_is_found(drifts: bool, steps: int) -> None:
    """What drifts takes more steps: 600 of it are worth 15."""
    found = 0
    for seed in range(8):
        before = simulated(seed, drifts=drifts, steps=steps)
        found += is_regression(compare_document(before, simulated(100 + seed, drifts=drifts, slower=1.03, steps=steps)))
    assert found >= 7


def test_a_short_series_is_worth_less_than_its_own_correlation_tells() -> None:
    """Many short series whose values are worth a third of independent ones: (1 + 0.5) / (1 - 0.5)."""
    draw, found = random.Random(1), []
    for _ in range(400):
        state, values = draw.gauss(0, 1), []
        for _ in range(40):
            state = 0.5 * state + math.sqrt(0.75) * draw.gauss(0, 1)
            values.append(state)
        found.append(correlation_time(values))
    assert statistics.fmean(found) == pytest.approx(3.0, rel=0.1)


def test_windows_that_drift_are_worth_fewer() -> None:
    draw, state, drifting = random.Random(1), 0.0, []
    for _ in range(100):
        state = 0.8 * state + draw.gauss(0, 1)
        drifting.append(state)
    assert correlation_time([draw.gauss(0, 1) for _ in range(100)]) < 1.7
    assert correlation_time(drifting) > 4
    assert correlation_time([1.0] * 100) == 1.0
    wide, narrow = interval(drifting), interval(sorted(drifting, key=lambda _: draw.random()))
    assert wide is not None
    assert narrow is not None
    assert wide.low is not None
    assert wide.high is not None
    assert narrow.low is not None
    assert narrow.high is not None
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def verdicts(before: RunFacts, after: RunFacts) -> dict[str, Any]:
    return {one["figure"]: one["verdict"] for one in compare_document(before, after)["figures"]}


def run(parts_s: float, **told: tuple[float, float]) -> RunFacts:
    series = RunSeries()
    series.see(hello(0))
    for number in range(1, 121):
        series.see(step(number, number, loop_s=parts_s))
    return RunFacts("a", {"time": account(**told)}, "ended", None, None, 22.0, series=series)


def test_a_part_of_microseconds_is_no_regression() -> None:
    before, after = run(0.000_001), run(0.000_003)
    assert verdicts(before, after)["loop"] == SMALL
    assert not is_regression(compare_document(before, after))
    assert verdicts(before, run(0.1))["loop"] == "worse"


def test_a_shorter_run_is_no_worse_one() -> None:
    """The same start-up is a larger share of all its time."""
    told = {"PRODUCTIVE": (18.0, 0.11), "DATA": (4.8, 0.029333), "CHECKPOINT": (0.15, 0.0), "COMMUNICATION": (2.4, 0.0)}
    assert not is_regression(compare_document(run(0.1), run(0.1, **told)))


@pytest.mark.parametrize("cause", [one for one in Cause if one is not Cause.PRODUCTIVE])
def test_each_cause_is_a_share_of_the_steps_or_seconds_outside_of_them(cause: Cause) -> None:
    before, after = (
        replace(run(0.1), told={"time": time_row(Whole({Cause.PRODUCTIVE: Amount(600), cause: Amount(ns)}, 100, {}))})
        for ns in (20, 400)
    )
    found = [row for row in compare_document(before, after)["figures"] if row["section"] in (CAUSES, OUTSIDE)]
    assert [row["section"] for row in found] == [CAUSES, CAUSES if cause.is_in_steps else OUTSIDE]
    assert [row["verdict"] == "worse" for row in found] == [cause.is_in_steps] * 2
    shares = [row["b"]["median"] for row in found if row["section"] == CAUSES]
    assert sum(shares) == pytest.approx(1)


def test_of_a_run_with_two_prices_no_steady_price_is_told() -> None:
    """Half of it for $10 an hour and half for $98: neither is what its tokens cost."""
    halves = Whole({Cause.PRODUCTIVE: Amount(3_600 * NS_PER_S, 54_000_000)}, 100, {})
    one = replace(run(0.1), told={"time": time_row(halves)}, node_usd_per_hour=98.0)
    document = compare_document(one, run(0.1))
    row = next(row for row in document["figures"] if row["figure"] == "$/1M tokens, steady")
    assert row["a"] is None
    assert row["b"] is not None
    assert "a had more than one price: no steady price stands for all of it" in document["not_verified"]


@pytest.mark.parametrize(("first", "second"), [(8, 4), (4, 8), (8, 8)])
def test_speed_of_each_gpu_is_the_same_whatever_the_world_size_became(first: int, second: int) -> None:
    """A thousand tokens a second of each GPU throughout."""
    series, now = RunSeries(), 0.0
    for attempt, world in enumerate((first, second)):
        series.see(hello(now, 0, f"a{attempt}", world_size=world))
        for number in range(1, 102):
            now += 8.0 / world + (90 if number == 1 else 0)  # The first step of each compiles.
            length = 8.0 / world + (90 if number == 1 else 0)
            series.see(step(now, 101 * attempt + number, tokens=8_000, step_s=length))
    speed = speed_of(RunFacts("a", {}, "ended", series=series, peak=whole_run().peak))
    assert speed.tokens_per_s_per_gpu == pytest.approx(1_000)
    assert speed.mfu == pytest.approx(6 * 1e9 * 1_000 / 989e12)


@pytest.mark.parametrize("steps", [120, 4_000])
def test_a_loss_that_falls_as_it_should_has_an_interval(steps: int) -> None:
    draw, series = random.Random(7), RunSeries()
    series.see(hello(0))
    for number in range(1, steps + 1):
        series.see(step(number, number, loss=8 * number**-0.2 + draw.gauss(0, 0.01)))
    found = series.windows.loss_between(round(steps * 0.9), steps)
    assert found is not None
    assert found.low is not None
