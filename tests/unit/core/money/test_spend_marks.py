"""What a run had spent at a moment minutes ago: of old marks those are kept from which the spend went on otherwise."""

from __future__ import annotations

import pytest

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros
from governor.core.money.spend_marks import RECENT_MAX, Last, Mark, Marks

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


def test_so_does_time_that_another_run_has_paid_for() -> None:
    marks = Marks()
    for second in range(3 * RECENT_MAX):
        marks.note(mark(second, 0, is_lent=second < 10))
    before, after = (marks.worth(MonoNs(half * NS_PER_S // 2), None, MonoNs(0)) for half in (19, 21))
    assert (before.is_lent, after.is_lent) == (True, False)


@pytest.mark.parametrize(
    ("usd_per_second", "attempt_at", "spent"),
    [
        (1.0, 0, 6.0),
        (0.5, 0, 8.0),  # At the rate of then, as far as that is known: the time before was dearer.
        (2.0, 0, 6.0),  # It has risen meanwhile: by the mean.
        (4.0, 4, 10 - 4 * 10 / 6),  # Nobody may have paid for the time before the attempt.
        (4.0, 7, 6.0),  # That began after the step.
    ],
)
def test_before_the_first_mark_a_step_has_its_share_of_what_was_spent_since_the_last(
    usd_per_second: float, attempt_at: int, spent: float
) -> None:
    """Nothing by 0 s, where the last step ended, and $10 by 10 s, of which the first mark is. Another ends at 6 s."""
    marks, rate = Marks(), round(usd_per_second * RATE)
    ten = MonoNs(10 * NS_PER_S)
    marks.note(Mark(ten, 0, BootNs(ten), UsdMicros(10_000_000), rate, is_priced=True, unpriced_ns=0))
    worth = marks.worth(MonoNs(6 * NS_PER_S), Last(BootNs(0), 0), MonoNs(attempt_at * NS_PER_S))
    assert (worth.boot, worth.usd_micros) == (6 * NS_PER_S, pytest.approx(1_000_000 * spent, abs=1))


def test_one_mark_leads_to_another_but_for_the_rounding_of_a_micro_dollar() -> None:
    first = mark(10, 0)
    assert [first.leads_to(mark(20, fee)) for fee in (-2, -1, 0, 1, 2)] == [False, True, True, True, False]
