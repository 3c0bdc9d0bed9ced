"""A report's sections as Markdown, and as text for a terminal of any width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from governor.reports.run.sections import Section
from governor.text.screen import Screen, Styled, shown_lines
from governor.text.table import plain, render_rows

_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>|])")
_LEAD: Final = re.compile(r"^([-+#]|[0-9]+[.)])(?=[ #])")


def markdown(title: str, found: Sequence[Section]) -> str:
    """What a run or a person named cannot be markup: it is escaped."""
    blocks = [f"# {_escaped(title)}"]
    for section in found:
        blocks.append(f"## {_escaped(section.title)}")
        blocks += [_escaped(line) for line in section.lines]
        if section.table is not None:
            heads, rows = section.table.heads, section.table.rows
            lines = [_row([head.title for head in heads])]
            lines.append("|" + "|".join(" ---: " if head.is_number else " --- " for head in heads) + "|")
            blocks.append("\n".join([*lines, *map(_row, rows)]))
        if section.items:
            blocks.append("\n".join(f"- {_escaped(item)}" for item in section.items))
    return "\n\n".join(blocks) + "\n"


def terminal(title: str, found: Sequence[Section], screen: Screen) -> str:
    """For standard output. Texts are wrapped between words, tables fold."""
    lines = [*shown_lines(Styled(plain(title), "bold"), screen)]
    for section in found:
        lines += ["", *shown_lines(Styled(section.title, "bold"), screen)]
        for line in section.lines:
            lines += shown_lines(plain(line), screen)
        if section.table is not None:
            table = section.table
            lines += render_rows(table.heads, table.rows, total=table.total, screen=screen).rstrip("\n").split("\n")
        for item in section.items:
            lines += shown_lines(f"- {plain(item)}", screen)
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    one_line = plain(text)
    return _LEAD.sub(r"\\\1", _MARKUP.sub(r"\\\1", one_line))
