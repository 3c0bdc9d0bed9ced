"""Tables of any width: nothing is cut; texts break in their column, or the last columns drop to another line."""

from __future__ import annotations

import pytest

from governor.text.screen import FILE, Screen, Styled, width
from governor.text.table import Head, fits, render_rows

HEADS = [Head("RUN", may_wrap=True), Head("AMOUNT", is_number=True), Head("SOURCE", may_wrap=True)]
ROWS = [["llama-70b-with-a-long-name", "$1,234,567.89", "EC2 spot price history"], ["total", "$1,234,567.89", ""]]


def on(columns: int) -> list[str]:
    return render_rows(HEADS, ROWS, total=True, screen=Screen(columns, False)).splitlines()


def test_what_fits_is_left_alone() -> None:
    assert on(65) == render_rows(HEADS, ROWS, total=True, screen=FILE).splitlines()


def test_the_last_text_breaks_first_and_numbers_never() -> None:
    assert on(60) == [
        "RUN                                AMOUNT  SOURCE",
        "llama-70b-with-a-long-name  $1,234,567.89  EC2 spot price",
        "                                           history",
        "total                       $1,234,567.89",
    ]
    assert on(46) == [
        "RUN                       AMOUNT  SOURCE",
        "llama-70b-with-a-  $1,234,567.89  EC2 spot",
        "long-name                         price",
        "                                  history",
        "total              $1,234,567.89",
    ]


def test_where_that_is_not_enough_the_last_columns_drop_to_another_line() -> None:
    assert on(30) == [
        "RUN",
        "         AMOUNT  SOURCE",
        "llama-70b-with-a-long-name",
        "  $1,234,567.89  EC2 spot",
        "                 price history",
        "total",
        "  $1,234,567.89",
    ]
    assert fits(HEADS, ROWS, Screen(46, False))
    assert not fits(HEADS, ROWS, Screen(30, False))


@pytest.mark.parametrize("columns", [13, 20, 33, 50, 64, 65, 200])
def test_no_width_loses_a_character_or_is_too_wide(columns: int) -> None:
    lines = on(columns)
    assert max(map(width, lines)) <= max(columns, len("  $1,234,567.89"))
    shown = "".join("".join(lines).split())
    assert all(char in shown for cell in ROWS[0] for char in cell if char != " ")
    assert shown.count("$1,234,567.89") == 2


def test_a_file_has_no_width() -> None:
    long = [["x" * 300, "$1.00", "y" * 300]]
    [_, row] = render_rows(HEADS, long, total=False, screen=FILE).splitlines()
    assert row == f"{'x' * 300}   $1.00  {'y' * 300}"


def test_colour_stands_around_texts_alone_and_moves_nothing() -> None:
    rows = [["a", "$1.00", Styled("late", "bold red")], ["total", "$22.00", ""]]
    told = render_rows(HEADS, rows, total=True, screen=Screen(80, True), notes=["a note"])
    assert told.splitlines() == [
        "\x1b[1mRUN    AMOUNT  SOURCE\x1b[0m",
        "a       $1.00  \x1b[1;31mlate\x1b[0m",
        "\x1b[1mtotal  $22.00\x1b[0m",
        "\x1b[2ma note\x1b[0m",
    ]
    assert "\x1b" not in render_rows(HEADS, rows, total=True, screen=Screen(80, False), notes=["a note"])


def test_wide_characters_stand_in_line_and_a_file_cuts_none() -> None:
    """Each takes two columns of a terminal, and one place in a string."""
    rows = [["训练任务模型", "$1.00", "x"], ["b", "$22.00", "y"]]
    assert render_rows(HEADS, rows, total=False, screen=FILE).splitlines() == [
        "RUN           AMOUNT  SOURCE",
        "训练任务模型   $1.00  x",
        "b             $22.00  y",
    ]


@pytest.mark.parametrize(
    ("cell", "told"),
    [("\x1b[2J", " [2J"), (" a", "a"), ("a ", "a"), ("a  b", "a b"), ("a\nb", "a b"), ("a|", "a|"), ("| a", "| a")],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_could_steer_a_terminal_is_made_printable_wherever_it_stands(cell: str, told: str, place: int) -> None:
    """A column is looked at as a whole first: none of these may hide in that."""
    rows = [["anna", "$1.00", other] for other in ("x", "y")]
    rows.insert(place, ["anna", "$1.00", cell])
    line = render_rows(HEADS, rows, total=False, screen=FILE).splitlines()[1 + place]
    assert line == f"anna   $1.00  {told}"
