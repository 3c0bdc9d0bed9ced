"""The bill of a run: each part of it is the ledger's own money, and all parts are all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.adapters.journal.run_ends import HaltRow, RunRow
from governor.core.base.units import NS_PER_S, UsdMicros, WallNs
from governor.core.money.charges import Charge
from governor.core.money.reports.cost import clip, sum_of, tally
from governor.replay.bills import HEALTHY, TROUBLED, UNSEEN_NS, Bill, FirstHalt, PolicyHalts, ending_of
from governor.replay.play import ReplayVerdict
from governor.replay.stretches import Span, merged
from tests.unit.cost.ledger_file import ANNA, NODE, ON_DEMAND

TIMES = st.integers(0, 10_000)
SPANS = st.builds(lambda a, b: Span(min(a, b), max(a, b)), TIMES, TIMES)


def paid(begin: int, length: int, micros: int) -> Charge:
    wall = WallNs(begin)
    return Charge("c", NODE, ANNA, ON_DEMAND, wall, WallNs(begin + length), length, UsdMicros(micros))


# A correction of a price is negative, and a launch is of one moment.
CHARGES = st.builds(paid, TIMES, st.integers(0, 3_000), st.integers(-(10**12), 10**12))


@given(
    st.lists(CHARGES, max_size=20),
    st.lists(SPANS, max_size=6),
    st.dictionaries(st.integers(0, 3), st.lists(SPANS, max_size=3)),
)
def test_the_parts_are_the_ledger_to_the_micro_dollar(
    charges: list[Charge], recorded: list[Span], cut: dict[object, list[Span]]
) -> None:
    bill = Bill(recorded, cut)
    for charge in charges:
        bill.add(charge)
    assert bill.total_usd_micros == sum_of(tally(charges, "run")).usd_micros
    assert bill.recorded_usd_micros + bill.unrecorded_usd_micros == bill.total_usd_micros
    for key in cut:
        assert bill.before_usd_micros[key] + sum(bill.after_usd_micros[key]) == bill.recorded_usd_micros


@given(st.lists(CHARGES, max_size=20), st.lists(SPANS, max_size=6), TIMES, TIMES)
def test_adjoining_windows_have_the_bill_of_both(
    charges: list[Charge], recorded: list[Span], since: int, until: int
) -> None:
    """As `costgov cost --since` cuts charges first, and the bill what is left of them."""
    bounds = [-1, *sorted((since, until)), 10**6]
    parts = [Bill(recorded) for _ in bounds[1:]]
    for charge in charges:
        for part, lo, hi in zip(parts, bounds, bounds[1:], strict=False):
            if charge.from_wall < hi and (charge.to_wall > lo or charge.from_wall >= lo):
                part.add(clip(charge, lo, hi))
    assert sum(part.total_usd_micros for part in parts) == sum(charge.usd_micros for charge in charges)


def test_a_charge_is_spread_by_time() -> None:
    bill = Bill([Span(20, 50)], {"nan": [Span(40, 90)]})
    bill.add(paid(0, 100, 1_000))
    assert (bill.recorded_usd_micros, bill.unrecorded_usd_micros) == (300, 700)
    assert (bill.before_usd_micros, bill.after_usd_micros) == ({"nan": 200}, {"nan": [100]})


def test_what_is_of_one_moment_stays_whole() -> None:
    bill = Bill([Span(20, 50)], {"nan": [Span(40, 90)]})
    for at in (19, 20, 45, 50):
        bill.add(paid(at, 0, 7))
    assert (bill.recorded_usd_micros, bill.unrecorded_usd_micros, bill.after_usd_micros["nan"]) == (14, 14, [7])


@given(st.lists(SPANS, max_size=8), TIMES)
def test_merging_changes_no_moment(spans: list[Span], at: int) -> None:
    assert any(a <= at < b for a, b in spans) == any(a <= at < b for a, b in merged(spans))


NOW = 10**9 * NS_PER_S
HALT = HaltRow("i-1", "r", "nan", NOW - 900 * NS_PER_S, NOW - 890 * NS_PER_S)


def row(**more: object) -> RunRow:
    facts = {"wall": NOW, "is_alive": False, "has_completed": False, "exit_code": None, "cause": None}
    return RunRow("r", **{**facts, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "halts", "text", "role"),
    [
        (row(has_completed=True), [], "completed", HEALTHY),
        (row(is_alive=True), [], "still running", HEALTHY),
        (row(is_alive=True, wall=NOW - UNSEEN_NS), [], "not seen to its end", None),
        (row(exit_code=1), [], "failed, exit code 1", None),
        (row(cause="out of GPU memory"), [], "failed", None),
        (row(), [], "ended", None),
        (None, [], "unknown", None),
        (row(), [HALT], "halted by nan", None),
        (row(), [HaltRow("i-1", "r", None, 5, 6)], "halted by hand", None),
        (row(is_alive=True), [HaltRow("i-1", "r", "nan", NOW - 5, None)], "halted by nan", None),
        # It went on after the halt: neither healthy nor troubled, until somebody marks the halt.
        (row(has_completed=True), [HALT], "completed", None),
        (row(is_alive=True, began_wall=NOW - 800 * NS_PER_S), [HALT], "still running", None),
        (row(ended_wall=NOW - 800 * NS_PER_S), [HALT], "ended", None),
    ],
)
def test_how_a_run_ended_is_its_label(run: RunRow | None, halts: list[HaltRow], text: str, role: str | None) -> None:
    ending = ending_of(run, halts, NOW)
    assert (ending.text, ending.role) == (text, role)


def test_a_mark_of_another_journals_halt_says_nothing() -> None:
    assert ending_of(row(), [HALT], NOW, {("i-1", HALT.opened_wall + 1): True}).role is None


def test_a_marked_halt_says_what_the_run_was() -> None:
    assert ending_of(row(), [HALT], NOW, {("i-1", HALT.opened_wall): True}).role == TROUBLED
    assert ending_of(row(), [HALT], NOW, {("i-1", HALT.opened_wall): False}).role == HEALTHY
    assert ending_of(row(has_completed=True), [HALT], NOW, {("i-1", HALT.opened_wall): False}).role == HEALTHY


def test_a_halt_of_an_attempt_that_ended_before_the_window_is_not_told() -> None:
    verdict = ReplayVerdict("p", "r", "t", "halt", "enforce", 1, 1.0, "", "", {})
    before, into = FirstHalt(verdict, Span(10, 20)), FirstHalt(verdict, Span(30, 60))
    assert PolicyHalts([before, into], [before]).reaching(50) == PolicyHalts([into], [])
