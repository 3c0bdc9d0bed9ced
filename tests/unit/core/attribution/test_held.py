"""What a run owes for the time in which it had let go of the node, whatever it is charged later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution.held import Held
from governor.core.base.units import NS_PER_S

USD_MICROS, SECONDS = st.integers(-(10**6), 10**12), st.integers(0, 10**6 * NS_PER_S)


@given(let_go=SECONDS, paid=USD_MICROS, spent=USD_MICROS, counted=SECONDS, passed=SECONDS)
def test_no_run_owes_more_time_than_it_had_let_go_nor_more_money_than_was_paid(
    let_go: int, paid: int, spent: int, counted: int, passed: int
) -> None:
    held = Held(let_go_ns=let_go)
    owed = held.owed(paid, spent, counted, passed)
    assert 0 <= owed.ns <= let_go
    assert 0 <= owed.usd_micros <= max(0, paid)
    assert held.let_go_ns == (0 if owed.ns else let_go)


def test_a_bill_of_far_more_than_the_time_before_is_for_no_more_time() -> None:
    """Ten seconds were let go. What is paid now would have paid for a hundred at the price so far."""
    held = Held(let_go_ns=10 * NS_PER_S)
    owed = held.owed(100, 100, 100 * NS_PER_S, 0)
    assert (owed.ns, owed.usd_micros) == (10 * NS_PER_S, 100)
    assert held.owed(100, 100, 100 * NS_PER_S, 0).ns == 0
