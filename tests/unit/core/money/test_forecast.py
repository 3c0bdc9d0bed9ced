"""What is left of a run: exact where nothing varies, honest where it does."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_S, DurationNs, UsdMicros
from governor.core.money.forecast import RECENT_WINDOWS, WINDOWS_MIN, ceiling_hit, forecast, rate_of
from governor.core.money.token_windows import Window


def windows(seconds: list[float], usd_micros_per_s: int = 1000) -> list[Window]:
    edges = [index * MTOK for index in range(len(seconds) + 1)]
    return [
        Window(low, high, DurationNs(int(s * NS_PER_S)), UsdMicros(int(s * usd_micros_per_s)), 0)
        for (low, high), s in zip(pairwise(edges), seconds, strict=True)
    ]


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


def coverage(seed: int, known: int, future: int, correlation: float, start_up_s: float | None = None) -> float:
    """The share of simulated runs whose remaining time lies inside the interval, 1,000 of them, seeded.

    Each has windows of a minute whose times are first-order autoregressive; the first may have a start-up in it.
    """
    dice = random.Random(seed)
    inside = 0
    trials = 1_000
    for _ in range(trials):
        level, seconds = dice.gauss(0, 3 / (1 - correlation**2) ** 0.5), []
        for _ in range(known + future):
            seconds.append(60 + level)
            level = correlation * level + dice.gauss(0, 3)
        past, began = seconds[:known], None
        if start_up_s is not None:
            past, began = [60 + start_up_s, *past], 0
        told = forecast(windows(past), future * MTOK, began)
        assert told is not None
        assert told.hours_left.low is not None
        assert told.hours_left.high is not None
        truth = sum(seconds[known:]) / 3600
        inside += told.hours_left.low <= truth <= told.hours_left.high
    return inside / trials


@pytest.mark.parametrize(("correlation", "future"), [(0.0, 20), (0.0, 200), (0.6, 20), (0.6, 200)])
def test_the_interval_holds_what_it_promises(correlation: float, future: int) -> None:
    """Eight in ten totals lie inside, also where neighbouring windows resemble each other.

    And never all of them: an interval that holds whatever happens says nothing.
    """
    assert 0.75 <= coverage(7, RECENT_WINDOWS, future, correlation) <= 0.85


@pytest.mark.parametrize("future", [20, 200])
@pytest.mark.parametrize("known", [4, 6, 8, 10])
def test_it_holds_for_few_windows_too(known: int, future: int) -> None:
    """A few windows cannot tell how much neighbours resemble each other: eight in ten hold over all that it may be.

    Where they do by 0.6, at least 72 % lie inside, and where they do not, 91 % at most.
    """
    shares = [coverage(1_000 * known + future + index, known, future, r) for index, r in enumerate((0.0, 0.3, 0.6))]
    assert 0.75 <= sum(shares) / len(shares) <= 0.85
    assert min(shares) >= 0.72
    assert max(shares) <= 0.91


@pytest.mark.parametrize("start_up_s", [5.0, 60.0, 1_200.0])
def test_a_start_up_comes_once(start_up_s: float) -> None:
    """Runs of a few windows, the first of which began with the run."""
    shares = [coverage(31 + known, known, 30, 0.3, start_up_s) for known in (5, 8, 12)]
    assert 0.75 <= sum(shares) / len(shares) <= 0.85


def hit(**change: object) -> object:
    given = {
        "spend_usd_micros": UsdMicros(60_000_000),
        "reserve_usd_micros": UsdMicros(10_000_000),
        "ceiling_usd_micros": UsdMicros(100_000_000),
        "rate_usd_micros_per_hour": UsdMicros(15_000_000),
        "tokens_total": 10 * MTOK,
        "tokens_per_s": 1000.0,
        "tokens_budget": 20 * MTOK,
        **change,
    }
    return ceiling_hit(**given)  # type: ignore[arg-type]


def test_the_ceiling_is_met_when_spend_and_reserve_reach_it() -> None:
    told = hit()
    assert told is not None
    assert told.after_ns == 2 * NS_PER_HOUR  # type: ignore[attr-defined]  # $30 of room at $15/h.
    assert told.tokens_total == 10 * MTOK + 7_200_000  # type: ignore[attr-defined]
    assert told.before_end is True  # type: ignore[attr-defined]


def test_a_run_that_ends_before_its_ceiling_says_so() -> None:
    assert hit(tokens_budget=12 * MTOK).before_end is False  # type: ignore[attr-defined]
    assert hit(tokens_budget=None).before_end is None  # type: ignore[attr-defined]
    assert hit(tokens_per_s=None).tokens_total is None  # type: ignore[attr-defined]


def test_past_the_ceiling_is_now_and_nothing_spent_is_never() -> None:
    assert hit(spend_usd_micros=UsdMicros(99_000_000)).after_ns == 0  # type: ignore[attr-defined]
    assert hit(rate_usd_micros_per_hour=UsdMicros(0)) is None


@pytest.mark.parametrize("speed", [4e306, 1.7e308, 2.0**63])
def test_a_speed_that_is_none_tells_no_count_of_tokens(speed: float) -> None:
    """Step times come from frames, and may be as small as a float can say."""
    told = hit(tokens_per_s=speed)
    assert told.after_ns == 2 * NS_PER_HOUR  # type: ignore[attr-defined]
    assert told.tokens_total is None  # type: ignore[attr-defined]
    assert told.before_end is False  # type: ignore[attr-defined]


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


def test_a_start_that_was_paid_for_is_expected_again() -> None:
    """Two minutes of it in 50 windows: 20 times in 1,000, that is 40 minutes and $36.69."""
    ran = windows([15.0] * 50, usd_micros_per_s=15_289)
    ran[25] = paused(8 * 3600, 120)
    told = forecast(ran, 1000 * MTOK)
    assert told is not None
    assert told.hours_left.mid == pytest.approx((1000 * 15 + 20 * 120) / 3600, rel=1e-5)
    assert told.cost_left(55_040_000).mid == pytest.approx(229.33 + 36.69, abs=0.02)


def test_a_windows_rate_is_that_of_its_training() -> None:
    assert rate_of(paused(8 * 3600, 120)) == pytest.approx(55_040_000, rel=1e-5)
    assert rate_of(windows([0.0])[0]) is None


def test_a_reserve_that_grows_takes_half_of_the_room_at_most() -> None:
    """$30 of room at $15/h are two hours. What is added to spend and reserve alike meets it in half of that."""
    assert hit(reserve_grows_ns=NS_PER_HOUR // 2).after_ns == 3 * NS_PER_HOUR // 2  # type: ignore[attr-defined]
    assert hit(reserve_grows_ns=10 * NS_PER_HOUR).after_ns == NS_PER_HOUR  # type: ignore[attr-defined]


def test_a_start_that_was_dearer_than_the_training_is_paid_for_no_longer_than_it_took() -> None:
    """15 s of training for $0.015 and 5 s of start for $0.05, as after a price that fell."""
    start_ns = DurationNs(5 * NS_PER_S)
    window = Window(
        0, MTOK, DurationNs(20 * NS_PER_S), UsdMicros(65_000), 0, start_ns, start_usd_micros=UsdMicros(50_000)
    )
    assert window.paid_ns == 20 * NS_PER_S
