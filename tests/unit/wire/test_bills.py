"""Bills are read as they are written, and what is wrong with one is a line with its place."""

from __future__ import annotations

import gzip
import io
import os
import tracemalloc
from fractions import Fraction
from pathlib import Path

import pytest

from governor.core.base.units import NS_PER_HOUR, parse_utc
from governor.core.money.reports.bill import Bill, BillKind
from governor.wire.bills import Wanted, read_bill
from governor.wire.csv_table import TableError

GOLDEN = Path(__file__).parents[2] / "golden" / "cost"
FOCUS: dict[str, str] = {
    "BilledCost": "55.04", "BillingCurrency": "USD", "BillingPeriodStart": "2026-11-01T00:00:00Z",
    "BillingPeriodEnd": "2026-12-01T00:00:00Z", "ChargeCategory": "Usage", "ChargeClass": "",
    "ChargePeriodStart": "2026-11-02T10:00:00Z", "ChargePeriodEnd": "2026-11-02T11:00:00Z", "CommitmentDiscountId": "",
    "CommitmentDiscountStatus": "", "PricingQuantity": "1", "PricingUnit": "Hours",
    "ResourceId": "arn:aws:ec2:eu-west-1:1:instance/i-0aaa", "ServiceCategory": "Compute",
}  # fmt: skip
CUR: dict[str, str] = {
    "lineItem/LineItemType": "Usage", "lineItem/UsageStartDate": "2026-11-02T10:00:00Z",
    "lineItem/UsageEndDate": "2026-11-02T11:00:00Z", "lineItem/UsageType": "BoxUsage:p5.48xlarge",
    "lineItem/ResourceId": "i-0aaa", "lineItem/UsageAmount": "1.0", "lineItem/CurrencyCode": "USD",
    "lineItem/UnblendedCost": "55.0400000000", "product/instanceType": "p5.48xlarge", "pricing/unit": "Hrs",
}  # fmt: skip


def table(*rows: dict[str, str]) -> bytes:
    return "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows), ""]).encode()


def read(data: bytes, form: str = "auto") -> Bill:
    return read_bill(io.BytesIO(data), "bill.csv", Wanted(form))


def refusal(data: bytes, form: str = "auto") -> str:
    with pytest.raises(TableError) as raised:
        read(data, form)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("row", [FOCUS, CUR])
def test_an_hour_of_compute(row: dict[str, str]) -> None:
    bill = read(table(row))
    [line] = bill.lines
    assert (line.resource, line.kind, line.usd, line.hours) == ("i-0aaa", BillKind.COMPUTE, Fraction("55.04"), 1)
    assert (line.from_wall, line.to_wall - line.from_wall) == (parse_utc("2026-11-02T10:00:00Z"), NS_PER_HOUR)
    assert (bill.since, bill.until) == (parse_utc("2026-11-01"), parse_utc("2026-12-01")), "said, or the month"
    assert not line.committed


def test_a_byte_order_mark_and_spaces_are_no_part_of_anything() -> None:
    assert read(b"\xef\xbb\xbf" + table(CUR | {"lineItem/ResourceId": " i-0aaa "})).lines[0].resource == "i-0aaa"


@pytest.mark.parametrize(
    ("change", "kind", "committed"),
    [
        ({"ChargeCategory": "Tax"}, BillKind.TAX, False),
        ({"ChargeCategory": "Credit", "BilledCost": "-5"}, BillKind.CREDIT, False),
        ({"ChargeCategory": "Adjustment"}, BillKind.REFUND, False),
        ({"ChargeCategory": "Purchase"}, BillKind.PURCHASE, False),
        ({"ChargeCategory": "Purchase", "CommitmentDiscountId": "plan-1"}, BillKind.COMMITMENT, True),
        ({"ChargeClass": "Correction", "BilledCost": "-5", "PricingQuantity": "-1"}, BillKind.REFUND, False),
        ({"CommitmentDiscountId": "plan-1", "BilledCost": "0"}, BillKind.COMPUTE, True),
        ({"CommitmentDiscountId": "plan-1", "CommitmentDiscountStatus": "Unused"}, BillKind.COMMITMENT, True),
        ({"ServiceCategory": "Storage", "PricingUnit": "GB-Months"}, BillKind.STORAGE, False),
        ({"ResourceId": "vol-0bbb", "PricingUnit": "GB-Mo"}, BillKind.STORAGE, False),
        ({"ServiceCategory": "Networking", "PricingUnit": "GB"}, BillKind.EGRESS, False),
        ({"PricingUnit": "GB"}, BillKind.EGRESS, False),
        ({"PricingUnit": "Requests"}, BillKind.OTHER, False),
        ({"ServiceCategory": "Databases"}, BillKind.OTHER, False),
    ],
)
def test_kinds_of_focus_rows(change: dict[str, str], kind: BillKind, committed: bool) -> None:
    [line] = read(table(FOCUS | change)).lines
    assert (line.kind, line.committed) == (kind, committed)


