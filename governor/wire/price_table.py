"""The built-in price table, governor/data/prices.csv: every row has its date, its source and its address.

A dated list price is the last resort: `governor.core.money.prices.choose` takes it only if neither the provider nor
the user has stated one.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Final, NoReturn

from governor.core.base.units import MICROS_PER_USD, UsdMicros, is_whole, read_amount
from governor.core.money.prices import GPUS_MAX, Day, Machine, Origin, PriceKind, Quote, span_of

FILE: Final = "governor/data/prices.csv"
COLUMNS: Final = (
    *("provider", "instance", "gpu", "gpus", "usd_per_instance_hour", "usd_per_gpu_hour"),
    *("kind", "date", "source", "url", "notes"),
)
# The last three are for orientation: an index and a range are not prices of a machine, and serverless is no machine.
KINDS: Final[dict[str, PriceKind | None]] = {
    "on-demand": PriceKind.ON_DEMAND,
    "spot": PriceKind.SPOT,
    "reserved-short": PriceKind.RESERVED,
    "serverless": None,
    "index": None,
    "range": None,
}
# A GPU's name in NVML (and at providers that repeat it) -> its name in the table.
_NVML_NAMES: Final = {
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "NVIDIA H100 PCIe": "H100-PCIe-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA B200": "B200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB200": "GB200",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA RTX A6000": "A6000",
    "NVIDIA GeForce RTX 3090": "RTX3090",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA L4": "L4",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
}


class PriceTableError(ValueError):
    """The table cannot be read. The message has the file, the row as an editor counts, the column and the fault."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    row: int
    provider: str
    # May be empty; then the row is about the GPU.
    instance: str
    gpu: str
    gpus: int
    usd_micros_per_hour: UsdMicros  # For all its GPUs.
    kind_text: str
    kind: PriceKind | None  # None: never a machine's price.
    date: str  # The source's own words: "2026-11-09", "2025", "2025-2026".
    source: str  # A short name.
    url: str  # Of the page or the file that was read.
    notes: str


@dataclass(frozen=True, slots=True)
class PriceTable:
    compiled: Day  # No row is newer than this.
    compiled_text: str
    rows: tuple[PriceRow, ...]


@cache
def built_in() -> PriceTable:
    """The table of this installation. PriceTableError: the installation is damaged."""
    try:
        text = (importlib.resources.files("governor") / "data" / "prices.csv").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PriceTableError(f"{FILE}: cannot be read ({type(error).__name__}); reinstall costgov") from error
    return parse_table(text)


def parse_table(text: str, file: str = FILE) -> PriceTable:
    """Read the table: "#" lines with `compiled` and `rows`, the columns, the rows. Raises PriceTableError."""
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("#")]
    manifest = dict(line[1:].split(": ", 1) for line in head if ": " in line)
    manifest = {name.strip(): said.strip() for name, said in manifest.items()}
    body = lines[len(head) :]
    if lines[: len(head)] != head or not body:
        raise PriceTableError(f'{file}: must begin with its "#" lines and have columns below them')
    if tuple(next(csv.reader(body[:1]))) != COLUMNS:
        raise PriceTableError(f"{file}:{len(head) + 1}: the columns must be {','.join(COLUMNS)}")
    try:
        compiled_text = manifest["compiled"]
        compiled, last = span_of(compiled_text)
        count = int(manifest["rows"] if is_whole(manifest["rows"]) else "")
    except (KeyError, ValueError) as error:
        raise PriceTableError(f'{file}: the "#" lines must have "compiled: DAY" and "rows: COUNT"') from error
    if compiled != last:
        raise PriceTableError(f"{file}: compiled: must be a day such as 2026-11-20")
    rows = tuple(
        _row(file, number, fields, compiled)
        for number, fields in enumerate(csv.reader(body[1:]), len(head) + 2)
    )  # fmt: skip
    if len(rows) != count:
        raise PriceTableError(f"{file}: has {len(rows)} rows where its head says {count}: is a part missing?")
    return PriceTable(compiled, compiled_text, rows)


