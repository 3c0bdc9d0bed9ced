"""The table of runs worked out by hand, beside what each view tells of them: `python -m tests.hand_table`.

In micro-dollars; ratios in millionths. A text is compared as far as its digits go. Exits with 1 where anything differs.
"""

from __future__ import annotations

import sys

from governor.text.screen import FILE
from governor.text.table import Head, render_rows
from tests.hand_table.more_cases import CASES
from tests.hand_table.views import by_hand, told_of

HEADS = (
    Head("CASE"), Head("FIGURE"), Head("VIEW"), Head("HAND", True), Head("TOLD", True), Head("DIGIT", True),
    Head("DIFFERENCE", True),
)  # fmt: skip


def main() -> int:
    rows, wrong = [], 0
    for case in CASES:
        hand = by_hand(case)
        found = sorted(told_of(case), key=lambda told: [*hand].index(told.figure))
        for told in found:
            off = told.differs_by(hand[told.figure])
            wrong += off != 0
            of = (
                _text(hand[told.figure]),
                _text(told.value),
                f"{told.grid:,}",
                "UNKNOWN" if off is None else f"{off:,}",
            )
            rows.append((case.name, told.figure, told.view, *of))
    print(render_rows(HEADS, rows, total=False, screen=FILE), end="")
    print(f"{len(CASES)} cases, {len(rows)} figures told, {wrong} of them are not the hand's")
    return 1 if wrong else 0


def _text(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
