"""`costgov cost` word for word, and the same ledger for programs."""

from __future__ import annotations

import csv
import io
import json
import time
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from governor.adapters.journal.db import Database
from governor.cli.common import ExitCode
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, parse_utc, utc_text
from governor.core.money.charges import Payer
from tests.golden.cost.conftest import AsAgreed, Call
from tests.unit.cost.ledger_file import a_month, charge, write_ledger
from tests.unit.replay.recorded_file import run_entries, run_row

SPENT = Decimal(sum(one.usd_micros for one in a_month())) / 10**6


@pytest.mark.parametrize("by", ["run", "stage", "day", "node", "label:team", "line"])
def test_the_table_reads_as_agreed(by: str, ledger: Path, costgov: Call, as_agreed: AsAgreed) -> None:
    done = costgov("--by", by)
    assert (done.code, done.err) == (0, "")
    as_agreed(f"by_{by.replace(':', '_')}.txt", done.out)


@pytest.mark.parametrize("by", ["run", "stage", "day", "node", "label:team", "line"])
def test_the_amounts_shown_add_up_to_the_total_shown(by: str, ledger: Path, costgov: Call) -> None:
    rows = [line.split("$")[1].split()[0] for line in costgov("--by", by).out.splitlines() if "%" in line]
    assert sum(map(Decimal, rows[:-1])) == Decimal(rows[-1]) == round(SPENT, 2)


def test_the_reconstructed_amounts_shown_add_up_too(state_dir: Path, costgov: Call) -> None:
    gap = [charge("2026-11-02T10:00:00Z", payer=Payer(name), usd_micros=333_333, reconstructed=True) for name in "abc"]
    write_ledger(state_dir / "costgov.db", gap)
    shown = [line.split("$") for line in costgov().out.splitlines() if "%" in line]
    for column in (1, 2):
        *rows, total = [Decimal(cells[column].split()[0]) for cells in shown]
        assert sum(rows) == total == Decimal("1.00")


def test_json_and_csv_are_exact(ledger: Path, costgov: Call) -> None:
    document = json.loads(costgov("--json").out)
    assert sum(Decimal(group["usd"]) for group in document["groups"]) == Decimal(document["total"]["usd"]) == SPENT
    assert document["total"]["node_time_ns"] == sum(group["node_time_ns"] for group in document["groups"])
    rows = list(csv.DictReader(io.StringIO(costgov("--csv").out)))
    assert {row["key"]: row["usd"] for row in rows} == {group["key"]: group["usd"] for group in document["groups"]}
    assert sum(Decimal(row["usd"]) for row in rows) == SPENT


def test_each_line_has_its_quantity_and_a_group_of_several_none(ledger: Path, costgov: Call) -> None:
    """A disk is no hour of the machine, and is paid for by the hour all the same."""
    groups = json.loads(costgov("--by", "line", "--json").out)["groups"]
    [disk] = (group for group in groups if group["key"].startswith("storage"))
    assert (disk["hours"], disk["quantity"], disk["unit"]) == ("0.000000", "24.000000", "hour")
    rows = csv.DictReader(io.StringIO(costgov("--by", "line", "--csv").out))
    assert {row["key"]: row["quantity"] for row in rows} == {group["key"]: group["quantity"] for group in groups}
    assert {group["quantity"] for group in json.loads(costgov("--json").out)["groups"]} == {None}


def test_the_document_reads_as_agreed(ledger: Path, costgov: Call, as_agreed: AsAgreed) -> None:
    as_agreed("by_run.json", costgov("--since", "2026-11-01", "--json").out)
    as_agreed("by_run.csv", costgov("--csv").out)


def test_a_window_cuts_what_it_crosses(ledger: Path, costgov: Call) -> None:
    """Two quarters of an hour at $55.04, and as much of the disk's day."""
    words = ("--since", "2026-11-02T10:45", "--until", "2026-11-02T11:15", "--json")
    assert json.loads(costgov(*words).out)["total"]["usd"] == "27.550137"


def test_adjoining_windows_add_up(ledger: Path, costgov: Call) -> None:
    days = ["2026-11-01", "2026-11-02T10:17:31", "2026-11-03T23:59:59", "2026-11-05"]
    parts = [
        json.loads(costgov("--since", since, "--until", until, "--json").out)["total"]["usd"]
        for since, until in pairwise(days)
    ]
    assert sum(map(Decimal, parts)) == SPENT


