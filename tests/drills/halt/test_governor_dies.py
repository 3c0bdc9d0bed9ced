"""The governor is SIGKILLed in every stage of a halt that lasts, and started again: the halt completes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.demo_cloud import DemoCloud, Fault
from tests.drills.halt.conftest import SAFETY_S, Service, cloud_table

# Stage -> how a trainee (and the cloud) make it last long enough to be killed in.
LASTING = {
    "ASKED": "stopped",
    "SAVING": "slow_save",
    "TERMED": "deaf_term",
    "STOPPING": "polite",
    "VERIFYING": "polite",
}


@pytest.mark.parametrize("stage", LASTING)
def test_the_halt_completes_after_sigkill_in(stage: str, service: Callable[..., Service], cloud: DemoCloud) -> None:
    if stage == "STOPPING":
        cloud.faults.append(Fault("slow", seconds=2.0))
    if stage == "VERIFYING":
        cloud.stopping_s = 2.0
    governor = service(stop="instance", cloud=cloud_table(cloud))
    governor.start()
    trainee = governor.trainee(LASTING[stage])
    governor.until_stage(stage)
    governor.kill9()
    governor.start()
    incident = governor.until_stage("HALTED")
    assert trainee.wait(SAFETY_S) != 0
    assert len(governor.incidents()) == 1, "one halt, resumed; not a second one"
    whats = [entry["what"] for entry in incident["timeline"]]
    assert "restored" in whats
    assert "verified" in whats
    assert cloud.state() == "stopped"
    assert cloud.times_ended == 1
    if stage == "SAVING":
        assert incident["checkpoint"]["verified_by"] == "governor", "the save that had begun was finished and counted"


def test_a_restarted_governor_keeps_the_runs_money_and_owner(service: Callable[..., Service]) -> None:
    governor = service()
    governor.start()
    trainee = governor.trainee("healthy")
    spent = governor.until(lambda: _spend(governor) or None, "money is spent")
    governor.process.terminate()  # type: ignore[union-attr]
    governor.process.wait(SAFETY_S)  # type: ignore[union-attr]
    assert trainee.poll() is None, "a governor that ends leaves the training alone"
    governor.start()
    again = governor.until(lambda: (_spend(governor) or 0) > spent and _spend(governor), "the trainee is back")
    assert again > spent


def _spend(governor: Service) -> float | None:
    runs = (governor.ask({"cmd": "status"}) or {"runs": []})["runs"]
    return runs[0]["spend_usd"] if runs and runs[0]["ranks_connected"] else None