def _row(file: str, number: int, fields: Sequence[str], compiled: Day) -> PriceRow:
    def wrong(column: str, why: str) -> NoReturn:
        raise PriceTableError(f"{file}:{number}: {column}: {why}")

    if len(fields) != len(COLUMNS):
        raise PriceTableError(f"{file}:{number}: has {len(fields)} columns, must have {len(COLUMNS)}")
    value = dict(zip(COLUMNS, fields, strict=True))
    for column in ("provider", "gpu", "source"):
        if not value[column].strip():
            wrong(column, "is empty")
    is_short = is_whole(value["gpus"]) and len(value["gpus"]) <= len(str(GPUS_MAX))
    if not is_short or not 1 <= int(value["gpus"]) <= GPUS_MAX:
        wrong("gpus", f"must be a number from 1 to {GPUS_MAX}")
    gpus = int(value["gpus"])
    whole = _usd(value["usd_per_instance_hour"], lambda why: wrong("usd_per_instance_hour", why))
    each = _usd(value["usd_per_gpu_hour"], lambda why: wrong("usd_per_gpu_hour", why))
    if abs(whole - each * gpus) > _last_digit(each) * gpus / 2 + _last_digit(whole) / 2:
        wrong("usd_per_gpu_hour", f"{gpus} x {each} is not {whole}")
    if not value["url"].startswith("https://"):
        wrong("url", "must be the https:// address of the page or the file that was read")
    if value["kind"] not in KINDS:
        wrong("kind", f"must be one of {', '.join(KINDS)}")
    try:
        first, _ = span_of(value["date"])
    except ValueError as error:
        wrong("date", str(error))
    if first > compiled:
        wrong("date", "lies after the day on which the table was compiled")
    micros = whole * MICROS_PER_USD
    if micros != int(micros):
        wrong("usd_per_instance_hour", "is finer than a micro-dollar")
    return PriceRow(
        number, value["provider"], value["instance"], value["gpu"], gpus, UsdMicros(int(micros)),
        value["kind"], KINDS[value["kind"]], value["date"], value["source"], value["url"], value["notes"],
    )  # fmt: skip


def _usd(text: str, wrong: Callable[[str], NoReturn]) -> Decimal:
    try:
        value = Decimal(read_amount(text))
    except ValueError as error:
        wrong(str(error))
    if not 0 < value < MICROS_PER_USD:
        wrong("must be above 0 and below a million")
    return value


def _last_digit(value: Decimal) -> Decimal:
    """The value of one unit in the last digit written, at most a cent: 6.88 was rounded to 0.01, and so was 2.5."""
    exponent = value.as_tuple().exponent
    return Decimal(1).scaleb(min(-2, exponent if isinstance(exponent, int) else 0))


def look_up(table: PriceTable, machine: Machine) -> Quote | None:
    """The newest price of that kind: by instance type, else by the same number of such GPUs, else by another number.

    A date counts by its first day: "2026-05" is newer than "2026", and "2026" than "2025-2026". The highest of several
    prices of one day is taken, so that a ceiling holds.
    """
    kind = machine.kind or PriceKind.ON_DEMAND
    rows = [row for row in table.rows if row.kind is kind and key(row.provider) == key(machine.provider)]
    if machine.instance is not None:
        found = [row for row in rows if row.instance and key(row.instance) == key(machine.instance)]
        if found:
            return _quote(_newest(found), None)
    if machine.gpu is None or machine.gpus is None:
        return None
    gpu = key(_NVML_NAMES.get(machine.gpu, machine.gpu))
    rows = [row for row in rows if key(row.gpu) == gpu]
    exact = [row for row in rows if row.gpus == machine.gpus]
    found = exact or rows
    return _quote(_newest(found), machine.gpus) if found else None


def _newest(rows: list[PriceRow]) -> PriceRow:
    return max(rows, key=lambda row: (span_of(row.date)[0], Fraction(row.usd_micros_per_hour, row.gpus)))


def _quote(row: PriceRow, gpus: int | None) -> Quote:
    assert row.kind is not None, "a row that is no price was looked up"
    price, basis = row.usd_micros_per_hour, row.instance or f"{row.gpus} x {row.gpu}"
    if gpus is not None and gpus != row.gpus:
        price = UsdMicros(-(-price * gpus // row.gpus))
        basis = f"{gpus} x {row.gpu}, by the price of {row.gpus}"
    notes = f" ({row.notes})" if row.notes else ""
    return Quote(
        price, f"built-in table: {row.provider}, {row.source}", row.date, row.kind, f"{basis}{notes}", Origin.TABLE,
        gpus or row.gpus,
    )  # fmt: skip


def key(name: str) -> str:
    """A name for comparison: case and text in brackets are ignored, as in "p5.48xlarge (after cut)"."""
    return name.partition(" (")[0].strip().casefold()


def select(table: PriceTable, provider: str | None, instance: str | None) -> Iterator[PriceRow]:
    """The rows to show: of one provider, and of instance types or GPUs whose name contains a text."""
    for row in table.rows:
        if provider is not None and key(provider) not in (key(row.provider), row.provider.casefold()):
            continue
        if instance is not None and instance.casefold() not in f"{row.instance}\n{row.gpu}".casefold():
            continue
        yield row
