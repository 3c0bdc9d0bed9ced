"""What was billed after a halt's end, where our own ledger goes on after it: a lie, a start, or a reconstructed gap."""

from __future__ import annotations

from fractions import Fraction

import pytest

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, parse_utc, utc_text
from governor.core.money.charges import Charge
from governor.core.money.reports.audit import Audited, Halted, audit
from governor.core.money.reports.bill import Bill, BillKind, BillLine
from tests.unit.cost.ledger_file import charge

BEGIN, END = parse_utc("2026-11-02"), parse_utc("2026-11-03")
PRICE = Fraction("55.04")


def at(hour: float) -> int:
    return BEGIN + round(hour * NS_PER_HOUR)


def on(since: float, until: float, *, reconstructed: bool = False) -> Charge:
    return charge(utc_text(at(since)), until - since, reconstructed=reconstructed)


def billed(since: float, until: float, hours: int) -> BillLine:
    return BillLine("i-0aaa", BillKind.COMPUTE, at(since), at(until), BEGIN, END, PRICE * hours, Fraction(hours))


def after(verified: float, lines: list[BillLine], own: list[Charge]) -> Audited:
    halted = Halted("x.node-1.1", "x", "i-0aaa", at(verified) - 7 * NS_PER_S, at(verified))
    [found] = audit([halted], Bill("FOCUS", tuple(lines), BEGIN, END), own)
    return found


def sums(found: Audited) -> tuple[int | None, list[tuple[Fraction, Fraction | None]], bool]:
    return found.until_wall, [(part.usd, part.hours) for part in found.billed], found.agrees


EIGHT_HOURS = [billed(hour, hour + 1, 1) for hour in range(8)]


@pytest.mark.parametrize("lines", [EIGHT_HOURS, [billed(0, 24, 8)]], ids=["by the hour", "by the day"])
@pytest.mark.parametrize("went_on_min", [0, 1, 20, 300])
def test_a_governor_that_metered_on_acquits_nobody(lines: list[BillLine], went_on_min: int) -> None:
    own = [on(0, 1), on(1, 3), *([on(3, 3 + went_on_min / 60)] if went_on_min else [])]
    assert sums(after(3, lines, own)) == (None, [(Fraction("275.20"), Fraction(5))], False), "8 h billed, 3 h of use"


def test_no_more_hours_are_owed_than_have_passed() -> None:
    """A row of 40 GPU-hours over eight hours, of which five come after the end."""
    found = after(3, [billed(0, 8, 40)], [on(0, 3)])
    assert sums(found) == (None, [(5 * PRICE, Fraction(5))], False)


def test_of_a_lie_the_bill_counts_to_the_real_end_and_the_next_start() -> None:
    own = [on(0, 3), on(3, 3.5), on(6, 8)]
    assert sums(after(3, EIGHT_HOURS, own)) == (at(6), [(3 * PRICE, Fraction(3))], False)


def test_a_machine_that_is_started_again_at_once_owes_what_it_uses() -> None:
    own = [on(0, 3), on(3 + 2 / 60, 8)]
    until, parts, _ = sums(after(3, [billed(0, 24, 8)], own))
    assert (until, parts) == (at(3 + 2 / 60), [(PRICE / 30, Fraction(1, 30))]), "two minutes"


def test_a_gap_that_was_charged_afterwards_is_no_time_of_use() -> None:
    own = [on(0, 3), on(3, 6, reconstructed=True), on(6, 8)]
    assert sums(after(3, [billed(0, 3, 3), billed(6, 8, 2)], own)) == (at(6), [], True)
    assert sums(after(3, EIGHT_HOURS, own)) == (at(6), [(3 * PRICE, Fraction(3))], False)


def test_a_charge_made_afterwards_from_the_launch_on_is_the_start() -> None:
    own = [on(0, 3), on(6, 6.25, reconstructed=True), on(6.25, 8)]
    assert sums(after(3, [*EIGHT_HOURS[:3], *EIGHT_HOURS[6:]], own)) == (at(6), [], True)