@pytest.mark.parametrize(
    ("change", "kind", "committed"),
    [
        ({"lineItem/UsageType": "EU-SpotUsage:p5.48xlarge"}, BillKind.COMPUTE, False),
        ({"lineItem/LineItemType": "DiscountedUsage", "lineItem/UnblendedCost": "0"}, BillKind.COMPUTE, True),
        ({"lineItem/LineItemType": "SavingsPlanCoveredUsage"}, BillKind.COMPUTE, False),
        ({"lineItem/LineItemType": "SavingsPlanNegation", "lineItem/UnblendedCost": "-5"}, BillKind.COMMITMENT, False),
        ({"lineItem/LineItemType": "RIFee"}, BillKind.COMMITMENT, False),
        ({"lineItem/LineItemType": "Tax"}, BillKind.TAX, False),
        ({"lineItem/LineItemType": "Credit", "lineItem/UnblendedCost": "-5"}, BillKind.CREDIT, False),
        ({"lineItem/LineItemType": "Refund", "lineItem/UsageAmount": "-1"}, BillKind.REFUND, False),
        ({"lineItem/LineItemType": "EdpDiscount", "lineItem/UnblendedCost": "-5"}, BillKind.DISCOUNT, False),
        ({"lineItem/LineItemType": "Fee"}, BillKind.PURCHASE, False),
        ({"lineItem/UsageType": "EU-EBS:VolumeUsage.gp3", "lineItem/ResourceId": "vol-0bbb"}, BillKind.STORAGE, False),
        ({"lineItem/UsageType": "EU-DataTransfer-Out-Bytes", "pricing/unit": "GB"}, BillKind.EGRESS, False),
        ({"lineItem/UsageType": "EU-CPUCredits:t3", "pricing/unit": "vCPU-Hours"}, BillKind.OTHER, False),
        ({"lineItem/UsageType": ""}, BillKind.COMPUTE, False),
    ],
)
def test_kinds_of_cur_rows(change: dict[str, str], kind: BillKind, committed: bool) -> None:
    [line] = read(table(CUR | change)).lines
    assert (line.kind, line.committed) == (kind, committed)


@pytest.mark.parametrize(
    ("unit", "gb_months"),
    [("GB-Months", 1), ("GB-Mo", 1), ("GiB Month", 1), ("GB-Hours", Fraction(1, 730)), ("GB", None), ("IOPS-Mo", None)],
)
def test_a_disks_gigabyte_months_are_no_hours(unit: str, gb_months: Fraction | None) -> None:
    disk = {"ServiceCategory": "Storage", "PricingUnit": unit, "PricingQuantity": "1"}
    [line] = read(table(FOCUS | disk)).lines
    assert (line.hours, line.gb_months) == (None, gb_months)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_as_a_file_is(packed: bool) -> None:
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(table(CUR)) if packed else table(CUR))  # Less than a pipe holds.
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        assert read_bill(pipe, "bill.csv") == read(table(CUR))


def test_an_amount_keeps_every_digit() -> None:
    for text, exact in (("0.000000123456789", Fraction(123456789, 10**15)), ("1.25E-7", Fraction(125, 10**9))):
        assert read(table(CUR | {"lineItem/UnblendedCost": text})).lines[0].usd == exact


def test_the_generations_of_cur_are_read_alike() -> None:
    old, new = ((GOLDEN / name).read_bytes() for name in ("bill_cur.csv", "bill_cur2.csv"))
    assert read(old) == read(new)
    assert read(old).form == "AWS CUR"


