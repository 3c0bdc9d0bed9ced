"""EC2 misbehaves while it is asked to stop: the halt ends only when the instance has, or calls a person."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo_cloud import DemoCloud, Fault
from tests.drills.halt.conftest import HERE, POLICY, Run, Service, cloud_table
from trainer_shim.wire import HALT_EXIT_CODE


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("http_429", "stop_refused"),
        ("http_503", "stop_refused"),
        ("broken_after_effect", "stop_unknown"),
        ("timeout_after_effect", "stop_unknown"),
    ],
)
def test_the_stop_is_repeated_or_read_back_until_it_is_true(
    kind: str, said: str, costgov_run: Run, cloud: DemoCloud, tmp_path: Path
) -> None:
    cloud.faults.append(Fault(kind, count=2 if kind.startswith("http") else 1))
    table = cloud_table(cloud) + "timeout_s = 1.0\n"
    halted = costgov_run(
        [sys.executable, str(HERE / "trainee.py"), "polite", str(tmp_path)], stop="instance", cloud=table
    )
    assert halted.code == HALT_EXIT_CODE, halted.output
    assert said in halted.seen
    assert halted.seen.index("verified") < halted.seen.index("halted")
    assert cloud.state() == "stopped"
    assert cloud.times_ended == 1


def test_a_denied_dry_run_is_said_before_anything_runs(costgov_run: Run, cloud: DemoCloud, tmp_path: Path) -> None:
    cloud.faults.append(Fault("dryrun_denied", count=10))
    trainee = [sys.executable, str(HERE / "trainee.py"), "polite", str(tmp_path)]
    halted = costgov_run(trainee, stop="auto", cloud=cloud_table(cloud))
    assert halted.code == HALT_EXIT_CODE, halted.output
    before, _, _ = halted.output.partition("HALT")
    assert "problem:" in before
    assert "ec2:StopInstances" in before
    assert "on halt I will end the processes only" in before
    assert "stop_requested" not in halted.seen, "what is not permitted is not counted on: processes only"
    assert cloud.state() == "running"
    assert cloud.instance_id in halted.incident["stays_billed"][0], "and that is said"


def test_an_accepted_stop_that_stops_nothing_climbs_to_force(service: Callable[..., Service], cloud: DemoCloud) -> None:
    cloud.faults.append(Fault("keeps_running", count=1))
    governor = service(stop="instance", cloud=cloud_table(cloud) + "stop_bound_s = 2.0\n")
    governor.start()
    governor.trainee("polite")
    incident = governor.until_stage("HALTED", "NEEDS_HUMAN")
    rungs = [entry["detail"]["rung"] for entry in incident["timeline"] if entry["what"] == "stop_requested"]
    assert rungs == [0, 1]
    assert incident["halt_stage"] == "HALTED"
    assert cloud.state() == "stopped"


def test_two_incidents_at_once_are_one_halt(service: Callable[..., Service], cloud: DemoCloud) -> None:
    patient = POLICY.replace('grace = "10s"', 'grace = "90s"', 1)
    governor = service(stop="instance", cloud=cloud_table(cloud), policy=patient)
    governor.start()
    governor.trainee("slow_save", unsaved_s=600)
    governor.until_stage("ASKED", "SAVING")
    governor.ask({"cmd": "halt", "run": "drill", "reason": "a person was quicker"})
    governor.go_on()
    incident = governor.until_stage("HALTED")
    assert "merged" in [entry["what"] for entry in incident["timeline"]]
    assert len(governor.incidents()) == 1
    assert cloud.times_ended == 1


def test_a_check_that_always_says_ended_confirms_nothing(service: Callable[..., Service]) -> None:
    """An inverted or mistyped verify_command: the machine, on which all this runs, is billed on."""
    lying = '\n[cloud]\nprovider = "command"\n[cloud.command]\nargv = ["true"]\nverify_command = ["true"]\n'
    governor = service(stop="instance", cloud=lying)
    governor.start()
    governor.trainee("polite")
    incident = governor.until_noted("billing", "verified", after="stop_accepted")
    assert incident["halt_stage"] == "VERIFYING"
    assert "verified" not in [entry["what"] for entry in incident["timeline"]]
