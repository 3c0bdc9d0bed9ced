"""What a series of windows shows: saves at regular distances are no noise, and a trend is no mean."""

from __future__ import annotations

import random

import pytest

from governor.core.money.forecast import patterned, total_ahead
from governor.core.money.series import cycle_of, trend_of
from tests.sim.forecasts import SHAPES, Coverage, coverage, times

KNOWN = 50


def told(name: str, known: int = KNOWN) -> Coverage:
    """Of 400 runs with 20 to 100 windows to come."""
    parts = [coverage(index, known, 20 + 8 * index, shape=SHAPES[name], runs=40) for index in range(10)]
    hours, tokens, width = (
        sum(getattr(one, share) for one in parts) / len(parts)
        for share in ("hours_left", "ceiling_tokens", "half_width")
    )
    return Coverage(known, 0.0, 400, hours, tokens, width)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("a save in each 4th window", 0.02),
        ("a save in each 7th window", 0.02),
        ("a save every 3.3 windows", 0.025),
        ("a save every 9 windows or so", 0.03),
    ],
)
def test_regular_saves_are_told_to_a_save_more_or_less(name: str, width: float) -> None:
    """The same windows in another order vary by a tenth."""
    found = told(name)
    assert min(found.hours_left, found.ceiling_tokens) >= 0.75
    assert found.half_width <= width


@pytest.mark.parametrize("name", ["30 % slower in the end", "20 % faster in the end"])
def test_a_trend_may_go_on(name: str) -> None:
    found = told(name)
    assert min(found.hours_left, found.ceiling_tokens) >= 0.75
    assert found.half_width <= 0.1


@pytest.mark.parametrize("name", ["30 % slower since a moment", "5 % faster since a moment"])
def test_a_trend_may_have_ended(name: str) -> None:
    assert told(name).hours_left >= 0.75


@pytest.mark.parametrize("name", ["heavy windows, one in 10", "heavy windows, one in 33", "long stalls, one in 50"])
def test_heavy_windows_by_chance_are_no_cycle(name: str) -> None:
    dice = random.Random(5)
    found = [cycle_of(SHAPES[name](dice, KNOWN, 0)) for _ in range(400)]
    assert sum(cycle is not None for cycle in found) <= 20
    assert told(name).hours_left >= 0.6


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("known", [12, 20, KNOWN])
def test_what_wanders_by_chance_has_hardly_ever_a_trend(known: int, correlation: float) -> None:
    dice = random.Random(known)
    found = [trend_of([*enumerate(times(dice, known, correlation))]) for _ in range(400)]
    assert sum(trend is not None for trend in found) <= 32


def test_a_cycle_is_told_with_where_it_is() -> None:
    """Every fourth window takes 90 s and the others 60; of seven windows to come one or two are heavy."""
    for last, heavy in ((0, 1), (1, 2), (2, 2), (3, 2)):
        seconds = [90.0 if at % 4 == 3 else 60.0 for at in range(20 + last)]
        left = patterned(seconds).total(7)
        assert left.low <= 7 * 60 + 30 * heavy <= left.high  # type: ignore[operator]
        assert left.high - left.low < 30  # type: ignore[operator]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([90.0, 90.0, 90.0, 90.0, *[60.0] * 20], id="a start-up"),
        pytest.param([*[60.0] * 20, 90.0, 90.0, 90.0, 90.0], id="a new level"),
        pytest.param([60.0, 60.0, 60.0, 90.0] * 3 + [60.0] * 12, id="saves that have ended"),
        pytest.param([60.0] * 12 + [60.0, 60.0, 60.0, 90.0] * 3, id="saves that have begun"),
        pytest.param([60.0] * 5 + [90.0] + [60.0] * 7 + [90.0] + [60.0] * 6, id="two"),
        pytest.param([60.0, 60.0, 90.0] * 2, id="few windows"),
    ],
)
def test_what_comes_otherwise_is_no_cycle(seconds: list[float]) -> None:
    assert cycle_of(seconds) is None


def test_the_present_level_is_the_middle() -> None:
    """From 60 s to 70 evenly: more windows like the last ones, neither like the mean nor ever slower."""
    line = [60.0 + at / 5 for at in range(KNOWN)]
    left = patterned(line).total(100)
    assert left.mid == pytest.approx(100 * 70, rel=0.005)
    assert left.low == pytest.approx(100 * 64.9, rel=0.005)
    assert left.high == pytest.approx(100 * 80, rel=0.005)


def test_a_trend_is_followed_for_a_while() -> None:
    """Ten thousand windows after fifty: neither a hundred times slower nor none at all."""
    for step in (0.5, -0.5, 5.0, -1.1):
        left = patterned([60.0 + step * at for at in range(KNOWN)]).total(10_000)
        assert left.mid / 2.1 <= left.low <= left.mid <= left.high <= 2.1 * left.mid  # type: ignore[operator]


@pytest.mark.parametrize("name", list(SHAPES))
def test_how_many_windows_fit_is_the_same_question_backwards(name: str) -> None:
    sample = patterned(SHAPES[name](random.Random(3), KNOWN, 0))
    for seconds in (600.0, 6_000.0, 60_000.0):
        count = sample.count_within(seconds)
        if count.low is None or count.high is None:
            continue
        assert count.low <= count.mid <= count.high
        assert sample.total(count.low).high == pytest.approx(seconds, rel=1e-3)
        assert sample.total(count.high).low == pytest.approx(seconds, rel=1e-3)
        assert sample.total(count.mid).mid == pytest.approx(seconds, rel=1e-3)


def test_the_gate_asks_of_steps_as_they_are() -> None:
    """It has left the saves out, and is asked again and again: no pattern narrows or leads what it is told."""
    dice = random.Random(1)
    for shape in ("a save in each 7th window", "30 % slower in the end"):
        steps = SHAPES[shape](dice, KNOWN, 0)
        gate, run = total_ahead(steps, 100), patterned(steps).total(100)
        assert gate.mid == pytest.approx(100 * sum(steps) / KNOWN)
        assert gate.mid - gate.low == pytest.approx(gate.high - gate.mid)  # type: ignore[operator]
        assert gate != run
