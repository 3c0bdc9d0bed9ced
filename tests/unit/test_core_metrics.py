"""The snapshot for scrapers, and the lateness of ticks."""

from __future__ import annotations

from governor.core.metrics import LAG_BOUNDS_S, LagMeter
from governor.core.units import NS_PER_MS, MonoNs

TICK_NS = 250 * NS_PER_MS


def lag_of(*ticks_ms: float) -> tuple[tuple[int, ...], float]:
    meter = LagMeter(TICK_NS)
    for tick_ms in ticks_ms:
        meter.observe(MonoNs(round(tick_ms * NS_PER_MS)))
    reading = meter.reading()
    return reading.counts, reading.sum_s


def bucket(index: int) -> tuple[int, ...]:
    return tuple(int(place == index) for place in range(len(LAG_BOUNDS_S) + 1))


def test_the_first_tick_is_late_to_nothing() -> None:
    assert lag_of(137.0) == ((0,) * 11, 0.0)


def test_a_tick_on_the_grid_is_not_late_and_a_bound_belongs_to_its_bucket() -> None:
    assert lag_of(0, 250) == (bucket(0), 0.0)
    assert lag_of(0, 251) == (bucket(0), 0.001)
    assert lag_of(0, 251.1)[0] == bucket(1)


def test_a_stall_longer_than_every_bound_is_counted_above_them() -> None:
    assert lag_of(0, 250 + 5_001)[0] == bucket(len(LAG_BOUNDS_S))


def test_lateness_does_not_move_the_grid() -> None:
    assert lag_of(0, 310, 500) == (tuple(map(sum, zip(bucket(0), bucket(5), strict=True))), 0.06)
