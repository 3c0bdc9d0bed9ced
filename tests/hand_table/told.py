"""A figure as a view tells it: numbers out of JSON and metrics, and those that stand in lines of text.

Micro-dollars, and ratios in millionths. A text has fewer digits: a figure of it comes with the size of its last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.hand_table.cases import CAUSES, MILLION

_WORDS = dict(
    zip(CAUSES, ("until its first step", "after the last step", "in a halt", "for tokens trained twice"), strict=True)
)
ALL_TOKENS = "tokens in all"
CLOSING = {
    "spend": r"spent (\$\S+);",
    ALL_TOKENS: r"; ([\d,]+) tokens",
    "usd_per_mtok_all_in": r"(\S+)/1M tokens all-in",
    "usd_per_mtok_useful": r"all-in \((\S+) useful\)",
    "wasted": r"wasted (\S+) \(",
    **{f"wasted {cause}": rf"(\$\S+) {words}" for cause, words in _WORDS.items()},
}


class Told(NamedTuple):
    view: str
    figure: str
    value: int | None
    grid: int = 1  # The last digit shown.

    def differs_by(self, hand: int | None) -> int | None:
        """0: the same, as far as it is shown. None: one of them knows it and the other does not."""
        if self.value is None or hand is None:
            return 0 if self.value is hand else None
        off = abs(self.value - hand)
        return off if 2 * off > (self.grid if self.grid > 1 else 0) else 0


def in_text(view: str, text: str, figures: Mapping[str, str]) -> Iterator[Told]:
    """What the text has of them: it leaves out what is unknown, nothing, or told by another figure already."""
    for figure, pattern in figures.items():
        if (found := re.search(pattern, text)) is None:
            continue
        if figure == ALL_TOKENS:
            yield Told(view, figure, int(found[1].replace(",", "")))
        else:
            yield amount(view, figure, found[1].strip("(),;"))


def amount(view: str, figure: str, text: str) -> Told:
    """Of "$1,234.56": two digits behind the point, so to the cent."""
    if text in ("", "-", "$ -"):
        return Told(view, figure, None)
    whole = text.removeprefix("$").replace(",", "").removesuffix(" steady")
    return Told(view, figure, micros(whole), 10 ** (6 - len(whole.partition(".")[2])))


def percent(view: str, figure: str, text: str) -> Told:
    told = amount(view, figure, text.removesuffix("%"))
    return told._replace(value=None if told.value is None else round(told.value / 100), grid=max(1, told.grid // 100))


def micros(dollars: float | str | None) -> int | None:
    return round(float(dollars) * MILLION) if dollars is not None else None
