"""A halt in a pod: a real governor, trainer and kernel. The API server is a fake on loopback: no real one runs here."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.machine.control_group import own_place
from governor.adapters.schedulers.kubernetes import POD_OF_ANOTHER
from tests.contract.schedulers.fake_api_server import FakeApi, fake_api_server
from tests.contract.schedulers.kube_rig import NS, KubeRig
from tests.drills.halt.conftest import BIN, HERE, Service, begin, end_of

INTO = 'echo 0 > "$0/cgroup.procs" && exec "$@"'


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with fake_api_server() as made:
        yield made


@pytest.fixture
def rig(fake: FakeApi, tmp_path: Path) -> KubeRig:
    made = KubeRig(fake, tmp_path)
    made.job("llm")
    made.job("theirs")
    return made


def table(rig: KubeRig, more: str = "") -> str:
    return f"""
[scheduler]
{more}
[scheduler.kubernetes]
endpoint = "{rig.fake.url}"
token_file = "{rig.token_file}"
"""


def kubelets(rig: KubeRig) -> bool:
    """They end what was told to end, a pod at a time. Whether one was left."""
    with rig.fake.lock:
        is_left = bool(rig.terminating())
        rig.cluster.kubelets_end_pods(1)
    return is_left


def verified(incident: dict[str, Any]) -> str:
    return str(next(entry["detail"]["state"] for entry in incident["timeline"] if entry["what"] == "verified"))


def halted(service: Service, rig: KubeRig) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        kubelets(rig)
        return next((one for one in service.incidents() if one["halt_stage"] == "HALTED"), None)

    found: dict[str, Any] = service.until(look, "the halt is over")
    return found


def test_a_sidecar_suspends_its_job_and_reads_back_that_no_pod_is_left(
    rig: KubeRig, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deploy/kubernetes/examples/job-sidecar.yaml has it: its own name by the environment, use = auto."""
    monkeypatch.setenv("COSTGOV_NODE__SCHEDULER_JOB", f"kubernetes:{NS}/llm-0")
    service = Service(short_tmp, stop="auto", cloud=table(rig))
    try:
        service.start()
        service.trainee("nan")
        incident = halted(service, rig)
    finally:
        service.end()
    assert (incident["plan"]["stop"], incident["job"]) == ("JOB", f"kubernetes:{NS}/Job.batch/llm")
    assert verified(incident) == "Job over, no pod on a node"
    assert rig.item("batch", "jobs", "llm")["spec"] == {"suspend": True}
    assert rig.pods() == ["theirs-0", "theirs-1"]
    assert rig.item("batch", "jobs", "theirs")["spec"] == {}


@pytest.fixture
def pod_group(rig: KubeRig) -> Iterator[Path]:
    """A control group of this kernel, named as the kubelet names that of the pod llm-0."""
    place = own_place()
    if place is None or not os.access(place.directory, os.W_OK):
        pytest.skip("needs a control group of version 2 that may be written")
    uid = str(uuid.uuid4())
    rig.cluster.items["", "pods", NS, "llm-0"]["metadata"]["uid"] = uid
    group = place.directory / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    group.mkdir()
    yield group
    group.rmdir()


@pytest.fixture
def of_node(rig: KubeRig, short_tmp: Path) -> Iterator[Service]:
    """One governor for all pods of the node: it has no job of its own."""
    service = Service(short_tmp, stop="auto", cloud=table(rig, 'use = "kubernetes"'))
    service.start()
    yield service
    service.end()


def train_in(group: Path, service: Service, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that says in which pod it is, as the downward API tells it, or a liar."""
    monkeypatch.setenv("POD_NAMESPACE", NS)
    monkeypatch.setenv("POD_NAME", says)
    service.trainee("nan", prefix=["/bin/sh", "-c", INTO, str(group)])


def test_a_nodes_governor_ends_the_job_whose_pod_the_rank_is_in(
    rig: KubeRig, of_node: Service, pod_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_in(pod_group, of_node, "llm-0", monkeypatch)
    incident = halted(of_node, rig)
    assert verified(incident) == "Job over, no pod on a node"
    assert rig.pods() == ["theirs-0", "theirs-1"]


def test_a_rank_cannot_have_the_job_of_another_ended(
    rig: KubeRig, of_node: Service, pod_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_in(pod_group, of_node, "theirs-0", monkeypatch)
    incident = of_node.until_stage("NEEDS_HUMAN")
    refused = next(entry for entry in incident["timeline"] if entry["what"] == "stop_refused")
    assert refused["detail"]["reason"] == POD_OF_ANOTHER
    assert rig.terminating() == []
    assert len(rig.pods()) == 4


def test_costgov_run_suspends_its_job_and_whoever_reads_the_incident_asks_for_the_end(
    rig: KubeRig, short_tmp: Path
) -> None:
    """It is in a pod of the job itself, and does not wait for its own end."""
    names = {"POD_NAMESPACE": NS, "POD_NAME": "llm-0", "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    argv = [str(BIN / "python"), str(HERE / "trainee.py"), "nan", str(short_tmp)]
    done = end_of(begin(short_tmp, argv, stop="job", cloud=table(rig), environ=names), short_tmp)
    assert done.incident["job"] == f"kubernetes:{NS}/Job.batch/llm", done.output
    assert "stop_accepted" in done.seen
    assert rig.item("batch", "jobs", "llm")["spec"] == {"suspend": True}
    assert "2 pods on nodes, 2 of them terminating" in asked_now(short_tmp, names)
    while kubelets(rig):
        pass
    assert "Job over, no pod on a node" in asked_now(short_tmp, names)


def asked_now(work: Path, names: dict[str, str]) -> str:
    argv = [f"{BIN}/costgov", "incident", "show", "last", "--config", str(work / "costgov.toml")]
    environ = {**os.environ, **names, "COLUMNS": "300"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return next((line for line in done.stdout.splitlines() if line.startswith("asked now")), done.stdout + done.stderr)
