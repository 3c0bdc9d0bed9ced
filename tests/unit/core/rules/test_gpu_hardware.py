"""`gpu_fault` and `gpu_throttled`: what a driver tells of a GPU's hardware, and what is no fault of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from governor.core.base.findings import Finding, Reading
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.hardware import FATAL_XIDS, UNTOLD, GpuFigures, read_figures
from governor.core.events.machine import GpuSample
from governor.core.rules.trigger import Trigger, defaults
from governor.core.rules.triggers.gpu_fault import GpuFault
from governor.core.rules.triggers.gpu_throttled import GpuThrottled
from governor.core.runs.state import Run

RUN = Run("r", 0, MonoNs(0))
GPUS = ("GPU-a", "GPU-b")
HEALTHY = GpuFigures(clock_reasons=4, ecc_uncorrected_total=2, xid_total=0, sm_clock_mhz=1700, sm_clock_max_mhz=1980)


def at(second: float) -> MonoNs:
    return MonoNs(round(second * NS_PER_S))


def sample(second: float, *figures: GpuFigures, uuids: Sequence[str] = GPUS) -> GpuSample:
    return GpuSample(at(second), "r", (0.9,) * len(figures), tuple(uuids), figures=figures)


def play(trigger: Trigger, *samples: GpuSample) -> Finding:
    for one in samples:
        trigger.observe(one, RUN)
    return trigger.judge(samples[-1].at, RUN)


def fault() -> GpuFault:
    return GpuFault(defaults(GpuFault.KEYS))


def throttled(**params: object) -> GpuThrottled:
    return GpuThrottled(defaults(GpuThrottled.KEYS) | {"window": 60 * NS_PER_S} | params)


def test_a_lost_gpu_fires_at_once_and_on() -> None:
    trigger = fault()
    found = play(trigger, sample(1, HEALTHY, HEALTHY), sample(2, HEALTHY, GpuFigures(is_lost=True)))
    assert (found.reading, found.reason) == (Reading.FIRING, "gpu_lost")
    assert found.evidence == {"gpu": "GPU-b"}
    assert play(trigger, sample(3, HEALTHY, HEALTHY)).reading is Reading.FIRING


@pytest.mark.parametrize("xid", sorted(FATAL_XIDS))
def test_an_xid_that_asks_for_a_reset_fires(xid: int) -> None:
    seen = GpuFigures(xid_total=2, xids=(31, xid))
    found = play(fault(), sample(1, HEALTHY, GpuFigures(xid_total=0)), sample(2, HEALTHY, seen))
    assert (found.reason, found.evidence) == ("fatal_xid", {"gpu": "GPU-b", "xid": xid})


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 92, 94, 154, 155, 999])
def test_an_xid_of_the_program_or_of_no_consequence_does_not(xid: int) -> None:
    seen = GpuFigures(xid_total=1, xids=(xid,))
    assert play(fault(), sample(1, HEALTHY, HEALTHY), sample(2, HEALTHY, seen)).reading is Reading.QUIET


def test_an_xid_from_before_the_attempt_is_none_of_it() -> None:
    old = GpuFigures(xid_total=1, xids=(79,))
    trigger = fault()
    assert play(trigger, sample(1, HEALTHY, old), sample(2, HEALTHY, old)).reading is Reading.QUIET
    again = GpuFigures(xid_total=2, xids=(79, 79))
    assert play(trigger, sample(3, HEALTHY, again)).reason == "fatal_xid"


def test_counts_that_go_back_begin_anew() -> None:
    """The sampler was started again, or the driver loaded again."""
    trigger = fault()
    before = GpuFigures(ecc_uncorrected_total=9, xid_total=5, xids=(13,) * 5)
    after = GpuFigures(ecc_uncorrected_total=3, xid_total=0)
    assert play(trigger, sample(1, HEALTHY, before), sample(2, HEALTHY, after)).reading is Reading.QUIET
    new = GpuFigures(ecc_uncorrected_total=3, xid_total=1, xids=(79,))
    assert play(trigger, sample(3, HEALTHY, new)).reason == "fatal_xid"


def test_uncorrected_errors_fire_when_they_grow_and_not_where_they_stand() -> None:
    trigger = fault()
    assert play(trigger, sample(1, HEALTHY, HEALTHY), sample(2, HEALTHY, HEALTHY)).reading is Reading.QUIET
    found = play(trigger, sample(3, HEALTHY, GpuFigures(ecc_uncorrected_total=3)))
    assert (found.reason, found.evidence) == ("uncorrected_ecc", {"gpu": "GPU-b", "errors": 1})


def test_nothing_is_known_without_figures_or_of_gpus_that_may_be_a_neighbours() -> None:
    assert play(fault(), GpuSample(at(1), "r", (0.9, 0.9), GPUS)).reading is Reading.UNKNOWN
    lost = sample(2, HEALTHY, GpuFigures(is_lost=True), uuids=())
    assert play(fault(), sample(1, HEALTHY, HEALTHY, uuids=()), lost).reading is Reading.UNKNOWN
    trigger = fault()
    play(trigger, sample(1, HEALTHY, HEALTHY))
    assert trigger.judge(at(60), RUN).reading is Reading.UNKNOWN


def test_a_fault_is_known_after_a_restart() -> None:
    trigger = fault()
    play(trigger, sample(1, HEALTHY, HEALTHY), sample(2, HEALTHY, GpuFigures(is_lost=True)))
    restored = fault()
    restored.restore(json.loads(json.dumps(trigger.snapshot())))
    assert restored.judge(at(3), RUN).reason == "gpu_lost"


HOT = GpuFigures(clock_reasons=0x40, sm_clock_mhz=900, sm_clock_max_mhz=1980, temperature_c=91)


def minutes(trigger: Trigger, *figures: GpuFigures, begin: int = 0, seconds: int = 61) -> Finding:
    return play(trigger, *(sample(begin + second, *figures) for second in range(seconds)))


def test_heat_for_the_window_fires_with_its_clocks() -> None:
    found = minutes(throttled(), HEALTHY, HOT)
    assert (found.reading, found.reason) == (Reading.FIRING, "held_down")
    assert found.evidence["gpu"] == "GPU-b"
    assert found.evidence["reasons"] == ["heat (by the hardware)"]
    assert (found.evidence["sm_clock_mhz"], found.evidence["sm_clock_max_mhz"]) == (900, 1980)


def test_a_power_cap_a_set_clock_and_an_idle_gpu_are_not_held_down() -> None:
    usual = GpuFigures(clock_reasons=0x1 | 0x2 | 0x4 | 0x10 | 0x100)
    assert minutes(throttled(), usual, usual).reading is Reading.QUIET


def test_less_than_the_share_does_not_fire_and_flicker_above_it_does() -> None:
    seldom = [HEALTHY if n % 3 else HOT for n in range(62)]
    often = [HOT if n % 3 else HEALTHY for n in range(62)]
    assert play(throttled(), *(sample(n, HEALTHY, one) for n, one in enumerate(seldom))).reading is Reading.QUIET
    assert play(throttled(), *(sample(n, HEALTHY, one) for n, one in enumerate(often))).reading is Reading.FIRING


def test_reasons_that_are_not_told_are_unknown() -> None:
    assert minutes(throttled(), UNTOLD, UNTOLD).reading is Reading.UNKNOWN
    assert minutes(throttled(), HOT, HOT, seconds=30).reading is Reading.UNKNOWN, "its window is not full"
    trigger = throttled()
    minutes(trigger, HOT, HOT)
    assert trigger.judge(at(120), RUN).reading is Reading.UNKNOWN
    assert play(trigger, sample(120, HOT, HOT)).reading is Reading.UNKNOWN, "after a gap it begins anew"


@pytest.mark.parametrize(
    "told",
    [
        None, [], {"power_w": -1}, {"power_w": "x"}, {"power_w": float("nan")}, {"xid_total": 1.5}, {"xids": 3},
        {"xids": [1] * 9}, {"xids": ["x"]}, {"is_lost": 1}, {"clock_reasons": 2**63}, {"power_w": True},
    ],
)  # fmt: skip
def test_figures_that_no_sampler_writes_are_refused(told: object) -> None:
    assert read_figures(told) is None


def test_figures_are_read_as_they_were_written() -> None:
    for figures in (UNTOLD, HEALTHY, HOT, GpuFigures(is_mig=False, xids=(1,)), GpuFigures(is_lost=True, is_mig=True)):
        assert read_figures(json.loads(json.dumps(figures.told()))) == figures
    assert read_figures({"of_a_newer_sampler": object(), "power_w": None}) == UNTOLD
