"""The built-in prices: every row is read again, and what is found for a machine is what a person would find."""

from __future__ import annotations

import csv
import fnmatch
import re
import tomllib
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from governor.core.money.prices import Day, Machine, Origin, PriceKind, choose, span_of
from governor.wire.price_table import (
    COLUMNS,
    FILE,
    PriceTable,
    PriceTableError,
    built_in,
    look_up,
    parse_table,
    select,
)

ROOT = Path(__file__).parents[3]
HEAD = "# A table.\n# compiled: 2026-11-20\n# rows: {rows}\n" + ",".join(COLUMNS) + "\n"
ROW = "Acme,big.8x,H100-SXM-80GB,8,16.0,2.0,on-demand,2026-10-01,a page,https://acme.example/prices,"


def table(*rows: str) -> PriceTable:
    return parse_table(HEAD.format(rows=len(rows)) + "\n".join(rows) + "\n", "t.csv")


def test_every_row_of_the_built_in_table_is_what_the_file_says() -> None:
    """Read a second time, by other means."""
    text = (ROOT / FILE).read_text(encoding="utf-8")
    plain = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    rows, found = list(plain), built_in()
    assert len(rows) == len(found.rows) > 100
    for ours, theirs in zip(found.rows, rows, strict=True):
        assert ours.usd_micros_per_hour == Decimal(theirs["usd_per_instance_hour"]) * 10**6
        assert (ours.provider, ours.instance, ours.gpu) == (theirs["provider"], theirs["instance"], theirs["gpu"])
        assert (ours.date, ours.source, ours.gpus) == (theirs["date"], theirs["source"], int(theirs["gpus"]))
        assert (ours.kind is None) is (theirs["kind"] in ("index", "range", "serverless"))
        assert ours.source.strip()
        assert (ours.url, ours.notes) == (theirs["url"], theirs["notes"])
        first, last = span_of(ours.date)
        assert date(2024, 1, 1) <= date.fromordinal(first + date(1970, 1, 1).toordinal())
        assert first <= last
        assert first <= found.compiled
    assert {"2025-2026", "2025", "2026", "2026-05", "2026-03-17"} <= {row.date for row in found.rows}
    assert text.splitlines()[found.rows[0].row - 1].startswith(found.rows[0].provider)


def test_every_row_can_be_checked_by_who_reads_it() -> None:
    """The address of a page or a file, not of a front door; and no two rows say different things of one machine."""
    said: dict[tuple[object, ...], int] = {}
    for row in built_in().rows:
        assert re.fullmatch(r"https://[\w-]+(\.[\w-]+)+/[^\s,]+", row.url), row
        what = (row.provider, row.instance, row.gpu, row.gpus, row.kind_text, row.date, row.notes)
        assert said.setdefault(what, row.usd_micros_per_hour) == row.usd_micros_per_hour, row


def test_no_note_speaks_of_another_gpu() -> None:
    """RunPod's B200 had the note of its H100, and Lambda's A100 that of its eight H100."""
    known = {word for row in built_in().rows for word in _models(row.gpu)}
    assert {"A100", "B200", "H100", "L40S", "RTX4090"} <= known
    for row in built_in().rows:
        assert not (_models(row.notes) & known) - _models(row.gpu), row


def _models(text: str) -> set[str]:
    return set(re.findall(r"(?<![A-Z0-9])(?:RTX|[A-Z]{1,2})\d{1,4}[A-Z]?(?![A-Z0-9])", text.upper()))


def test_no_row_has_a_price_that_is_known_to_be_gone() -> None:
    """AWS cut p5 from $98.32 in June 2025: a row of the price before it was found by GPU."""
    p5 = [row for row in built_in().rows if row.instance.startswith("p5.48")]
    assert {(row.kind, row.usd_micros_per_hour) for row in p5} == {
        (PriceKind.ON_DEMAND, 55_040_000),
        (PriceKind.RESERVED, 39_330_000),
        (PriceKind.SPOT, 25_752_200),
    }
    assert not [row for row in built_in().rows if "(pre" in row.instance or "(after" in row.instance]


