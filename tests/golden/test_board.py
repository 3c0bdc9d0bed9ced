"""The page of the metrics port, word for word: a change of what people read shows as a diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.reports.board import aged, render_board
from tests.golden.board_cases import BOARDS

GOLDEN = Path(__file__).parent / "board"


@pytest.mark.parametrize("age_s", [0, 12])
@pytest.mark.parametrize("case", BOARDS)
def test_the_page_reads_as_agreed(case: str, age_s: int) -> None:
    """`make golden-update` rewrites the files; read the diff. Style and script are looked at in a browser."""
    page = aged(render_board(BOARDS[case]), age_s)
    text = page[page.index("<main>") : page.index("<script>")]
    path = GOLDEN / f"{case}_{age_s}.html"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text
