"""Which of several prices counts, and what a person is told of the others."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.units import UsdMicros
from governor.core.money.charges import LineKind, Unit
from governor.core.money.prices import (
    PRICE_USD_MICROS_MAX,
    STALE_AFTER_DAYS,
    Chosen,
    Day,
    Origin,
    PriceKind,
    Quote,
    Remark,
    RemarkKind,
    agree,
    choose,
    day_text,
    span_of,
)
from tests.sweeps import share_of

EPOCH = date(1970, 1, 1)
TODAY = Day((date(2026, 11, 21) - EPOCH).days)
SOURCES = {
    Origin.MACHINE: "EC2 spot price history",
    Origin.CONFIG: "costgov.toml",
    Origin.LIST: "Azure retail prices",
    Origin.TABLE: "built-in table",
}


def quote(
    usd: float, origin: Origin = Origin.CONFIG, as_of: str = "2026-11-21", kind: PriceKind = PriceKind.ON_DEMAND,
    gpus: int | None = None,
) -> Quote:  # fmt: skip
    return Quote(UsdMicros(round(usd * 1e6)), SOURCES[origin], as_of, kind, "", origin, gpus)


def kinds(chosen: Chosen) -> list[RemarkKind]:
    return [remark.kind for remark in chosen.remarks]


# --- the order -------------------------------------------------------------------------------------------


def test_the_provider_is_believed_before_the_user_and_the_user_before_any_list() -> None:
    machine, config = quote(20, Origin.MACHINE), quote(20, Origin.CONFIG)
    listed, table = quote(20, Origin.LIST), quote(20, Origin.TABLE)
    assert choose([listed, machine], config, table, TODAY).quote == machine
    assert choose([listed], config, table, TODAY).quote == config
    assert choose([listed], None, table, TODAY).quote == listed
    assert choose([], None, table, TODAY).quote == table


def test_what_nobody_knows_is_unknown_and_said_and_never_zero() -> None:
    chosen = choose([], None, None, TODAY)
    assert (chosen.quote, chosen.usd_micros_per_hour, chosen.line("x")) == (None, None, None)
    assert (kinds(chosen), chosen.text) == ([RemarkKind.UNKNOWN], "unknown")
    assert "node.price_usd_per_hour" in chosen.alarms[0].line


@pytest.mark.parametrize("usd", [0, -1, 1_000_000.000001])
def test_a_price_that_no_machine_has_is_refused_in_a_line_and_the_next_one_counts(usd: float) -> None:
    chosen = choose([quote(usd, Origin.MACHINE)], quote(22), None, TODAY)
    assert chosen.usd_micros_per_hour == 22_000_000
    assert kinds(chosen) == [RemarkKind.REFUSED]
    assert "EC2 spot price history" in chosen.alarms[0].text
    assert kinds(choose([quote(usd, Origin.MACHINE)], None, None, TODAY)) == [RemarkKind.REFUSED, RemarkKind.UNKNOWN]


def test_the_dearest_machine_is_still_one() -> None:
    assert choose([], quote(PRICE_USD_MICROS_MAX / 1e6), None, TODAY).remarks == ()


# --- who disagrees ---------------------------------------------------------------------------------------


def test_a_contradiction_between_provider_and_user_shows_both_figures() -> None:
    [remark] = choose([quote(17.9, Origin.MACHINE)], quote(55.04), None, TODAY).remarks
    assert (remark.kind, remark.is_alarm) == (RemarkKind.CONTRADICTION, True)
    assert "$17.90/h (EC2 spot price history" in remark.text
    assert "$55.04/h (costgov.toml" in remark.text
    assert "node.price_usd_per_hour" in remark.advice


@pytest.mark.parametrize(("one", "other", "same"), [
    (55_040_000, 55_040_000, True),
    (300_000, 310_000, True),  # A cent.
    (300_000, 310_001, False),
    (98_320_000, 97_336_800, True),  # One percent of the larger.
    (98_320_000, 97_336_799, False),
    (97_336_799, 98_320_000, False),
])  # fmt: skip
def test_rounding_is_no_contradiction(one: int, other: int, same: bool) -> None:
    assert agree(one, other) is same


def test_a_list_price_beside_the_users_is_a_note() -> None:
    """A contract may be better than the list: nobody is woken, both figures are shown."""
    [remark] = choose([], quote(40), quote(55.04, Origin.TABLE, gpus=8), TODAY).remarks
    assert (remark.kind, remark.is_alarm) == (RemarkKind.LISTED, False)
    assert "$40.00/h" in remark.text
    assert "$55.04/h" in remark.text


def test_the_price_of_one_gpu_in_the_machines_place_is_asked_about() -> None:
    [remark] = choose([], quote(6.88), quote(55.04, Origin.TABLE, gpus=8), TODAY).remarks
    assert "one of 8 GPUs" in remark.advice
    [remark] = choose([], quote(6.88), quote(55.04, Origin.TABLE, gpus=4), TODAY).remarks
    assert "GPUs" not in remark.advice


def test_prices_of_two_kinds_are_no_contradiction() -> None:
    spot = quote(17, Origin.MACHINE, kind=PriceKind.SPOT)
    assert choose([spot], None, quote(55, Origin.TABLE), TODAY).remarks == ()


# --- age -------------------------------------------------------------------------------------------------


def test_a_price_turns_stale_on_the_day_after_the_last_and_counts_all_the_same() -> None:
    def chosen(age_days: int) -> Chosen:
        return choose([], quote(22, as_of=day_text(Day(TODAY - age_days))), None, TODAY)

    fresh, stale = chosen(STALE_AFTER_DAYS), chosen(STALE_AFTER_DAYS + 1)
    assert (fresh.is_stale, fresh.remarks, fresh.age_days) == (False, (), STALE_AFTER_DAYS)
    assert (stale.is_stale, kinds(stale), stale.age_days) == (True, [RemarkKind.STALE], STALE_AFTER_DAYS + 1)
    assert stale.usd_micros_per_hour == 22_000_000
    assert stale.alarms == stale.remarks
    assert choose([], quote(22, as_of="2026-11-11"), None, TODAY, stale_after_days=9).is_stale


@pytest.mark.parametrize(("as_of", "age_days"), [
    ("2026-11-21", 0),
    ("2026-11", 20),  # Read on the first of the month, for all that is known.
    ("2026-10", 51),
    ("2026", 324),
    ("2025-2026", 689),
    ("2025", 689),
])  # fmt: skip
def test_a_price_is_as_old_as_the_first_day_that_its_date_can_mean(as_of: str, age_days: int) -> None:
    chosen = choose([], quote(22, as_of=as_of), None, TODAY)
    assert (chosen.age_days, chosen.is_stale) == (age_days, age_days > STALE_AFTER_DAYS)


def test_a_range_that_began_long_ago_is_stale_before_it_is_over() -> None:
    chosen = choose([], None, quote(22, Origin.TABLE, as_of="2025-2026"), TODAY)
    assert kinds(chosen) == [RemarkKind.STALE]
    assert "is 689 days old" in chosen.remarks[0].text


def test_a_day_that_has_not_come_is_said() -> None:
    chosen = choose([], quote(22, as_of="2027-01-01"), None, TODAY)
    assert (chosen.age_days, kinds(chosen)) == (0, [RemarkKind.STALE])
    assert "has not come" in chosen.remarks[0].text


@settings(max_examples=share_of(300))
@given(st.dates(date(1900, 1, 1), date(2400, 12, 31)))
def test_days_are_those_of_the_calendar(day: date) -> None:
    number = Day((day - EPOCH).days)
    assert span_of(day.isoformat()) == (number, number)
    assert day_text(number) == day.isoformat()
    first, last = (EPOCH + timedelta(end) for end in span_of(f"{day:%Y-%m}"))
    assert (first.day, first <= day <= last, (last + timedelta(1)).day) == (1, True, 1)
    assert [(EPOCH + timedelta(end)).isoformat() for end in span_of(f"{day:%Y}")] == [
        f"{day:%Y}-01-01", f"{day:%Y}-12-31",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "soon", "2026-13", "2026-02-29", "2026-00-01", "2026-1-1", "26", "2026-2025"])
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(ValueError):
        span_of(text)
    with pytest.raises(ValueError):
        quote(22, as_of=text)


# --- any sources -----------------------------------------------------------------------------------------

some_usd = st.integers(-5_000_000, 120_000_000).map(lambda micros: micros / 1e6)
some_day = st.integers(TODAY - 900, TODAY).map(lambda day: day_text(Day(day)))


def of(*origins: Origin) -> st.SearchStrategy[Quote]:
    return st.builds(quote, some_usd, st.sampled_from(origins), some_day, st.sampled_from(PriceKind))


any_sources = st.tuples(
    st.lists(of(Origin.MACHINE, Origin.LIST), max_size=3),
    st.none() | of(Origin.CONFIG),
    st.none() | of(Origin.TABLE),
)


@given(any_sources)
def test_the_choice_is_the_first_usable_one_and_nothing_unusable_goes_unsaid(
    sources: tuple[list[Quote], Quote | None, Quote | None],
) -> None:
    answers, config, table = sources
    chosen = choose(answers, config, table, TODAY)
    order = [
        *(one for one in answers if one.origin is Origin.MACHINE),
        *([config] if config else []),
        *(one for one in answers if one.origin is Origin.LIST),
        *([table] if table else []),
    ]
    unrefused = [one for one in order if one.usd_micros_per_hour > 0]
    usable = unrefused
    assert chosen.quote == (usable[0] if usable else None), "what is said first is never doubted"
    assert chosen.usd_micros_per_hour != 0
    assert kinds(chosen).count(RemarkKind.REFUSED) == len(order) - len(unrefused)
    assert RemarkKind.DOUBTED not in kinds(chosen)
    assert (RemarkKind.UNKNOWN in kinds(chosen)) is (not usable)
    assert (RemarkKind.STALE in kinds(chosen)) is chosen.is_stale
    if config is not None and usable and usable[0].origin is Origin.MACHINE and config in usable:
        contradicts = not agree(usable[0].usd_micros_per_hour, config.usd_micros_per_hour)
        shown = [one.quotes for one in chosen.remarks if one.kind is RemarkKind.CONTRADICTION and config in one.quotes]
        assert shown == ([(usable[0], config)] if contradicts else [])
    for remark in chosen.remarks:
        assert "\n" not in remark.line
    json.dumps(chosen.document(), allow_nan=False)


@given(any_sources, of(Origin.TABLE))
def test_a_table_row_never_overrules_anybody(
    sources: tuple[list[Quote], Quote | None, Quote | None], row: Quote
) -> None:
    answers, config, _ = sources
    before = choose(answers, config, None, TODAY).quote
    assert before is None or choose(answers, config, row, TODAY).quote == before


def test_what_was_learned_while_asking_comes_first_and_the_rest_is_for_the_ledger() -> None:
    asked = Remark(RemarkKind.UNANSWERED, "RunPod: http_500")
    chosen = choose([], quote(22, as_of="2026-11-01"), None, TODAY, remarks=[asked])
    assert chosen.remarks == (asked,)
    line = chosen.line("pod-1")
    assert line is not None
    assert (line.kind, line.name, line.unit) == (LineKind.COMPUTE, "pod-1", Unit.HOUR)
    assert (line.price_usd_micros, line.source, line.as_of) == (22_000_000, "costgov.toml", "2026-11-01")
    assert chosen.text == "$22.00/h on-demand (costgov.toml, as of 2026-11-01, 20 days ago)"
