"""Calls that hang take the place of their own kind alone: a stop finds its thread, whatever the disk does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from governor.core.events.checkpoints import CheckpointLook, CheckpointRead, CheckpointSeen, CheckpointWeighed
from governor.core.events.effects import ReadBilling, ReadCheckpoint, StopCompute, WeighCheckpoint
from governor.core.events.inputs import BillingAnswer, BillingRead, Event, StopAnswer, StopReplied
from governor.daemon.calls import BILLING_READS_AT_ONCE_MAX, CHECKPOINT_READS_AT_ONCE_MAX, STOPS_AT_ONCE_MAX
from governor.daemon.observers import Observers
from governor.daemon.perform import Performer
from governor.daemon.process_killer import ProcessKiller
from governor.remote_ports import BillingReply, Cloud, StopReply
from tests.contract.fakes import FakeClock, FakeInbox, FakeJournal, FakeProcesses
from tests.contract.fakes_cloud import FakeCloud
from tests.unit.core.engine.test_step import make_node

DEADLINE_S = 30.0
MANY = 72


@dataclass
class Gate:
    """Holds whoever comes, and says so, until it is opened."""

    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_open: threading.Event = field(default_factory=threading.Event)

    def pass_through(self) -> None:
        self.arrived.release()
        assert self.is_open.wait(DEADLINE_S)

    def until_held(self, count: int) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=DEADLINE_S)


@dataclass
class HungDisk:
    gate: Gate = field(default_factory=Gate)

    def prepare(self) -> None:
        pass

    def weigh(self, path: str, *, uid: int, gid: int | None) -> tuple[int | None, str]:
        self.gate.pass_through()
        return 9, ""

    def find(self, paths: Sequence[str], *, uid: int, gid: int | None) -> list[CheckpointSeen]:
        raise AssertionError("nobody tells of one")

    def read(self, path: str, manifest: str, *, uid: int, gid: int | None) -> CheckpointLook:
        self.gate.pass_through()
        return CheckpointLook(True, 1, 1, "")


@dataclass
class HungReads(FakeCloud):
    gate: Gate = field(default_factory=Gate)

    def other(self, instance_id: str) -> Cloud | None:
        return None

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        self.gate.pass_through()
        return super().billing(destroyed=destroyed)


@dataclass
class HungStops(FakeCloud):
    gate: Gate = field(default_factory=Gate)

    def stop(self, incident_id: str, rung: int) -> StopReply:
        self.gate.pass_through()
        return super().stop(incident_id, rung)


class Halting:
    def __init__(self, cloud: Any, disk: Any) -> None:
        processes = FakeProcesses()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.performer = Performer(
            node=make_node(), clock=FakeClock(), inbox=FakeInbox(), processes=processes, journal=FakeJournal(),
            checkpoints=disk, observer=Observers([]), process_killer=ProcessKiller(processes, 1), post=self.events.put,
            cloud=cloud,
        )  # fmt: skip

    def answer(self) -> Event:
        return self.events.get(timeout=DEADLINE_S)


STOP = StopCompute("i-1", "run", 1, 0)
BILLING = ReadBilling("i-1", "run", 0.0)
CHECKPOINT = ReadCheckpoint("i-1", "run", "/ck", "/ck/manifest.json", 1000, 1000)


@pytest.fixture
def disk() -> Iterator[HungDisk]:
    made = HungDisk()
    yield made
    made.gate.is_open.set()


def test_a_disk_that_hangs_takes_no_place_of_a_stop_or_its_reading_back(disk: HungDisk) -> None:
    cloud = FakeCloud()
    halting = Halting(cloud, disk)
    halting.performer.perform([CHECKPOINT] * MANY)
    disk.gate.until_held(CHECKPOINT_READS_AT_ONCE_MAX)
    for _ in range(MANY - CHECKPOINT_READS_AT_ONCE_MAX):
        unread = halting.answer()
        assert isinstance(unread, CheckpointRead)
        assert (unread.look.whole, unread.look.reason) == (None, "calls_in_flight"), "not read is not torn"
    halting.performer.perform([STOP])
    stopped = halting.answer()
    assert isinstance(stopped, StopReplied)
    assert stopped.answer is StopAnswer.ACCEPTED
    halting.performer.perform([BILLING])
    read = halting.answer()
    assert isinstance(read, BillingRead)
    assert read.answer is BillingAnswer.ENDED


def test_looks_how_large_checkpoints_are_that_hang_take_no_place_of_a_halts_own(disk: HungDisk) -> None:
    halting = Halting(FakeCloud(), disk)
    halting.performer.perform([WeighCheckpoint("run", "name", "/ck", 1000, 1000)] * MANY)
    disk.gate.until_held(CHECKPOINT_READS_AT_ONCE_MAX)
    crowded = [halting.answer() for _ in range(MANY - CHECKPOINT_READS_AT_ONCE_MAX)]
    assert {(one.name, one.bytes, one.reason) for one in crowded if isinstance(one, CheckpointWeighed)} == {
        ("name", None, "calls_in_flight")
    }
    halting.performer.perform([CHECKPOINT])
    disk.gate.until_held(1)
    disk.gate.is_open.set()
    answers = [halting.answer() for _ in range(CHECKPOINT_READS_AT_ONCE_MAX + 1)]
    assert sum(isinstance(one, CheckpointWeighed) and one.bytes == 9 for one in answers) == CHECKPOINT_READS_AT_ONCE_MAX
    assert sum(isinstance(one, CheckpointRead) and one.look.whole is True for one in answers) == 1


def test_reads_that_hang_take_no_place_of_a_stop() -> None:
    cloud = HungReads()
    halting = Halting(cloud, HungDisk())
    halting.performer.perform([BILLING] * MANY)
    cloud.gate.until_held(BILLING_READS_AT_ONCE_MAX)
    for _ in range(MANY - BILLING_READS_AT_ONCE_MAX):
        read = halting.answer()
        assert isinstance(read, BillingRead)
        assert (read.answer, read.provider_state) == (BillingAnswer.UNKNOWN, "calls_in_flight")
    halting.performer.perform([STOP])
    stopped = halting.answer()
    assert isinstance(stopped, StopReplied)
    assert stopped.answer is StopAnswer.ACCEPTED
    cloud.gate.is_open.set()


def test_stops_that_hang_are_answered_unknown_beyond_their_number_and_a_place_is_given_back() -> None:
    cloud = HungStops()
    halting = Halting(cloud, HungDisk())
    halting.performer.perform([STOP] * (STOPS_AT_ONCE_MAX + 1))
    cloud.gate.until_held(STOPS_AT_ONCE_MAX)
    crowded = halting.answer()
    assert isinstance(crowded, StopReplied)
    assert (crowded.answer, crowded.retryable) == (StopAnswer.UNKNOWN, True)
    cloud.gate.is_open.set()
    for _ in range(STOPS_AT_ONCE_MAX):
        answered = halting.answer()
        assert isinstance(answered, StopReplied)
        assert answered.answer is StopAnswer.ACCEPTED
