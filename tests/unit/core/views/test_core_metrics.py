"""The snapshot for scrapers, and the lateness of ticks."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_MS, MonoNs, UsdMicros
from governor.core.events.inputs import Disconnected, TrainerExited
from governor.core.views.metrics import (
    LAG_BOUNDS_S,
    AlertCounts,
    BudgetReading,
    GovernorHealth,
    LagMeter,
    LagReading,
    MetricsSnapshot,
    RunReading,
    take_snapshot,
)
from tests.paths import ROOT
from tests.tidy import gates
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, play, rule, training

TICK_NS = 250 * NS_PER_MS


@pytest.mark.parametrize(
    ("reading", "place"),
    [
        (RunReading, "governor/core/views/metrics.py"),
        (MetricsSnapshot, "governor/core/views/metrics.py"),
        (BudgetReading, "governor/core/views/metrics.py"),
        (LagReading, "governor/core/views/metrics.py"),
        (GovernorHealth, "governor/app/wiring.py"),
        (AlertCounts, "governor/adapters/alerting/dispatch.py"),
    ],
)
def test_every_field_of_a_reading_is_filled(reading: type, place: str) -> None:
    gates.nothing_missing(gates.never_filled(reading, (ROOT / place).read_text(encoding="utf-8")))


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


def test_a_training_node_as_scrapers_see_it() -> None:
    node = make_node(rule(), budget=Budget(ceiling_usd_micros=UsdMicros(300_000_000)))
    training(node, 30)
    health = GovernorHealth(journal_errors_total=2)
    seen = take_snapshot(node, at(30), health, LagReading(), "slurm:4711")
    assert (seen.node, seen.cloud_instance, seen.can_stop) == ("node-a", "i-1", True)
    assert seen.price_usd_micros_per_hour == PRICE
    assert seen.frames_received_total == node.frames_total > 0
    assert seen.health is health
    (run,) = seen.runs
    assert (run.run, run.attempt, run.step, run.tokens_total) == ("llama", "a1", 30, 30_000)
    assert (run.ranks_connected, run.world_size, run.alive, run.watched) == (2, 2, True, True)
    assert run.spend_usd_micros == node.ledger.spend("llama") > 0
    assert run.ceiling_usd_micros == 300_000_000
    assert run.loss == 2.0
    assert run.scheduler_job == "slurm:4711"
    assert run.tokens_nonpad is None
    play(node, a_step(31, tokens=1000, tokens_nonpad=770))
    assert take_snapshot(node, at(31), health, LagReading(), "").runs[0].tokens_nonpad == 770
    assert run.last_frame_wall == at(30) + 10**18
    assert (run.incidents_total, run.halt_stage) == (0, None)


def test_a_halt_shows_its_stage() -> None:
    node = make_node(rule())
    training(node, 30)
    play(node, a_step(31, loss=float("nan")))
    (run,) = take_snapshot(node, at(31), GovernorHealth(), LagReading(), "").runs
    assert (run.incidents_total, run.halt_stage) == (1, "asked")


def test_a_run_nobody_hears_of_is_unwatched_and_an_ended_one_neither() -> None:
    node = make_node(rule())
    training(node, 30)
    play(node, Disconnected(at(31), ConnectionId(1)), Disconnected(at(31), ConnectionId(2)))
    (run,) = take_snapshot(node, at(31 + 120), GovernorHealth(), LagReading(), "").runs
    assert (run.alive, run.watched, run.ranks_connected) == (True, False, 0)
    play(node, TrainerExited(at(152), "llama", 0))
    (run,) = take_snapshot(node, at(153), GovernorHealth(), LagReading(), "").runs
    assert (run.alive, run.watched) == (False, None)


def test_live_runs_come_first() -> None:
    node = make_node(rule())
    training(node, 3)
    play(node, TrainerExited(at(4), "llama", 0), hello(0, 5, run="mistral", peer=peer(300)))
    assert [run.run for run in take_snapshot(node, at(6), GovernorHealth(), LagReading(), "").runs] == [
        "mistral",
        "llama",
    ]
