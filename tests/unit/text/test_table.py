"""Tables of any width: numbers are whole, and what must be shorter is the text that matters least."""

from __future__ import annotations

import pytest

from governor.text.table import Head, fitting, render_rows

HEADS = [Head("RUN", may_be_cut=True), Head("AMOUNT", is_number=True), Head("SOURCE", may_be_cut=True)]
ROWS = [["llama-70b-with-a-long-name", "$1,234,567.89", "EC2 spot price history"], ["total", "$1,234,567.89", ""]]
TITLES = [head.title for head in HEADS]
CUT = [head.may_be_cut for head in HEADS]


def test_what_fits_is_left_alone() -> None:
    assert fitting([TITLES, *ROWS], CUT, 200) == [26, 13, 22]


def test_the_last_text_is_cut_first_and_numbers_never() -> None:
    assert fitting([TITLES, *ROWS], CUT, 60) == [26, 13, 17]
    assert fitting([TITLES, *ROWS], CUT, 50) == [21, 13, 12]
    assert fitting([TITLES, *ROWS], CUT, 10) == [12, 13, 12]


def test_a_file_has_no_width() -> None:
    long = [["x" * 300, "$1.00", "y" * 300]]
    [_, row] = render_rows(HEADS, long, total=False, colour=False).splitlines()
    assert row == f"{'x' * 300}   $1.00  {'y' * 300}"


def test_a_terminal_too_narrow_for_the_numbers_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert "$1,234,567.89" in render_rows(HEADS, ROWS, total=True, colour=True)


def test_wide_characters_stand_in_line_and_a_file_cuts_none() -> None:
    """Each takes two columns of a terminal, and one place in a string."""
    rows = [["训练任务模型", "$1.00", "x"], ["b", "$22.00", "y"]]
    assert render_rows(HEADS, rows, total=False, colour=False).splitlines() == [
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
    line = render_rows(HEADS, rows, total=False, colour=False).splitlines()[1 + place]
    assert line == f"anna   $1.00  {told}"
