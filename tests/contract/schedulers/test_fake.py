"""The fake scheduler keeps the contract that real Slurm keeps in tests/drills/slurm/test_contract.py."""

from __future__ import annotations

import pytest

from governor.remote_ports import Scheduler
from tests.contract.schedulers.fakes import FakeJob, FakeScheduler
from tests.contract.schedulers.suite import OWNER, Contract


class FakeRig:
    def __init__(self) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.known: list[FakeScheduler] = []

    def submit(self, *, deaf: bool = False, elsewhere: bool = False) -> str:
        name = str(len(self.jobs) + 1)
        self.jobs[name] = FakeJob(OWNER, is_deaf=deaf, is_here=not elsewhere)
        return name

    def as_user(self, uid: int) -> Scheduler:
        self.known.append(FakeScheduler(self.jobs, uid))
        return self.known[-1]

    def ended(self, job: str) -> None:
        self.jobs[job].state = "CANCELLED"

    def comes_back(self, job: str) -> bool:
        return self.jobs[job].may_come_back

    def is_drained(self) -> bool:
        return any("n1" in one.drained for one in self.known)

    def undrain(self) -> None:
        for one in self.known:
            one.drained.clear()

    def down(self) -> None:
        for one in self.known:
            one.is_up = False

    def up(self) -> None:
        for one in self.known:
            one.is_up = True


@pytest.fixture
def rig() -> FakeRig:
    return FakeRig()


class TestFake(Contract):
    pass
