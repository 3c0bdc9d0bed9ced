"""The demo's cloud as a process: it comes up, obeys its control endpoint, and goes with its parent."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from governor.adapters import clouds
from governor.core.events.inputs import BillingAnswer, StopAnswer

SCRIPT = Path(__file__).parents[2] / "examples" / "demo_cloud.py"
DEADLINE_S = 60.0
# A parent that starts the cloud, says its pid, and lives until its standard input ends.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(child.pid, flush=True)
sys.stdin.read()
"""


def await_file(path: Path, process: subprocess.Popen[bytes]) -> dict[str, object]:
    pidfd = os.pidfd_open(process.pid)
    for _ in range(round(DEADLINE_S / 0.05)):
        if path.exists():
            os.close(pidfd)
            return dict(json.loads(path.read_text()))
        if select.select([pidfd], [], [], 0.05)[0]:
            pytest.fail(f"the cloud ended with {process.wait()}")
    pytest.fail("the cloud did not come up")


def test_it_stops_an_instance_under_faults_and_ends_on_sigterm(tmp_path: Path) -> None:
    ready_file = tmp_path / "cloud.json"
    argv = [sys.executable, str(SCRIPT), "--ready-file", str(ready_file), "--fault", "http_429", "--stopping-s", "0"]
    process = subprocess.Popen(argv)
    try:
        ready = await_file(ready_file, process)
        config = {name: ready[name] for name in ("endpoint", "metadata_endpoint", "instance_id")}
        cloud = clouds.load("aws", config)
        assert cloud.preflight().ok
        assert cloud.stop("run-7-1", 0).reason == "RequestThrottled"
        order = {"faults": [{"kind": "dryrun_denied"}]}
        assert httpx.post(str(ready["control"]), json=order, trust_env=False, timeout=DEADLINE_S).status_code == 200
        assert not cloud.preflight().ok
        assert cloud.stop("run-7-1", 0).answer is StopAnswer.ACCEPTED
        assert cloud.billing().answer is BillingAnswer.ENDED
        seen = httpx.get(str(ready["control"]), trust_env=False, timeout=DEADLINE_S).json()
        assert seen["state"] == "stopped"
        assert {tuple(call["ids"]) for call in seen["calls"] if "Stop" in call["action"]} == {(ready["instance_id"],)}
    finally:
        process.terminate()
    assert process.wait(DEADLINE_S) == 0


def test_it_goes_with_its_parent(tmp_path: Path) -> None:
    ready_file = tmp_path / "cloud.json"
    argv = [sys.executable, "-c", PARENT, str(SCRIPT), "--ready-file", str(ready_file)]
    parent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        cloud_pidfd = os.pidfd_open(int(parent.stdout.readline()))
        await_file(ready_file, parent)
        parent.kill()
        assert select.select([cloud_pidfd], [], [], DEADLINE_S)[0], "the cloud outlived its parent"
    os.close(cloud_pidfd)
