"""Bills of one machine's 72 hours, by hand in five forms, each with the same differences planted by the provider."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from governor.core.base.units import NS_PER_HOUR, parse_utc, utc_text
from tests.golden.cost.conftest import Call
from tests.unit.cost.ledger_file import ON_DEMAND, charge, write_ledger

BEGIN = parse_utc("2026-11-10T08:00:00Z")
HOURS = 72
PRICE = Decimal("55.04")
PERIOD = "2026-11-01T00:00:00Z,2026-12-01T00:00:00Z"
Row = tuple[str, str, Decimal, Decimal, str, str]  # Begin, end, hours, dollars, resource, what.


def stamp(hour: int) -> str:
    return utc_text(BEGIN + hour * NS_PER_HOUR)


def plain_rows(shift: int = 0) -> list[Row]:
    return [(stamp(n + shift), stamp(n + 1 + shift), Decimal(1), PRICE, "i-0aaa", "compute") for n in range(HOURS)]


def planted(rows: list[Row]) -> list[Row]:
    """A forgotten disk, an hour twice, and a credit."""
    begin, end = stamp(0), stamp(1)
    extra = (begin, end, Decimal(0), Decimal("412.33"), "vol-0forgotten", "storage")
    credit = (begin, end, Decimal(0), Decimal("-40.00"), "", "credit")
    return [*rows, rows[30], extra, credit]


def focus(rows: list[Row], *, unit: str = "Hours", times: int = 1, category: str = "Compute") -> str:
    head = (
        "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,ServiceCategory,"
        "PricingQuantity,PricingUnit,BillingPeriodStart,BillingPeriodEnd\n"
    )

    def row(begin: str, end: str, hours: Decimal, usd: Decimal, resource: str, what: str) -> str:
        kind = "Credit" if what == "credit" else "Usage"
        service = "Storage" if what == "storage" else category
        quantity = f"{hours * times},{unit}" if what == "compute" else "1,GB-Months"
        return f"{usd},USD,{kind},{begin},{end},{resource},{service},{quantity},{PERIOD}\n"

    return head + "".join(row(*one) for one in rows)


def cur(rows: list[Row]) -> str:
    head = (
        "identity/LineItemId,lineItem/LineItemType,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/UsageType,"
        "lineItem/ResourceId,lineItem/UsageAmount,lineItem/CurrencyCode,lineItem/UnblendedCost,pricing/unit\n"
    )
    usage = {"compute": "BoxUsage:p5.48xlarge,", "storage": "EBS:VolumeUsage.gp3,", "credit": "BoxUsage:p5.48xlarge,"}
    return head + "".join(
        f"id{number},{'Credit' if what == 'credit' else 'Usage'},{begin},{end},{usage[what]}{resource},{hours},USD,"
        f"{usd},{'Hrs' if what == 'compute' else 'GB-Mo'}\n"
        for number, (begin, end, hours, usd, resource, what) in enumerate(rows)
    )


def hourly(rows: list[Row]) -> str:
    return "Time (UTC),Machine,Hours,Cost,What\n" + "".join(
        f'{begin.replace("T", " ").rstrip("Z")},{resource},{hours},"${usd}",{what}\n'
        for begin, _, hours, usd, resource, what in rows
    )


def lambda_like(rows: list[Row]) -> str:
    """By the day, as a list of an invoice: "(40.00)" is a credit."""
    days: dict[tuple[str, str, str], list[Decimal]] = {}
    for begin, _, hours, usd, resource, what in rows:
        known = days.setdefault((begin[:10], resource, what), [Decimal(0), Decimal(0)])
        known[0] += hours
        known[1] += usd
    return "date,instance,usage,hours,amount\n" + "".join(
        f"{day},{resource},{what},{hours},{f'({-usd})' if usd < 0 else usd}\n"
        for (day, resource, what), (hours, usd) in days.items()
    )


def invoice(rows: list[Row]) -> str:
    """One line for all of it, in hours of one GPU."""
    sums: dict[tuple[str, str], list[Decimal]] = {}
    for _, _, hours, usd, resource, what in rows:
        known = sums.setdefault((resource, what), [Decimal(0), Decimal(0)])
        known[0] += 8 * hours
        known[1] += usd
    return "From,To,Item,Description,GPU-Hours,Total\n" + "".join(
        f"2026-11-01,2026-11-30,{resource},{what},{hours},{'-' if usd < 0 else ''}${abs(usd)}\n"
        for (resource, what), (hours, usd) in sums.items()
    )


MAPS = {
    "hourly": ("date=Time (UTC)", "resource=Machine", "hours=Hours", "amount=Cost", "kind=What"),
    "lambda": ("date=date", "resource=instance", "hours=hours", "amount=amount", "kind=usage"),
    "invoice": ("date=From", "end=To", "resource=Item", "kind=Description", "hours=GPU-Hours", "amount=Total"),
}
FORMS: dict[str, Callable[[list[Row]], str]] = {
    "focus": focus, "cur": cur, "hourly": hourly, "lambda": lambda_like, "invoice": invoice,
}  # fmt: skip


@pytest.fixture
def machine(state_dir: Path) -> Path:
    write_ledger(state_dir / "costgov.db", [charge(stamp(n)) for n in range(HOURS)])
    return state_dir


@pytest.fixture
def compared(machine: Path, costgov: Call, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    def compare(text: str, *words: str) -> tuple[int, dict[str, Any]]:
        bill = tmp_path / "bill.csv"
        bill.write_text(text)
        done = costgov("reconcile", str(bill), "--json", *words)
        assert done.err == ""
        return done.code, json.loads(done.out)

    return compare


Compared = Callable[..., tuple[int, dict[str, Any]]]


def map_words(form: str) -> Iterator[str]:
    for pair in MAPS.get(form, ()):
        yield from ("--map", pair)


def told(document: dict[str, Any]) -> set[tuple[str, str | None, str]]:
    return {(one["cause"], one["resource"], one["usd"]) for one in document["differences"]}


@pytest.mark.parametrize("form", FORMS)
def test_a_bill_that_is_right_agrees(form: str, compared: Compared) -> None:
    code, document = compared(FORMS[form](plain_rows()), *map_words(form))
    assert (code, document["agrees"], told(document)) == (0, True, set())
    assert document["bill_usd"] == document["ledger_usd"] == "3962.880000"


@pytest.mark.parametrize("form", FORMS)
def test_what_is_planted_is_found_with_its_amount_and_resource(form: str, compared: Compared) -> None:
    code, document = compared(FORMS[form](planted(plain_rows())), *map_words(form))
    # A month has room for an hour that nobody metered.
    double = "too_many_hours" if form != "invoice" else "ours_missing"
    assert code == ExitCode.DIFFERS
    assert told(document) == {
        (double, "i-0aaa", "55.040000"),
        ("resource_not_metered", "vol-0forgotten", "412.330000"),
        ("not_metered", None, "-40.000000"),
    }


@pytest.mark.parametrize(
    ("unit", "times"), [("Seconds", 3600), ("Minutes", 60), ("GPU-Hours", 8), ("GPU Hours", 8), ("Hour", 1)]
)
@pytest.mark.parametrize("category", ["Compute", "AI and Machine Learning"])
def test_another_unit_and_category_is_the_same_machine(
    unit: str, times: int, category: str, compared: Compared
) -> None:
    code, document = compared(focus(plain_rows(), unit=unit, times=times, category=category))
    assert (code, told(document)) == (0, set())


def without_hours(rows: list[Row]) -> str:
    return "Start,Cost,Id\n" + "".join(f"{begin},{usd},{resource}\n" for begin, _, _, usd, resource, _ in rows)


def by_the_day(rows: list[Row]) -> str:
    days: dict[str, Decimal] = {}
    for begin, _, _, usd, _, _ in rows:
        days[begin[:10]] = days.get(begin[:10], Decimal(0)) + usd
    return "Day,Cost\n" + "".join(f"{day},{usd}\n" for day, usd in days.items())


AMOUNTS = {
    "hour": (without_hours, ("--map", "date=Start", "--map", "amount=Cost", "--map", "resource=Id")),
    "day": (by_the_day, ("--map", "date=Day", "--map", "amount=Cost", "--resource", "i-0aaa")),
}


@pytest.mark.parametrize("per", AMOUNTS)
def test_a_bill_of_dates_and_amounts_is_the_machines_and_says_so(
    per: str, compared: Compared, costgov: Call, tmp_path: Path
) -> None:
    written, words = AMOUNTS[per]
    code, document = compared(written(plain_rows()), *words)
    assert (code, document["per"], document["amounts_only"], told(document)) == (0, per, True, set())
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *words).out.splitlines()
    assert lines.count("the bill has no hours of the machine: only amounts are compared") == 1
    code, document = compared(
        written([(*plain_rows()[0][:3], Decimal(60), *plain_rows()[0][4:]), *plain_rows()[1:]]), *words
    )
    assert (code, told(document)) == (ExitCode.DIFFERS, {("amount", "i-0aaa", "4.960000")})


@pytest.mark.parametrize("unit", ["vCPU-Hours", "Core Hours", "GB-hours"])
def test_hours_of_a_machines_parts_are_its_amounts(unit: str, compared: Compared) -> None:
    code, document = compared(focus(plain_rows(), unit=unit, times=192))
    assert (code, document["amounts_only"], told(document)) == (0, True, set())


@pytest.mark.parametrize("form", ["focus", "cur", "hourly"])
@pytest.mark.parametrize("shift", [7, -5])
def test_a_bill_in_local_time_agrees_and_says_its_shift(form: str, shift: int, compared: Compared) -> None:
    code, document = compared(FORMS[form](plain_rows(shift)), *map_words(form))
    assert (code, document["shift_hours"], told(document)) == (0, shift, set())


def test_a_bill_in_local_time_says_so_to_people(machine: Path, costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(focus(planted(plain_rows(7))))
    done = costgov("reconcile", str(bill))
    assert done.out.splitlines()[1] == "its times lie 7 h after ours: compared so moved"
    assert "billed more than the clock has" in done.out


def test_a_quantity_that_nothing_names_is_read_by_its_price_and_says_so(
    compared: Compared, costgov: Call, tmp_path: Path
) -> None:
    words = ("--map", "date=Start", "--map", "amount=Cost", "--map", "hours=Qty", "--map", "resource=Id")
    rows = [f"{begin},{usd},8,{resource}\n" for begin, _, _, usd, resource, _ in plain_rows()]
    code, document = compared("Start,Cost,Qty,Id\n" + "".join(rows), *words)
    assert (code, document["hours_divided_by"], told(document)) == (0, {"i-0aaa": 8}, set())
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *words).out.splitlines()
    assert lines[1] == "i-0aaa: 8 of its hours are one of ours: read as hours of one GPU of 8"
    dear = "".join(rows).replace("55.04", "90.00")
    code, document = compared("Start,Cost,Qty,Id\n" + dear.replace(",8,", ",7.3,"), *words)
    assert (code, document["hours_divided_by"], document["amounts_only"]) == (ExitCode.DIFFERS, {"i-0aaa": None}, True)
    assert told(document) == {("amount", "i-0aaa", "2517.120000")}
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *words).out.splitlines()
    assert lines[1].startswith("i-0aaa: its hours are neither ours")


@pytest.mark.parametrize("head", ["quantity", "usage"])
def test_gpu_hours_under_a_neutral_head_beside_an_end_are_read_as_that(
    head: str, compared: Compared, costgov: Call, tmp_path: Path
) -> None:
    """With the hour that is twice: $55.04. The healthy twin has none."""
    pairs = ("date=Begin", "end=End", "amount=Cost", f"hours={head}", "resource=Id")
    words = [word for pair in pairs for word in ("--map", pair)]
    rows = [f"{begin},{end},{usd},8,{resource}\n" for begin, end, _, usd, resource, _ in plain_rows()]
    code, document = compared(f"Begin,End,Cost,{head},Id\n" + "".join([*rows, rows[30]]), *words)
    assert (code, document["hours_divided_by"]) == (ExitCode.DIFFERS, {"i-0aaa": 8})
    assert told(document) == {("too_many_hours", "i-0aaa", "55.040000")}
    code, document = compared(f"Begin,End,Cost,{head},Id\n" + "".join(rows), *words)
    assert (code, told(document)) == (0, set())
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *words).out.splitlines()
    assert lines[1] == "i-0aaa: 8 of its hours are one of ours: read as hours of one GPU of 8"


def test_a_bill_in_a_zone_of_half_hours_says_so_to_people(machine: Path, costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(
        "Start,Cost,Hours,Id\n"
        + "".join(f"{stamp(n)[:11]}{stamp(n)[11:14]}30,{PRICE},1,i-0aaa\n" for n in range(5, 77))
    )
    words = ("--map", "date=Start", "--map", "amount=Cost", "--map", "hours=Hours", "--map", "resource=Id")
    done = costgov("reconcile", str(bill), *words)
    assert (done.code, done.out.splitlines()[1]) == (0, "its times lie 5 h 30 min after ours: compared so moved")
    assert json.loads(costgov("reconcile", str(bill), "--json", *words).out)["shift_hours"] == 5.5


@pytest.mark.parametrize("hours", ["0.0227", "0.023", "0.02", "0"])
def test_a_bill_prints_its_hours_rounded_and_its_amounts_in_cents(
    hours: str, state_dir: Path, costgov: Call, tmp_path: Path
) -> None:
    """0.022732 hours at $3,600."""
    line = replace(ON_DEMAND, price_usd_micros=3_600_000_000)
    write_ledger(state_dir / "costgov.db", [charge("2026-11-30T08:00:00Z", 0.022732, line=line)])
    bill = tmp_path / "bill.csv"
    bill.write_text(f"Day,Id,Amount,Hours\n2026-11-30,i-0aaa,81.84,{hours}\n")
    words = ("--map", "date=Day", "--map", "amount=Amount", "--map", "hours=Hours", "--map", "resource=Id")
    done = costgov("reconcile", str(bill), *words, "--json")
    assert (done.code, told(json.loads(done.out))) == (0, {("below_a_cent", None, "0.004800")})


def test_amounts_in_cents_agree_and_say_that_they_are_rounded(state_dir: Path, costgov: Call, tmp_path: Path) -> None:
    """A fifth of a cent less in each of ten days."""
    line = replace(ON_DEMAND, price_usd_micros=10_002_000)
    write_ledger(state_dir / "costgov.db", [charge(f"2026-11-{day}T08:00:00Z", line=line) for day in range(21, 31)])
    bill = tmp_path / "bill.csv"
    bill.write_text("Day,Id,Amount\n" + "".join(f"2026-11-{day},i-0aaa,10.00\n" for day in range(21, 31)))
    words = ("--map", "date=Day", "--map", "amount=Amount", "--map", "resource=Id")
    done = costgov("reconcile", str(bill), *words)
    assert (done.code, done.out.splitlines()[-1]) == (
        0,
        "agrees: what differs is the rounding of the bill's amounts, or tax, credits and the like",
    )


def test_gpu_hours_of_an_unknown_number_of_gpus_are_told_as_that(
    compared: Compared, costgov: Call, tmp_path: Path
) -> None:
    words = ("--map", "date=Start", "--map", "amount=Cost", "--map", "hours=GPU Hours", "--map", "resource=Id")
    rows = [f"{begin},{usd},5.3,{resource}\n" for begin, _, _, usd, resource, _ in plain_rows()]
    code, document = compared("Start,Cost,GPU Hours,Id\n" + "".join(rows), *words)
    assert (code, document["amounts_only"], document["gpus_unknown"]) == (0, True, ["i-0aaa"])
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *words).out.splitlines()
    want = "it has GPU-hours, and how many GPUs it has is not known: only amounts are compared; set gpus in [price]"
    assert lines[1] == f"i-0aaa: {want}"
    assert not any("no hours of the machine" in line for line in lines)


def test_times_with_an_offset_need_no_shift(compared: Compared) -> None:
    text = focus([(b[:-1] + "+02:00", e[:-1] + "+02:00", *rest) for b, e, *rest in plain_rows(2)])  # type: ignore[misc]
    code, document = compared(text)
    assert (code, document["shift_hours"], told(document)) == (0, 0, set())


def test_equal_lines_of_tax_are_both_counted(compared: Compared) -> None:
    tax = focus(plain_rows()).splitlines()[1].replace("55.04,USD,Usage", "9.99,USD,Tax").replace("i-0aaa", "")
    code, document = compared(f"{focus(plain_rows())}{tax}\n{tax}\n")
    assert (code, told(document)) == (0, {("not_metered", None, "19.980000")})


def test_one_machine_of_a_large_bill(compared: Compared) -> None:
    others = [(*row[:4], f"i-{n}", row[5]) for n in range(40) for row in plain_rows()]
    code, document = compared(focus([*others, *plain_rows()]), "--resource", "i-0aaa")
    assert (code, told(document)) == (0, set())
    code, document = compared(focus([*others, *plain_rows()]))
    assert (code, len(told(document))) == (ExitCode.DIFFERS, 40)


def test_our_own_differences_have_room_beside_many_of_others(machine: Path, costgov: Call, tmp_path: Path) -> None:
    others = [(*row[:3], 10 * PRICE, f"i-{n}", row[5]) for n in range(60) for row in plain_rows()[:1]]
    bill = tmp_path / "bill.csv"
    bill.write_text(focus([*others, *planted(plain_rows())]))
    lines = costgov("reconcile", str(bill)).out.splitlines()
    assert sum("i-" in line and "unknown" in line for line in lines) == 20
    assert any("billed more than the clock has" in line and "i-0aaa" in line for line in lines)
    assert any("resource not metered" in line and "vol-0forgotten" in line for line in lines)
    assert any(line.startswith("40 more") for line in lines)


def test_a_machine_by_another_word_is_our_machine(compared: Compared) -> None:
    text = hourly(plain_rows()).replace(",compute", ",8x H100 SXM5")
    assert compared(text, *map_words("hourly"))[0] == 0
    fee = "2026-11-10 08:00:00,i-0aaa,,$9.00,Support fee\n"
    code, document = compared(text + fee, *map_words("hourly"))
    assert (code, told(document)) == (ExitCode.DIFFERS, {("resource_not_metered", "i-0aaa", "9.000000")})


def test_a_map_is_remembered_for_files_with_the_same_columns(machine: Path, compared: Compared) -> None:
    text = hourly(planted(plain_rows()))
    first = compared(text, *map_words("hourly"))
    assert compared(text) == first
    [kept] = json.loads((machine / "bill_maps.json").read_text())
    assert kept["columns"] == ["Time (UTC)", "Machine", "Hours", "Cost", "What"]


def test_a_map_that_cannot_be_kept_is_told_and_the_bill_is_compared(
    machine: Path, costgov: Call, tmp_path: Path
) -> None:
    (machine / "bill_maps.json").mkdir()
    bill = tmp_path / "bill.csv"
    bill.write_text(hourly(plain_rows()))
    done = costgov("reconcile", str(bill), *map_words("hourly"))
    assert done.code == 0
    assert "agrees" in done.out
    assert "cannot be read, so no map is remembered" in done.err


def test_a_map_and_another_form_exclude_one_another(machine: Path, costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(focus(plain_rows()))
    done = costgov("reconcile", str(bill), "--format", "focus", "--map", "date=A", "--map", "amount=B")
    assert (done.code, done.err) == (
        ExitCode.USAGE,
        "--map is for plain CSV, and --format focus has columns of its own\n",
    )


def test_a_header_that_fills_the_memory_of_maps_is_not_remembered(machine: Path, costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(f"When,Cost,{'x' * 60_000}\n2026-11-10,5,\n")
    done = costgov("reconcile", str(bill), "--map", "date=When", "--map", "amount=Cost")
    assert "the map is not remembered: the names of the columns are too long" in done.err
    assert not (machine / "bill_maps.json").exists()


def test_a_fifo_in_the_place_of_the_maps_is_not_waited_for(machine: Path, costgov: Call, tmp_path: Path) -> None:
    os.mkfifo(machine / "bill_maps.json")
    bill = tmp_path / "bill.csv"
    bill.write_text(hourly(plain_rows()))
    assert "so no map is remembered" in costgov("reconcile", str(bill)).err
