"""Calendar and text of wall time, against Python's own."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import (
    NS_PER_DAY,
    NS_PER_S,
    civil_of,
    date_text,
    day_number,
    month_of,
    parse_utc,
    utc_text,
)

SECONDS = st.integers(-62_135_596_800, 253_402_300_799)  # Years 1 to 9999.


@given(SECONDS)
def test_text_and_calendar_agree_with_datetime(seconds: int) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    assert utc_text(seconds * NS_PER_S) == moment.isoformat().replace("+00:00", "Z")
    assert date_text(seconds * NS_PER_S) == moment.date().isoformat()
    assert parse_utc(utc_text(seconds * NS_PER_S)) == seconds * NS_PER_S


@given(st.integers(-719_162, 2_932_896))
def test_a_day_number_comes_back(number: int) -> None:
    assert day_number(*civil_of(number)) == number


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-21", "2026-11-21T00:00:00Z"),
        ("2026-11-21T20:09Z", "2026-11-21T20:09:00Z"),
        ("2026-11-21 20:09:14.000", "2026-11-21T20:09:14Z"),
        ("2026-11-21 20:09:14 UTC", "2026-11-21T20:09:14Z"),
        ("2026-11-21T20:09:14+00:00", "2026-11-21T20:09:14Z"),
    ],
)
def test_the_forms_that_bills_use(text: str, same: str) -> None:
    assert utc_text(parse_utc(text)) == same


def test_fractions_of_a_second_are_kept_to_the_nanosecond() -> None:
    assert parse_utc("1970-01-01T00:00:00.1234567891Z") == 123_456_789


@pytest.mark.parametrize(
    "text", ["", "2026-02-29", "2026-13-01", "2026-11-21T24:00:00Z", "21.11.2026", "2026-11-21T10:00:00+02:00"]
)
def test_what_is_no_utc_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_utc(text)


def test_a_month_ends_where_the_next_begins() -> None:
    start, end = month_of(parse_utc("2026-12-31T23:59:59Z"))
    assert (utc_text(start), utc_text(end)) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    assert month_of(end)[0] == end
    assert (month_of(parse_utc("2024-02-10"))[1] - month_of(parse_utc("2024-02-10"))[0]) == 29 * NS_PER_DAY
