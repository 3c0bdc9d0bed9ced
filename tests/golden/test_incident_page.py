"""What people read of an incident beside its plots, word for word, and that nothing steers the page."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from governor.reports.incident.drawn import sketched
from governor.reports.incident.page import incident_page, incident_section
from tests.golden.incident_cases import HOSTILE, INCIDENTS
from tests.golden.report_cases import CASES

GOLDEN = Path(__file__).parent / "incident"
VOID = {"meta", "path", "circle", "rect", "polyline", "polygon", "link", "br"}
_DRAWING = re.compile(r"<svg.*?</svg>", re.S)
_STYLE = re.compile(r"<style>.*?</style>", re.S)


class Opened(HTMLParser):
    """Every tag that opens is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in ("src", "srcset") for name, _ in attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag


@pytest.mark.parametrize("case", INCIDENTS)
def test_the_page_and_the_terminal_read_as_agreed(case: str) -> None:
    """Without the drawings, whose captions say what they show. `make golden-update` rewrites the files."""
    snapshot, seen = INCIDENTS[case]()
    page = _STYLE.sub("", _DRAWING.sub("<svg/>", incident_page(snapshot, seen)))
    text = page + "\n".join(["", *sketched(seen), ""])
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("case", [*INCIDENTS, *CASES])
def test_the_page_is_well_formed_and_fetches_nothing(case: str) -> None:
    snapshot, seen = INCIDENTS[case]() if case in INCIDENTS else (CASES[case](), None)
    page = incident_page(snapshot, seen)
    opened = Opened()
    opened.feed(page)
    assert opened.stack == []
    assert "script" not in opened.tags
    assert "http" not in page
    assert ("svg" in opened.tags) is (seen is not None)


def test_a_name_is_a_text() -> None:
    snapshot, seen = INCIDENTS["with_hostile_names"]()
    for text in (incident_page(snapshot, seen), incident_section(snapshot, seen)):
        assert "<script" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;alert(1)" in text
    assert not any("\x1b" in line for line in sketched(seen))
    assert HOSTILE in snapshot["run"]
