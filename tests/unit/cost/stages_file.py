"""Journals with stages in them: charges, and windows that were held against a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from governor.adapters.journal.writer import open_journal
from governor.core.base.units import NS_PER_HOUR, DurationNs, MonoNs, WallNs, parse_utc, usd
from governor.core.money.charges import Charge, Line, LineKind, Payer, Unit, charge_row
from governor.core.money.expected import ExpectedCost, WindowRow, window_row
from governor.core.money.token_windows import Window
from governor.ports import Row
from tests.unit.cost.ledger_file import charge

Told = tuple[str, WallNs, WindowRow]  # The run, and when its window closed.

START = "2026-11-02"


def spent(run: str, stage: str | None, usd_per_hour: str, hours: int, line: str = "node") -> list[Charge]:
    """A charge for each hour."""
    priced = Line(LineKind.COMPUTE, line, Unit.HOUR, usd(usd_per_hour), "contract", "2026-11-01")
    payer = Payer(run, "a1", stage) if run else Payer()
    start = parse_utc(START)
    whole = [charge(START, 1.0, payer, priced, charge_id=f"{run}/{stage}/{hour}") for hour in range(hours)]
    return [
        replace(one, from_wall=WallNs(start + hour * NS_PER_HOUR), to_wall=WallNs(start + (hour + 1) * NS_PER_HOUR))
        for hour, one in enumerate(whole)
    ]


def windows(
    run: str, stage: str | None, count: int, tokens: int, usd_each: str, hours_each: int, plan: ExpectedCost,
    wasted: Iterable[int] = (),
) -> list[Told]:  # fmt: skip
    """So many windows alike, one behind the other; `wasted`: of the first ones, tokens that were trained again."""
    again = list(wasted)
    told = []
    for index in range(count):
        duration = DurationNs(hours_each * NS_PER_HOUR)
        waste = again[index] if index < len(again) else 0
        start = plan.began_tokens + index * tokens
        window = Window(start, start + tokens, duration, usd(usd_each), waste)
        closed = WallNs(parse_utc(START) + (index + 1) * duration)
        told.append((run, closed, WindowRow(stage, "a1", window, plan)))
    return told


def write_stages(
    path: Path, charges: Iterable[Charge], told: Iterable[Told], runs: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """By the journal itself, closed again. `runs` are snapshots."""
    journal, problem = open_journal(str(path), str(path.parent / "runtime"))
    assert problem is None
    rows = [Row("window", run, None, MonoNs(0), wall, "boot-1", window_row(row)) for run, wall, row in told]
    assert journal.save_runs(runs or {}, [charge_row(one) for one in charges], rows)
    journal.close()
