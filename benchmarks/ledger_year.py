"""A year of one node's ledger, by the governor's own charge book and journal: what the benchmark reads.

Ten thousand runs, their charges cut at full hours and where a run begins or ends. One at a time: one after the other,
53 minutes each. Eight at a time: each holds one GPU of eight for seven hours beside seven others, all year. The spot
price moves every day; a disk is billed beside the machine; one hour in two hundred was reconstructed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from governor.adapters.journal.writer import open_journal
from governor.core.base.units import NS_PER_HOUR, DurationNs, WallNs, accrue, date_text, parse_utc
from governor.core.money.charges import Charge, ChargeBook, Line, LineKind, Part, Payer, Place, Unit, charge_row
from governor.core.money.lines import share_out

BEGIN: Final = parse_utc("2025-01-01")
YEAR_NS: Final = 365 * 24 * NS_PER_HOUR
RUNS: Final = 10_000
COMMIT_CHARGES: Final = 500
PLACE: Final = Place("bench", "aws", "i-0123456789abcdef0", "eu-west-1")
STAGES: Final = ("stage1-1b-dense", "stage2-3b-moe-small", "stage3-8b-dense-deep", "stage4-70b-moe-large", None)
TEAMS: Final = ("nlp", "vision", "speech")
DISK_USD_MICROS_PER_HOUR: Final = 219_178


@dataclass(frozen=True)
class Year:
    """What was written, by another way of adding up: what every answer has to come to."""

    at_a_time: int
    charges: int
    usd_micros: int
    bytes: int


def payer_of(number: int) -> Payer:
    labels = (("owner", f"person-{number % 40}"), ("team", TEAMS[number % len(TEAMS)]))
    return Payer(f"sweep-{number // 100:03d}-{number:05d}", "1", STAGES[number % len(STAGES)], labels)


def write_year(path: Path, *, at_a_time: int, runs: int = RUNS) -> Year:
    """Write the journal at `path`, closed again."""
    journal, problem = open_journal(str(path), str(path.parent / "runtime"))
    assert problem is None, problem
    count = amount = 0
    waiting: list[Charge] = []
    try:
        for one in charges_of_a_year(at_a_time, runs):
            count += 1
            amount += one.usd_micros
            waiting.append(one)
            if len(waiting) == COMMIT_CHARGES:
                journal.save_runs({}, [charge_row(charge) for charge in waiting])
                journal.rows(last=0)  # Answered behind the commit: nothing piles up.
                waiting.clear()
        journal.save_runs({}, [charge_row(charge) for charge in waiting])
    finally:
        journal.close()
    assert journal.errors_total == 0, "the journal took every charge"
    return Year(at_a_time, count, amount, path.stat().st_size)


def charges_of_a_year(at_a_time: int, runs: int) -> Iterator[Charge]:
    """Closed charges in the order of their ends."""
    book = ChargeBook(PLACE, WallNs(BEGIN))
    lasts = YEAR_NS * at_a_time // runs  # Of each run; the slots change runs one after the other.
    carries = {LineKind.COMPUTE: 0, LineKind.STORAGE: 0}
    at = 0
    while at < YEAR_NS:
        slots = [(slot, (at + slot * lasts // at_a_time) // lasts) for slot in range(at_a_time)]
        holders = {payer_of(slot * runs // at_a_time + number): 1 for slot, number in slots}
        hour = at // NS_PER_HOUR
        changes = [(number + 1) * lasts - slot * lasts // at_a_time for slot, number in slots]
        until = min(YEAR_NS, (hour + 1) * NS_PER_HOUR, *changes)
        day = date_text(WallNs(BEGIN + at))
        spot = 21_000_000 + hour // 24 * 7_919 % 9_000_000
        lines = (
            Line(LineKind.COMPUTE, "p5.48xlarge spot", Unit.HOUR, spot, "aws spot price history", day),
            Line(LineKind.STORAGE, "vol-0bbb gp3 2 TB", Unit.HOUR, DISK_USD_MICROS_PER_HOUR, "config", "2025-01-01"),
        )
        yield from book.close_all_but({payer.run for payer in holders})
        for line in lines:
            micros, carries[line.kind] = accrue(line.price_usd_micros, until - at, carries[line.kind])
            by_run = {payer.run: weight for payer, weight in holders.items()}
            amounts, quantities = share_out(micros, by_run), share_out(until - at, by_run)
            parts = [Part(payer, quantities[payer.run], amounts[payer.run]) for payer in holders]
            begun, elapsed = WallNs(BEGIN + at), DurationNs(until - at)
            yield from book.add(line, begun, elapsed, parts, reconstructed=hour % 200 == 199)
        at = until
    yield from book.close_all_but(())
