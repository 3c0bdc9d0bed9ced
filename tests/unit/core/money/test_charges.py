"""Charges add up to price times time, whatever the ticks, the payers and the wall clock did."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, DurationNs, WallNs
from governor.core.money.charges import (
    CUTS_MAX,
    UNALLOCATED_MAX,
    UNALLOCATED_PAYER,
    Charge,
    ChargeBook,
    Line,
    LineKind,
    Part,
    Payer,
    Place,
    Unit,
    charge_of,
    charge_row,
)

PLACE = Place("node-1", "aws", "i-0abc", "eu-west-1")
LINE = Line(LineKind.COMPUTE, "p5.48xlarge", Unit.HOUR, 55_040_000, "table", "2025-06-01")
ANNA = Payer("anna", "0", "stage1", (("team", "nlp"),))
START = WallNs(1_800_000_000 * NS_PER_S)  # On the hour.


def add(
    book: ChargeBook, wall: int, elapsed: int, payer: Payer = ANNA, line: Line = LINE, **more: bool
) -> list[Charge]:
    return book.add(line, WallNs(wall), DurationNs(elapsed), [Part(payer, elapsed, elapsed // 1000)], **more)


def test_a_charge_grows_while_nothing_about_it_changes() -> None:
    book = ChargeBook(PLACE, START)
    for second in range(3):
        assert add(book, START + second * NS_PER_S, NS_PER_S) == []
    [charge] = book.open_charges()
    assert (charge.from_wall, charge.to_wall) == (START, START + 3 * NS_PER_S)
    assert (charge.quantity, charge.usd_micros) == (3 * NS_PER_S, 3_000_000)


def test_the_full_hour_closes_it() -> None:
    book = ChargeBook(PLACE, START)
    add(book, START + NS_PER_HOUR - NS_PER_S, NS_PER_S)
    [closed] = add(book, START + NS_PER_HOUR, NS_PER_S)
    assert closed.to_wall == START + NS_PER_HOUR
    assert book.open_charges()[0].from_wall == START + NS_PER_HOUR


def test_a_long_stretch_is_cut_at_full_hours_and_adds_up() -> None:
    """A node that slept, or a governor that was away: by the hour and by the day it is charged when it passed."""
    book = ChargeBook(PLACE, START)
    began, elapsed, micros = START + 1800 * NS_PER_S, 3 * NS_PER_HOUR + 1, 1_000_003
    parts = [Part(ANNA, elapsed // 3, micros), Part(UNALLOCATED_PAYER, elapsed - elapsed // 3, 7)]
    rows = [*book.add(LINE, WallNs(began), DurationNs(elapsed), parts, reconstructed=True), *book.open_charges()]
    for payer, quantity, usd_micros in ((ANNA, elapsed // 3, micros), (UNALLOCATED_PAYER, elapsed - elapsed // 3, 7)):
        own = [row for row in rows if row.payer == payer]
        edges = [(row.from_wall - START, row.to_wall - START) for row in own]
        half, hour = NS_PER_HOUR // 2, NS_PER_HOUR
        assert edges == [(half, hour), (hour, 2 * hour), (2 * hour, 3 * hour), (3 * hour, 3 * hour + half + 1)]
        assert (sum(row.quantity for row in own), sum(row.usd_micros for row in own)) == (quantity, usd_micros)
        # Each by its length, to the unit.
        assert all(
            abs(row.usd_micros - usd_micros * (b - a) / elapsed) <= 1 for row, (a, b) in zip(own, edges, strict=True)
        )
        assert all(row.reconstructed for row in own)
    assert len({row.charge_id for row in rows}) == 8


def test_a_gap_of_a_year_is_a_month_of_hours_and_the_rest() -> None:
    book = ChargeBook(PLACE, START)
    year = 365 * 24 * NS_PER_HOUR
    rows = [*add(book, START, year), *book.open_charges()]
    assert len(rows) == CUTS_MAX + 1
    assert {row.quantity for row in rows[:-1]} == {NS_PER_HOUR}
    assert sum(row.quantity for row in rows) == year
    assert rows[-1].to_wall == START + year


def test_another_price_attempt_or_origin_is_another_charge() -> None:
    dearer = Line(LINE.kind, LINE.name, LINE.unit, LINE.price_usd_micros + 1, "spot history", "2026-11-21")
    for change in ({"line": dearer}, {"payer": Payer("anna", "1", "stage1", ANNA.labels)}, {"reconstructed": True}):
        book = ChargeBook(PLACE, START)
        add(book, START, NS_PER_S)
        assert len(add(book, START + NS_PER_S, NS_PER_S, **change)) == 1, change  # type: ignore[arg-type]


def test_a_wall_clock_that_is_set_stretches_nothing() -> None:
    book = ChargeBook(PLACE, START)
    add(book, START + 600 * NS_PER_S, NS_PER_S)
    add(book, START + 60 * NS_PER_S, NS_PER_S)  # Set back by nine minutes, within the hour.
    [charge] = book.open_charges()
    assert charge.to_wall - charge.from_wall == 2 * NS_PER_S == charge.quantity


def test_a_run_that_ends_closes_its_own_charges_alone() -> None:
    book = ChargeBook(PLACE, START)
    add(book, START, NS_PER_S)
    add(book, START, NS_PER_S, payer=UNALLOCATED_PAYER)
    assert [charge.payer.run for charge in book.close_all_but({""})] == ["anna"]
    assert [charge.payer for charge in book.open_charges()] == [UNALLOCATED_PAYER]


def test_a_charge_survives_json_and_keeps_its_name_while_it_grows() -> None:
    book = ChargeBook(PLACE, START)
    add(book, START, NS_PER_S)
    [young] = book.open_charges()
    add(book, START + NS_PER_S, NS_PER_S)
    [old] = book.open_charges()
    assert young.charge_id == old.charge_id
    assert charge_of(json.loads(json.dumps(charge_row(old)))) == old


def test_governors_started_one_after_the_other_give_no_name_twice() -> None:
    names = set()
    for epoch in (START, WallNs(START + NS_PER_S)):
        book = ChargeBook(PLACE, epoch)
        add(book, START, NS_PER_S)
        names.add(book.open_charges()[0].charge_id)
    assert len(names) == 2


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3 * NS_PER_HOUR),  # How long a stretch lasts,
            st.integers(-2 * NS_PER_HOUR, 2 * NS_PER_HOUR),  # by how much the wall clock is set before it,
            st.sampled_from(["anna", "ben", ""]),
            st.sampled_from(["0", "1"]),
            st.integers(0, 10**9),
        ),
        max_size=40,
    )
)
def test_nothing_is_lost_or_counted_twice(stretches: list[tuple[int, int, str, str, int]]) -> None:
    book, wall = ChargeBook(PLACE, START), int(START)
    entered: list[Charge] = []
    for elapsed, set_by, run, attempt, micros in stretches:
        wall += set_by
        part = Part(Payer(run, attempt), elapsed, micros)
        entered += book.add(LINE, WallNs(wall), DurationNs(elapsed), [part])
        wall += elapsed
    entered += book.open_charges()
    assert sum(charge.usd_micros for charge in entered) == sum(stretch[4] for stretch in stretches)
    assert sum(charge.quantity for charge in entered) == sum(stretch[0] for stretch in stretches)
    for charge in entered:
        assert charge.to_wall - charge.from_wall == charge.quantity
    assert len({charge.charge_id for charge in entered}) == len(entered), "the later would replace the earlier"


def test_what_was_nobodys_goes_to_the_command_that_was_started_for_it() -> None:
    book = ChargeBook(PLACE, START)
    add(book, START + NS_PER_HOUR - NS_PER_S, NS_PER_S, payer=UNALLOCATED_PAYER)
    [closed] = add(book, START + NS_PER_HOUR, NS_PER_S, payer=UNALLOCATED_PAYER)
    still_open = sum(charge.usd_micros for charge in book.open_charges())
    [handed] = book.hand_over(ANNA)
    assert (handed.charge_id, handed.usd_micros, handed.payer) == (closed.charge_id, closed.usd_micros, ANNA)
    assert [charge.payer for charge in book.open_charges()] == [ANNA]
    assert book.runs.by_run[ANNA.run] == handed.usd_micros + still_open > handed.usd_micros
    assert book.runs.by_run[UNALLOCATED_PAYER.run] == 0
    assert book.hand_over(ANNA) == [], "once"
    assert book.runs.by_run[ANNA.run] == book.runs.total() == handed.usd_micros + still_open


def test_a_hand_over_clears_what_was_too_old_for_it() -> None:
    """What a ceiling counts begins anew there: a later stand-in must not pay for the same hours again."""
    book = ChargeBook(PLACE, START)
    waiting = UNALLOCATED_MAX + 3  # Closed charges. Three are too old to move.
    add(book, START, waiting * NS_PER_HOUR + NS_PER_S, UNALLOCATED_PAYER)
    hour = NS_PER_HOUR // 1000
    assert book.unallocated_charges()[1] == 3 * hour
    assert book.unclaimed_usd_micros() == waiting * hour + NS_PER_S // 1000
    assert len(book.hand_over(ANNA)) == UNALLOCATED_MAX
    assert (book.unallocated_charges(), book.unclaimed_usd_micros()) == (((), 0), 0)
    later = START + (waiting + 1) * NS_PER_HOUR
    add(book, later, NS_PER_S, UNALLOCATED_PAYER)
    assert book.unclaimed_usd_micros() == NS_PER_S // 1000, "only what came after it"