@pytest.mark.parametrize(("series", "sizes", "usd_micros_per_gpu"), [
    (r"Standard_NC\d+ads_A100_v4", 3, 3_673_000),
    (r"Standard_NC\d+adi?s_H100_v5", 2, 6_980_000),
])  # fmt: skip
def test_no_azure_row_has_the_price_of_windows(series: str, sizes: int, usd_micros_per_gpu: int) -> None:
    """Windows adds $0.046 an hour and vCPU: three rows had it, 26 to 30 % above what Linux costs."""
    rows = [row for row in built_in().rows if re.fullmatch(series, row.instance) and row.kind is PriceKind.ON_DEMAND]
    assert len({row.instance for row in rows}) == sizes
    assert {row.usd_micros_per_hour / row.gpus for row in rows} == {usd_micros_per_gpu}


def test_the_wheel_carries_the_table() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["governor"]
    assert any(fnmatch.fnmatch(FILE.removeprefix("governor/"), pattern) for pattern in patterns)


@pytest.mark.parametrize(("machine", "usd", "as_of"), [
    (Machine("aws", "p5.48xlarge"), "55.04", "2026-11-09"),  # Not the 98.32 of before June 2025.
    (Machine("AWS", "P4D.24xlarge", kind=PriceKind.ON_DEMAND), "21.957642", "2026-11-09"),
    (Machine("aws", "p6-b300.48xlarge"), "142.416", "2026-08-26"),
    (Machine("aws", None, "NVIDIA H100 80GB HBM3", 1), "6.88", "2026-08-26"),  # p5.4xlarge.
    (Machine("aws", None, "NVIDIA L4", 8), "13.3504", "2026-08-26"),
    (Machine("lambda", "gpu_8x_h100_sxm5"), "31.92", "2026-09-20"),  # Not the 23.92 of 2025.
    (Machine("lambda", "gpu_8x_b200_sxm6"), "53.52", "2026-09-20"),
    (Machine("gcp", "a3-highgpu-8g"), "88.49", "2026-10-10"),
    (Machine("gcp", "a3-highgpu-8g", kind=PriceKind.SPOT), "50.3153", "2026-10-10"),
    (Machine("gcp", "a4-highgpu-8g", kind=PriceKind.SPOT), "39.6336", "2026-10-10"),
    (Machine("gcp", "a2-highgpu-8g", kind=PriceKind.SPOT), "17.6321", "2026-10-10"),
    (Machine("nebius", "gpu-h100-sxm_8gpu"), "36.0", "2026-10-24"),
    (Machine("nebius", "gpu-h100-sxm_8gpu", kind=PriceKind.SPOT), "17.2", "2026-09-20"),
    (Machine("azure", "standard_nd96isr_h100_v5"), "98.32", "2026-11-09"),
    (Machine("azure", None, "NVIDIA H100 NVL", 2), "13.96", "2026-10-10"),
    (Machine("azure", "Standard_ND96isr_H200_v5"), "84.8", "2026-10-10"),
    (Machine("azure", "standard_nc40ads_h100_v5", kind=PriceKind.SPOT), "1.2899", "2026-10-10"),
    (Machine("aws capacity blocks", "p5.48xlarge", kind=PriceKind.RESERVED), "39.33", "2024"),
    (Machine("aws capacity blocks", "p5en.48xlarge", kind=PriceKind.RESERVED), "63.158", "2026-10-09"),
    (Machine("aws capacity blocks", "trn2.48xlarge", kind=PriceKind.RESERVED), "35.7608", "2026-10-09"),
    (Machine("aws", "p4d.24xlarge", kind=PriceKind.SPOT), "8.1915", "2025-2026"),
    (Machine("coreweave", None, "NVIDIA H200", 8), "50.44", "2026-09-20"),
    (Machine("oci", "bm.gpu.h100.8"), "80", "2026"),
    (Machine("digitalocean", None, "NVIDIA H100 80GB HBM3", 8), "35.28", "2026-10-01"),  # Not the 23.92 of May.
    (Machine("scaleway", None, "NVIDIA H100 80GB HBM3", 2), "7.2508", "2026-10-01"),
    (Machine("vultr", None, "NVIDIA L40S", 1), "1.671", "2026-10-01"),
    (Machine("verda", "unheard-of", "NVIDIA A100-SXM4-80GB", 8), "9.28", "2025-2026"),
    (Machine("runpod", None, "NVIDIA H100 80GB HBM3", 8), "31.92", "2026-11-09"),  # 8 x 3.99, the Secure Cloud's.
    (Machine("runpod", None, "NVIDIA GeForce RTX 4090", 1), "0.74", "2026-09-25"),
])  # fmt: skip
def test_a_machine_is_found_by_its_type_else_by_its_gpus(machine: Machine, usd: str, as_of: str) -> None:
    quote = look_up(built_in(), machine)
    assert quote is not None
    assert quote.usd_micros_per_hour == Decimal(usd) * 10**6
    assert (quote.as_of, quote.kind, quote.origin) == (as_of, machine.kind or PriceKind.ON_DEMAND, Origin.TABLE)
    assert "built-in table" in quote.source