def test_the_same_item_in_another_hour_is_no_duplicate() -> None:
    identity = {"identity/LineItemId": "a1", "identity/TimeInterval": "10"}
    assert len(read(table(CUR | identity, CUR | identity | {"identity/TimeInterval": "11"})).lines) == 2
    said = refusal(table(CUR | identity, CUR | identity | {"lineItem/UnblendedCost": "1"}))
    assert said == "bill.csv:3: identity/LineItemId: this row is there twice"


OPEN = "9999-12-31T23:59:59Z"


def test_what_has_no_end_is_billed_until_its_period_ends() -> None:
    [line] = read(table(FOCUS | {"ChargePeriodEnd": OPEN})).lines
    assert line.to_wall == line.billed_to == parse_utc("2026-12-01")
    bill = read(table(FOCUS | {"BillingPeriodEnd": OPEN}))
    assert (bill.since, bill.until) == (parse_utc("2026-11-01"), parse_utc("2026-12-01")), "as without one: the month"


WRONG: list[tuple[bytes, str]] = [
    (table(FOCUS | {"ChargePeriodStart": OPEN}),
     f'bill.csv:2: ChargePeriodStart: "{OPEN}" is no time of a bill, which lies from 1970 to 2261'),
    (table(FOCUS | {"BillingPeriodStart": "0001-01-01"}),
     'bill.csv:2: BillingPeriodStart: "0001-01-01" is no time of a bill, which lies from 1970 to 2261'),
    (table(CUR | {"lineItem/UsageAmount": "\u0661"}), 'bill.csv:2: lineItem/UsageAmount: "\u0661" is no number'),
    (b"", "bill.csv: the file is empty"),
    (table(FOCUS).split(b"\n")[0] + b"\n", "bill.csv: a header and no row"),
    (b"Date,Amount\n2026-11-02,5\n",
     "bill.csv:1: neither a FOCUS nor a CUR bill: say by --map which column is what: date=, amount=, hours=, "
     "resource="),
    (b"BilledCost,ResourceId\n1,i-0aaa\n",
     "bill.csv:1: no bill in the form FOCUS: it lacks BillingCurrency, ChargeCategory, ChargePeriodStart, "
     "ChargePeriodEnd, ServiceCategory"),
    (table({name: cell for name, cell in CUR.items() if name != "lineItem/ResourceId"}),
     "bill.csv:1: no bill in the form AWS CUR: it lacks lineItem/ResourceId"),
    (table(CUR, CUR), "bill.csv:3: row: this row is there twice"),
    (table(FOCUS | {"BillingCurrency": "EUR"}),
     'bill.csv:2: BillingCurrency: "EUR": the ledger is in USD; take the bill in that currency'),
    (table(FOCUS | {"BilledCost": "5,5"}), "bill.csv:2: 15 cells under 14 columns"),
    (table(FOCUS | {"BilledCost": "$5"}), 'bill.csv:2: BilledCost: "$5" is no number'),
    (table(FOCUS | {"BilledCost": "NaN"}), 'bill.csv:2: BilledCost: "NaN" is no number'),
    (table(FOCUS | {"BilledCost": "1e999"}), 'bill.csv:2: BilledCost: "1e999" is no number'),
    (table(FOCUS | {"BilledCost": "1e99"}),
     "bill.csv:2: BilledCost: 1e99 is more than any bill has: is this another column's?"),
    (table(FOCUS | {"BilledCost": ""}), 'bill.csv:2: BilledCost: "" is no number'),
    (table(FOCUS | {"PricingQuantity": "-1"}),
     "bill.csv:2: PricingQuantity: -1 is negative, and the row is neither a credit nor a refund"),
    (table(CUR | {"lineItem/UnblendedCost": "-1"}),
     "bill.csv:2: lineItem/UnblendedCost: -1 is negative, and the row is neither a credit nor a refund"),
    (table(FOCUS | {"ChargePeriodStart": "11/02/2026"}),
     'bill.csv:2: ChargePeriodStart: "11/02/2026" is not a UTC date; write for example "2026-11-21" or '
     '"2026-11-21T20:00:00Z"'),
    (table(FOCUS | {"ChargePeriodEnd": "2026-11-02T09:00:00Z"}),
     "bill.csv:2: ChargePeriodEnd: 2026-11-02T09:00:00Z is before 2026-11-02T10:00:00Z"),
    (table(FOCUS | {"BillingPeriodEnd": "2026-11-01T00:00:00Z"}),
     "bill.csv:2: BillingPeriodEnd: 2026-11-01T00:00:00Z is not later than 2026-11-01T00:00:00Z"),
    (table(FOCUS).replace(b"i-0aaa", b"i-\xff"), "bill.csv:1: not UTF-8 (byte 0xff, in this row or soon after)"),
    (b"\x1f\x8bnot gzip", "bill.csv: cannot be read: Unknown compression method"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "said"), WRONG, ids=[said[:60] for _, said in WRONG])
