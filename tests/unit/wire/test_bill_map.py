"""A plain CSV is read as its map says: units, periods, credits, zones; what does not fit is one line with its place."""

from __future__ import annotations

import io
from fractions import Fraction

import pytest

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, parse_utc
from governor.core.money.reports.bill import Bill, BillKind, BillLine
from governor.wire.bill_map import READY, bill_map
from governor.wire.bills import Wanted, read_bill
from governor.wire.csv_table import TableError

HOURLY = ("date=Time", "amount=Cost", "hours=Hours", "resource=Machine")


def read(text: str, *pairs: str, resources: tuple[str, ...] = ()) -> Bill:
    columns = bill_map(pairs) if pairs else None
    return read_bill(io.BytesIO(text.encode()), "bill.csv", Wanted(columns=columns, resources=resources))  # type: ignore[arg-type]


def one(text: str, *pairs: str, resources: tuple[str, ...] = ()) -> BillLine:
    [line] = read(text, *pairs, resources=resources).lines
    return line


def hourly(time: str = "2026-11-02T10:00:00Z", cost: str = "55.04", hours: str = "1") -> str:
    return f'Time,Cost,Hours,Machine\n{time},"{cost}","{hours}",i-0aaa\n'


def test_an_hour() -> None:
    line = one(hourly(), *HOURLY)
    assert (line.resource, line.kind, line.usd, line.hours) == ("i-0aaa", BillKind.COMPUTE, Fraction("55.04"), 1)
    assert (line.from_wall, line.to_wall) == (parse_utc("2026-11-02T10:00"), parse_utc("2026-11-02T11:00"))
    assert (line.billed_from, line.billed_to) == (parse_utc("2026-11-01"), parse_utc("2026-12-01"))


@pytest.mark.parametrize(
    ("text", "usd", "kind"),
    [
        ("$1,234.50", "1234.50", BillKind.COMPUTE),
        ("55.04 USD", "55.04", BillKind.COMPUTE),
        ("-$5.00", "-5", BillKind.CREDIT),
        ("$-5.00", "-5", BillKind.CREDIT),
        ("($1,005.00)", "-1005", BillKind.CREDIT),
        ("5.00-", "-5", BillKind.CREDIT),
    ],
)
def test_amounts_as_invoices_have_them(text: str, usd: str, kind: BillKind) -> None:
    line = one(hourly(cost=text), *HOURLY)
    assert (line.usd, line.kind) == (Fraction(usd), kind)


@pytest.mark.parametrize(
    ("unit", "quantity", "hours", "gpu_hours"),
    [
        ("Hours", "1", 1, None), ("hrs", "1", 1, None), ("minutes", "60", 1, None), ("Seconds", "3600", 1, None),
        ("ms", "3600000", 1, None), ("GPU-Hours", "8", None, 8), ("gpu hour", "8", None, 8),
        ("GPU-minutes", "480", None, 8), ("instance-hours", "1", 1, None),
    ],
)  # fmt: skip
def test_units_of_time(unit: str, quantity: str, hours: int | None, gpu_hours: int | None) -> None:
    by_word = one(hourly(hours=quantity), *HOURLY, f"unit={unit}")
    by_column = one(
        f"Time,Cost,Hours,Machine,Unit\n2026-11-02T10:00,55.04,{quantity},i-0aaa,{unit}\n", *HOURLY, "unit=Unit"
    )
    by_header = one(
        f"Time,Cost,{unit},Machine\n2026-11-02T10:00,55.04,{quantity},i-0aaa\n",
        *("date=Time", "amount=Cost", f"hours={unit}", "resource=Machine"),
    )
    for line in (by_word, by_column, by_header):
        assert (line.kind, line.hours, line.gpu_hours) == (BillKind.COMPUTE, hours, gpu_hours)


@pytest.mark.parametrize(("unit", "gb_months"), [("GB-Months", 730), ("GB-hours", 1), ("GB", None)])
def test_a_disks_quantity_is_in_gb_months(unit: str, gb_months: int | None) -> None:
    text = f"Time,Cost,Hours,Machine,Unit,What\n2026-11-02T10:00,5,730,vol-1,{unit},disk\n"
    line = one(text, *HOURLY, "unit=Unit", "kind=What")
    assert (line.kind, line.hours, line.gb_months) == (BillKind.STORAGE, None, gb_months)


