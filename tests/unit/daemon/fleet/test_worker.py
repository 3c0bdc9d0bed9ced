"""The fleet's thread: a fault of one turn costs what that does, and nothing else."""

from __future__ import annotations

import queue

from governor.core.base.units import MonoNs
from governor.core.events.fleet_store import Answer, AskStore, StoreAnswered
from governor.core.events.inputs import Event
from governor.daemon.fleet.worker import FleetWorker
from governor.remote_ports import FleetStore
from tests.contract.fakes import FakeClock
from tests.contract.fleet.fake_store import FakeFleetStore

SAFETY_S = 30.0


class Broken:
    def turn(self, store: FleetStore, at: MonoNs) -> None:
        raise OSError("a fault")

    def end(self, store: FleetStore) -> None:
        raise OSError("a fault")


class Counts:
    def __init__(self) -> None:
        self.done = queue.SimpleQueue[str]()

    def turn(self, store: FleetStore, at: MonoNs) -> None:
        self.done.put("turn")

    def end(self, store: FleetStore) -> None:
        self.done.put("end")


def test_behind_a_turn_that_fails_the_others_are_had_and_what_is_asked_is_answered() -> None:
    posted, counts = queue.SimpleQueue[Event](), Counts()
    worker = FleetWorker(FakeFleetStore(), FakeClock(), posted.put, [Broken(), counts])
    worker.begin()
    assert counts.done.get(timeout=SAFETY_S) == "turn"
    worker.ask(AskStore("request-1", keys=("costgov/1/a",)))
    answered = posted.get(timeout=SAFETY_S)
    assert isinstance(answered, StoreAnswered)
    assert (answered.answer, worker.is_alive, worker.faults_total) == (Answer.READ, True, 1)
    worker.close()
    assert counts.done.get(timeout=SAFETY_S) == "end"
    assert not worker.is_alive
