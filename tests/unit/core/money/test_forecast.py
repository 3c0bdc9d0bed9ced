"""What is left of a run: exact where nothing varies, honest where it does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_S, DurationNs, UsdMicros, usd
from governor.core.money.budgets import Cap
from governor.core.money.ceiling_forecast import CeilingHit, Met, ReserveGrowth, ceiling_hit
from governor.core.money.expected import window_rate
from governor.core.money.forecast import RECENT_WINDOWS, WINDOWS_MIN, Speed, autoregressive, forecast, speed_of
from governor.core.money.token_windows import Window
from tests.sim.forecasts import CHANCES, CORRELATIONS, FUTURES, Saver, coverage, met_coverage, windows

MILLI = UsdMicros(3_600_000)  # A micro-dollar each millisecond.


def test_a_steady_run_is_forecast_exactly() -> None:
    told = forecast(windows([36.0] * 10, usd_micros_per_s=10_000), 100 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx(1.0)
    assert told.hours_left.low == pytest.approx(1.0) == told.hours_left.high
    assert told.cost_left(36_000_000).mid == pytest.approx(36.0)  # $36/h for an hour.


def test_a_price_that_has_changed_counts_at_once() -> None:
    """The windows were paid four times as much for: an hour is left, at today's $9."""
    told = forecast(windows([36.0] * 10, usd_micros_per_s=10_000), 100 * MTOK)
    assert told is not None
    assert told.cost_left(9_000_000) == told.hours_left.times(9.0)
    assert told.cost_left(9_000_000).mid == pytest.approx(9.0)


def test_too_few_windows_give_a_middle_and_no_interval() -> None:
    assert forecast([], MTOK) is None
    told = forecast(windows([30.0] * (WINDOWS_MIN - 1)), MTOK)
    assert told is not None
    assert (told.hours_left.low, told.hours_left.high) == (None, None)


