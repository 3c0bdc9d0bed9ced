"""The best interval is where the model loses least, and its figures are those of the papers' formulas by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.save_interval import best_interval_s, economics, lost_share
from governor.core.base.units import UsdMicros

HOUR = 3600.0


def test_the_worked_example() -> None:
    """Saves of 60 s, a failure a day: Young says sqrt(2 x 60 x 86,400) = 3,220 s; Daly subtracts the save itself."""
    young = math.sqrt(2 * 60 * 86_400)
    assert young == pytest.approx(3_219.9, abs=0.1)
    assert best_interval_s(60, 86_400) == pytest.approx(young * (1 + 0.018634 / 3 + 0.00034722 / 9) - 60, abs=0.5)


def test_saving_twice_as_often_as_is_best_costs_what_the_model_says() -> None:
    best = best_interval_s(60, 86_400)
    told = economics(
        interval_s=best / 2, save_s=60, mtbf_s=86_400, restart_s=300, rate_usd_micros_per_hour=UsdMicros(100_000_000)
    )
    # By hand, with M = 86,400 s and e^(300/M) = 1.003478:
    #   t = 3,180 s: e^(3,240/M) - 1 = 0.038212, so 3,313 s for 3,180 s of work: 4.01 % lost.
    #   t = 1,590 s: e^(1,650/M) - 1 = 0.019281, so 1,671.6 s for 1,590 s of work: 4.88 % lost.
    assert lost_share(told.best_interval_s, 60, 86_400, 300) == pytest.approx(0.0401, abs=1e-4)
    assert told.lost_share == pytest.approx(0.0488, abs=1e-4)
    assert told.saved_usd_micros_per_hour == pytest.approx(870_000, rel=0.01)  # 0.87 % of $100/h.


def test_an_unknown_price_saves_an_unknown_amount() -> None:
    told = economics(interval_s=HOUR, save_s=60, mtbf_s=86_400, restart_s=300, rate_usd_micros_per_hour=None)
    assert told.saved_usd_micros_per_hour is None


def test_a_save_longer_than_the_time_between_failures_is_no_reason_to_fail() -> None:
    assert best_interval_s(1000, 100) == 100
    assert lost_share(HOUR, 1e6, 1.0, 0) == 1.0


@given(st.floats(0.1, 600), st.floats(HOUR, 1000 * HOUR), st.floats(0, HOUR))
def test_no_interval_loses_less_than_the_best_by_more_than_its_approximation(
    save_s: float, mtbf_s: float, restart_s: float
) -> None:
    """Sought numerically over three decades around it: where it is taken for the optimum, nothing is to be gained."""
    best_s = best_interval_s(save_s, mtbf_s)
    there = lost_share(best_s, save_s, mtbf_s, restart_s)
    least = min(lost_share(best_s * 10 ** (n / 50), save_s, mtbf_s, restart_s) for n in range(-75, 76))
    assert 0 < least <= there < 1
    assert there <= least * 1.001
