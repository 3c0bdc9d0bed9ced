"""Seconds that hardware and neighbours cost, from samples to the account, beside ordinary steps of two ranks."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import time_row, whole_of
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.metering import charge_verdict
from governor.core.events.hardware import GpuFigures
from governor.core.events.machine import GpuSample, HostSample, NodeUse, ProcessUse
from tests.unit.core.attribution.test_account import account_of, end, seconds, step, steps, sums_hold
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, peer
from tests.unit.core.money.test_waste import a_world, until

SOUND = GpuFigures(sm_clock_mhz=1980.0, sm_clock_max_mhz=1980.0, clock_reasons=0, xid_total=0)
HOT = GpuFigures(sm_clock_mhz=990.0, sm_clock_max_mhz=1980.0, clock_reasons=0x40, xid_total=0)
FALLEN = GpuFigures(is_lost=True, xid_total=1, xids=(79,))


def process(world: World, rank: int) -> ProcessId:
    return world.node.runs["llama"].run.ranks[rank].peer.process


def show_gpus(world: World, *figures: GpuFigures) -> None:
    """Rank n computes on GPU n."""
    pids = tuple(frozenset({process(world, rank).pid}) for rank in range(len(figures)))
    uuids = tuple(f"GPU-{place}" for place in range(len(figures)))
    busy = (1.0,) * len(figures)
    world.play(GpuSample(MonoNs(world.mono), None, busy, uuids, pids=pids, figures=figures))


def show_host(world: World, *waits: float) -> None:
    """Each rank on a core of its own, which it wants all the time and for `waits` of it has not."""
    now = world.mono / NS_PER_S
    uses = tuple(
        ProcessUse(process(world, rank), process(world, rank), "python", "R", int((1 - wait) * world.mono),
                   int(wait * world.mono), cores=frozenset({rank}))
        for rank, wait in enumerate(waits)
    )  # fmt: skip
    world.play(HostSample(MonoNs(world.mono), NodeUse(2, 2.0 * now), uses))


def two_ranks() -> World:
    world = a_world()
    world.hear(world_size=2, peer=peer(300))
    world.play(hello(1, 0, at=MonoNs(world.mono), world_size=2, peer=peer(301)))
    return world


def train(world: World, numbers: range, *figures: GpuFigures, **told: Any) -> None:
    for number in numbers:
        until(world, number)
        if figures:
            show_gpus(world, *figures)
        step(world, number, 0, forward_s=0.2, backward_s=0.6)
        step(world, number, 1, **told)


def row_of(world: World, cause: Cause) -> dict[str, Any]:
    row = time_row(whole_of(account_of(world), MonoNs(world.mono)))
    found: dict[str, Any] = next(one for one in row["causes"] if one["cause"] == cause.value)
    return found


def test_a_hot_gpu_costs_both_ranks_and_is_no_straggler() -> None:
    """Rank 1's GPU runs at half its clock: 0.4 of the 0.8 s that it computes. Rank 0 waits as long for it."""
    world = two_ranks()
    train(world, range(1, 41), SOUND, HOT, forward_s=0.4, backward_s=0.4, optimizer_s=0.1)
    end(world)
    told = seconds(world)
    assert told["throttling"] == pytest.approx(40 * 0.45, rel=0.05)
    assert "straggler" not in told
    assert row_of(world, Cause.THROTTLING)["evidence"].endswith(
        "GPU 1: SM clock 990 of 1,980 MHz, heat (by the hardware)"
    )
    sums_hold(world)


def test_no_view_shows_a_cause_larger_than_it_will_be() -> None:
    """At each step, in the midst of a window too: what is no straggler when it is divided is none before."""
    world, views = two_ranks(), list[dict[str, float]]()
    for number in range(1, 41):
        train(world, range(number, number + 1), SOUND, HOT, forward_s=0.4, backward_s=0.4, optimizer_s=0.1)
        views.append(seconds(world))
    end(world)
    last = seconds(world)
    for told in views[8:]:  # The first window's steps began before any look.
        assert all(amount <= last.get(cause, 0.0) + 1.0 for cause, amount in told.items() if cause != "not_told")


def test_sound_gpus_and_quiet_cores_cost_nothing() -> None:
    world = two_ranks()
    for number in range(1, 31):
        until(world, number)
        show_gpus(world, SOUND, SOUND)
        show_host(world, 0.01, 0.02)
        step(world, number, 0)
        step(world, number, 1)
    end(world)
    assert set(seconds(world)) == {"productive", "data_starvation"}


def test_a_neighbour_on_one_ranks_core_is_no_straggler() -> None:
    """Rank 1 waits for its core 0.4 s of each second."""
    world = two_ranks()
    for number in range(1, 41):
        until(world, number)
        show_host(world, 0.0, 0.4)
        step(world, number, 0, forward_s=0.2, backward_s=0.6)
        step(world, number, 1, forward_s=0.4, backward_s=0.4)
    end(world)
    told = seconds(world)
    assert told["other_tenants"] == pytest.approx(40 * 0.4 * 0.9, rel=0.1), "of what is no waiting for data"
    assert "straggler" not in told
    assert "rank 1 waited for a processor 40% of its time" in row_of(world, Cause.OTHER_TENANTS)["evidence"]
    sums_hold(world)


def test_the_silence_behind_a_fault_is_hardware() -> None:
    """The last step at 10, the GPU is seen to be lost at 12, the halt's verdict comes at 20."""
    world = two_ranks()
    train(world, range(1, 11), SOUND, SOUND)
    until(world, 12)
    show_gpus(world, SOUND, FALLEN)
    until(world, 15)
    assert seconds(world)["hardware"] == pytest.approx(3.0, abs=1.0), "while it lasts too"
    until(world, 20)
    charge_verdict(world.node, world.node.runs["llama"], "hang", MonoNs(world.mono))
    until(world, 25)
    told = seconds(world)
    assert (told["hang"], told["hardware"], told["halt"]) == (2.0, 8.0, 5.0)
    assert row_of(world, Cause.HARDWARE)["evidence"].endswith("GPU 1: XID 79, the GPU has fallen off the bus")
    sums_hold(world)


def test_the_restart_behind_a_fault_is_hardware_until_its_first_step() -> None:
    world = two_ranks()
    train(world, range(1, 11), SOUND, SOUND)
    until(world, 10.5)
    show_gpus(world, SOUND, FALLEN)
    until(world, 14)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 16)
    steps(world, range(11, 31), began=17)
    until(world, 40)
    end(world)
    told = seconds(world)
    assert told["hardware"] == pytest.approx(16 - 10.5, abs=0.1)
    assert told["restart"] == pytest.approx(0.5, abs=0.1), "from the last step until the fault was seen"
    assert account_of(world).hardware.fault_at is None
    sums_hold(world)


def test_without_a_fault_the_same_is_a_hang() -> None:
    world = two_ranks()
    train(world, range(1, 11), SOUND, SOUND)
    until(world, 20)
    charge_verdict(world.node, world.node.runs["llama"], "hang", MonoNs(world.mono))
    assert seconds(world)["hang"] == 10.0
