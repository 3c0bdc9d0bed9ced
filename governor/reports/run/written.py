"""A report's sections as Markdown, and as text for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from governor.reports.run.sections import Section
from governor.text.markdown import cell, literal
from governor.text.screen import Screen, Styled, shown_lines
from governor.text.table import plain, render_rows


def markdown(title: str, found: Sequence[Section]) -> str:
    """What a run or a person named cannot be markup: it is escaped."""
    blocks = [f"# {literal(title)}"]
    for section in found:
        blocks.append(f"## {literal(section.title)}")
        blocks += [literal(line) for line in section.lines]
        if section.table is not None:
            heads, rows = section.table.heads, section.table.rows
            lines = [_row([head.title for head in heads])]
            lines.append("|" + "|".join(" ---: " if head.is_number else " --- " for head in heads) + "|")
            blocks.append("\n".join([*lines, *map(_row, rows)]))
        if section.items:
            blocks.append("\n".join(f"- {literal(item)}" for item in section.items))
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
    return "| " + " | ".join(map(cell, cells)) + " |"
