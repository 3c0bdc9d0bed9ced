"""The node's service, as root and outside of every job: it ends a user's job and sees that its nodes are given back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.schedulers.suite import OWNER, STRANGER
from tests.drills.halt.conftest import BIN, HERE, Service
from tests.drills.slurm.cluster import PATH, Cluster, needs_slurm, until

needs_slurm()

Script = Callable[..., str]


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

    def make(job: str, mode: str = "nan") -> str:
        work = service.work / f"w{job}"
        work.mkdir()
        work.chmod(0o777)
        named = f"export COSTGOV_LABELS=scheduler_job={job}" if job else ""
        where = f"COSTGOV_SOCKET={service.work}/run/trainer.sock COSTGOV_RUN=drill"
        ours = f"export PATH={PATH} PYTHONPATH={public_source} {where}\n{named}"
        return f"{ours}\ncd {work}\n{interpreter} {service.work}/trainee.py {mode} {work} > {work}/out 2>&1\nsleep 600"

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


def test_a_user_cannot_have_the_job_of_another_ended(
    cluster: Cluster, service: Service, script: Script, interpreter: str, public_source: str
) -> None:
    victim = cluster.submit("sleep 600", "-w", "n1", uid=STRANGER)
    cluster.submit(script(victim), "-w", "n1", uid=OWNER, runs=False)
    until(lambda: service.stage() == "NEEDS_HUMAN", "a person is called")
    incident = service.incidents()[0]
    refused = next(entry for entry in incident["timeline"] if entry["what"] == "stop_refused")
    assert refused["detail"]["reason"] == f"job_of_uid_{STRANGER}"
    assert cluster.states(victim) == {"RUNNING"}
    assert "Requeue=1" in cluster.shown(victim)
    # Nor by asking: the governor's socket is not theirs.
    as_other = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    control = f"{service.work}/run/control.sock"
    request = {"cmd": "halt", "run": "drill", "reason": "mine"}
    code = f"from governor.wire.control_client import ask\nprint(ask({control!r}, {request!r}).code)"
    done = subprocess.run(
        [*as_other, interpreter, "-c", code], cwd="/", env={"PYTHONPATH": public_source},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "denied", done.stderr
    assert len(service.incidents()) == 1


def test_a_job_that_holds_its_nodes_after_its_run_is_told_with_its_price(
    cluster: Cluster, service: Service, script: Script
) -> None:
    job = cluster.submit(script("", "finish"), "-w", "n1", uid=OWNER, runs=False)
    until(lambda: service.run().get("state") == "training", "it trains")
    assert not status(service, cluster)[1], "somebody trains in it"
    (service.work / "w" / "go_on").touch()
    until(lambda: service.run().get("state") == "finished", "the run is over, and its script sleeps")
    text, held = status(service, cluster)
    assert held == [
        {"scheduler": "slurm", "job": job, "run": "drill", "node": "drill", "says": "RUNNING", "usd_per_hour": 98.32}
    ]  # fmt: skip
    assert any(job in line and "$98.32/h" in line for line in text.splitlines()), text
    cluster.run("scancel", job)
    until(lambda: not cluster.states(job) & {"RUNNING", "COMPLETING"}, "it gives its node back")
    assert status(service, cluster)[1] == []


def status(service: Service, cluster: Cluster) -> tuple[str, list[dict[str, Any]]]:
    """As people and as programs see it."""
    argv = [f"{BIN}/costgov", "status", "--control", f"{service.work}/run/control.sock"]
    environ = {**cluster.environ, "HOME": str(service.work), "COLUMNS": "300"}
    told = [
        subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout
        for words in (argv, [*argv, "--json"])
    ]
    return told[0], json.loads(told[1]).get("held_idle", [])
