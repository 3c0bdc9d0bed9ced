"""People say that halts were wrong: the rule falls back for later launches, and enforces again when it is re-armed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from tests.drills.halt.conftest import BIN, SAFETY_S, Service

POLICY = """
[policy]
name = "drill"
[halt]
checkpoint = "none"
term_grace = "1s"
kill_grace = "2s"
stop = "processes"
per_day_max = 100
[[rule]]
name = "nan"
trigger = "nonfinite"
response = "halt"
"""
# Ten steps, then NaN: halted at once, else it ends by itself.
TRAINER = """
import json, sys, time
with open(sys.argv[1], "a", buffering=1) as log:
    for step in range(1, 61):
        loss = 2.0 if step <= 10 else float("nan")
        print(json.dumps({"step": step, "loss": loss, "tokens": 1000}), file=log)
        time.sleep(0.05)
"""


class Launches:
    """Launches of `costgov run` under several names, in one state directory."""

    def __init__(self, work: Path) -> None:
        self.work = work
        (work / "policy.toml").write_text(POLICY)
        (work / "train.py").write_text(TRAINER)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("COSTGOV_")}
        self.environ |= {"STATE_DIRECTORY": f"{work}/state", "RUNTIME_DIRECTORY": f"{work}/run", "COLUMNS": "200"}

    def __call__(self, name: str) -> subprocess.CompletedProcess[str]:
        log, config = self.work / f"{name}.jsonl", self.work / f"{name}.toml"
        config.write_text(
            "[node]\nname = 'drill'\nprice_usd_per_hour = 98.32\n[metrics]\nenabled = false\n"
            f"[[jsonl]]\npath = '{log}'\nrun = '{name}'\n"
        )
        log.unlink(missing_ok=True)
        train = [sys.executable, str(self.work / "train.py"), str(log)]
        options = ["--config", str(config), "--policy", str(self.work / "policy.toml"), "--name", name]
        return self.costgov("run", *options, "--", *train)

    def costgov(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(BIN / "costgov"), *words]
        return subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=SAFETY_S)

    def json(self, *words: str) -> Any:
        done = self.costgov(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def launches(short_tmp: Path) -> Launches:
    return Launches(short_tmp)


def test_two_false_halts_take_a_rules_force_until_it_is_armed_again(launches: Launches) -> None:
    first, second = launches("one"), launches("two")
    assert (first.returncode, second.returncode) == (ExitCode.HALTED, ExitCode.HALTED), first.stderr + second.stderr
    launches.costgov("incident", "mark", "one", "--false", "--note", "the data was new")
    marked = launches.json("incident", "mark", "last", "--false")
    assert [row["incident_id"] for row in marked["counted"]] == ["one.drill.1", "two.drill.1"]

    third = launches("three")
    assert third.returncode == 0, third.stderr
    assert "(observe mode: would halt)" in third.stderr + third.stdout
    assert 'rule "nan" of policy "drill" no longer enforces' in third.stderr + third.stdout
    (row,) = launches.json("incident", "rules")
    assert (row["halts"], row["right"], row["false"], row["precision_frac"]) == (2, 0, 2, 0.0)
    assert [one["incidents"] for one in row["fallen_back"]] == [["one.drill.1", "two.drill.1"]]

    assert launches.costgov("incident", "rearm", "nan", "--note", "for = 3 steps").returncode == 0
    fourth = launches("three")
    assert fourth.returncode == ExitCode.HALTED, fourth.stderr
    told = launches.json("incident", "marks")
    acts = ["mark", "mark", "fell_back", "rearm", "enforces_again"]
    assert [row["act"] for row in told] == acts
    assert {row["uid"] for row in told} == {os.getuid()}
    assert [row["note"] for row in told if "note" in row] == ["the data was new", "", "for = 3 steps"]
    assert launches.json("incident", "rules")[0]["fallen_back"] == []


def test_a_mark_taken_back_lets_the_rule_halt_again(launches: Launches) -> None:
    launches("one"), launches("two")
    for name in ("one", "two"):
        assert launches.costgov("incident", "mark", name, "--false").returncode == 0
    assert launches.costgov("incident", "mark", "one", "--right").returncode == 0
    assert launches("three").returncode == ExitCode.HALTED
    assert [row["act"] for row in launches.json("incident", "marks")][-1] == "enforces_again"


def test_a_damaged_file_takes_no_rules_force_and_loses_no_mark(launches: Launches) -> None:
    launches("one"), launches("two")
    for name in ("one", "two"):
        launches.costgov("incident", "mark", name, "--false")
    file = launches.work / "state" / "halt_marks.jsonl"
    file.write_bytes(b"\0broken\n" + file.read_bytes())
    before = file.read_bytes()
    refused = launches.costgov("incident", "mark", "one", "--right")
    assert (refused.returncode, refused.stdout) == (ExitCode.FAILED, "")
    assert "halt_marks.jsonl: line 1" in refused.stderr
    assert launches("three").returncode == ExitCode.HALTED
    assert file.read_bytes() == before


def test_the_service_takes_marks_while_it_runs(service: Callable[..., Service]) -> None:
    governor = service()
    governor.start()
    for number in (1, 2):
        governor.trainee("polite").wait(SAFETY_S)
        governor.until(lambda number=number: len(governor.incidents()) == number, "it is halted")
        governor.until(lambda: all(one["halt_stage"] == "HALTED" for one in governor.incidents()), "seen to its end")
    for one in governor.incidents():
        named = {"incident_id": one["incident_id"], "opened_wall_ns": one["opened_wall_ns"]}
        assert governor.ask({"cmd": "incident_mark", **named, "said": "false"})["entry"]["uid"] == os.getuid()
    governor.until(lambda: governor.ask({"cmd": "status"})["governor"]["fallen_back"], "the rule falls back")

    trainee = governor.trainee("polite")
    governor.until_said("(observe mode: would halt)")
    assert (trainee.poll(), len(governor.incidents())) == (None, 2)
    assert governor.ask({"cmd": "rule_rearm", "policy": "drill", "rule": "nonfinite"})["counted"] == []
    trainee.wait(SAFETY_S)  # It still fires.
    governor.until(lambda: len(governor.incidents()) == 3, "it is halted again")
    assert governor.log_at_end().count("no longer enforces") == 1
