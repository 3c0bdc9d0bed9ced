"""Two real governors and a real etcd: orders to the fleet, what it shows, and a governor that vanishes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from governor.cli.common import ExitCode
from tests.contract.fleet.etcd_server import Member as Etcd
from tests.drills.fleet.conftest import MakeMember
from tests.drills.fleet.members import Member
from tests.drills.halt.conftest import BIN, SAFETY_S


def costgov(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / "costgov"), *words], capture_output=True, text=True, timeout=SAFETY_S)


def ask(one: Member, *words: str, code: int = 0) -> Any:
    done = costgov("fleet", *words, "--config", str(one.config), "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def training(member: MakeMember, *names: str) -> list[Member]:
    members = [member(name, 1_000.0) for name in names]
    for one in members:
        one.train()
        one.until(lambda one=one: ask(one)["totals"]["runs"] > 0, "its run is seen")
    return members


def test_an_order_halts_every_run_that_it_covers_and_none_begins_until_it_is_released(member: MakeMember) -> None:
    a, b = training(member, "a", "b")
    a.until(lambda: ask(a)["totals"]["runs"] == 2, "both runs are seen")
    given = ask(a, "halt", "label:team=nlp", "--reason", "the data are wrong", "--wait", "60s")
    assert given["left"] == []
    for one in (a, b):
        incident = one.until_stage("HALTED")
        assert (incident["trigger"], incident["evidence"]["order"]) == ("operator", given["id"])
    [order] = ask(b, "orders")["orders"]
    assert (order["id"], order["stands"]) == (given["id"], True)
    a.train("next")
    a.until(
        lambda: [one["run"] for one in a.incidents() if one["halt_stage"] == "HALTED"].count("next"), "it is halted"
    )
    ask(b, "release", given["id"])
    assert ask(b, "orders") == {"orders": [], "unreadable": []}
    again = costgov("fleet", "release", given["id"], "--config", str(b.config))
    assert again.returncode == ExitCode.UNKNOWN


def test_a_command_that_an_order_covers_is_not_started(etcd: Etcd, short_tmp: Path) -> None:
    alone = Member(short_tmp / "alone", "alone", etcd.url, 1_000.0)
    launch = ("run", "--config", str(alone.config), "--name", "later", "--", "true")
    given = ask(alone, "halt", "run:later", "--reason", "not today", code=ExitCode.UNKNOWN)
    assert (given["stands"], given["covered"]) == (True, 0), "no run of it is alive, and none shall begin"
    checks = json.loads(costgov("doctor", "--config", str(alone.config), "--json").stdout)["checks"]
    fleet = [(one["level"], given["id"] in one["text"]) for one in checks if one["name"] == "fleet"]
    assert fleet == [("warn", False), ("warn", True)], "no governor speaks, and an order stands"
    refused = costgov(*launch)
    assert (refused.returncode, given["id"] in refused.stderr) == (ExitCode.FAILED, True)
    ask(alone, "release", given["id"])
    assert costgov(*launch).returncode == 0


def test_a_hold_of_the_fleet_holds_each_run_until_it_is_released(member: MakeMember) -> None:
    [a] = training(member, "a")
    given = ask(a, "hold", "fleet", "2h", "--reason", "we look")
    a.until(lambda: a.run("run-a")["hold"] is not None, "it is held")
    assert given["id"] in a.run("run-a")["hold"]["reason"]
    ask(a, "release", given["id"])
    a.until(lambda: a.run("run-a")["hold"] is None, "it is held no more")


def test_a_governor_that_vanishes_is_silent_and_keeps_its_last_word(member: MakeMember) -> None:
    a, b = training(member, "a", "b")
    a.until(lambda: ask(a)["totals"]["runs"] == 2, "both runs are seen")
    b.kill9()
    a.until(lambda: ask(a)["totals"]["nodes_silent"] == 1, "its lease ends")
    data = ask(a)
    assert data["totals"]["rate_unseen_usd_per_hour"] > 0
    [run] = [run for run in data["runs"] if run["run"] == "run-b"]
    assert (run["alive"], run["nodes_silent"]) == (True, ["b"])
    b.start()
    a.until(lambda: ask(a)["totals"]["nodes_silent"] == 0, "it speaks again")
