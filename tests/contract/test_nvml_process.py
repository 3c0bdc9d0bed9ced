"""The real sampler process against a stub of the driver: every figure, and everything that a driver does to one."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from governor.adapters.machine.nvml import NvmlSampler
from governor.app.doctor import _gpus
from governor.core.events.hardware import GpuFigures
from governor.ports import GpuReading
from tests.nvml_stub import COMPILER, NO_COMPILER, Driver, build

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

SAFETY_S = 30.0
PERIOD_S = 0.02


def ANY(_: object) -> bool:
    return True


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nvml")
    build(directory)
    return directory


@pytest.fixture
def driver(library: Path) -> Driver:
    return Driver(library, 2)


@pytest.fixture
def sampler(driver: Driver) -> Iterator[NvmlSampler]:
    sampler = NvmlSampler(driver.command(PERIOD_S))
    yield sampler
    sampler.close()


def until(sampler: NvmlSampler, holds: Callable[[Sequence[GpuReading]], bool]) -> Sequence[GpuReading]:
    """The first readings for which it holds."""
    deadline = time.monotonic() + SAFETY_S
    readings = sampler.read()
    while readings is None or not holds(readings):
        fd = sampler.fileno()
        assert fd is not None, sampler.status
        assert time.monotonic() < deadline, f"{sampler.status}: {readings}"
        select.select([fd], [], [], 1.0)
        readings = sampler.read()
    return readings


def until_status(sampler: NvmlSampler, text: str) -> None:
    deadline = time.monotonic() + SAFETY_S
    while text not in sampler.status:
        fd = sampler.fileno()
        if fd is not None:
            select.select([fd], [], [], 0.05)
        sampler.read()
        assert time.monotonic() < deadline, sampler.status


def figures(sampler: NvmlSampler, gpu: int, holds: Callable[[GpuFigures], bool]) -> GpuFigures:
    return until(sampler, lambda readings: holds(readings[gpu].figures))[gpu].figures


def test_tells_every_figure(driver: Driver, sampler: NvmlSampler) -> None:
    driver.tell(1, pids=(41, 42), busy=50)
    first, second = until(sampler, lambda readings: readings[1].pids == (41, 42))
    assert (first.uuid, first.name, first.busy_frac, first.pids) == ("GPU-0", "Stub", 0.97, ())
    assert (first.memory_used_bytes, first.memory_total_bytes) == (60 << 30, 80 << 30)
    assert (second.uuid, second.busy_frac) == ("GPU-1", 0.5)
    steady = figures(sampler, 0, lambda told: told.pcie_rx_bytes_per_s is not None)
    assert steady == GpuFigures(
        power_w=640.5, power_limit_w=700.0, temperature_c=61, sm_clock_mhz=1755, sm_clock_max_mhz=1980,
        memory_clock_mhz=2619, memory_clock_max_mhz=2619, clock_reasons=4, pcie_rx_bytes_per_s=0.0,
        pcie_tx_bytes_per_s=0.0, nvlink_rx_bytes_per_s=0.0, nvlink_tx_bytes_per_s=0.0, ecc_corrected_total=5,
        ecc_uncorrected_total=0, xid_total=0, is_mig=False,
    )  # fmt: skip
    assert steady.throttles == ()
    driver.tell(0, reasons=0x48)
    assert figures(sampler, 0, lambda told: told.clock_reasons == 0x48).throttles == (
        "hardware slowdown", "heat (by the hardware)",
    )  # fmt: skip


def test_what_a_gpu_does_not_support_is_absent_and_not_zero(driver: Driver, sampler: NvmlSampler) -> None:
    """As under MIG: no load, no power of its own; the processes stay."""
    for key in ("busy", "power_mw", "reasons", "celsius", "ecc_corrected", "ecc_uncorrected", "pcie_rx", "pcie_tx"):
        driver.tell(0, **{key: None})
    driver.tell(0, mig=1, nvlink_rx_kib=None, nvlink_tx_kib=None)
    told = until(sampler, lambda readings: readings[0].figures.is_mig is True)[0]
    assert told.busy_frac is None
    assert told.pids == ()
    known = told.figures
    assert (known.power_w, known.clock_reasons, known.temperature_c) == (None, None, None)
    assert (known.ecc_corrected_total, known.ecc_uncorrected_total) == (None, None)
    assert (known.pcie_rx_bytes_per_s, known.nvlink_rx_bytes_per_s) == (None, None)
    assert known.power_limit_w == 700.0


def test_counts_bytes_as_rates_and_takes_a_counter_that_went_back_for_no_rate(
    driver: Driver, sampler: NvmlSampler
) -> None:
    figures(sampler, 0, lambda told: told.pcie_rx_bytes_per_s == 0.0)
    driver.tell(0, pcie_rx=10**12, nvlink_tx_kib=10**9)
    both = figures(sampler, 0, lambda told: (told.pcie_rx_bytes_per_s or 0) > 0)
    assert both.pcie_rx_bytes_per_s is not None
    assert both.nvlink_tx_bytes_per_s == pytest.approx(both.pcie_rx_bytes_per_s * 1.024)  # KiB.
    driver.tell(0, pcie_rx=7)  # The driver was loaded anew, or the counter wrapped.
    seen = figures(sampler, 0, lambda told: (told.pcie_rx_bytes_per_s or 0) <= 0)
    assert seen.pcie_rx_bytes_per_s in (None, 0.0)  # Never less than nothing.


def test_asks_for_the_throughput_of_now_where_bytes_are_not_counted(driver: Driver, sampler: NvmlSampler) -> None:
    driver.tell(1, pcie_rx=None, pcie_tx=None, pcie_rx_kb=3_000_000, pcie_tx_kb=2)
    told = figures(sampler, 1, lambda told: told.pcie_rx_bytes_per_s is not None and told.pcie_rx_bytes_per_s > 0)
    assert (told.pcie_rx_bytes_per_s, told.pcie_tx_bytes_per_s) == (3e9, 2000.0)


def test_an_xid_is_counted_with_its_gpu(driver: Driver, sampler: NvmlSampler) -> None:
    until(sampler, ANY)
    driver.tell(1, xid=79, xids=1)
    readings = until(sampler, lambda readings: readings[1].figures.xid_total == 1)
    assert readings[1].figures.xids == (79,)
    assert (readings[0].figures.xid_total, readings[0].figures.xids) == (0, ())
    driver.tell(1, xid=13, xids=200)  # A storm: more than one look takes, and only the last are kept.
    told = figures(sampler, 1, lambda told: told.xid_total == 200)
    assert told.xids == (13,) * 8


def test_a_lost_gpu_is_named_and_the_others_stay(driver: Driver, sampler: NvmlSampler) -> None:
    until(sampler, ANY)
    driver.tell(1, xid=79, xids=1, lost=1)
    lost = until(sampler, lambda readings: readings[1].figures.is_lost and bool(readings[1].figures.xids))
    assert (lost[1].uuid, lost[1].name) == ("GPU-1", "Stub")
    assert (lost[1].busy_frac, lost[1].memory_used_bytes, lost[1].pids) == (None, None, None)
    assert lost[1].figures == GpuFigures(xid_total=1, xids=(79,), is_lost=True)
    assert lost[0].busy_frac == 0.97
    assert not lost[0].figures.is_lost


def test_a_gpu_that_was_lost_before_the_start_does_not_hide_the_others(driver: Driver) -> None:
    driver.tell(0, lost=1)
    sampler = NvmlSampler(driver.command(PERIOD_S))
    readings = until(sampler, ANY)
    assert [reading.uuid for reading in readings] == ["unknown", "GPU-1"]
    assert readings[0].figures.is_lost
    assert readings[1].busy_frac == 0.97
    sampler.close()


def test_a_driver_that_was_unloaded_ends_the_sampler_with_its_word(driver: Driver, sampler: NvmlSampler) -> None:
    until(sampler, ANY)
    driver.tell(unloaded=1)
    until_status(sampler, "GPU sampler ended with code 1")
    assert sampler.read() is None


def test_an_old_driver_lacks_some_figures(tmp_path: Path) -> None:
    build(tmp_path, "-DOLD")
    driver = Driver(tmp_path, 1)
    driver.tell(0, reasons=0x40)
    sampler = NvmlSampler(driver.command(PERIOD_S))
    told = figures(sampler, 0, ANY)
    assert told.throttles == ("heat (by the hardware)",)  # Under its older name.
    assert (told.is_mig, told.nvlink_rx_bytes_per_s, told.pcie_rx_bytes_per_s) == (None, None, None)
    assert told.power_w == 640.5
    sampler.close()


def test_without_the_right_to_events_xids_are_unknown(driver: Driver) -> None:
    driver.tell(no_events=1)
    sampler = NvmlSampler(driver.command(PERIOD_S))
    assert figures(sampler, 0, ANY).xid_total is None
    sampler.close()


def test_doctor_names_what_is_not_told_and_a_gpu_that_is_lost(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in driver.environ().items():
        monkeypatch.setenv(name, value)
    assert _gpus().text == "2 GPUs"
    driver.tell(1, nvlink_rx_kib=None, ecc_uncorrected=None, busy=None)
    assert _gpus().text == "2 GPUs; not told: load, NVLink traffic, ECC errors"
    driver.tell(1, lost=1)
    assert _gpus().text == "2 GPUs; lost, fallen off the bus: unknown"


def test_a_wedged_driver_is_abandoned_with_one_line(driver: Driver) -> None:
    driver.tell(1, wedged=1)  # From the start: however slowly a sampler starts, it never gets to a first sample.
    sampler = NvmlSampler(driver.command(PERIOD_S), given_up_after_s=0.3)
    until_status(sampler, "GPU sampler ended with code -9")
    assert sampler.read() is None
    driver.tell(1, wedged=None)
    begun = time.monotonic()
    sampler.close()
    assert time.monotonic() - begun < 5


def test_a_sampler_ends_beside_a_wedged_driver(driver: Driver) -> None:
    sampler = NvmlSampler(driver.command(PERIOD_S))
    until(sampler, ANY)
    driver.tell(0, wedged=1)
    begun = time.monotonic()
    sampler.close()
    assert time.monotonic() - begun < 5
    driver.tell(0, wedged=None)
