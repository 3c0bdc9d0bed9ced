"""The node's service, as root and outside of every job: it ends a user's job and sees that its nodes are given back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.schedulers.suite import OWNER, STRANGER
from tests.drills.halt.conftest import HERE, Service
from tests.drills.slurm.cluster import PATH, Cluster, needs_slurm, until

needs_slurm()

Script = Callable[[str], str]


@pytest.fixture
def service(cluster: Cluster, public: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    for name, value in (*cluster.environ.items(), ("SLURMD_NODENAME", "n1")):
        monkeypatch.setenv(name, value)
    made = Service(public, stop="auto")
    made.start()
    yield made
    made.end()


@pytest.fixture
def script(service: Service, public_source: str, interpreter: str) -> Script:
    """A job's script. It is given the id that its trainer names as its own; empty: Slurm's word."""
    shutil.copy(HERE / "trainee.py", service.work)

    def make(job: str) -> str:
        work = service.work / f"w{job}"
        work.mkdir()
        work.chmod(0o777)
        named = f"export COSTGOV_LABELS=scheduler_job={job}" if job else ""
        where = f"COSTGOV_SOCKET={service.work}/run/trainer.sock COSTGOV_RUN=drill"
        ours = f"export PATH={PATH} PYTHONPATH={public_source} {where}\n{named}"
        return f"{ours}\ncd {work}\n{interpreter} {service.work}/trainee.py nan {work} > {work}/out 2>&1\nsleep 600"

    return make


def test_the_end_of_the_job_is_read_back(cluster: Cluster, service: Service, script: Script) -> None:
    job = cluster.submit(script(""), "-w", "n1", uid=OWNER, runs=False)
    until(lambda: cluster.states(job) == {"CANCELLED"}, f"job {job} is ended")
    until(lambda: service.incidents()[0]["halt_stage"] == "HALTED", "its end is read back")
    incident = service.incidents()[0]
    assert (incident["job"], incident["plan"]["stop"], incident["uid"]) == (job, "JOB", OWNER)
    verified = next(entry for entry in incident["timeline"] if entry["what"] == "verified")
    assert verified["detail"]["state"] == "CANCELLED"
    assert "Requeue=0" in cluster.shown(job)


def test_a_user_cannot_have_the_job_of_another_ended(cluster: Cluster, service: Service, script: Script) -> None:
    victim = cluster.submit("sleep 600", "-w", "n1", uid=STRANGER)
    cluster.submit(script(victim), "-w", "n1", uid=OWNER, runs=False)
    until(lambda: service.stage() == "NEEDS_HUMAN", "a person is called")
    incident = service.incidents()[0]
    refused = next(entry for entry in incident["timeline"] if entry["what"] == "stop_refused")
    assert refused["detail"]["reason"] == f"job_of_uid_{STRANGER}"
    assert cluster.states(victim) == {"RUNNING"}
    assert "Requeue=1" in cluster.shown(victim)
