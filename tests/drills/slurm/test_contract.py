"""Real Slurm keeps the contract of schedulers: a controller, three nodes, and commands under three users."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.adapters.schedulers.slurm import EPILOG_S, Slurm
from governor.remote_ports import Scheduler
from tests.contract.schedulers.suite import OWNER, Contract
from tests.drills.slurm.cluster import KILL_WAIT_S, Cluster, needs_slurm, until

needs_slurm()


class SlurmRig:
    """As a governor in a job on n1: several slurmd share the hostname, and SLURMD_NODENAME tells them apart."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder, self.jobs = cluster, folder, list[str]()

    def submit(self, *, deaf: bool = False, elsewhere: bool = False) -> str:
        script = "trap '' TERM; while :; do sleep 1; done" if deaf else "sleep 600"
        job = self.cluster.submit(script, "-w", "n2" if elsewhere else "n1", uid=OWNER)
        self.jobs.append(job)
        return job

    def as_user(self, uid: int) -> Scheduler:
        environ = self.cluster.environ
        if uid:
            place = self.folder / str(uid)
            environ = self.cluster.commands_of(uid, place) if not place.exists() else {
                **environ, "PATH": f"{place}:{environ['PATH']}"
            }  # fmt: skip
        slurm = Slurm.of("auto", {**environ, "SLURMD_NODENAME": "n1"})
        assert slurm is not None
        return slurm

    def ended(self, job: str) -> None:
        until(lambda: self.cluster.states(job) == {"CANCELLED"}, f"job {job} has given its nodes back")

    def comes_back(self, job: str) -> bool:
        return "Requeue=1" in self.cluster.shown(job)

    def is_drained(self) -> bool:
        return "drain" in self.cluster.said("sinfo", "-h", "-N", "-n", "n1", "-o", "%T")

    def undrain(self) -> None:
        reason = self.cluster.said("sinfo", "-h", "-N", "-n", "n1", "-o", "%E")
        assert reason == "costgov: llama.n1.1", "the first incident's stands there"
        self.cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")

    def down(self) -> None:
        self.cluster.stop_controller()

    def up(self) -> None:
        self.cluster.start_controller()


@pytest.fixture
def rig(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmRig]:
    made = SlurmRig(cluster, tmp_path)
    yield made
    cluster.run("scancel", *made.jobs)


class TestSlurm(Contract):
    pass


def test_its_bound_is_slurms_own(cluster: Cluster) -> None:
    slurm = Slurm.of("auto", cluster.environ)
    assert slurm is not None
    assert slurm.stop_bound_s == KILL_WAIT_S + EPILOG_S


def test_where_no_slurm_is_there_is_no_scheduler(tmp_path: Path) -> None:
    assert Slurm.of("auto", {"PATH": str(tmp_path), "SLURM_JOB_ID": "1"}) is None
    assert Slurm.of("off", {"PATH": "/usr/bin", "SLURM_JOB_ID": "1"}) is None
    assert shutil.which("scancel") is not None
