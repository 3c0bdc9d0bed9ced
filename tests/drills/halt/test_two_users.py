"""Two users' runs under one root daemon: one is halted, the other trains on; neither can touch the other's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import HERE, SAFETY_S, Service
from tests.drills.halt.puppet import Puppet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of two other users")

NOBODY, DAEMON = 65534, 1
ASK = """
import json, sys
from dataclasses import asdict
from governor.wire.control_client import ask
print(json.dumps(asdict(ask(sys.argv[1], json.loads(sys.argv[2])))))
"""


class User:
    """Somebody with a directory of their own, who trains and who may ask the governor."""

    def __init__(self, uid: int, governor: Service, interpreter: str, source: str) -> None:
        self.uid, self.governor, self.source = uid, governor, source
        self.home = governor.work / f"home-{uid}"
        self.home.mkdir()
        os.chown(self.home, uid, uid)
        self.python = ["setpriv", "--clear-groups", f"--regid={uid}", f"--reuid={uid}", interpreter]

    def train(self, run: str) -> subprocess.Popen[bytes]:
        environ = {
            "COSTGOV_SOCKET": str(self.governor.work / "run" / "trainer.sock"), "COSTGOV_RUN": run,
            "PYTHONPATH": self.source, "PATH": os.environ["PATH"],
        }  # fmt: skip
        argv = [*self.python, f"{self.source}/trainee.py", "healthy", str(self.home)]
        with (self.home / "log").open("wb") as log:
            process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, start_new_session=True)
        self.governor.trainees.append(process)
        self.governor.until(lambda: self.governor.step(run) > 30, f"run {run} trains")
        return process

    def ask(self, **request: Any) -> dict[str, Any]:
        socket_path = str(self.governor.work / "run" / "control.sock")
        done = subprocess.run(
            [*self.python, "-c", ASK, socket_path, json.dumps(request)],
            cwd=self.source, capture_output=True, text=True, timeout=SAFETY_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


Start = Callable[[str], tuple[Service, User, User]]


@pytest.fixture
def start(public: Path, public_source: str, interpreter: str) -> Iterator[Start]:
    started: list[Service] = []
    shutil.copy(HERE / "trainee.py", public)

    def make(control_mode: str) -> tuple[Service, User, User]:
        governor = Service(public)
        started.append(governor)
        governor.config.write_text(governor.config.read_text() + f'[control]\nmode = "{control_mode}"\n')
        governor.start()
        return governor, *(User(uid, governor, interpreter, public_source) for uid in (NOBODY, DAEMON))

    yield make
    for governor in started:
        governor.end()


def test_one_is_halted_and_the_other_trains_on_untouched(start: Start) -> None:
    governor, nobody, other = start("0666")
    first, second = nobody.train("first"), other.train("second")

    assert nobody.ask(cmd="halt", run="first", reason="my data is wrong")["ok"]
    first.wait(SAFETY_S)
    incident = governor.until_checked()
    assert (incident["run"], incident["uid"], incident["operator_uid"]) == ("first", NOBODY, NOBODY)
    assert incident["checkpoint"]["verified_by"] == "governor"
    assert {target["pid"] for target in incident["targets"]} == {first.pid}

    step = governor.step("second")
    governor.until(lambda: governor.step("second") > step + 50, "the other run trains on")
    assert second.poll() is None
    assert len(governor.incidents()) == 1


def test_nobody_marks_the_halt_of_another_user(start: Start) -> None:
    governor, nobody, other = start("0666")
    first = nobody.train("first")
    assert nobody.ask(cmd="halt", run="first", reason="my data is wrong")["ok"]
    first.wait(SAFETY_S)
    (incident,) = (governor.until_stage("HALTED"),)
    one = {"incident_id": incident["incident_id"], "opened_wall_ns": incident["opened_wall_ns"]}

    denied = other.ask(cmd="incident_mark", **one, said="false")
    assert (denied["code"], other.ask(cmd="halt_marks")["data"]["entries"]) == ("denied", [])
    assert nobody.ask(cmd="incident_mark", **one, said="false", note="mine")["ok"]
    assert other.ask(cmd="rule_rearm", policy="drill", rule="operator")["code"] == "denied"
    assert governor.ask({"cmd": "incident_mark", **one, "said": "right"}) is not None
    assert nobody.ask(cmd="incident_mark", **one, said="false")["code"] == "denied", "root has spoken for all"
    entries = other.ask(cmd="halt_marks")["data"]["entries"]
    said = [(entry["uid"], entry["said"], entry["for_all"]) for entry in entries]
    assert said == [(NOBODY, "false", False), (0, "right", True)]
    assert governor.ask({"cmd": "status"})["governor"]["fallen_back"] == []


def test_nobody_halts_holds_or_speaks_for_the_run_of_another_user(start: Start) -> None:
    governor, nobody, other = start("0666")  # Everybody may talk to it: what they may do is decided by who they are.
    processes = nobody.train("first"), other.train("second")
    for poller, run in ((nobody, "second"), (other, "first")):
        for request in ({"cmd": "halt"}, {"cmd": "hold", "duration_ns": 10**9}):
            answer = poller.ask(**request, run=run, reason="not mine")
            assert answer["code"] == "denied"
            assert f"uid {poller.uid} neither owns run {run}" in answer["error"]
        ceiling = {"cmd": "budget_set", "ceiling_usd_micros": 10**9, "reason": "not mine"}
        for request in (ceiling, {"cmd": "budget_clear", "reason": "not mine"}):
            assert poller.ask(**request, scope=f"run:{run}")["code"] == "denied"
            assert poller.ask(**request, scope="day")["code"] == "denied"
        assert poller.ask(cmd="reload")["code"] == "denied"
    assert other.ask(cmd="hold", run="second", duration_ns=10**9, reason="mine")["ok"]
    assert other.ask(**ceiling, scope="run:second")["ok"]

    for attempt in ("a", "b"):  # Also as another launch of it.
        imposter = Puppet(governor.work / "run" / "trainer.sock", prefix=nobody.python)
        reply = imposter.hello(run="second", attempt=attempt, rank=1, world_size=8)
        imposter.end()
        assert reply["kind"] == "confirm"  # Watched, and as nobody's own run.
    runs = {run["run"]: run for run in governor.ask({"cmd": "status"})["runs"]}
    assert runs.pop(f"second@{NOBODY}")["uid"] == NOBODY
    assert {name: (run["uid"], run["ranks_connected"]) for name, run in runs.items()} == {
        "first": (NOBODY, 1), "second": (DAEMON, 1),
    }  # fmt: skip
    assert runs["first"]["hold"] is None
    assert governor.incidents() == []
    assert [process.poll() for process in processes] == [None, None]


def test_by_default_the_control_socket_lets_no_other_user_in(start: Start) -> None:
    governor, nobody, _ = start("0660")
    nobody.train("first")
    answer = nobody.ask(cmd="halt", run="first", reason="even my own")
    assert answer["code"] == "denied"
    assert governor.incidents() == []