@pytest.mark.parametrize(
    ("head", "words", "end", "unit"),
    [
        ("Qty", (), True, True),
        ("Hours", (), True, False),
        ("Qty", ("unit=hours",), True, False),
        ("Qty", ("per=day",), False, True),
    ],
)
def test_what_a_row_does_not_say_is_known_to_be_assumed(
    head: str, words: tuple[str, ...], end: bool, unit: bool
) -> None:
    text = f"Time,Cost,{head},Machine\n2026-11-02T10:00,55.04,8,i-0aaa\n"
    line = one(text, "date=Time", "amount=Cost", f"hours={head}", "resource=Machine", *words)
    assert (line.hours, line.is_end_assumed, line.is_unit_assumed) == (8, end, unit)


def test_a_row_in_another_unit_is_no_compute() -> None:
    text = "Time,Cost,Hours,Machine,Unit\n2026-11-02T10:00,5,100,i-0aaa,GB\n"
    line = one(text, *HOURLY, "unit=Unit")
    assert (line.kind, line.names_no_kind) == (BillKind.OTHER, False), "so many GB are a disk"


@pytest.mark.parametrize(
    ("head", "cells", "words", "names_none"),
    [
        ("", "", (), True),
        (",What", ",", ("kind=What",), True),
        (",What", ",Support fee", ("kind=What",), False),
        (",Hours,Unit", ",192,vCPU-Hours", ("hours=Hours", "unit=Unit"), True),
        (",Hours,Unit", ",192,", ("hours=Hours", "unit=Unit"), True),
        (",Hours,Unit", ",192,GB-Hours", ("hours=Hours", "unit=Unit"), False),
        (",Hours,Unit", ",192,Requests", ("hours=Hours", "unit=Unit"), False),
    ],
)
def test_a_row_that_names_no_kind_may_be_the_machine(
    head: str, cells: str, words: tuple[str, ...], names_none: bool
) -> None:
    text = f"Time,Cost,Machine{head}\n2026-11-02T10:00,55.04,i-0aaa{cells}\n"
    line = one(text, "date=Time", "amount=Cost", "resource=Machine", *words)
    assert (line.kind, line.hours, line.names_no_kind) == (BillKind.OTHER, None, names_none)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("8x H100 instance", BillKind.COMPUTE), ("Storage charge", BillKind.STORAGE), ("Egress", BillKind.EGRESS),
        ("Sales tax", BillKind.TAX), ("Support fee", BillKind.OTHER), ("Reserved plan", BillKind.OTHER),
        ("Sales taxes", BillKind.TAX), ("gpu_sales_tax", BillKind.TAX), ("VAT_GPU", BillKind.TAX),
        ("HST on GPU instances", BillKind.TAX), ("GPU syntax server", BillKind.COMPUTE),
        ("Snapshot of a machine", BillKind.STORAGE), ("Backup: node a", BillKind.STORAGE),
        ("EBS gp3 of instance i-0aaa", BillKind.STORAGE), ("S3 bucket of server logs", BillKind.STORAGE),
        ("GB-months of node a", BillKind.STORAGE), ("shared_fs for pod", BillKind.STORAGE),
        ("Data out of instance", BillKind.EGRESS), ("NAT gateway machine", BillKind.EGRESS),
        ("GPU pods of ebsen", BillKind.COMPUTE), ("NVMe SSD GPU server 8xH100", BillKind.COMPUTE),
    ],
)  # fmt: skip
def test_kinds_by_their_words(words: str, kind: BillKind) -> None:
    text = f"Time,Cost,Hours,Machine,What\n2026-11-02T10:00,5,1,i-0aaa,{words}\n"
    assert one(text, *HOURLY, "kind=What").kind is kind


