"""What others have named is no markup in any .md: judged by a parser of Markdown, with tables and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # textual's own.
from markdown_it.token import Token

from governor.reports.incident import incident_markdown
from governor.reports.run.document import run_document
from governor.reports.run.sections import Section, sections
from governor.reports.run.written import markdown
from governor.text.markdown import literal, with_code
from governor.text.table import plain
from tests.golden import report_cases, run_report_cases

TEXTS = st.text(alphabet="<>[]()!*_`~\\|#-+=1.:/ ab\n", max_size=30)
PLANTED = (
    "<script>alert(1)</script>", "a](http://x) [b](http://x) ![c](http://x)", "`", "``<b>``", "`<b>`<i>", "\\`<b>\\`",
    "|<b>|", "# <b>", "**b** _e_ ~~s~~ <http://x>", "\n\n<div>\n\n# h", "```\n<b>", "\\<b>",
)  # fmt: skip
# By these a report is laid out. None is a stranger's.
OWN_WORDS = frozenset({"what", "halt_stage", "stop", "kind", "verified_by", "clock", "boot_id"})


def parsed(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or ()


def markup(text: str) -> set[str]:
    """The kinds of what was found that only a stranger would write."""
    ours = {"code_inline", "fence", "text", "inline", "text_special", "softbreak"}
    blocks = ("paragraph_", "heading_", "table_", "thead_", "tbody_", "tr_", "th_", "td_", "bullet_list_", "list_item_")
    return {token.type for token in parsed(text) if token.type not in ours and not token.type.startswith(blocks)}


def planted(value: Any, text: str, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: planted(one, text, name) for name, one in value.items()}
    if isinstance(value, list):
        return [planted(one, text, key) for one in value]
    return f"{value}{text}" if isinstance(value, str) and key not in OWN_WORDS else value


@given(TEXTS)
def test_a_literal_is_one_paragraph_of_its_text(text: str) -> None:
    told = list(parsed(literal(text)))
    assert {token.type for token in told} <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}
    assert "".join(token.content for token in told if token.type.startswith("text")) == plain(text)


@given(TEXTS, TEXTS)
def test_beside_our_code_nothing_is_markup(name: str, said: str) -> None:
    for text in (f"is in `x` and says {said}", f"is in `{plain(name).replace('`', '')} ` and says {said}"):
        assert markup(with_code(text)) == set(), text


def test_code_of_ours_is_code() -> None:
    told = [token.content for token in parsed(with_code("at `a_b<c>` now, `d`")) if token.type == "code_inline"]
    assert told == ["a_b<c>", "d"]


@pytest.mark.parametrize("text", PLANTED)
@pytest.mark.parametrize("case", report_cases.CASES)
def test_no_field_of_an_incident_is_markup(case: str, text: str) -> None:
    snapshot = report_cases.CASES[case]()
    ours = markup(incident_markdown(snapshot))
    assert markup(incident_markdown(planted(snapshot, text))) <= ours
    assert ours <= {"strong_open", "strong_close", "ordered_list_open", "ordered_list_close"}


@pytest.mark.parametrize("text", PLANTED)
@pytest.mark.parametrize("case", run_report_cases.CASES)
def test_no_text_of_a_runs_report_is_markup(case: str, text: str) -> None:
    def hostile(section: Section) -> Section:
        table = section.table
        if table is not None:
            rows = [[cell + text for cell in row] for row in table.rows]
            table = replace(table, rows=rows, heads=[one._replace(title=one.title + text) for one in table.heads])
        lines, items = ([one + text for one in of] for of in (section.lines, section.items))
        return replace(section, title=section.title + text, lines=lines, items=items, table=table)

    found = sections(run_document(run_report_cases.CASES[case]()))
    assert markup(markdown(text, [hostile(section) for section in found])) == set()