def test_a_time_may_be_said_as_how_long_ago(state_dir: Path, costgov: Call) -> None:
    """Two charges of a dollar, of which one is an hour old and the other half a year."""
    now = time.time_ns()
    ages = (NS_PER_HOUR, 4_400 * NS_PER_HOUR)
    each = [charge(utc_text(now - age), 0.5, usd_micros=10**6) for age in ages]
    write_ledger(state_dir / "costgov.db", each)
    assert json.loads(costgov("--since", "30d", "--json").out)["total"]["usd"] == "1.000000"
    assert json.loads(costgov("--since", "365d", "--json").out)["total"]["usd"] == "2.000000"


def test_one_run(ledger: Path, costgov: Call) -> None:
    assert [group["key"] for group in json.loads(costgov("--run", "ben", "--json").out)["groups"]] == ["ben"]
    assert costgov("--run", "ben", "--until", "2025-01-01")[::2] == (ExitCode.OK, "")


def test_an_empty_ledger_says_what_to_do(state_dir: Path, costgov: Call) -> None:
    done = costgov()
    assert done.code == 0
    assert done.out == (
        f"nothing charged yet in {state_dir}: start a governor that knows its price, for example "
        "`costgov run --price 22 -- CMD` (doctor says which price it knows)\n"
    )
    document = json.loads(costgov("--json").out)
    assert (document["groups"], document["total"]["usd"]) == ([], "0.000000")


def test_a_price_of_nothing_has_no_shares(state_dir: Path, costgov: Call) -> None:
    write_ledger(state_dir / "costgov.db", [charge("2026-11-02", 1.0, usd_micros=0)])
    assert "anna    1.00   $0.00      -  $55.04/h" in costgov().out


def test_a_runs_name_steers_no_terminal(state_dir: Path, costgov: Call) -> None:
    from governor.core.money.charges import Payer

    write_ledger(state_dir / "costgov.db", [charge("2026-11-02", 1.0, Payer("evil\x1b[2J\nrun"))])
    assert "evil [2J run" in costgov().out


@pytest.mark.parametrize(
    "words", [(), ("--json",), ("--csv",), ("stages",), ("stages", "--json"), ("export", "--focus")]
)
def test_a_run_that_is_in_no_journal_is_told_with_the_code_of_what_there_is_not(
    words: tuple[str, ...], ledger: Path, costgov: Call
) -> None:
    done = costgov(*words, "--run", "carol", "--run", "ben")
    assert (done.code, done.err) == (ExitCode.UNKNOWN, f"there is no run carol in {ledger}\n")
    assert costgov(*words, "--run", "ben")[::2] == (ExitCode.OK, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--by", "colour"), '--by: "colour" is no way to group; take run, stage, day, node, line or label:KEY'),
        (("--since", "yesterday"), '"yesterday" is not a UTC date'),
        (("--since", "2026-11-02", "--until", "2026-11-02"), "--until must be later than --since"),
        (("--json", "--csv"), "--csv and --json exclude one another"),
    ],
)
def test_mistakes_are_refused(words: tuple[str, ...], said: str, ledger: Path, costgov: Call) -> None:
    done = costgov(*words)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert said in done.err


@pytest.mark.parametrize(("name", "words"), [("run", ()), ("stage", ("--by", "stage")), ("one", ("--run", "free"))])
def test_a_run_without_a_price_has_a_line_and_is_not_told_as_free_of_charge(
    name: str, words: tuple[str, ...], ledger: Path, costgov: Call, as_agreed: AsAgreed
) -> None:
    rows = [
        run_row("", parse_utc("2026-11-02T12:00:00Z"), unpriced_ns=40 * NS_PER_S),  # The node's own.
        run_row("free", parse_utc("2026-11-02T12:00:00Z"), unpriced_ns=30 * NS_PER_S),
        run_row("ben", parse_utc("2026-11-02T12:00:00Z"), unpriced_ns=5 * NS_PER_S),
    ]
    database = Database(str(ledger / "costgov.db"))
    database.write(run_entries(rows), full=False)
    database.close()
    done = costgov(*words)
    assert (done.code, done.err) == (0, "")
    as_agreed(f"unpriced_{name}.txt", done.out)
    document = json.loads(costgov(*words, "--json").out)
    assert document["unpriced_s"]["free"] == "30.000000"
    assert {group["usd"] for group in document["groups"] if group["key"] == "free"} <= {None}
    assert costgov("--until", "2026-11-01", *words).code == 0
