"""A node that nobody uses, for real: warned, stopped at EC2's API, read back; kept by a newcomer and by an operator.

A governor that sees another one leaves the node alone. Each of these has a process table of its own, which takes root.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from examples.demo_cloud import DemoCloud, Fault
from governor.wire.control_client import ask
from tests.drills.halt.conftest import APART, BIN, SAFETY_S, Run, Service, begin, cloud_table, end_of

POLICY = '[policy]\nname = "drill"\n[halt]\nstop = "{stop}"\nterm_grace = "1s"\n[node]\nidle_stop = "4s"\n'
ON_FINISH = '[policy]\nname = "drill"\n[run]\non_finish = "stop"\n'
LONG = '[policy]\nname = "drill"\n[halt]\nstop = "{stop}"\n[node]\nidle_stop = "10m"\n'
Begun = tuple[DemoCloud, Popen[str], Path]


pytestmark = pytest.mark.skipif(not APART, reason="needs root: a process table without other governors")


@pytest.fixture
def governor(service: Callable[..., Service], cloud: DemoCloud) -> Callable[..., Service]:
    def make(policy: str = POLICY) -> Service:
        return service(cloud=cloud_table(cloud) + "survives_stop = true\n", policy=policy, prefix=APART)

    return make


def alarms(governor: Service) -> list[str]:
    lines = [json.loads(line) for line in governor.log.read_text().splitlines() if line.startswith("{")]
    return [line["name"] for line in lines if line.get("event") == "alarm"]


def test_a_node_with_nobody_on_it_is_warned_stopped_and_read_back(
    governor: Callable[..., Service], cloud: DemoCloud
) -> None:
    made = governor()
    made.start()
    made.until_said("after 4.0s with nobody here (no run, no GPU process) I will stop EC2 instance")
    stopped = made.until_stage("HALTED")
    assert cloud.state() == "stopped"
    assert cloud.times_ended == 1
    seen = [entry["what"] for entry in stopped["timeline"]]
    assert seen[:3] == ["verdict", "nobody_here", "stop_requested"]
    assert seen[-2:] == ["verified", "halted"]
    assert stopped["targets"] == []
    made.until(lambda: alarms(made), "an alarm is in the log")
    assert alarms(made)[:1] == ["node_idle"]
    listed = costgov(made, "incident", "list")
    assert "@node" in listed
    assert "node_idle" in listed
    shown = costgov(made, "incident", "show", "last")
    assert "Node drill was stopped: nobody has used this node for" in shown
    report = Path(made.work / "state" / "incidents" / f"{stopped['incident_id']}.md").read_text()
    assert "Everything that was asked for was observed." in report


def costgov(made: Service, *argv: str) -> str:
    command = [str(BIN / "costgov"), *argv, "--control", str(made.work / "run" / "control.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SAFETY_S, check=False)
    return done.stdout + done.stderr


def test_a_run_that_comes_while_the_provider_hesitates_keeps_the_node(
    governor: Callable[..., Service], cloud: DemoCloud
) -> None:
    cloud.faults.append(Fault("http_503", count=1_000))
    made = governor()
    made.start()
    made.until_stage("STOPPING")
    made.trainee("healthy")
    given_up = made.until_stage("abandoned")
    assert given_up["timeline"][-1]["detail"]["who"] == "run drill"
    made.until(lambda: made.step() > 5, "it trains")
    assert cloud.state() == "running"
    cloud.faults.clear()
    asked = cloud.times_ended
    made.until(lambda: made.step() > 200, "it trains on")
    assert (cloud.state(), asked, cloud.times_ended) == ("running", 0, 0)


def test_an_operators_hold_keeps_the_node_over_a_crash_and_its_end_lets_it_go(
    governor: Callable[..., Service], cloud: DemoCloud
) -> None:
    made = governor()
    made.start()
    assert "@node: not stopped for being idle for" in costgov(made, "hold", "@node", "1h", "--reason", "by hand")
    made.kill9()
    made.start()
    shown = made.ask({"cmd": "status"})["node"]
    assert shown["hold"]["reason"] == "by hand"
    assert "node: kept for another" in costgov(made, "status")
    assert cloud.state() == "running"
    costgov(made, "hold", "@node", "off")
    made.until_stage("HALTED")
    assert cloud.state() == "stopped"


def test_the_node_itself_is_not_halted_by_hand(governor: Callable[..., Service], cloud: DemoCloud) -> None:
    made = governor(LONG)
    made.start()
    answer = ask(str(made.work / "run" / "control.sock"), {"cmd": "halt", "run": "@node", "reason": "now"})
    assert not answer.ok
    assert "costgov halt RUN" in answer.error
    told = made.until(lambda: (n := made.ask({"cmd": "status"})["node"])["stops_in_s"] and n, "it says when it stops")
    assert told["idle_s"] + told["stops_in_s"] == pytest.approx(600)
    said = costgov(made, "status")
    assert "node: idle for" in said
    assert "keep it with: costgov hold @node 2h --reason" in said


def test_a_governor_killed_while_it_stops_reads_back_what_became_of_it_and_asks_no_second_time(
    governor: Callable[..., Service], cloud: DemoCloud
) -> None:
    cloud.faults.append(Fault("timeout_after_effect", count=1))
    made = governor()
    made.start()
    made.until(lambda: cloud.state() != "running", "the stop has reached the provider, and its answer nobody")
    made.kill9()
    made.start()
    resumed = made.until_stage("HALTED")
    seen = [entry["what"] for entry in resumed["timeline"]]
    assert seen[-3:] == ["restored", "verified", "halted"]
    assert seen.count("stop_requested") == 1
    assert len(made.incidents()) == 1
    assert cloud.times_ended == 1


def command(exit_code: int) -> list[str]:
    return [sys.executable, "-c", f"raise SystemExit({exit_code})"]


def beside(cloud: DemoCloud) -> dict[str, Any]:
    return {"cloud": cloud_table(cloud) + "survives_stop = true\n", "policy": ON_FINISH, "prefix": APART}


@pytest.fixture(scope="module", autouse=True)
def ended_well(moto_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A command that has ended well. Its node's minute passes while the other tests run."""
    work = tmp_path_factory.mktemp("ended_well")
    with DemoCloud(stopping_s=0.3, moto_port=moto_port) as cloud, begin(work, command(0), **beside(cloud)) as process:
        yield cloud, process, work
        process.kill()  # Where its own test was not chosen.


def test_costgov_run_leaves_the_node_to_whoever_looks_after_a_command_that_failed(
    costgov_run: Run, cloud: DemoCloud
) -> None:
    done = costgov_run(command(3), **beside(cloud))
    assert done.code == 3, done.output
    assert done.incidents == []
    assert cloud.state() == "running"


def test_costgov_run_stops_its_node_a_minute_after_its_command_has_ended_well(
    ended_well: Begun,
) -> None:
    cloud, process, work = ended_well
    done = end_of(process, work)
    assert done.code == 0, done.output
    assert re.search(r"\b60 s\b", done.output) is None
    assert "[node_idle] nobody uses this node: in 1m 0s I stop EC2 instance" in done.output
    assert (done.incident["run"], done.incident["rule"], done.incident["halt_stage"]) == (
        "@node", "on_finish", "HALTED",
    )  # fmt: skip
    assert "NODE STOP @node.drill.1" in done.output
    assert cloud.state() == "stopped"
    assert cloud.times_ended == 1
