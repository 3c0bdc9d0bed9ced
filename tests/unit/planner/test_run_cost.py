"""Hours, dollars and the calendar, worked by hand."""

import math

import pytest

from governor.planner.model.run_cost import (
    REST_SIGMA,
    REST_USUAL,
    RunCost,
    Saving,
    Spread,
    chance_above,
    failures_mtbf_s,
    run_cost,
    saving_of,
)

# 512 sequences of 2,048 tokens a step; the whole set is 51.6B tokens; 8 x H100 at $7.92 an hour together.
STEP = 512 * 2048
TOKENS = 51.6e9
PER_GPU = 7.92 / 8
RARELY = Saving(save_s=1.0, interval_s=36_000.0, is_assumed=False)


def at(steps_per_hour: float, saving: Saving = RARELY, mtbf: float = 1e9) -> RunCost:
    speed = steps_per_hour * STEP / 3600
    return run_cost(TOKENS, Spread(speed, speed, speed), 8, PER_GPU, saving, mtbf)


@pytest.mark.parametrize(("steps_per_hour", "hours", "usd"), [(350, 140.6, 1113.5), (2500, 19.68, 155.9)])
def test_the_example_of_516_billion_tokens(steps_per_hour: float, hours: float, usd: float) -> None:
    cost = at(steps_per_hour)
    assert cost.steady_hours.mid == pytest.approx(hours, rel=1e-3)
    assert cost.steady_usd is not None
    assert cost.steady_usd.mid == pytest.approx(usd, rel=1e-3)
    # 49,210 steps, not the 100,000 that 40 hours at 2,500 an hour make: those are 104.9B tokens, twice the set.
    assert round(TOKENS / STEP) == 49_210
    assert cost.mtok_usd is not None
    assert cost.mtok_usd.mid == pytest.approx(usd / 51_600, rel=1e-3)


def test_the_calendars_parts_sum_to_what_it_takes_beyond_the_steady_state() -> None:
    cost = at(2500, Saving(120.0, 1440.0, False), failures_mtbf_s(8, 1, is_spot=False))
    assert sum(part.hours for part in cost.parts) == pytest.approx(cost.calendar_hours.mid - cost.steady_hours.mid)
    # A save of 2 min every 24 min: a twelfth of the work comes on top, and hardly a failure on 8 GPUs.
    saves = cost.parts[0].hours / (cost.steady_hours.mid * 1.02)
    assert saves == pytest.approx(1 / 12, rel=0.02)


def test_saves_and_spot_losses_are_hours_and_dollars_of_the_calendar() -> None:
    plain = at(2500)
    # A save of 5 min every half hour: a sixth of the work, on top of what finished runs took beyond.
    saving = at(2500, Saving(300.0, 1800.0, False))
    spot = at(2500, mtbf=failures_mtbf_s(8, 1, is_spot=True))
    assert saving.calendar_hours.mid / plain.calendar_hours.mid == pytest.approx(7 / 6, rel=1e-3)
    assert spot.calendar_hours.mid > 1.1 * plain.calendar_hours.mid
    for dear in (saving, spot):
        assert dear.calendar_hours.mid > plain.calendar_hours.mid
        assert dear.held_hours > plain.held_hours
        assert dear.calendar_usd is not None
        assert dear.calendar_usd.mid == pytest.approx(7.92 * dear.calendar_hours.mid)
        assert dear.parts[2].hours > 0


def test_the_calendars_interval_has_the_speeds_doubt_and_the_finished_runs() -> None:
    sure, unsure = at(2500), run_cost(3.6e9, Spread(0.5e6, 1e6, 2e6), 8, None, RARELY, 1e9)
    # 80 %: 1.2816 standard deviations to each side.
    assert sure.calendar_hours.high / sure.calendar_hours.mid == pytest.approx(math.exp(1.2816 * REST_SIGMA), rel=1e-3)
    assert sure.calendar_hours.mid / sure.calendar_hours.low == pytest.approx(math.exp(1.2816 * REST_SIGMA), rel=1e-3)
    both = math.hypot(math.log(2), 1.2816 * REST_SIGMA)
    assert math.log(unsure.calendar_hours.high / unsure.calendar_hours.mid) == pytest.approx(both, rel=1e-3)
    # A fifth of the runs takes longer than the hours that a limit is held to; a tenth longer than the upper end.
    for limit, beyond in ((unsure.held_hours, 0.2), (unsure.calendar_hours.high, 0.1)):
        assert chance_above(limit, unsure.calendar_hours.mid, both / 1.2816) == pytest.approx(beyond, rel=1e-3)
    assert (chance_above(1.0, 2.0, 0.0), chance_above(2.0, 1.0, 0.0)) == (1.0, 0.0)


def test_fast_and_slow_change_places_in_dollars_and_an_unknown_price_stays_unknown() -> None:
    cost = run_cost(3.6e9, Spread(0.5e6, 1e6, 2e6), 8, None, RARELY, 1e9)
    assert cost.steady_hours == Spread(0.5, 1.0, 2.0)
    assert (cost.steady_usd, cost.calendar_usd, cost.mtok_usd) == (None, None, None)


def test_a_save_is_assumed_from_its_bytes_and_a_spot_node_fails_daily() -> None:
    # 7B parameters of 14 bytes, written by one node at 1 GB/s.
    assert saving_of(7e9, 1, 1e6).save_s == pytest.approx(98.0)
    assert saving_of(7e9, 1, 1e6).is_assumed
    assert saving_of(7e9, 1, 1e6, save_s=5.0, interval_s=60.0) == Saving(5.0, 60.0, False)
    # 16,384 GPUs of Llama 3: a failure in 3.1 hours (54 days, 419 of them).
    assert failures_mtbf_s(16_384, 2048, is_spot=False) / 3600 == pytest.approx(3.09, rel=0.01)
    assert failures_mtbf_s(8, 1, is_spot=True) / 3600 == pytest.approx(24, rel=0.01)


def test_a_measured_speed_has_its_software_in_it_already() -> None:
    speed = 350 * STEP / 3600
    cost = run_cost(TOKENS, Spread(speed, speed, speed), 8, PER_GPU, RARELY, 1e9, is_measured=True)
    assert cost.calendar_hours.mid == pytest.approx(1.02 * cost.steady_hours.mid, rel=1e-3)
    assert sum(part.hours for part in cost.parts) == pytest.approx(cost.calendar_hours.mid - cost.steady_hours.mid)
    assert cost.calendar_hours.high == cost.held_hours == pytest.approx(REST_USUAL * cost.calendar_hours.mid)


def test_nobody_saves_more_rarely_than_every_two_hours() -> None:
    # On one node a machine fails once in 264 days: Daly's interval alone would be most of a day.
    assert saving_of(1e9, 1, failures_mtbf_s(8, 1, is_spot=False)).interval_s == 7200
