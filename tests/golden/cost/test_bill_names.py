"""A machine that the bill calls otherwise than the ledger, or not at all: one line says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.golden.cost.conftest import Call
from tests.unit.cost.ledger_file import NODE, charge, write_ledger

RUNPOD = "podId,time,amount,timeBilledMs\npod-1,2026-11-30T08:00:00Z,55.04,3600000\n"
NAMELESS = "Date,Amount\n2026-11-30,55.04\n"
MAP = ("--map", "date=Date", "--map", "amount=Amount")


@pytest.fixture
def bill(state_dir: Path, tmp_path: Path) -> Path:
    write_ledger(state_dir / "costgov.db", [charge("2026-11-30T08:00:00Z")])
    return tmp_path / "bill.csv"


def test_a_machine_under_two_names_is_told_with_the_option_that_says_so(bill: Path, costgov: Call) -> None:
    bill.write_text(RUNPOD)
    done = costgov("reconcile", str(bill))
    assert done.code == ExitCode.DIFFERS
    assert done.out.splitlines()[1] == "if pod-1 of the bill is i-0aaa of the ledger, say --resource pod-1=i-0aaa"
    done = costgov("reconcile", str(bill), "--resource", "pod-1")
    assert done.err.endswith("if the ledger has it under another name, say --resource pod-1=i-0aaa\n")
    done = costgov("reconcile", str(bill), "--resource", "pod-1=i-0aaa")
    assert (done.code, done.out.splitlines()[-1].partition(":")[0]) == (0, "agrees")


def test_two_machines_on_a_side_are_not_paired(bill: Path, costgov: Call) -> None:
    bill.write_text(f"{RUNPOD}pod-2,2026-11-30T08:00:00Z,55.04,3600000\n")
    assert "--resource" not in costgov("reconcile", str(bill)).out


def test_a_name_that_is_none_is_refused(bill: Path, costgov: Call) -> None:
    bill.write_text(RUNPOD)
    for text in ("=vm", "pod-1=", ""):
        assert costgov("reconcile", str(bill), "--resource", text).code == ExitCode.USAGE


def test_a_bill_that_names_no_machine_is_the_only_one_of_the_ledger(
    bill: Path, state_dir: Path, costgov: Call, anything: Call
) -> None:
    bill.write_text(NAMELESS)
    done = costgov("reconcile", str(bill), *MAP)
    assert (done.code, done.out.splitlines()[-1].partition(":")[0]) == (0, "agrees")
    other = charge("2026-11-29T08:00:00Z", place=replace(NODE, instance_id="i-0bbb"), charge_id="other")
    write_ledger(state_dir / "costgov.db", [other])
    want = f"{bill}:1: no column says which of 2 machines its rows are of: say one by --resource, or a column by "
    want += "resource="
    for words in (("cost", "reconcile"), ("audit",)):
        done = anything(*words, str(bill), *MAP)
        assert (done.code, done.err.splitlines()[-1]) == (ExitCode.FAILED, want)
    assert costgov("reconcile", str(bill), *MAP, "--resource", "i-0aaa").code == 0


def test_an_audit_knows_the_machine_by_its_other_name(bill: Path, anything: Call) -> None:
    bill.write_text(RUNPOD)
    assert anything("audit", str(bill), "--resource", "pod-1=i-0aaa").code == 0
