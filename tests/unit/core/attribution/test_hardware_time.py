"""What a held-down clock costs a rank, and when a fault's time begins and ends."""

from __future__ import annotations

import json

import pytest

from governor.core.attribution.causes import Cause
from governor.core.attribution.hardware_time import HardwareTime
from governor.core.attribution.parts import RankSums
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.hardware import GpuFigures
from tests.unit.core.attribution.test_split import sums

HEAT, POWER_CAP, IDLE = 0x40, 0x4, 0x1


def clock(mhz: float | None, reasons: int | None = 0) -> GpuFigures:
    return GpuFigures(sm_clock_mhz=mhz, sm_clock_max_mhz=1980.0, clock_reasons=reasons)


class Gpu:
    """GPU 3, on which rank 1 computes."""

    def __init__(self) -> None:
        self.time, self.second = HardwareTime(), 0

    def see(self, figures: GpuFigures, seconds: int = 11) -> None:
        for _ in range(seconds):
            self.time.see_gpus(MonoNs(self.second * NS_PER_S), {"GPU 3": figures}, {1: ("GPU 3",)})
            self.second += 1

    def lost(self, window: RankSums) -> dict[Cause, int]:
        return dict(self.time.take({1: window}).get(1, {}))


def window(computed: int = 9000) -> RankSums:
    return sums(data=1000, forward=computed // 3, backward=computed - computed // 3, steps=9)


def test_the_share_of_the_clock_that_is_missing_is_lost_of_what_was_computed() -> None:
    gpu = Gpu()
    gpu.see(clock(990.0, HEAT))
    assert gpu.lost(window()) == {Cause.THROTTLING: 4500}
    assert gpu.time.evidence[Cause.THROTTLING] == "GPU 3: SM clock 990 of 1,980 MHz, heat (by the hardware)"


def test_it_is_held_against_the_clock_that_it_had_in_this_run() -> None:
    """A power cap is its owner's choice, and an idle GPU's clock is no pace."""
    gpu = Gpu()
    gpu.see(clock(1500.0, POWER_CAP))
    gpu.see(clock(300.0, IDLE))
    gpu.see(clock(750.0, HEAT), 1)
    gpu.lost(window())
    gpu.see(clock(750.0, HEAT))
    assert gpu.lost(sums(forward=3000, steps=1)) == {Cause.THROTTLING: 1500}


def test_it_is_no_more_than_the_steps_took_longer() -> None:
    """Half the clock, and a tenth more time: the memory is what these steps wait for."""
    gpu = Gpu()
    gpu.see(clock(1980.0))
    assert gpu.lost(window(9000)) == {}
    gpu.see(clock(990.0, HEAT), 1)  # Until this look the clock was as the one before said.
    gpu.lost(sums(steps=0))
    gpu.see(clock(990.0, HEAT))
    assert gpu.lost(window(9900)) == {Cause.THROTTLING: 900}


def paced(*windows: int) -> Gpu:
    """Windows of a free clock, so long computed; then one of half the clock has begun."""
    gpu = Gpu()
    for computed in windows:
        gpu.see(clock(1980.0))
        assert gpu.lost(window(computed)) == {}
    gpu.see(clock(990.0, HEAT), 1)
    gpu.lost(sums(steps=0))
    gpu.see(clock(990.0, HEAT))
    return gpu


def test_one_odd_window_is_no_new_pace() -> None:
    """Of 0.9 s a step; the last window took twice that, as one with long batches does."""
    assert paced(9000, 9000, 18_000).lost(window(18_000)) == {Cause.THROTTLING: 18_000 - 11_700}


def test_the_pace_of_another_attempt_is_none() -> None:
    gpu = paced(9000)
    gpu.time.begin_attempt()
    gpu.see(clock(990.0, HEAT))
    assert gpu.lost(window(9900)) == {Cause.THROTTLING: 4950}, "its steps are others"


def test_a_clock_whose_driver_tells_no_reasons_is_no_free_one() -> None:
    """It may have been held down: then the card's own clock is what it is held against."""
    gpu = Gpu()
    gpu.see(clock(1320.0, None))
    gpu.see(clock(990.0, HEAT), 1)
    gpu.lost(window())
    gpu.see(clock(990.0, HEAT))
    assert gpu.lost(window()) == {Cause.THROTTLING: 4500}


def test_time_without_reasons_is_not_seen() -> None:
    """Half the window without them says nothing of the other half."""
    gpu = Gpu()
    gpu.see(clock(990.0, HEAT), 6)
    gpu.see(clock(990.0, None), 6)
    assert gpu.lost(window()) == {Cause.THROTTLING: 4500}


def test_a_view_takes_nothing() -> None:
    gpu = Gpu()
    gpu.see(clock(990.0, HEAT))
    assert gpu.time.losses({1: window()}) == gpu.time.losses({1: window()}) == {1: {Cause.THROTTLING: 4500}}
    assert gpu.lost(window()) == {Cause.THROTTLING: 4500}
    assert gpu.lost(window()) == {}


@pytest.mark.parametrize("figures", [clock(990.0, None), clock(None, HEAT), clock(990.0, POWER_CAP), GpuFigures()])
def test_without_a_reason_or_a_clock_nothing_is_claimed(figures: GpuFigures) -> None:
    gpu = Gpu()
    gpu.see(figures)
    assert gpu.lost(window()) == {}
    assert not gpu.time.evidence


def test_a_minute_without_figures_counts_for_nothing() -> None:
    gpu = Gpu()
    gpu.see(clock(990.0, HEAT), 1)
    gpu.second = 60
    gpu.see(clock(1980.0), 11)
    assert gpu.lost(window()) == {}


def xids(*told: int, total: int | None = None) -> GpuFigures:
    return GpuFigures(xid_total=len(told) if total is None else total, xids=told)


def test_a_fatal_xid_is_a_fault_from_then_on() -> None:
    gpu = Gpu()
    gpu.see(xids(79), 1)
    assert gpu.time.fault_at is None, "it is of before the first look"
    gpu.see(xids(79, 13), 1)
    assert gpu.time.fault_at is None, "13 is the program's own"
    gpu.see(xids(79, 13, 79), 2)
    assert gpu.time.fault_at == 2 * NS_PER_S
    assert gpu.time.evidence[Cause.HARDWARE] == "GPU 3: XID 79, the GPU has fallen off the bus"


def test_whoever_goes_on_is_not_held_up() -> None:
    gpu = Gpu()
    gpu.see(GpuFigures(is_lost=True), 1)
    gpu.time.stepped(MonoNs(-NS_PER_S))  # It began before.
    for second in (1, 2):
        gpu.time.stepped(MonoNs(second * NS_PER_S))
    assert gpu.time.fault_at == 0
    gpu.time.stepped(MonoNs(3 * NS_PER_S))
    gpu.see(GpuFigures(is_lost=True), 3)  # Still the same one.
    assert gpu.time.fault_at is None


def test_the_journal_keeps_what_a_clock_is_held_against_and_the_pace_of_a_boot() -> None:
    gpu = paced(9000)
    gpu.see(clock(1500.0, POWER_CAP), 100)
    told = json.loads(json.dumps(gpu.time.snapshot()))
    again = HardwareTime.restored(told, same_boot=True)
    assert again.snapshot() == gpu.time.snapshot()
    gpu.time = again
    gpu.see(clock(750.0, HEAT), 12)
    assert gpu.lost(window(9900)) == {Cause.THROTTLING: 900}, "no more than its steps took longer"
    gpu.time, gpu.second = HardwareTime.restored(told, same_boot=False), 0
    gpu.see(clock(990.0, HEAT), 12)
    assert gpu.lost(window(9900)) == {Cause.THROTTLING: 4950}, "another boot may have another limit of power"


def test_the_journal_keeps_a_fault_and_what_was_seen() -> None:
    gpu = Gpu()
    gpu.see(clock(990.0, HEAT))
    gpu.see(GpuFigures(is_lost=True), 1)
    told = json.loads(json.dumps(gpu.time.snapshot()))
    again = HardwareTime.restored(told, same_boot=True)
    assert (again.fault_at, again.evidence) == (gpu.time.fault_at, gpu.time.evidence)
    assert HardwareTime.restored(told, same_boot=False).fault_at == 0, "it began before the boot did"
    assert HardwareTime().snapshot() == {}
