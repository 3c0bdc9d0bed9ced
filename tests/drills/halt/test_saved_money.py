"""What a policy would have saved, by the recordings and the ledger of real runs: its sums are what `cost` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from tests.drills.halt.conftest import BIN, HERE, POLICY, SAFETY_S, configuration

HANG = POLICY.replace('"nonfinite"', '"hang"').replace('for = "1 step"', 'between_limit = "2s"\ntight_min = "2s"')
SPOILT_S = "4"
# The trainee's mode, and the policy that watches it: one observes, and so nothing ends a loss that is no number.
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "well": ("finish", POLICY, ()),
    "sick": ("polite", POLICY, ()),
    "stuck": ("stuck", HANG, ()),
    "crashed": ("crash", POLICY, ()),
    "spoilt": ("polite", POLICY, ("--observe",)),
}
CODES = {"well": 0, "sick": ExitCode.HALTED, "stuck": ExitCode.HALTED, "crashed": 3, "spoilt": 124}
ENDED = {
    "well": "completed", "sick": "halted by nonfinite", "stuck": "halted by hang",
    "crashed": "failed, exit code 3", "spoilt": "failed, exit code 124",
}  # fmt: skip


def costgov(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / "costgov"), *words], capture_output=True, text=True, timeout=SAFETY_S, check=False)


def train(work: Path, name: str) -> subprocess.CompletedProcess[str]:
    """One run under `costgov run`, to its end."""
    mode, policy, words = RUNS[name]
    own = work / name
    own.mkdir()
    (own / "go_on").touch()
    (own / "policy.toml").write_text(policy.format(stop="processes"))
    bounded = ["timeout", SPOILT_S] if name == "spoilt" else []
    command = [*bounded, sys.executable, str(HERE / "trainee.py"), mode, str(own)]
    options = ["--config", str(work / "costgov.toml"), "--policy", str(own / "policy.toml"), "--name", name, *words]
    argv = [str(BIN / "costgov"), "run", *options, "--", *command]
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S, check=False, env=env)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("saved")
    configuration(work)
    for name, code in CODES.items():
        done = train(work, name)
        assert done.returncode == code, done.stdout + done.stderr
    return work


Bill = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def bill(work: Path) -> Bill:
    def ask(*words: str) -> list[dict[str, Any]]:
        policy = work / "well" / "policy.toml"
        asked = ["policy", "replay", "--recorded", "--since", "1h", "--config", str(work / "costgov.toml")]
        done = costgov(*asked, "--policy", str(policy), "--json", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask


def test_the_sums_are_the_ledgers(work: Path, bill: Bill) -> None:
    rows = bill()
    ledger = json.loads(costgov("cost", "--since", "1h", "--config", str(work / "costgov.toml"), "--json").stdout)
    total, runs = rows[-1]["sum"], [row for row in rows if "ledger_usd" in row]
    assert total["ledger_usd"] == ledger["total"]["usd"]
    assert Decimal(total["recorded_usd"]) + Decimal(total["unrecorded_usd"]) == Decimal(ledger["total"]["usd"])
    charged = {group["key"]: group["usd"] for group in ledger["groups"]}
    assert {row["run"] or "(unallocated)": row["ledger_usd"] for row in runs if Decimal(row["ledger_usd"])} == {
        key: usd for key, usd in charged.items() if Decimal(usd)
    }
    [comparison] = [row["comparison"] for row in rows if "comparison" in row]
    by_rule = [row for row in rows if "rule" in row]
    assert sum(Decimal(row["after_usd"]) for row in by_rule) == Decimal(comparison["after_usd"])
    assert Decimal(comparison["before_usd"]) + Decimal(comparison["after_usd"]) == Decimal(total["recorded_usd"])


def test_each_run_is_what_became_of_it(bill: Bill) -> None:
    rows = {row["run"]: row for row in bill() if row.get("run")}
    assert {name: row["ended"] for name, row in rows.items()} == ENDED
    assert {name for name, row in rows.items() if row["role"] == "healthy"} == {"well"}
    assert {name for name, row in rows.items() if row["recording"]["ends_at_halt"]} == {"sick", "stuck"}
    halted = {name: row["policies"][0] for name, row in rows.items() if row["policies"][0]["halts"]}
    assert halted.keys() == {"sick", "stuck", "spoilt"}
    assert {one["halts"][0]["step"] for one in halted.values()} == {31}
    # Of four seconds with such a loss nearly all; after the real halt nothing was recorded, so nothing is saved.
    spoilt, sick = (Decimal(halted[name]["after_usd"]) for name in ("spoilt", "sick"))
    assert spoilt > Decimal("0.5") * Decimal(rows["spoilt"]["recorded_usd"])
    assert sick < Decimal("0.02") < Decimal(halted["stuck"]["after_usd"]), "the loss was bad two seconds before"


def test_a_healthy_run_that_is_halted_is_wrongly_cut(work: Path, bill: Bill) -> None:
    always = work / "always.toml"
    rule = '[[rule]]\nname = "any"\ntrigger = "expression"\nwhen = "step > 5"\nfor = "1 step"\nresponse = "halt"\n'
    always.write_text('[policy]\nname = "always"\n' + rule)
    rows = bill("--policy", str(always))
    row = next(row["comparison"] for row in rows if row.get("comparison", {}).get("policy") == "always")
    well = next(row for row in rows if row.get("run") == "well")
    [judged] = [one for one in well["policies"] if one["policy"] == "always"]
    assert (row["healthy"], row["false_halts"]) == (1, 1)
    assert row["wrongly_cut_usd_micros"] == Decimal(judged["after_usd"]) * 10**6 > 0


def test_marks_say_what_a_halted_run_was(work: Path, bill: Bill) -> None:
    """The halts of two runs, one right and one false: what each run was is known from then on."""
    config = str(work / "costgov.toml")
    for run, said in (("sick", "--right"), ("stuck", "--false")):
        [marked] = [one for one in incidents(config) if one["run"] == run]
        done = costgov("incident", "mark", marked["incident_id"], said, "--config", config)
        assert done.returncode == 0, done.stderr
    roles = {row["run"]: row["role"] for row in bill() if row.get("run")}
    assert (roles["sick"], roles["stuck"]) == ("troubled", "healthy")
    [comparison] = [row["comparison"] for row in bill() if "comparison" in row]
    assert (comparison["troubled"], comparison["healthy"]) == (1, 2)


def incidents(config: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(costgov("incident", "list", "--json", "--config", config).stdout)
    return found
