"""`costgov run` in a batch job: its halt ends the job, keeps it from coming back, and says what it has seen."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from governor.wire.control_client import ask
from tests.drills.halt.conftest import BIN, HERE, POLICY, configuration
from tests.drills.slurm.cluster import PATH, Cluster, needs_slurm, shown, until

needs_slurm()


def work_in(folder: Path, stop: str = "auto", more: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "policy.toml").write_text(POLICY.format(stop=stop))
    configuration(folder, more)
    return folder


def launch(work: Path, mode: str = "nan") -> str:
    ours = f"export COSTGOV_RUN=drill PATH={PATH} PYTHONPATH={os.getcwd()}\n"
    run = f"{BIN}/costgov run --config {work}/costgov.toml --policy {work}/policy.toml --name drill"
    return f"{ours}cd {work}\n{run} -- {sys.executable} {HERE}/trainee.py {mode} {work} > {work}/out 2>&1"


def test_a_nan_ends_the_job_for_good(cluster: Cluster, short_tmp: Path) -> None:
    work = work_in(short_tmp / "w")
    job = cluster.submit(launch(work), runs=False)
    until(lambda: cluster.states(job) == {"CANCELLED"}, f"job {job} is cancelled\n{cluster.shown(job)}")
    assert "Requeue=0" in cluster.shown(job)
    assert "Restarts=0" in cluster.shown(job)
    incident, told = shown(work, cluster.environ)
    seen = [entry["what"] for entry in incident["timeline"]]
    assert incident["plan"]["stop"] == "JOB"
    assert incident["job"] == job
    assert {"exited", "stop_requested"} <= set(seen)
    # Slurm ends whoever waits in the job: mostly before he can see the end, which the reader of the incident asks for.
    assert ("verified" in seen) != ("says now of job" in told)
    assert "CANCELLED" in told


def test_the_other_elements_of_an_array_go_on(cluster: Cluster, short_tmp: Path) -> None:
    work = work_in(short_tmp / "w")
    script = f"[ $SLURM_ARRAY_TASK_ID = 3 ] || exec sleep 600\n{launch(work)}"  # The last: its number is the array's.
    job = cluster.submit(script, "--array=1-3", runs=False)
    until(lambda: cluster.states(f"{job}_3") == {"CANCELLED"}, "the halted element is cancelled")
    assert [cluster.states(f"{job}_{i}") for i in (1, 2)] == [{"RUNNING"}, {"RUNNING"}]
    incident, told = shown(work, cluster.environ)
    assert incident["job"] == f"{job}_3"
    assert "CANCELLED" in told
    cluster.run("scancel", job)


def test_a_deaf_heterogeneous_job_ends_as_a_whole(cluster: Cluster, short_tmp: Path) -> None:
    """Script, trainer and its children ignore SIGTERM, and the script goes on: SIGKILL comes after KillWait."""
    work = work_in(short_tmp / "w")
    script = f"trap '' TERM\n{launch(work, 'grandchildren')}\nwhile :; do sleep 1; done"
    job = cluster.submit(script, "-w", "n1", ":", "-w", "n2", runs=False)
    until(lambda: cluster.states(job) == {"CANCELLED"}, "both parts are cancelled")
    assert "Requeue=1" not in cluster.shown(job)
    until(lambda: cluster.said("sinfo", "-h", "-t", "idle", "-o", "%D") == "3", "all nodes are given back")
    incident, told = shown(work, cluster.environ)
    assert (incident["job"], incident["plan"]["stop"]) == (job, "JOB")
    assert "CANCELLED" in told


def test_a_controller_that_is_down_is_asked_until_it_answers(cluster: Cluster, short_tmp: Path) -> None:
    work = work_in(short_tmp / "w", stop="job")
    job = cluster.submit(launch(work, "finish"), runs=False)
    until((work / "checkpoints").parent.joinpath("pids").exists, "the trainee trains")
    cluster.stop_controller()
    governor = str(work / "run" / "control.sock")
    asked = ask(governor, {"cmd": "halt", "run": "drill", "reason": "drill"})
    assert asked.ok, asked.error

    def timeline() -> list[dict[str, Any]]:
        found = ask(governor, {"cmd": "incidents", "last": 1}).data or [{"timeline": []}]
        return list(found[0]["timeline"])

    until(lambda: "stop_refused" in [entry["what"] for entry in timeline()], "the first stop was refused")
    refused = next(entry for entry in timeline() if entry["what"] == "stop_refused")
    assert refused["detail"]["reason"] == "controller_unreachable"
    cluster.start_controller()
    until(lambda: cluster.states(job) == {"CANCELLED"}, "the job is ended when somebody answers")
    assert "Requeue=0" in cluster.shown(job)