def test_what_is_wrong_is_one_line_with_its_place(data: bytes, said: str) -> None:
    assert refusal(data) == said


def test_a_form_that_was_named_is_not_guessed() -> None:
    assert refusal(table(FOCUS), "cur").startswith("bill.csv:1: no bill in the form AWS CUR: it lacks")


def test_a_bill_of_more_rows_than_fit_is_refused() -> None:
    bill = io.BytesIO(table(*(CUR | {"lineItem/ResourceId": f"i-{number}"} for number in range(3))))
    assert len(read_bill(bill, "bill.csv", Wanted(lines_max=3)).lines) == 3
    bill = io.BytesIO(table(*(CUR | {"lineItem/ResourceId": f"i-{number}"} for number in range(4))))
    with pytest.raises(TableError) as raised:
        read_bill(bill, "bill.csv", Wanted(lines_max=3))
    assert str(raised.value) == "bill.csv:5: more than 3 rows of machines of the ledger: take a part by --resource"


def test_equal_rows_of_focus_are_two_rows() -> None:
    tax = FOCUS | {"ChargeCategory": "Tax", "ResourceId": ""}
    assert [line.usd for line in read(table(tax, tax)).lines] == [Fraction("55.04")] * 2


@pytest.mark.parametrize(
    ("unit", "quantity", "hours", "gpu_hours"),
    [
        ("Seconds", "3600", 1, None), ("Minutes", "60", 1, None), ("GPU-Hours", "8", None, 8),
        ("vCPU-Hours", "96", None, None),
    ],
)  # fmt: skip
def test_units_of_a_machines_time(unit: str, quantity: str, hours: int | None, gpu_hours: int | None) -> None:
    for category in ("Compute", "AI and Machine Learning"):
        [line] = read(
            table(FOCUS | {"PricingUnit": unit, "PricingQuantity": quantity, "ServiceCategory": category})
        ).lines
        assert (line.hours, line.gpu_hours) == (hours, gpu_hours)
        is_compute = category == "Compute" and unit != "vCPU-Hours"
        assert (line.kind is BillKind.COMPUTE) == is_compute


class _Rows(io.RawIOBase):
    """A bill of so many rows, which are made while they are read."""

    def __init__(self, rows: int, machines: int) -> None:
        self._rows = (
            ",".join((FOCUS | {"ResourceId": f"i-{number % machines}"}).values()) + "\n" for number in range(rows)
        )
        self._ahead = (",".join(FOCUS) + "\n").encode()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while len(self._ahead) < len(buffer) and (row := next(self._rows, "")):
            self._ahead += row.encode()
        part, self._ahead = self._ahead[: len(buffer)], self._ahead[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def test_the_rows_of_others_take_no_memory_and_no_limit_counts_them() -> None:
    told: list[int] = []
    wanted = Wanted(ours={"i-7"}, lines_max=300, progress=told.append)
    tracemalloc.start()
    try:
        bill = read_bill(_Rows(6_000, 100), "bill.csv", wanted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (bill.rows, len(bill.lines), len(bill.apart)) == (6_000, 60, 99)
    assert sum((one.usd for one in bill.apart), Fraction(0)) == Fraction("55.04") * 5_940
    assert peak < 500_000, "all of them take 1.1 MB"
    only = Wanted(resources=("i-7",), lines_max=300)
    assert len(read_bill(_Rows(6_000, 100), "bill.csv", only).lines) == 60