@pytest.mark.parametrize(
    ("begin", "end", "length"),
    [
        ("2026-11-02", "2026-11-02", NS_PER_DAY), ("2026-11-02", "2026-11-03", NS_PER_DAY),
        ("2026-11-01", "2026-11-30", 30 * NS_PER_DAY), ("2026-11-01", "2026-12-01", 30 * NS_PER_DAY),
        ("2026-11-02T10:00", "2026-11-02T10:30", NS_PER_HOUR // 2),
    ],
)  # fmt: skip
def test_a_row_with_its_end(begin: str, end: str, length: int) -> None:
    text = f"Time,End,Cost,Hours,Machine\n{begin},{end},5,0.5,i-0aaa\n"
    line = one(text, *HOURLY, "end=End")
    assert line.to_wall - line.from_wall == length


def test_dates_alone_are_days_and_full_hours_hours_and_else_a_row_lasts_its_hours() -> None:
    assert one(hourly("2026-11-02", hours="20"), *HOURLY).to_wall == parse_utc("2026-11-03")
    assert one(hourly("2026-11-02T10:00", hours="2"), *HOURLY).to_wall == parse_utc("2026-11-02T11:00")
    assert one(hourly("2026-11-02T10:20", hours="2"), *HOURLY).to_wall == parse_utc("2026-11-02T12:20")
    assert one(hourly("2026-11-02", hours="576"), *HOURLY, "per=month").to_wall == parse_utc("2026-12-01")


@pytest.mark.parametrize("head", ["Quantity", "usage", "Qty"])
@pytest.mark.parametrize(("begin", "end", "quantity"), [("T10:00", "2026-11-02T11:00", 8), ("", "2026-11-02", 192)])
def test_a_quantity_under_a_neutral_head_may_be_gpu_hours(head: str, begin: str, end: str, quantity: int) -> None:
    text = f"Time,End,Cost,{head},Machine\n2026-11-02{begin},{end},55.04,{quantity},i-0aaa\n"
    words = ("date=Time", "amount=Cost", f"hours={head}", "resource=Machine", "end=End")
    line = one(text, *words)
    assert (line.hours, line.gpu_hours, line.is_unit_assumed) == (quantity, None, True)
    with pytest.raises(TableError, match="is more than a"):
        one(text.replace(f",{quantity},", ",3600,"), *words)


def test_times_with_an_offset_and_as_seconds() -> None:
    wanted = parse_utc("2026-11-02T08:00:00Z")
    for text in ("2026-11-02T10:00:00+02:00", "2026-11-02 10:00+0200", "2026-11-02T00:30:00-07:30", "1793606400"):
        assert one(hourly(text), *HOURLY).from_wall == wanted
    focus = (
        "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,ServiceCategory\n"
        "5,USD,Usage,2026-11-02T10:00:00+02:00,2026-11-02T11:00:00+02:00,i-0aaa,Compute\n"
    )
    assert one(focus).from_wall == wanted


def test_a_bill_without_resources_is_of_the_one_that_is_named() -> None:
    text = "Day,Cost,Hours\n2026-11-02,100,24\n"
    assert one(text, "date=Day", "amount=Cost", "hours=Hours", resources=("i-0aaa",)).resource == "i-0aaa"
    assert one(text, "date=Day", "amount=Cost", "hours=Hours").resource == ""


def test_only_the_resources_that_are_wanted_are_read_at_all() -> None:
    text = f"{hourly()}2026-11-02T10:00:00Z,no amount,1,i-other\n"
    assert len(read(text, *HOURLY, resources=("i-0aaa",)).lines) == 1
    with pytest.raises(TableError, match="no row is about i-9"):
        read(text, *HOURLY, resources=("i-9",))


def test_the_providers_own_names_need_no_map() -> None:
    runpod = "amount,diskSpaceBilledGb,podId,time,timeBilledMs\n19.92,0,pod1,2026-11-02T00:00:00Z,28800000\n"
    line = one(runpod)
    assert (line.resource, line.hours, line.usd, line.to_wall - line.from_wall) == (
        *("pod1", 8, Fraction("19.92")),
        NS_PER_DAY,
    )
    vast = (
        "type,description,timestamp,quantity,rate,amount,instance_id\n"
        "charge,Instance 123 GPU charge: hours * $/hr,1793606400,10.000,0.1000,1.000,123\n"
        "charge,Instance 123 storage charge,1793606400,10.000,0.0100,0.100,123\n"
    )
    gpu, disk = read(vast).lines
    assert (gpu.kind, gpu.hours, gpu.resource, gpu.usd) == (BillKind.COMPUTE, 10, "123", 1)
    assert (disk.kind, disk.hours) == (BillKind.STORAGE, None)
    assert {known.name for known in READY} == {"RunPod billing records", "Vast charges"}


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (("date",), '"date" is not FIELD=COLUMN with one of date, amount'),
        (("when=Day",), '"when=Day" is not FIELD=COLUMN'),
        (("date=Day",), "a map needs amount=COLUMN"),
        (("date=Day", "date=Time", "amount=Cost"), "date= is there twice"),
        (("date=Day", "amount=Cost", "per=week"), "per=week is none of hour, day, month"),
    ],
)
def test_a_map_that_is_none(pairs: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        bill_map(pairs)


WRONG = [
    (hourly(cost="12,50"), HOURLY, 'bill.csv:2: Cost: "12,50" is not an amount in dollars; write 12.50 with a point'),
    (hourly(cost="€5"), HOURLY, 'bill.csv:2: Cost: "€5" is in another currency; all amounts are US dollars'),
    (hourly(cost="1e99"), HOURLY, "bill.csv:2: Cost: 1e99 is more than any bill has"),
    (hourly(hours="8,5"), HOURLY, 'bill.csv:2: Hours: "8,5" is not an amount'),
    (hourly("11/02/2026"), HOURLY, 'bill.csv:2: Time: "11/02/2026" is not a UTC date'),
    (hourly("Total"), HOURLY, 'bill.csv:2: Time: "Total" is no date; if this row is the sum of others, remove it'),
    (hourly(""), HOURLY, 'bill.csv:2: Time: "" is no date; if this row is the sum of others, remove it'),
    (hourly("2026-11-02T10:00:00+22:00"), HOURLY, "bill.csv:2: Time: "),
    (hourly("2026-11-02", hours="576"), HOURLY, "bill.csv:2: Hours: 576 is more than a day has: name its end by end="),
    (hourly(hours="-1"), HOURLY, "bill.csv:2: Hours: -1 is negative, and the row is neither a credit nor a refund"),
    (hourly(cost="0", hours="-0.5"), HOURLY, "bill.csv:2: Hours: -0.5 is negative"),
    (hourly(hours="1e15"), HOURLY, "bill.csv:2: Hours: 1e15 is more than a month has: name the row's end by end="),
    (hourly("2026-11-02T10:20", hours="745"), HOURLY, "bill.csv:2: Hours: 745 is more than a month has"),
    (hourly(hours="2700000000"), (*HOURLY, "unit=seconds"), "bill.csv:2: Hours: 2700000000 is more than a month has"),
    (hourly(hours="9999"), (*HOURLY, "per=month"), "bill.csv:2: Hours: 9999 is more than a month has"),
    (hourly(hours="49"), (*HOURLY, "unit=gpu-hours"), "bill.csv:2: Hours: 49 is more than a"),
    (hourly(hours="\u0661"), HOURLY, 'bill.csv:2: Hours: "\u0661" is no number'),
    (hourly(cost="\u0661"), HOURLY, 'bill.csv:2: Cost: "\u0661" is not an amount in dollars'),
    (hourly(hours="1_0"), HOURLY, 'bill.csv:2: Hours: "1_0" is no number'),
    (hourly("\u0662026-11-02"), HOURLY, "bill.csv:2: Time: "),
    (hourly("2026-11-\u0660\u0662"), HOURLY, "bill.csv:2: Time: "),
    (hourly("\u0661793606400"), HOURLY, "bill.csv:2: Time: "),
    (hourly(), ("date=Day", "amount=Cost"), "bill.csv:1: Day: there is no such column"),
    (hourly(), (*HOURLY, "unit=parsec"), "bill.csv:1: unit=parsec is neither a column nor a unit of time"),
]


EUROS = [
    ("Amount (EUR)", "", "", "bill.csv:1: Amount (EUR): it names another currency, and the ledger is in USD"),
    ("cost_eur", "", "", "bill.csv:1: cost_eur: it names another currency"),
    ("Total €", "", "", "bill.csv:1: Total €: it names another currency"),
    ("Cost", "Currency", "EUR", 'bill.csv:2: Currency: "EUR": the ledger is in USD'),
    ("Cost", "billing_currency", "gbp", 'bill.csv:2: billing_currency: "gbp": the ledger is in USD'),
    ("Cost", "CurrencyCode", "JPY", 'bill.csv:2: CurrencyCode: "JPY": the ledger is in USD'),
]


def in_money(head: str, column: str, cell: str) -> str:
    return f"Time,{head},Hours,Machine,{column or 'Other'}\n2026-11-02T10:00,55.04,1,i-0aaa,{cell}\n"


@pytest.mark.parametrize(("head", "column", "cell", "said"), EUROS)
def test_a_bill_in_euros_is_not_read_as_dollars(head: str, column: str, cell: str, said: str) -> None:
    with pytest.raises(TableError) as raised:
        read(in_money(head, column, cell), *HOURLY[:1], f"amount={head}", *HOURLY[2:])
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("head", "column", "cell", "more"),
    [
        ("Amount (USD)", "Currency", "USD", ()), ("Cost", "Currency", "usd", ()), ("Cost", "Currency", "", ()),
        ("Cost", "Currency rate", "1.08", ()), ("Cost", "in local currency", "51.20", ()), ("Neuro cost", "", "", ()),
        ("USD (from EUR)", "Pricing Currency", "EUR", ("currency=USD",)), ("Cost", "Money", "US$", ("currency=Money",)),
    ],
)  # fmt: skip
def test_a_bill_in_dollars_is_read(head: str, column: str, cell: str, more: tuple[str, ...]) -> None:
    line = one(in_money(head, column, cell), *HOURLY[:1], f"amount={head}", *HOURLY[2:], *more)
    assert line.usd == Fraction("55.04")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("currency=EUR", "bill.csv:1: currency=EUR is neither a column nor USD"),
        ("currency=Money", 'bill.csv:2: Money: "Rappen": the ledger is in USD; take the bill in that currency'),
    ],
)
def test_a_map_that_says_another_currency_is_refused(more: str, said: str) -> None:
    with pytest.raises(TableError) as raised:
        read(in_money("Cost", "Money", "Rappen"), *HOURLY, more)
    assert str(raised.value).startswith(said)