def test_only_the_recent_windows_speak() -> None:
    told = forecast(windows([1.0] * 500 + [36.0] * RECENT_WINDOWS), 100 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx(1.0)


def test_nothing_left_takes_nothing() -> None:
    told = forecast(windows([10.0, 20.0, 30.0]), 0)
    assert told is not None
    assert (told.hours_left.mid, told.hours_left.low, told.hours_left.high) == (0.0, 0.0, 0.0)


def shares(seed: int, known: int, future: int, **more: float) -> list[float]:
    """By correlation: of the hours that are left, and of the tokens at the ceiling."""
    told = [coverage(seed + index, known, future, r, **more) for index, r in enumerate(CORRELATIONS)]
    return [share for one in told for share in (one.hours_left, one.ceiling_tokens)]


@pytest.mark.parametrize("future", FUTURES)
def test_the_intervals_hold_what_they_promise(future: int) -> None:
    """Eight in ten totals lie inside, also where neighbouring windows resemble each other.

    And never all of them: an interval that holds whatever happens says nothing.
    """
    found = shares(7, RECENT_WINDOWS, future)
    assert CHANCES[0] <= min(found)
    assert max(found) <= CHANCES[1]


@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize("known", [4, 5, 6, 8, 10])
def test_they_hold_for_few_windows_too(known: int, future: int) -> None:
    """A few windows hardly tell how much neighbours resemble each other: eight in ten hold over all that it may be.

    Of 20,000 runs, 75 to 85 % are inside for each from five on, and 74 to 86 % with four. These are 1,000.
    """
    found = shares(1_000 * known + future, known, future)
    assert CHANCES[0] <= sum(found) / len(found) <= CHANCES[1]
    assert CHANCES[0] - 0.03 <= min(found)
    assert max(found) <= CHANCES[1] + (0.02 if known < 5 else 0.01)


@pytest.mark.parametrize("start_up_s", [5.0, 60.0, 1_200.0])
def test_a_start_up_comes_once(start_up_s: float) -> None:
    """Runs of a few windows, the first of which began with the run."""
    found = [coverage(31 + known, known, 30, 0.3, start_up_s=start_up_s).hours_left for known in (5, 8, 12)]
    assert CHANCES[0] <= sum(found) / len(found) <= CHANCES[1]


@pytest.mark.parametrize("cycles", [0, 1, 40])
@pytest.mark.parametrize("bound_s", [20.0, 40.0, 90.0, 95.0, 300.0])
def test_the_moment_lies_in_its_interval_where_the_run_saves(bound_s: float, cycles: int) -> None:
    """Every 100 s or so. The reserve grows to 20 to 300 s, and falls back with each save."""
    for index, jitter in enumerate((0.0, 0.05)):
        found, width = met_coverage(int(bound_s) + cycles + index, Saver(100.0, bound_s, jitter), cycles)
        assert CHANCES[0] <= found <= CHANCES[1]
        assert width <= 0.41, "of a cycle"


@pytest.mark.parametrize(("room_s", "moment_s"), [(10, 5), (60, 30), (70, 40)])
def test_before_the_next_save_the_moment_is_one(room_s: int, moment_s: int) -> None:
    """The last one was 20 s ago, the next comes in 80, and the reserve stops growing in 30."""
    told = ReserveGrowth(30 * NS_PER_S, 20 * NS_PER_S, 80 * NS_PER_S, 100 * NS_PER_S).met(room_s * 1000, MILLI)
    assert told == Met(*(DurationNs(moment_s * NS_PER_S),) * 3)


def test_a_moment_behind_saves_is_the_middle_of_where_it_may_be() -> None:
    """1,000 s of room and the 20 s held now, less a reserve of 50 to 100 s: half, nine and one tenth of the way."""
    told = ReserveGrowth(280 * NS_PER_S, 20 * NS_PER_S, 80 * NS_PER_S, 100 * NS_PER_S).met(1_000_000, MILLI)
    assert told == Met(*(DurationNs(seconds * NS_PER_S) for seconds in (945, 925, 965)))
    overdue = ReserveGrowth(280 * NS_PER_S, 110 * NS_PER_S, 0, 100 * NS_PER_S).met(4_000, MILLI)
    assert overdue.low_ns == 2 * NS_PER_S, "it may not come in time"


def test_without_a_rhythm_both_ends_are_told_and_the_early_one_is_certain() -> None:
    """100 s of room, and 20 to 50 s of unsaved work are paid for: 70 s without a save, or all 100 and 19 of the 20."""
    growth = ReserveGrowth(30 * NS_PER_S, 20 * NS_PER_S, least_ns=NS_PER_S)
    assert growth.met(100_000, MILLI) == Met(*(DurationNs(seconds * NS_PER_S) for seconds in (70, 70, 119)))
    short = replace(growth, held_ns=0).met(100_000, MILLI)
    assert short.high_ns == 100 * NS_PER_S


def test_before_there_are_windows_the_moments_ends_say_whether_the_ceiling_comes_first() -> None:
    """1,000 tokens a second, at the 70th or the 119th."""
    met = ReserveGrowth(30 * NS_PER_S, 20 * NS_PER_S, least_ns=NS_PER_S).met(100_000, MILLI)
    goals = (70_000, 70_001, 119_000, 119_001)
    told = [ceiling_hit(met, tokens_total=0, speed=None, tokens_per_s=1000.0, tokens_goal=goal) for goal in goals]
    assert [one.before_end for one in told] == [False, None, None, True]
    assert {one.tokens_between for one in told} == {None}


@pytest.mark.parametrize("r", [-0.4, 0.0, 0.3, 0.8])
@pytest.mark.parametrize(("known", "future"), [(5, 1), (5, 8), (50, 20)])
def test_the_width_is_that_of_the_future_mean_less_the_past_one(r: float, known: int, future: int) -> None:
    """Summed over all pairs of windows: those that are k apart have the covariance r to the k."""
    sample = autoregressive(known, 60.0, 1.0, r)
    weights = [-1 / known] * known + [1 / future] * future
    varies = sum(a * b * r ** abs(i - j) for i, a in enumerate(weights) for j, b in enumerate(weights))
    told = sample.total(future)
    assert told.low is not None
    assert told.high is not None
    assert (told.high - told.low) / 2 / future == pytest.approx(sample.width * varies**0.5, rel=1e-6)


def test_what_is_unsure_of_the_speed_and_of_the_moment_adds_up_by_squares() -> None:
    """At either end, each by itself: 3 and 4 are 5."""
    speed = speed_of(windows([900.0, 1_100.0] * 5))
    assert speed is not None
    now = DurationNs(2 * NS_PER_HOUR)
    exact = _tokens_within(speed, Met(now, now, now))
    for later in (False, True):
        own = exact[2] - exact[1] if later else exact[1] - exact[0]
        other_ns = DurationNs(int(own * 4 / 3 / 1_000 * NS_PER_S))  # At 1,000 tokens a second.
        ends = (now, DurationNs(now + other_ns)) if later else (DurationNs(now - other_ns), now)
        low, mid, high = _tokens_within(speed, Met(now, *ends))
        assert mid == exact[1]
        assert (high - mid if later else mid - low) == pytest.approx(own * 5 / 3, rel=1e-3)
        assert (low if later else high) == exact[0 if later else 2]


def _tokens_within(speed: Speed, met: Met) -> tuple[int, int, int]:
    told = ceiling_hit(met, tokens_total=0, speed=speed, tokens_per_s=None, tokens_goal=None)
    assert told.tokens_total is not None
    assert told.tokens_between is not None
    return told.tokens_between[0], told.tokens_total, told.tokens_between[1]


def test_whether_the_ceiling_comes_first_is_said_where_all_of_the_interval_agrees() -> None:
    """Windows of a million tokens in 900 to 1,100 s: 7.2 of them in the two hours until the ceiling."""
    speed = speed_of(windows([900.0, 1_100.0] * 5))
    low, high = hit(speed=speed).tokens_between
    total = hit(speed=speed).tokens_total
    assert 10 * MTOK < low < total < high < 20 * MTOK
    assert total == pytest.approx(17.2 * MTOK)
    goals = [low, low + 1, high, high + 1]
    assert [hit(speed=speed, tokens_goal=goal).before_end for goal in goals] == [
        False, None, None, True,
    ]  # fmt: skip
    assert hit(speed=speed, tokens_goal=None).before_end is None


def test_windows_that_say_nothing_give_a_middle_and_no_interval() -> None:
    speed = speed_of(windows([1.0, 1_000.0, 1.0]))
    assert hit(speed=speed).tokens_between is None
    assert hit(speed=speed).tokens_total is not None
    assert hit(speed=speed_of(windows([9.0, 9.0]))).tokens_total == 17_200_000
    assert hit(speed=speed_of(windows([0.0] * 5))).tokens_total == 17_200_000
    exact = hit(speed=speed_of(windows([1_000.0] * 10)), room_usd_micros=0)
    assert exact.tokens_between == (10 * MTOK, 10 * MTOK)  # type: ignore[attr-defined]


def test_more_windows_take_longer_at_both_ends() -> None:
    """Else there would not be one number of windows for each time."""
    for r in (-0.5, -0.2, 0.0, 0.4, 0.8):
        for known in (3, 4, 7, 50):
            told = [autoregressive(known, 60.0, 5.0, r).total(count / 4) for count in range(1, 400)]
            for one, more in pairwise(told):
                assert one.high < more.high  # type: ignore[operator]
                assert one.low <= more.low  # type: ignore[operator]


def hit(
    *,
    room_usd_micros: int = 30_000_000,
    speed: Speed | None = None,
    tokens_per_s: float | None = 1000.0,
    tokens_goal: int | None = 20 * MTOK,
) -> CeilingHit:
    met = ReserveGrowth().met(room_usd_micros, 15_000_000)
    return ceiling_hit(met, tokens_total=10 * MTOK, speed=speed, tokens_per_s=tokens_per_s, tokens_goal=tokens_goal)


def test_the_ceiling_is_met_when_spend_and_reserve_reach_it() -> None:
    told = hit()
    assert told is not None
    assert told.met.after_ns == 2 * NS_PER_HOUR  # $30 of room at $15/h.
    assert told.tokens_total == 10 * MTOK + 7_200_000
    assert told.before_end is True


def test_a_run_that_ends_before_its_ceiling_says_so() -> None:
    assert hit(tokens_goal=12 * MTOK).before_end is False
    assert hit(tokens_goal=None).before_end is None
    assert hit(tokens_per_s=None).tokens_total is None


def test_past_the_ceiling_is_now_and_nothing_spent_is_never() -> None:
    assert hit(room_usd_micros=-9_000_000).met.after_ns == 0
    assert Cap("run:a", usd(3), usd(1), rate_usd_micros_per_hour=UsdMicros(0)).met() is None


@pytest.mark.parametrize("speed", [4e306, 1.7e308, 2.0**63])
def test_a_speed_that_is_none_tells_no_count_of_tokens(speed: float) -> None:
    """Step times come from frames, and may be as small as a float can say."""
    told = hit(tokens_per_s=speed)
    assert told.met.after_ns == 2 * NS_PER_HOUR
    assert told.tokens_total is None
    assert told.before_end is False


def paused(pause_s: int, paid_s: int) -> Window:
    """A window of 15 s of training at $55.04/h, with a pause and a start of which some was paid for."""
    rate, start_s = 55_040_000, pause_s + paid_s
    trained, started = rate * 15 // 3600, rate * paid_s // 3600
    duration_ns, start_ns = DurationNs((start_s + 15) * NS_PER_S), DurationNs(start_s * NS_PER_S)
    return Window(
        25 * MTOK, 26 * MTOK, duration_ns, UsdMicros(trained + started), 0, start_ns,
        start_usd_micros=UsdMicros(started),
    )  # fmt: skip


def test_a_pause_that_nobody_paid_for_is_no_part_of_what_is_left() -> None:
    """1,000 windows of 15 s at $55.04/h are 4.17 h and $229.33, however long the machine was off."""
    ran = windows([15.0] * 50, usd_micros_per_s=15_289)
    ran[25] = paused(8 * 3600, 0)
    told = forecast(ran, 1000 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx(1000 * 15 / 3600)
    assert told.hours_left.low == pytest.approx(told.hours_left.high)
    assert told.cost_left(55_040_000).mid == pytest.approx(229.33, abs=0.01)


@pytest.mark.parametrize("known", [2, 50])
def test_a_start_that_was_paid_for_is_not_expected_again(known: int) -> None:
    """Two minutes of it in the last of two windows or of 50: how often one comes, no few of them say."""
    ran = [*windows([15.0] * (known - 1), usd_micros_per_s=15_289), paused(8 * 3600, 120)]
    told = forecast(ran, 1000 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx(1000 * 15 / 3600)
    assert told.cost_left(55_040_000).mid == pytest.approx(229.33, abs=0.01)


def test_where_each_window_has_a_start_the_steps_after_it_speak() -> None:
    told = forecast([paused(0, 600), paused(60, 300)], 1000 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx(1000 * 15 / 3600)


@pytest.mark.parametrize("known", [1, 3, 20])
def test_a_start_with_which_the_looking_began_is_not_expected_again(known: int) -> None:
    """After a resume: ten minutes of loading, then windows of 15 s. 1,000 of them are 4.17 h however few were seen."""
    ran = [paused(0, 600), *windows([15.0] * (known - 1), usd_micros_per_s=15_289)]
    told = forecast(ran, 1000 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx(1000 * 15 / 3600)


def test_a_windows_rate_is_that_of_its_training() -> None:
    assert window_rate(paused(8 * 3600, 120)) == pytest.approx(55_040_000, rel=1e-5)
    assert window_rate(windows([0.0])[0]) is None


def test_a_reserve_that_grows_takes_half_of_the_room_at_most() -> None:
    """$30 of room at $15/h are two hours. What is added to spend and reserve alike meets it in half of that."""
    assert ReserveGrowth(NS_PER_HOUR // 2).met(30_000_000, 15_000_000).after_ns == 3 * NS_PER_HOUR // 2
    assert ReserveGrowth(10 * NS_PER_HOUR).met(30_000_000, 15_000_000).after_ns == NS_PER_HOUR
