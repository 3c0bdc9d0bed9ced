"""The comparison with a bill, word for word: bills of both forms, against one ledger."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from governor.core.money.reports.focus import COLUMNS
from tests.golden.cost.conftest import AsAgreed, Call

HERE = Path(__file__).parent
AGREES = "agrees: what differs is below a cent in all, or tax, credits and the like"
BILLS = ("bill_cur.csv", "bill_cur2.csv", "bill_focus.csv")


def compared(costgov: Call, name: str, *words: str) -> tuple[int, str]:
    done = costgov("reconcile", str(HERE / name), *words)
    assert done.err == ""
    return done.code, done.out.replace(f"{HERE}/", "")


@pytest.mark.parametrize("name", BILLS)
def test_the_comparison_reads_as_agreed(name: str, ledger: Path, costgov: Call, as_agreed: AsAgreed) -> None:
    code, text = compared(costgov, name)
    as_agreed(name.replace(".csv", ".txt"), text)
    assert code == (ExitCode.OK if "agrees:" in text else ExitCode.DIFFERS)


@pytest.mark.parametrize("name", BILLS)
def test_what_is_printed_adds_up(name: str, ledger: Path, costgov: Call) -> None:
    document = json.loads(compared(costgov, name, "--json")[1])
    parts = sum(Decimal(one["usd"]) for one in document["differences"])
    assert parts == Decimal(document["difference_usd"])
    assert parts == Decimal(document["bill_usd"]) - Decimal(document["ledger_usd"])
    rows = [line for line in compared(costgov, name)[1].splitlines() if "$" in line]
    cents = [Decimal(row.split("$")[1].split()[0].replace(",", "")) * (-1 if "-$" in row else 1) for row in rows]
    bill, ledger_total, difference, *shown, total = cents
    assert bill - ledger_total == difference == total == sum(shown)


def test_both_spellings_of_cur_are_one_bill(ledger: Path, costgov: Call) -> None:
    old, new = (compared(costgov, name)[1] for name in ("bill_cur.csv", "bill_cur2.csv"))
    assert old.replace("bill_cur", "") == new.replace("bill_cur2", "")


def test_the_document_reads_as_agreed(ledger: Path, costgov: Call, as_agreed: AsAgreed) -> None:
    as_agreed("bill_cur.json", compared(costgov, "bill_cur.csv", "--json")[1])


def test_one_resource_of_a_large_bill(ledger: Path, costgov: Call) -> None:
    code, text = compared(costgov, "bill_cur.csv", "--resource", "vol-0bbb")
    assert (code, text.splitlines()[-1]) == (0, AGREES)


def test_a_part_of_the_time(ledger: Path, costgov: Call) -> None:
    words = ("--resource", "i-0aaa", "--since", "2026-11-02T10:00", "--until", "2026-11-02T12:00", "--json")
    document = json.loads(compared(costgov, "bill_cur.csv", *words)[1])
    assert (document["ledger_usd"], document["agrees"]) == ("110.080000", False)
    told = [(one["cause"], one["resource"], one["kind"]) for one in document["differences"]]
    assert told == [("resource_not_metered", "i-0aaa", "egress")]
    done = costgov("reconcile", str(HERE / "bill_cur.csv"), "--since", "2027-01-01")
    assert done.code == ExitCode.FAILED
    assert "is about 2026-11-01T00:00:00Z to 2026-12-01T00:00:00Z, and nothing of that is asked for" in done.err


def test_our_own_export_as_a_bill_agrees_with_itself(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    """The columns that name it an export are left out: as it is, it is refused."""
    file = tmp_path / "own.csv"
    costgov("export", "--focus", "--billed", str(file))
    refused = costgov("reconcile", str(file))
    assert refused.err == f"{file}: x_ChargeId: this is an export of costgov's own ledger, not a provider's bill\n"
    text = file.read_text()
    for name in COLUMNS:
        text = text.replace(f",{name}", f",{name.removeprefix('x_')}", 1) if name.startswith("x_") else text
    file.write_text(text)
    done = costgov("reconcile", str(file), "--json")
    document = json.loads(done.out)
    assert (done.code, document["agrees"], document["difference_usd"]) == (0, True, "0.000000")
    assert document["ledger_usd"] == "138.357852"


def test_gzip_is_read_as_it_is(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    packed = tmp_path / "bill.csv.gz"
    packed.write_bytes(gzip.compress((HERE / "bill_cur.csv").read_bytes()))
    assert costgov("reconcile", str(packed)).code == ExitCode.DIFFERS
    packed.write_bytes(packed.read_bytes()[:200])
    done = costgov("reconcile", str(packed))
    assert done.code == ExitCode.FAILED
    assert done.err.startswith(f"{packed}: cannot be read: ")
    assert done.err.count("\n") == 1


def test_a_bad_bill_is_one_line(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text((HERE / "bill_focus.csv").read_text().replace("10.061729,USD", "10.061729,EUR"))
    done = costgov("reconcile", str(bill))
    want = f'{bill}:3: BillingCurrency: "EUR": the ledger is in USD; take the bill in that currency\n'
    assert (done.code, done.out, done.err) == (ExitCode.FAILED, "", want)
    done = costgov("reconcile", str(tmp_path / "none.csv"))
    assert done.err == f"{tmp_path}/none.csv: cannot be read: No such file or directory\n"


def test_an_empty_ledger_lacks_all_that_is_billed(state_dir: Path, costgov: Call) -> None:
    done = costgov("reconcile", str(HERE / "bill_cur.csv"), "--json")
    asks = f"costgov: {state_dir}: nothing was charged in that time; is it the right ledger (--config)?\n"
    assert (done.code, done.err) == (ExitCode.DIFFERS, asks)
    assert {one["cause"] for one in json.loads(done.out)["differences"]} == {
        *("unknown_to_us", "not_metered", "resource_not_metered")
    }
