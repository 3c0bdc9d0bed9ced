"""A journal that holds charges, as a governor leaves it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from governor.adapters.journal.writer import open_journal
from governor.core.base.units import NS_PER_HOUR, UsdMicros, WallNs, parse_utc
from governor.core.money.charges import Charge, Line, LineKind, Payer, Place, Unit, charge_row

NODE = Place("node-1", "aws", "i-0aaa", "eu-west-1")
ON_DEMAND = Line(LineKind.COMPUTE, "p5.48xlarge on-demand", Unit.HOUR, 55_040_000, "table", "2026-06-01")
SPOT = Line(LineKind.COMPUTE, "p5.48xlarge spot", Unit.HOUR, 20_123_457, "spot history", "2026-11-03", "spot")
DISK = Line(LineKind.STORAGE, "vol-0bbb gp3 500 GB", Unit.HOUR, 60_274, "config", "2026-11-01")
ANNA = Payer("anna", "0", "stage1", (("team", "nlp"),))
BEN = Payer("ben", "0", None, (("team", "vision"),))


def charge(begin: str, hours: float = 1.0, payer: Payer = ANNA, line: Line = ON_DEMAND, **more: Any) -> Charge:
    """So many hours from then on, at the line's price, rounded down to the micro-dollar."""
    quantity = round(hours * NS_PER_HOUR)
    start = parse_utc(begin)
    place = more.pop("place", NODE)
    name = more.pop("charge_id", f"{place.node}/{begin}/{payer.run}/{line.name}")
    micros = more.pop("usd_micros", line.price_usd_micros * quantity // line.unit.base_units)
    end = WallNs(start + more.pop("length", quantity))
    return Charge(name, place, payer, line, start, end, quantity, UsdMicros(micros), **more)


def write_ledger(path: Path, charges: Iterable[Charge]) -> None:
    """By the journal itself, closed again."""
    journal, problem = open_journal(str(path), str(path.parent / "runtime"))
    assert problem is None
    assert journal.save_runs({}, [charge_row(one) for one in charges])
    journal.close()


def a_month() -> list[Charge]:
    """Two runs, two prices, a disk, an hour that was reconstructed, and thirds that no cent divides."""
    return [
        charge("2026-11-02T10:00:00Z"),
        charge("2026-11-02T11:00:00Z", 0.5),
        charge("2026-11-02T11:30:00Z", 0.5, BEN),
        charge("2026-11-03T23:30:00Z", 1.0, BEN, SPOT, reconstructed=True),
        charge("2026-11-04T02:00:00Z", 1 / 3, Payer(), SPOT),
        charge("2026-11-02T10:00:00Z", 24.0, ANNA, DISK),
    ]
