from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import (
    NS_PER_HOUR,
    NS_PER_S,
    accrue,
    format_duration,
    format_usd,
    parse_count,
    parse_duration,
    read_float,
    usd,
)


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("250ms", NS_PER_S // 4),
        ("90s", 90 * NS_PER_S),
        ("10m", 600 * NS_PER_S),
        ("10min", 600 * NS_PER_S),
        ("1h30m", 5400 * NS_PER_S),
        ("2 h", 2 * NS_PER_HOUR),
        ("1d", 24 * NS_PER_HOUR),
        ("0.5s", NS_PER_S // 2),
    ],
)
def test_durations(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-5s", "5 parsecs", "1e3s", "10m later", "nan s", "٣s", "12000d", "9" * 400 + "d"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20B", 20 * 10**9),
        ("1.5M", 1_500_000),
        ("51200", 51_200),
        ("1_051_200", 1_051_200),
        ("51_200", 51_200),
        ("2k", 2000),
        ("10_000.5k", 10_000_500),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    [
        *("", "B", "-1", "20 billions", "1e9", "1000000000B", pytest.param("9" * 999, id="long")),
        *("1_0M", "_1M", "1_M", "1__000", "1_00", "1000_000", "1._5M", "1.5_0M", "1_000_", "1_2_3"),
    ],
)
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        parse_count(text)


def test_a_number_has_no_underscores() -> None:
    assert (read_float("1.5"), read_float(" -2e3 ")) == (1.5, -2000.0)
    for text in ("1_0", "0_5", "1e1_0", "", "x", "\N{ARABIC-INDIC DIGIT THREE}", "1\N{FULLWIDTH DIGIT ONE}"):
        with pytest.raises(ValueError):
            read_float(text)


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), "1e13", "abc", pytest.param(10**400, id="huge")])
def test_what_is_no_amount(amount: float | str) -> None:
    with pytest.raises(ValueError):
        usd(amount)


def test_money_for_people() -> None:
    assert format_usd(1_234_560_000) == "$1,234.56"
    assert format_usd(42_100) == "$0.0421"
    assert format_usd(0) == "$0.00"


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        *(("22", 22), ("22.5", 22.5), (" 22.50 ", 22.5), (".5", 0.5), ("5.", 5), ("1e3", 1000), ("1,000", 1000)),
        *(("12,345.67", 12345.67), ("1,234,567", 1234567), ("$22", 22), ("US$ 5", 5), ("300 USD", 300)),
    ],
)
def test_an_amount_as_people_write_it(text: str, dollars: float) -> None:
    assert usd(text) == round(dollars * 1_000_000)


@pytest.mark.parametrize(
    "text", ["12,50", "300,5", "1.000,50", "1,0,0", "1,00", "0,500", "01,000", "1,2345", ",5", "1,"]
)
def test_a_comma_that_is_a_point_is_no_separator(text: str) -> None:
    with pytest.raises(ValueError, match="before each three digits"):
        usd(text)


@pytest.mark.parametrize("text", ["\N{EURO SIGN}12", "12 EUR", "A$5", "\N{POUND SIGN}9", "CHF 3", "1,50 EUR"])
def test_other_money_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="another currency"):
        usd(text)


@pytest.mark.parametrize(
    "text", ["22/h", "22 /hour", "$22 per hour", "22 USD/h", "22 USD per hour", "22$/h", "22h", "22 usd an hour"]
)
def test_a_unit_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="leave the unit out"):
        usd(text)


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        *((text, "write cents as 0.22") for text in ("22 cents", "22c", "22 \N{CENT SIGN}", "1 cent")),
        *((text, "write it out, as 10,000") for text in ("10k", "$1.5M", "2 million", "3B USD")),
        *((amount, "write it without a sign") for amount in ("-5", "$-5", "-$5", -5, -0.5)),
        *((amount, "write for example 300 or 22.50") for amount in ("nan", float("nan"), float("inf"), "much")),
    ],
)
def test_what_to_write_is_told(amount: str | float, told: str) -> None:
    with pytest.raises(ValueError, match=f'^"[^"]*" is not an amount in dollars[;:] {told}'):
        usd(amount)


@pytest.mark.parametrize(
    "text", ["\N{ARABIC-INDIC DIGIT THREE}", "1_000", "US5", "US 5", "US", "10k", "-5", "", "$", "1" * 41, "$" * 10**6]
)
def test_what_no_one_reads_alike_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount") as told:
        usd(text)
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (1, "$0.000001"),
        (49, "$0.000049"),
        (99, "$0.000099"),
        (100, "$0.0001"),
        (999_949, "$0.9999"),
        (999_950, "$1.00"),
        (999_999, "$1.00"),
        (1_000_000, "$1.00"),
        (-1_500_000, "-$1.50"),
        (-42_100, "-$0.0421"),
        (-1, "-$0.000001"),
        (-1_234_560_000, "-$1,234.56"),
    ],
)
def test_no_amount_reads_as_zero_or_loses_its_sign(micros: int, text: str) -> None:
    assert format_usd(micros) == text


def test_durations_for_people() -> None:
    assert format_duration(NS_PER_S // 4) == "250ms"
    assert format_duration(12_300_000_000) == "12.3s"
    assert format_duration(90 * 60 * NS_PER_S) == "1h 30m"
    assert format_duration(50 * NS_PER_HOUR) == "2d 2h"


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**13), max_size=20))
def test_charges_are_exact_over_any_partition_of_the_time(rate: int, parts_ns: list[int]) -> None:
    total, carry = 0, 0
    for part_ns in parts_ns:
        charge, carry = accrue(rate, part_ns, carry)
        total += charge
    assert total == rate * sum(parts_ns) // NS_PER_HOUR
