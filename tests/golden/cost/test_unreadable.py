"""What of the ledger cannot be read: the rest is shown, and nobody takes it for all."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from governor.cli.cost.charges import Unread
from tests.golden.cost.conftest import Call
from tests.unit.cost.ledger_file import BEN, SPOT, a_month, charge, write_ledger

SPENT = sum(one.usd_micros for one in a_month())
TORN = a_month()[2]  # Ben's first.
BROKEN = {
    "no JSON": "'{'",
    "no object": "'[]'",
    "no UTF-8": "CAST(x'7bff' AS TEXT)",
    "a field gone": "json_remove(data, '$.unit')",
    "a kind that we do not know": "json_set(data, '$.line', 'magic')",
    "no whole number": "json_set(data, '$.quantity', 1.5)",
    "another amount than the column": "json_set(data, '$.usd_micros', 27520001)",
    "no number at all": "replace(data, '\"quantity\":1', '\"quantity\":1e999')",
}
TOTALS = {  # Each question's own way to a total, in micro-dollars.
    ("--by", "run", "--json"): lambda out: micros(json.loads(out)["total"]["usd"]),
    ("--by", "day", "--json"): lambda out: micros(json.loads(out)["total"]["usd"]),
    ("--by", "label:team", "--csv"): lambda out: sum(micros(row["usd"]) for row in rows_of(out)),
    ("stages", "--json"): lambda out: micros(json.loads(out)["total"]["actual_usd"]),
    ("export", "--focus"): lambda out: sum(micros(row["EffectiveCost"]) for row in rows_of(out)),
}


def micros(usd: str) -> int:
    return int(Decimal(usd) * 10**6)


def rows_of(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def break_one(path: Path, data: str, charge_id: str = TORN.charge_id) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        changed = connection.execute(f"UPDATE charges SET data = {data} WHERE charge_id = ?", (charge_id,))
        assert changed.rowcount == 1


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("words", TOTALS, ids=" ".join)
def test_one_charge_that_cannot_be_read_costs_itself_alone(
    words: tuple[str, ...], broken: str, ledger: Path, costgov: Call
) -> None:
    break_one(ledger / "costgov.db", BROKEN[broken])
    done = costgov(*words)
    assert done.code == ExitCode.FAILED
    assert TOTALS[words](done.out) == SPENT - TORN.usd_micros
    row, end = done.err.splitlines()
    named = f"{ledger / 'costgov.db'}: charge {TORN.charge_id} of run ben, 2026-11-02T11:30:00Z, $27.520000"
    assert row.startswith(f"{named}: cannot be read (")
    assert row.endswith("); it is in no figure here")
    assert end.startswith("1 part of the ledger is missing: the figures are too low")


def test_a_table_has_the_rest_and_a_document_the_count(ledger: Path, costgov: Call) -> None:
    break_one(ledger / "costgov.db", "'{'")
    [total] = [line.split() for line in costgov().out.splitlines() if line.startswith("total ")]
    assert total[1:3] == ["2.83", "$110.84"]  # Without half an hour at $55.04.
    assert [json.loads(costgov(*words, "--json").out)["unreadable"] for words in ((), ("stages",))] == [1, 1]


def test_who_asks_for_another_run_misses_nothing(ledger: Path, costgov: Call) -> None:
    break_one(ledger / "costgov.db", "'{'")
    assert costgov("--run", "anna")[::2] == (ExitCode.OK, "")
    assert costgov("--run", "ben").code == ExitCode.FAILED


def test_a_bill_is_compared_and_not_called_different_for_what_is_missing(ledger: Path, costgov: Call) -> None:
    bill = Path(__file__).parent / "bill_focus.csv"
    whole = costgov("reconcile", str(bill))
    break_one(ledger / "costgov.db", "'{'")
    done = costgov("reconcile", str(bill))
    assert (whole.code, done.code) == (ExitCode.OK, ExitCode.FAILED)
    assert done.out.startswith(f"{bill}: FOCUS, ")
    assert "it is in no figure here" in done.err
    assert json.loads(costgov("reconcile", str(bill), "--json").out)["unreadable"] == 1


def test_one_journal_of_many_that_is_torn_costs_itself_alone(ledger: Path, costgov: Call) -> None:
    """That of a `costgov run` whose name nobody will start again would stand in the way for good."""
    (ledger / "runs/anna/costgov.db").write_text("not a database " * 100)
    for name in ("-wal", "-shm"):
        (ledger / f"runs/anna/costgov.db{name}").unlink(missing_ok=True)
    done = costgov("--json")
    assert done.code == ExitCode.FAILED
    assert micros(json.loads(done.out)["total"]["usd"]) == SPENT - a_month()[-1].usd_micros
    assert done.err.startswith(f"{ledger}/runs/anna/costgov.db: corrupt (")


@pytest.mark.parametrize("words", [(), ("stages",), ("export", "--focus")], ids=" ".join)
def test_one_byte_amiss_in_a_schema_is_one_line(words: tuple[str, ...], ledger: Path, costgov: Call) -> None:
    """SQLite quotes the damaged text in its error, which then is no UTF-8."""
    path = ledger / "runs/anna/costgov.db"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"charge_id TEXT PRIMARY KEY", b"charge_id TEXT PR\xbfMARY KEY", 1))
    assert path.read_bytes() != whole
    done = costgov(*words)
    assert (done.code, done.err.count("\n")) == (ExitCode.FAILED, 2)
    assert done.err.startswith(f"{path}: corrupt (")
    assert "anna" in done.out or "stage1" in done.out, "the other journal is shown"


def test_where_nothing_can_be_read_nothing_is_said_to_be_free(state_dir: Path, costgov: Call) -> None:
    state_dir.mkdir()
    (state_dir / "costgov.db").write_text("not a database " * 100)
    for words in ((), ("stages",)):
        done = costgov(*words)
        assert (done.code, done.out) == (ExitCode.FAILED, "")
        assert done.err.startswith(f"{state_dir}/costgov.db: corrupt (")


def test_a_newer_versions_journal_fills_no_screen(state_dir: Path, costgov: Call) -> None:
    many = [charge("2026-11-02", 1.0, BEN, SPOT, charge_id=f"n/{number}") for number in range(Unread.SHOWN_MAX + 5)]
    write_ledger(state_dir / "costgov.db", many)
    with closing(sqlite3.connect(state_dir / "costgov.db")) as connection, connection:
        connection.execute("UPDATE charges SET data = json_set(data, '$.unit', 'token')")
    *lines, end = costgov().err.splitlines()
    assert len(lines) == Unread.SHOWN_MAX
    assert end.startswith(f"{len(many)} parts of the ledger are missing, the first of them above: ")
