"""The export word for word, and the check of such files."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.golden.cost.conftest import AsAgreed, Call
from tests.unit.cost.ledger_file import a_month

SPENT = Decimal(sum(one.usd_micros for one in a_month())) / 10**6


def test_the_export_reads_as_agreed_and_passes_its_own_check(
    ledger: Path, costgov: Call, as_agreed: AsAgreed, tmp_path: Path
) -> None:
    file = tmp_path / "focus.csv"
    done = costgov("export", "--focus", str(file))
    assert (done.code, done.out) == (0, f"{file}: 6 rows of FOCUS 1.4, $138.357852\n")
    as_agreed("focus.csv", file.read_text())
    assert costgov("export", "--focus").out == file.read_text()
    checked = costgov("export", "--check", str(file))
    assert (checked.code, checked.err) == (0, "")
    assert checked.out == f"{file}: 6 rows, as FOCUS 1.4 requires as far as a file can show it\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["focus.csv", "state"]


def test_its_costs_add_up_to_the_ledger(ledger: Path, costgov: Call) -> None:
    rows = list(csv.DictReader(io.StringIO(costgov("export", "--focus", "--billed").out)))
    for column in ("EffectiveCost", "ListCost", "ContractedCost", "BilledCost"):
        assert sum(Decimal(row[column]) for row in rows) == SPENT


def test_it_takes_the_same_window_and_runs(ledger: Path, costgov: Call) -> None:
    words = ("--run", "ben", "--until", "2026-11-03", "--account", "1234")
    [row] = csv.DictReader(io.StringIO(costgov("export", "--focus", *words).out))
    assert (row["EffectiveCost"], row["x_RunName"], row["BillingAccountId"]) == ("27.520000", "ben", "1234")


def test_a_bad_file_is_named_row_by_row(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    file = tmp_path / "focus.csv"
    costgov("export", "--focus", str(file))
    good = file.read_text()
    file.write_text(good.replace("AWS,AWS,27.520000,", "AWS,AWS,27.000000,", 1))
    done = costgov("export", "--check", str(file))
    assert (done.code, done.err) == (ExitCode.FAILED, f"{file}: 1 problem in 6 rows\n")
    why = "27.000000 is not ListUnitPrice 55.040000 x PricingQuantity 0.5"
    assert done.out == f"{file}:4: ListCost: {why}\n"
    file.write_text(good.replace(",Hours,", ",Hours ,"))
    done = costgov("export", "--check", str(file))
    assert done.code == ExitCode.FAILED
    assert done.out.splitlines()[0] == f'{file}:2: ConsumedUnit: "Hours " begins or ends with a space'
    assert done.err == f"{file}: 12 problems in 6 rows\n"


def test_no_more_problems_are_printed_than_anybody_reads(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    file = tmp_path / "focus.csv"
    costgov("export", "--focus", str(file))
    file.write_text(file.read_text().replace(",2026-", ",26-"))
    done = costgov("export", "--check", str(file))
    assert len(done.out.splitlines()) == 20
    assert done.err == f"{file}: 24 problems in 6 rows, the first of them above\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"BilledCost\n", "a header and no row"),
        (b"BilledCost\n1.00,2.00\n", ":2: 2 cells under 1 columns"),
        (b"BilledCost\n\xff\n", "not UTF-8 (byte 0xff"),
        (b"A,B,A\n", ":1: A: this column stands there twice"),
        (b'A\n"1.00\n', "unexpected end of data"),
    ],
)
def test_what_is_no_table_is_one_line(content: bytes, said: str, costgov: Call, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    done = costgov("export", "--check", str(file))
    assert done.code == ExitCode.FAILED
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export",), "name a form: --focus"),
        (("export", "--focus", "--check", "x"), "--check stands alone"),
        (("--by", "day", "export", "--focus"), "options of `cost export` stand behind it"),
    ],
)
def test_mistakes_are_refused(words: tuple[str, ...], said: str, state_dir: Path, costgov: Call) -> None:
    done = costgov(*words)
    assert (done.code, done.err) == (ExitCode.USAGE, f"{said}\n")


def test_a_config_in_the_environment_is_no_option_before_the_command(
    ledger: Path, costgov: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "costgov.toml").touch()
    monkeypatch.setenv("COSTGOV_CONFIG", str(tmp_path / "costgov.toml"))
    assert costgov("export", "--focus").code == ExitCode.OK


def test_a_file_that_cannot_be_written_is_one_line(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    done = costgov("export", "--focus", str(tmp_path / "none" / "focus.csv"))
    assert (done.code, done.err) == (
        ExitCode.FAILED,
        f"{tmp_path}/none/focus.csv: cannot be written: No such file or directory\n",
    )


def test_a_broken_journal_leaves_no_empty_file(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    for path in ledger.rglob("costgov.db"):
        path.write_text("not a database " * 100)
    done = costgov("export", "--focus", str(tmp_path / "focus.csv"))
    assert done.code == ExitCode.FAILED
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
