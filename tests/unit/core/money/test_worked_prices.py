"""Whole runs, worked out by hand: price times hours, by the ledger and its charges, however often read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs, accrue, usd
from governor.core.money.charges import ChargeBook, Part, Payer, Place
from governor.core.money.ledger import new_ledger
from governor.core.money.lines import Metered
from governor.core.money.prices import Day, Origin, PriceKind, Quote, choose, span_of
from governor.core.money.token_price import whole_micros
from governor.core.money.token_windows import TokenMeter

TODAY = Day(span_of("2026-11-21")[0])
WALL = WallNs(1_800_000_000 * NS_PER_S)


@dataclass(frozen=True)
class Worked:
    name: str
    usd_per_hour: str  # Of the machine.
    hours: int
    total_usd: str


EXAMPLES = [
    Worked("1 x H100 at $2.50", "2.50", 38, "95.00"),
    Worked("1 x H100 at $2.50, tuned", "2.50", 22, "55.00"),
    Worked("8 x H100 at $7.92 for the node", "7.92", 40, "316.80"),
    Worked("4 x A100-40, ZeRO-3, $1.20 a GPU", "4.80", 20, "96.00"),
    Worked("2 x H100, FSDP, $2.50 a GPU", "5.00", 20, "100.00"),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_run_costs_its_price_times_its_hours(example: Worked) -> None:
    quote = Quote(usd(example.usd_per_hour), "contract", "2026-11-01", PriceKind.ON_DEMAND, "", Origin.CONFIG)
    chosen = choose([], quote, None, TODAY)
    price, line = chosen.usd_micros_per_hour, chosen.line(example.name)
    assert price is not None
    assert line is not None
    total = usd(example.total_usd)
    assert accrue(price, example.hours * NS_PER_HOUR, 0) == (total, 0)

    ledger, carry, at = new_ledger(Metered(line), BootNs(0), Place("node"), WALL), 0, 0
    book, payer = ChargeBook(Place("node"), WALL), Payer("run", "0")  # Beside the ledger's own.
    closed = []
    ends = example.hours * NS_PER_HOUR
    step = 37 * NS_PER_S + 123_456_789  # No divisor of anything.
    while at < ends:
        elapsed = min(step, ends - at)
        micros, carry = accrue(price, elapsed, carry)
        parts = [Part(payer, elapsed, micros)]
        closed += book.add(line, WallNs(WALL + at), DurationNs(elapsed), parts)
        at += elapsed
        ledger.charge(BootNs(at), WALL, {"run": 1}, {"run": payer})
    charges = [*closed, *book.open_charges()]
    assert list(ledger.take_charges()) == charges, "split by split, and by one accrue()"
    assert ledger.spend("run") == total
    assert sum(charge.usd_micros for charge in charges) == total
    assert sum(charge.quantity for charge in charges) == ends
    assert {charge.line.as_of for charge in charges} == {"2026-11-01"}


def test_what_a_million_tokens_cost() -> None:
    """$316.80 for 51.6B tokens: 316.80 / 51,600 = $0.006139 for each million."""
    meter = TokenMeter(window_tokens=51_600_000_000)
    meter.begin(0, UsdMicros(0), BootNs(0))
    meter.add(51_600_000_000, 0, usd("316.80"), BootNs(NS_PER_HOUR))
    assert whole_micros(meter.per_mtok) == 6_139
    assert UsdMicros(6_139 * 51_600 // 1_000_000) == 316  # Dollars again, but for what was cut off.
