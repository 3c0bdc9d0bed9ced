"""Where text is shown: colour on a terminal that takes it, and lines that are broken and never cut."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from governor.text.screen import FILE, Screen, Styled, flow, screen_of, shown_lines, width, without_colour, wrapped


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "72")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_a_terminal_has_colour_and_a_file_neither_colour_nor_width(terminal: TextIO) -> None:
    assert screen_of(terminal) == Screen(72, True)
    assert screen_of(io.StringIO()) == FILE


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colour_has_none_and_keeps_the_width(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert screen_of(terminal) == Screen(72, False)


def test_a_no_color_that_is_empty_asks_for_nothing(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert screen_of(terminal).is_coloured


def test_a_terminal_that_states_no_width_has_the_usual_one(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    assert screen_of(terminal).columns == 80


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("", 10, [""]),
        ("one two three", 7, ["one two", "three"]),
        ("/data/checkpoints/llama/step_400", 20, ["/data/checkpoints/", "llama/step_400"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("训练任务", 5, ["训练", "任务"]),
    ],
)
def test_a_text_breaks_between_words_and_then_at_its_marks(text: str, columns: int, lines: list[str]) -> None:
    assert wrapped(text, columns) == lines


def test_later_lines_hang_below_the_first_in_the_same_colour() -> None:
    told = shown_lines(Styled("  - one two three", "red"), Screen(11, True))
    assert told == ["\x1b[31m  - one two\x1b[0m", "\x1b[31m    three\x1b[0m"]
    assert [without_colour(line) for line in told] == ["  - one two", "    three"]
    assert shown_lines("x" * 300, FILE) == ["x" * 300]


def test_parts_flow_and_a_long_one_breaks() -> None:
    parts = [Styled("gpu-17", "bold"), "enforce", "policies: a, b, c"]
    assert flow(parts, FILE) == ["gpu-17  enforce  policies: a, b, c"]
    assert flow(parts, Screen(20, False)) == ["gpu-17  enforce", "  policies: a, b, c"]
    assert flow(parts, Screen(14, False)) == ["gpu-17", "  enforce", "  policies: a,", "    b, c"]


def test_the_width_is_that_of_a_terminal() -> None:
    assert [width(text) for text in ("abc", "训练", "e\u0301", "█")] == [3, 4, 1, 1]
