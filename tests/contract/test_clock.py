"""Every Clock: monotonic never goes back, boot time counts at least as much, the boot has one name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.adapters.machine.clock import SystemClock, boot_of_ticks
from governor.adapters.machine.processes import parse_stat
from governor.core.base.units import NS_PER_S
from governor.ports import Clock
from tests.contract.fakes import FakeClock


@pytest.fixture(params=[SystemClock, FakeClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    return request.param()


def test_monotonic_and_boot_time_never_go_back(clock: Clock) -> None:
    monos = [clock.mono() for _ in range(100)]
    boots = [clock.boot() for _ in range(100)]
    assert monos == sorted(monos)
    assert boots == sorted(boots)


def test_boot_time_is_never_behind_monotonic_time(clock: Clock) -> None:
    mono = clock.mono()
    assert clock.boot() >= mono


def test_a_process_began_by_the_boot_clock_before_it_asks() -> None:
    before = SystemClock().boot()
    child = os.fork()
    if child == 0:
        os._exit(0)
    stat = parse_stat(Path(f"/proc/{child}/stat").read_bytes())  # A zombie has its start.
    after = SystemClock().boot()
    os.waitpid(child, 0)
    assert stat is not None
    tick = NS_PER_S // os.sysconf("SC_CLK_TCK")
    assert before - tick <= boot_of_ticks(stat.start_ticks) <= after


def test_wall_time_is_nanoseconds_since_the_epoch(clock: Clock) -> None:
    assert 1_700_000_000 * NS_PER_S < clock.wall() < 4_000_000_000 * NS_PER_S


def test_the_boot_has_one_name(clock: Clock) -> None:
    assert clock.boot_id == clock.boot_id
    assert len(clock.boot_id) == 36


def test_a_suspend_is_charged_but_decides_nothing() -> None:
    clock = FakeClock()
    mono, boot = clock.mono(), clock.boot()
    clock.suspend(3600 * NS_PER_S)
    assert clock.mono() == mono
    assert clock.boot() - boot == 3600 * NS_PER_S


def test_a_wrong_wall_clock_moves_no_other() -> None:
    clock = FakeClock()
    mono, boot = clock.mono(), clock.boot()
    clock.set_wall(0)
    assert (clock.mono(), clock.boot(), clock.wall()) == (mono, boot, 0)