@pytest.mark.parametrize("machine", [
    Machine("aws", "trn1.32xlarge", kind=PriceKind.SPOT),  # The on-demand price is not taken for it.
    Machine("aws", "p99.48xlarge"),
    Machine("aws", "p5e.48xlarge"),  # Sold by the block and as spot only.
    Machine("nobody", "p5.48xlarge"),
    Machine("aws", None, "NVIDIA H100 80GB HBM3"),
    Machine("aws"),
    Machine("Market median", None, "H100-SXM-80GB", 1),
    Machine("Range low", None, "H100-SXM-80GB", 1),
    Machine("RunPod serverless", None, "B200", 1),
])  # fmt: skip
def test_what_is_not_in_it_is_not_made_up(machine: Machine) -> None:
    assert look_up(built_in(), machine) is None


def test_indices_and_ranges_are_never_a_price() -> None:
    for row in built_in().rows:
        if row.kind is None:
            for kind in PriceKind:
                machine = Machine(row.provider, row.instance or None, row.gpu, row.gpus, kind)
                assert look_up(built_in(), machine) is None, row


def test_the_newest_row_counts_and_of_two_of_one_day_the_dearer() -> None:
    rows = [
        ROW.replace("2026-10-01", "2026").replace("16.0,2.0", "24.0,3.0"),
        ROW,
        ROW.replace("16.0,2.0", "16.8,2.1"),
        ROW.replace("2026-10-01", "2025").replace("16.0,2.0", "32.0,4.0"),
    ]
    quote = look_up(table(*rows), Machine("acme", "big.8x"))
    assert quote is not None
    assert (quote.usd_micros_per_hour, quote.as_of) == (16_800_000, "2026-10-01")


def test_one_gpu_of_many_costs_its_part_rounded_up() -> None:
    quote = look_up(table(ROW.replace("16.0,2.0", "16.000001,2.0")), Machine("acme", None, "H100-SXM-80GB", 1))
    assert quote is not None
    assert (quote.usd_micros_per_hour, quote.gpus) == (2_000_001, 1)


def test_a_row_is_as_old_as_the_first_day_of_its_range() -> None:
    quote = look_up(built_in(), Machine("verda", "1B300.30V"))
    assert quote is not None
    assert quote.as_of == "2025-2026"
    chosen = choose([], None, quote, Day(span_of("2026-11-20")[0]))
    assert (chosen.age_days, chosen.is_stale) == (688, True)


def test_a_range_is_no_newer_than_a_day_after_it_began() -> None:
    rows = [
        ROW.replace("2026-10-01", "2025-2026").replace("16.0,2.0", "32.0,4.0"),
        ROW.replace("2026-10-01", "2025-06"),
    ]
    quote = look_up(table(*rows), Machine("acme", "big.8x"))
    assert quote is not None
    assert (quote.usd_micros_per_hour, quote.as_of) == (16_000_000, "2025-06")


