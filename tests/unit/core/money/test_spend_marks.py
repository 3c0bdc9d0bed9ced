"""What a run had spent at a moment minutes ago: of old marks those are kept from which the spend went on otherwise."""

from __future__ import annotations

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros
from governor.core.money.spend_marks import RECENT_MAX, Mark, Marks

RATE = 3_600_000_000  # A micro-dollar each microsecond.


def mark(second: int, fee_usd_micros: int, **other: int) -> Mark:
    at = MonoNs(second * NS_PER_S)
    spent = UsdMicros(RATE * at // NS_PER_HOUR + fee_usd_micros)
    told = Mark(at, 0, BootNs(at), spent, RATE, is_priced=True, unpriced_ns=0)
    return told._replace(**other)


def test_a_fee_of_a_few_micro_dollars_keeps_its_moment_among_old_marks() -> None:
    marks = Marks()
    for second in range(3 * RECENT_MAX):
        marks.note(mark(second, 0 if second < 10 else 7))
    before, after = (marks.worth(MonoNs(half * NS_PER_S // 2), None, MonoNs(0)) for half in (19, 21))
    assert (before.usd_micros, after.usd_micros) == (9_500_000, 10_500_007)


def test_so_does_time_without_a_price() -> None:
    marks = Marks()
    for second in range(3 * RECENT_MAX):
        marks.note(mark(second, 0, unpriced_ns=0 if second < 10 else 5))
    before, after = (marks.worth(MonoNs(half * NS_PER_S // 2), None, MonoNs(0)) for half in (19, 21))
    assert (before.unpriced_ns, after.unpriced_ns) == (0, 5)
