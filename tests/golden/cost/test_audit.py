"""`costgov audit`: halts beside a bill by hand; what is billed after the end of billing is found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.writer import open_journal
from governor.cli.common import ExitCode
from governor.core.base.units import NS_PER_MINUTE, parse_utc
from governor.core.money.charges import charge_row
from tests.golden.cost.conftest import AsAgreed, Call
from tests.golden.report_cases import nan_halt
from tests.unit.cost.ledger_file import charge

Halt = Callable[..., dict[str, Any]]
HEAD = (
    "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,ServiceCategory,"
    "PricingQuantity,PricingUnit\n"
)


def halt(name: str, verified: str | None, instance: str = "i-0aaa") -> dict[str, Any]:
    """Verified 7.41 s after the verdict."""
    at = parse_utc(verified or "2026-11-10T12:00:00Z")
    timeline = [
        entry | {"wall_ns": at}
        for entry in nan_halt()["timeline"]
        if verified is not None or entry["what"] not in ("verified", "halted")
    ]
    opened = {"opened_wall_ns": at - 7_410_000_000, "closed_wall_ns": at, "instance_id": instance}
    return nan_halt() | opened | {"incident_id": name, "run": name.partition(".")[0], "timeline": timeline}


def row(begin: str, end: str, hours: str, usd: str, resource: str = "i-0aaa", category: str = "Compute") -> str:
    unit = "Hours" if category == "Compute" else "GB-Months"
    return f"{usd},USD,Usage,2026-11-{begin}Z,2026-11-{end}Z,{resource},{category},{hours},{unit}\n"


def hour(day: int, at: int, hours: str = "1", usd: str = "55.04", **more: str) -> str:
    return row(f"{day}T{at:02}:00:00", f"{day}T{at + 1:02}:00:00", hours, usd, **more)


def written(state_dir: Path, *halts: dict[str, Any]) -> Path:
    """On from 10:00 to 12:30 on the 10th, and again from 15:00 to 16:00."""
    journal, problem = open_journal(str(state_dir / "costgov.db"), str(state_dir / "runtime"))
    assert problem is None
    times = (("10:00", 1.0), ("11:00", 1.0), ("12:00", 0.5), ("15:00", 1.0))
    charges = [charge(f"2026-11-10T{begin}:00Z", hours) for begin, hours in times]
    assert journal.save_runs({}, [charge_row(one) for one in charges])
    for one in halts:
        assert journal.close_incident(one["incident_id"], one)
    journal.close()
    return state_dir


@pytest.fixture
def machine(state_dir: Path) -> Path:
    """Halted at 12:30, and at 16:00."""
    return written(
        state_dir,
        halt("first.node-1.1", "2026-11-10T12:30:00Z"),
        halt("second.node-1.2", "2026-11-10T16:00:00Z"),
        halt("third.node-1.3", None),
        halt("old.node-1.0", "2026-10-02T12:00:00Z"),
    )


@pytest.fixture
def audited(machine: Path, anything: Call, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    def audit(text: str, *words: str) -> tuple[int, dict[str, Any]]:
        bill = tmp_path / "bill.csv"
        bill.write_text(HEAD + text)
        done = anything("audit", str(bill), "--json", *words)
        return done.code, json.loads(done.out)

    return audit


Audit = Callable[..., tuple[int, dict[str, Any]]]
RIGHT = hour(10, 10) + hour(10, 11) + hour(10, 12, "0.5", "27.52") + hour(10, 15)


def after(document: dict[str, Any]) -> dict[str, list[tuple[str, str, str | None]]]:
    return {
        one["incident_id"].partition(".")[0]: [
            (part["kind"], part["usd"], part["hours"]) for part in one["billed_after"]
        ]
        for one in document["incidents"]
    }


def test_a_bill_that_ends_with_the_machine_agrees(audited: Audit) -> None:
    code, document = audited(RIGHT)
    assert (code, document["agrees"]) == (0, True)
    assert after(document) == {"third": [], "first": [], "second": []}


@pytest.mark.parametrize(("halts", "told"), [(1, "1 halt"), (3, "3 halts")])
def test_halts_that_nobody_has_confirmed_acquit_no_machine(
    halts: int, told: str, state_dir: Path, anything: Call, tmp_path: Path
) -> None:
    written(state_dir, *(halt(f"r{number}.node-1.{number}", None) for number in range(halts)))
    bill = tmp_path / "bill.csv"
    bill.write_text(HEAD + RIGHT + hour(10, 16))
    done = anything("audit", str(bill), "--json")
    document = json.loads(done.out)
    assert (done.code, document["agrees"]) == (ExitCode.FAILED, None)
    assert [one["agrees"] for one in document["incidents"]] == [None] * halts
    done = anything("audit", str(bill))
    want = f"nothing could be compared: the end of billing was confirmed of none of {told}"
    assert (done.code, done.out.splitlines()[-1]) == (ExitCode.FAILED, want)


def test_a_halt_that_is_not_compared_is_told_beside_those_that_are(
    audited: Audit, anything: Call, tmp_path: Path
) -> None:
    code, document = audited(RIGHT)
    assert (code, document["agrees"]) == (0, True)
    assert [one["agrees"] for one in document["incidents"]] == [None, True, True]
    lines = anything("audit", str(tmp_path / "bill.csv")).out.splitlines()
    assert lines[-2] == "not compared: 1 halt whose end of billing was not confirmed"


def test_a_bill_without_a_halt_in_its_time_compares_nothing_and_nothing_is_wrong(
    state_dir: Path, anything: Call, tmp_path: Path
) -> None:
    written(state_dir)
    bill = tmp_path / "bill.csv"
    bill.write_text(HEAD + RIGHT)
    done = anything("audit", str(bill), "--json")
    document = json.loads(done.out)
    assert (done.code, document["agrees"], document["incidents"]) == (0, None, [])


def test_hours_after_the_end_are_told_to_the_next_start_and_not_beyond(audited: Audit) -> None:
    code, document = audited(RIGHT.replace("27.52", "55.04").replace(",0.5,", ",1,") + hour(10, 13) + hour(10, 14))
    assert code == ExitCode.DIFFERS
    assert after(document) == {"third": [], "first": [("compute", "137.600000", "2.500000")], "second": []}
    first = next(one for one in document["incidents"] if one["run"] == "first")
    assert (first["verified"], first["on_again"]) == ("2026-11-10T12:30:00Z", "2026-11-10T15:00:00Z")
    assert (first["resource"], first["agrees"]) == ("i-0aaa", False)


def test_what_is_billed_to_the_end_of_the_bill(audited: Audit) -> None:
    code, document = audited(RIGHT + "".join(hour(11, at) for at in range(20)))
    assert code == ExitCode.DIFFERS
    assert after(document)["second"] == [("compute", "1100.800000", "20.000000")]


@pytest.mark.parametrize(
    ("hours", "usd", "billed"),
    [("0.51", "28.07", True), ("0.6", "33.02", False)],
    ids=["less than a minute", "six minutes"],
)
def test_a_minute_is_how_they_bill(hours: str, usd: str, billed: bool, audited: Audit) -> None:
    code, document = audited(RIGHT.replace(",0.5,", f",{hours},").replace("27.52", usd))
    assert code == (0 if billed else ExitCode.DIFFERS)
    [part] = next(one for one in document["incidents"] if one["run"] == "first")["billed_after"]
    assert part["rounding"] == billed


def test_a_begun_hour_is_how_they_bill_in_full_hours(audited: Audit) -> None:
    code, _ = audited(RIGHT.replace(",0.5,", ",1,").replace("27.52", "55.04"))
    assert code == 0


def test_an_agreement_says_what_is_rounding_and_how_the_bill_was_moved(
    machine: Path, anything: Call, tmp_path: Path
) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(HEAD + RIGHT.replace(",0.5,", ",1,").replace("27.52", "55.04"))
    done = anything("audit", str(bill))
    assert (done.code, done.out.splitlines()[-1]) == (
        0, "agrees: nothing but $27.52 of rounding was billed after 2 verified halts",
    )  # fmt: skip
    bill.write_text(HEAD + RIGHT + row("10T13:00:00", "10T14:00:00", "0.0001", "0.0055"))
    last = anything("audit", str(bill)).out.splitlines()[-1]
    assert last == "agrees: nothing of a cent or more was billed after 2 verified halts"
    moved = RIGHT.replace("T15:", "T22:").replace("T16:", "T23:")
    for begin, own in ((12, 19), (13, 20), (11, 18), (10, 17)):
        moved = moved.replace(f"T{begin}:", f"T{own}:")
    bill.write_text(HEAD + moved)
    done = anything("audit", str(bill))
    assert (done.code, done.out.splitlines()[1]) == (0, "its times lie 7 h after ours: compared so moved")
    bill.write_text(HEAD + RIGHT.replace(",1,", ",8,").replace(",0.5,", ",4,"))
    done = anything("audit", str(bill))
    want = "i-0aaa: 8 of its hours are one of ours: read as hours of one GPU of 8"
    assert (done.code, done.out.splitlines()[1]) == (0, want)


def test_a_bill_by_the_day_is_less_what_the_ledger_metered(audited: Audit) -> None:
    day = row("10T00:00:00", "11T00:00:00", "3.5", "192.64")
    assert audited(day)[0] == 0
    code, document = audited(day.replace("3.5", "5.5").replace("192.64", "302.72"))
    assert code == ExitCode.DIFFERS
    assert after(document)["first"] == [("compute", "110.080000", "2.000000")]


@pytest.mark.parametrize("begin", ["10T00:00:00", "01T00:00:00"], ids=["by the day", "by the month"])
def test_what_a_row_over_two_halts_has_too_much_is_told_once(
    begin: str, machine: Path, audited: Audit, anything: Call, tmp_path: Path
) -> None:
    code, document = audited(row(begin, "30T00:00:00" if begin[:2] == "01" else "11T00:00:00", "5.5", "302.72"))
    assert code == ExitCode.DIFFERS
    ids = ["first.node-1.1", "second.node-1.2"]
    told = {one["incident_id"]: one for one in document["incidents"]}
    assert [part["usd"] for name in ids for part in told[name]["billed_after"]] == ["110.080000", "0.000000"]
    assert all(part["one_of"] == ids for name in ids for part in told[name]["billed_after"])
    assert not any(told[name]["agrees"] for name in ids), "nobody knows which of them it was"
    lines = anything("audit", str(tmp_path / "bill.csv")).out.splitlines()
    assert lines[-1] == "differs: $110.08 was billed after billing had ended"
    assert [line.count("$110.08") for line in lines if ".node-1." in line] == [0, 1, 0]


def test_a_row_that_lies_after_two_halts_is_told_once(machine: Path, audited: Audit) -> None:
    journal, problem = open_journal(str(machine / "costgov.db"), str(machine / "runtime"))
    assert problem is None
    other = halt("again.node-1.4", "2026-11-10T12:45:00Z")
    assert journal.close_incident(other["incident_id"], other)
    journal.close()
    code, document = audited(RIGHT + hour(10, 13))
    assert code == ExitCode.DIFFERS
    assert after(document)["first"] == [("compute", "55.040000", "1.000000")]
    assert after(document)["again"] == [("compute", "0.000000", None)]


@pytest.mark.parametrize("usd", ["192.64", "302.72"])
def test_a_bill_by_the_day_without_hours_is_less_what_the_ledger_charged(
    usd: str, machine: Path, anything: Call, tmp_path: Path
) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(f"Day,Cost\n2026-11-10,{usd}\n")
    done = anything("audit", str(bill), "--map", "date=Day", "--map", "amount=Cost", "--resource", "i-0aaa", "--json")
    [parts, *others] = [part for name, part in after(json.loads(done.out)).items() if name != "third"]
    assert (done.code, parts) == ((0, []) if usd == "192.64" else (ExitCode.DIFFERS, [("compute", "110.080000", None)]))
    assert sum(float(part[1]) for one in others for part in one) == 0
    done = anything("audit", str(bill), "--map", "date=Day", "--map", "amount=Cost", "--resource", "i-0aaa")
    assert "the bill has no hours of the machine: only amounts are compared" in done.out.splitlines()


def test_other_machines_and_disks_of_their_own_are_not_this_machine(audited: Audit) -> None:
    others = hour(10, 13, resource="i-0bbb") + hour(10, 13, "1", "0.80", resource="vol-1", category="Storage")
    assert audited(RIGHT + others)[0] == 0
    code, document = audited(RIGHT + hour(10, 13, "1", "0.80", category="Storage"))
    assert code == ExitCode.DIFFERS
    assert after(document)["first"] == [("storage", "0.800000", None)]


def test_it_reads_as_agreed(machine: Path, anything: Call, tmp_path: Path, as_agreed: AsAgreed) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(HEAD + RIGHT + hour(10, 13))
    done = anything("audit", str(bill))
    assert done.code == ExitCode.DIFFERS
    as_agreed("audit.txt", done.out.replace(f"{tmp_path}/", ""))
    bill.write_text(HEAD + RIGHT)
    done = anything("audit", str(bill))
    assert (done.code, done.out.splitlines()[-1]) == (0, "agrees: nothing was billed after 2 verified halts")
    assert anything("audit", str(bill), "--resource", "i-0zzz").code == ExitCode.FAILED
    bill.write_text(HEAD + hour(20, 13, resource="i-0bbb").replace("2026-11", "2027-01"))
    assert anything("audit", str(bill)).out.splitlines()[-1] == "no halt in the time of this bill"


def test_charges_of_a_few_seconds_after_the_end_are_no_next_start(machine: Path, audited: Audit) -> None:
    journal, problem = open_journal(str(machine / "costgov.db"), str(machine / "runtime"))
    assert problem is None
    late = charge("2026-11-10T12:30:00Z", NS_PER_MINUTE / 3_600_000_000_000, charge_id="late")
    assert journal.save_runs({}, [charge_row(late)])
    journal.close()
    code, document = audited(RIGHT + hour(10, 13))
    assert code == ExitCode.DIFFERS
    assert after(document)["first"] == [("compute", "55.040000", "1.000000")]