NEVER = ["9999-12-31", "2262-04-11", "2262-01-01", "0001-01-01", "1969-12-31T23:59:59Z", "9999999999999", "9999999999",
         "1970-01-01T00:30:00+01:00", "0000-01-01"]  # fmt: skip


@pytest.mark.parametrize("time", NEVER)
def test_a_time_that_no_ledger_has_is_a_line_with_its_place(time: str) -> None:
    with pytest.raises(TableError) as raised:
        read(f"{hourly()}{time},5,1,i-0aaa\n", *HOURLY)
    assert str(raised.value) == f'bill.csv:3: Time: "{time}" is no time of a bill, which lies from 1970 to 2261'


@pytest.mark.parametrize("end", ["9999-12-31", "9999-12-31T23:59:59Z", "9999999999999", "2262-04-11"])
def test_an_end_that_never_comes_is_none(end: str) -> None:
    text = f"Time,End,Cost,Hours,Machine\n2026-11-02T10:00,{end},5,0.5,i-0aaa\n"
    assert one(text, *HOURLY, "end=End") == one(text.replace(end, ""), *HOURLY, "end=End")


@pytest.mark.parametrize("time", ["1970-01-01", "2261-12-31", "0000000000", "0000000000000"])
def test_the_first_and_the_last_day_that_a_ledger_may_have(time: str) -> None:
    assert -(2**63) < one(hourly(time), *HOURLY).from_wall < 2**63


@pytest.mark.parametrize(("text", "pairs", "said"), WRONG)
def test_what_is_wrong_is_one_line_with_its_place(text: str, pairs: tuple[str, ...], said: str) -> None:
    with pytest.raises(TableError) as raised:
        read(text, *pairs)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