@pytest.mark.parametrize(("row", "told"), [
    (ROW.replace("Acme", ""), "t.csv:5: provider: is empty"),
    (ROW.replace("a page", " "), "t.csv:5: source: is empty"),
    (ROW.replace("https://acme.example/prices", ""), "t.csv:5: url: must be the https:// address"),
    (ROW.replace("https://acme.example/prices", "a compilation"), "t.csv:5: url: must be the https:// address"),
    (ROW.replace(",8,", ",eight,"), "t.csv:5: gpus: must be a number from 1 to 16"),
    (ROW.replace(",8,16.0,2.0", ",17,34.0,2.0"), "t.csv:5: gpus: must be"),
    (ROW.replace("16.0", "much"), 't.csv:5: usd_per_instance_hour: "much" is not an amount in dollars'),
    (ROW.replace("16.0", "0"), "t.csv:5: usd_per_instance_hour: must be above 0"),
    (ROW.replace("16.0", "-16"), 't.csv:5: usd_per_instance_hour: "-16" is not an amount in dollars'),
    (ROW.replace("16.0", "inf"), 't.csv:5: usd_per_instance_hour: "inf" is not an amount in dollars'),
    (ROW.replace("16.0", "16.0000001"), "t.csv:5: usd_per_instance_hour: is finer than a micro-dollar"),
    (ROW.replace("2.0", "nan"), 't.csv:5: usd_per_gpu_hour: "nan" is not an amount in dollars'),
    (ROW.replace("2.0", "2.1"), "t.csv:5: usd_per_gpu_hour: 8 x 2.1 is not 16.0"),
    (ROW.replace("on-demand", "cheap"), "t.csv:5: kind: must be one of on-demand, spot"),
    (ROW.replace("2026-10-01", "lately"), 't.csv:5: date: "lately" is not a date'),
    (ROW.replace("2026-10-01", "2026-11-21"), "t.csv:5: date: lies after the day"),
    (ROW + ",more", "t.csv:5: has 12 columns, must have 11"),
])  # fmt: skip
def test_a_fault_is_named_by_file_row_and_column(row: str, told: str) -> None:
    with pytest.raises(PriceTableError) as error:
        table(row)
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "told"), [
    ("", "must begin with"),
    ("# compiled: 2026-11-20\n# rows: 0\n", "must begin with"),
    (HEAD.format(rows=2) + ROW + "\n", "has 1 rows where its head says 2"),
    (HEAD.format(rows="many") + ROW + "\n", '"compiled: DAY"'),
    (HEAD.format(rows=1).replace("2026-11-20", "2026") + ROW + "\n", "must be a day"),
    (HEAD.format(rows=1).replace("# compiled: 2026-11-20\n", "") + ROW + "\n", '"compiled: DAY"'),
    (HEAD.format(rows=1).replace("gpus,", "") + ROW + "\n", "t.csv:4: the columns must be"),
])  # fmt: skip
def test_a_damaged_head_is_named(text: str, told: str) -> None:
    with pytest.raises(PriceTableError) as error:
        parse_table(text, "t.csv")
    assert told in str(error.value)


def test_rows_to_show_are_chosen_by_provider_and_by_a_part_of_the_type() -> None:
    shown = list(select(built_in(), "aws", "p5.48"))
    assert {row.provider for row in shown} == {"AWS"}
    assert [row.kind for row in shown] == [PriceKind.ON_DEMAND, PriceKind.SPOT]
    assert (
        len(list(select(built_in(), "Verda (DataCrunch)", None))) == len(list(select(built_in(), "verda", None))) > 20
    )
    assert {row.provider for row in select(built_in(), None, "b200")} > {"AWS", "Nebius"}


def test_what_the_page_says_has_no_row_has_none() -> None:
    theirs = [row for row in built_in().rows if row.provider.startswith("OVH")]
    assert not theirs, "docs/generators/prices_page.py says that the one list found has no date"
