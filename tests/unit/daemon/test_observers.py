"""Whoever only watches can neither end the governor nor hold up a halt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from governor.core.base.units import MonoNs
from governor.core.events.effects import Ask
from governor.daemon.observers import SAID_EVERY, Observers
from tests.unit.core.engine.test_step import a_step, make_node, only, play
from tests.unit.daemon.test_perform_order import Bench


class Broken:
    """An observer with a fault of ours in it."""

    def tick(self, node: Any, at: Any) -> None:
        raise OverflowError("cannot convert float infinity to integer")

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        raise KeyError("halt_stage")

    def alarm(self, name: str, run: str | None, text: str) -> None:
        raise RecursionError


class Noting:
    def __init__(self) -> None:
        self.told: list[str] = []

    def tick(self, node: Any, at: Any) -> None:
        self.told.append("tick")

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        self.told.append("incident")

    def alarm(self, name: str, run: str | None, text: str) -> None:
        self.told.append("alarm")


def test_a_fault_of_one_observer_is_counted_and_the_next_one_is_told() -> None:
    noting = Noting()
    observers = Observers([Broken(), noting])
    with capture_logs() as logged:
        observers.tick(make_node(), MonoNs(0))
        observers.incident({})
        observers.alarm("a", None, "b")
    assert noting.told == ["tick", "incident", "alarm"]
    assert observers.errors_total == 3
    [line] = logged
    assert (line["event"], line["observer"], line["call"]) == ("observer_failed", "Broken", "tick")
    assert line["fault"].startswith("OverflowError: cannot convert float infinity to integer (")


def test_what_fails_at_every_tick_does_not_fill_the_log() -> None:
    observers = Observers([Broken()])
    with capture_logs() as logged:
        for _ in range(3 * SAID_EVERY):
            observers.tick(make_node(), MonoNs(0))
    assert [line["total"] for line in logged] == [1, 1 + SAID_EVERY, 1 + 2 * SAID_EVERY]
    assert observers.errors_total == 3 * SAID_EVERY


def test_a_halt_goes_on_past_an_observer_that_fails() -> None:
    bench = Bench()
    bench.performer.observer = Observers([Broken(), bench.reader])
    play(bench.node, a_step(1), a_step(1, rank=1))
    effects = play(bench.node, a_step(2, loss=float("nan")))
    bench.performer.perform(effects)
    assert [len(trainer.letters) for trainer in bench.trainers] == [1, 1]
    assert [stage for stage, _, _ in bench.reader.told] == ["ASKED"]
    bench.performer.perform([only(effects, Ask)])
    assert [len(trainer.letters) for trainer in bench.trainers] == [2, 2]
    assert bench.performer.observer.errors_total == 1
