"""The governor is SIGKILLed in every stage of a halt that lasts, and started again: the halt completes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo_cloud import DemoCloud, Fault
from tests.drills.halt.conftest import HERE, POLICY, SAFETY_S, Service, begin, cloud_table, end_of, until_gone

HOLD_NS = 3600 * 10**9
# Stage -> how a trainee (and the cloud, and the policy) make it last long enough to be killed in.
LASTING = {
    "ASKED": "stopped",
    "SAVING": "slow_save",
    "TERMED": "deaf_term",
    "STOPPING": "polite",
    "VERIFYING": "polite",
}
POLICIES = {
    "ASKED": POLICY.replace('grace = "10s"', 'grace = "5s"', 1),
    "SAVING": POLICY.replace('grace = "10s"', 'grace = "90s"', 1),
    "TERMED": POLICY.replace('term_grace = "1s"', 'term_grace = "5s"'),
}
UNSAVED_S = {"ASKED": 600, "SAVING": 600}  # Work that is worth the grace.


@pytest.mark.parametrize("stage", LASTING)
def test_the_halt_completes_after_sigkill_in(stage: str, service: Callable[..., Service], cloud: DemoCloud) -> None:
    if stage == "STOPPING":
        cloud.faults.append(Fault("slow", seconds=5.0))
    if stage == "VERIFYING":
        cloud.stopping_s = 10**9  # Until we say so.
    governor = service(stop="instance", cloud=cloud_table(cloud), policy=POLICIES.get(stage, POLICY))
    governor.start()
    trainee = governor.trainee(LASTING[stage], UNSAVED_S.get(stage, 0))
    governor.until_stage(stage)
    governor.kill9()
    governor.start()
    governor.go_on()
    cloud.stopping_s = 0.0
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


def test_the_same_name_is_not_launched_beside_a_rank_that_still_saves(tmp_path: Path) -> None:
    """Its rank was taken into the halt: its first step was "the checkpoint", and the save of the old one was ended."""
    argv = [sys.executable, str(HERE / "trainee.py"), "slow_save", str(tmp_path), "600"]
    policy = POLICY.replace('grace = "10s"', 'grace = "90s"', 1)
    first = begin(tmp_path, argv, policy=policy)
    assert first.stderr is not None
    with first:
        until_gone(first.pid, lambda: first.kill() if stage_of(tmp_path) == "SAVING" else None)
    beside = tmp_path / "beside"
    beside.mkdir()
    second = begin(tmp_path, [sys.executable, str(HERE / "trainee.py"), "finish", str(beside)], policy=policy)
    (tmp_path / "go_on").touch()
    done = end_of(second, tmp_path)
    assert done.code == 86, done.output
    assert "not launched" in done.output
    assert not (beside / "pids").exists(), "it never ran"
    assert done.incident["halt_stage"] == "HALTED"
    assert done.incident["checkpoint"]["step"] > 30
    assert done.running() == []


def stage_of(work: Path) -> str:
    """The stage of the one incident, as its report has it."""
    reports = list((work / "state" / "incidents").glob("*.json"))
    return json.loads(reports[0].read_text())["halt_stage"] if reports else ""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_governor_that_ends_soon_after_a_run_began_forgets_neither_its_money_nor_its_hold(
    end: signal.Signals, service: Callable[..., Service]
) -> None:
    governor = service()
    governor.start()
    assert governor.process is not None
    trainee = governor.trainee("healthy")
    governor.until(lambda: governor.run().get("spend_usd"), "money is spent")
    governor.ask({"cmd": "hold", "run": "drill", "duration_ns": HOLD_NS, "reason": "looking"})
    spent = governor.run()["spend_usd"]
    governor.process.send_signal(end)
    governor.process.wait(SAFETY_S)
    assert trainee.poll() is None, "a governor that ends leaves the training alone"
    governor.start()
    known = governor.run()
    assert known["spend_usd"] >= spent, "at its first answer, and not by and by"
    assert known["hold"]["reason"] == "looking"
    again = governor.until(lambda: governor.run()["ranks_connected"] and governor.run()["spend_usd"], "it is back")
    assert again > spent
    assert governor.run()["uid"] == os.geteuid()
