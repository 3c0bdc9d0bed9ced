"""An incident as one self-contained page: what happened, plots of what was judged, dollars, and what to do."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.reports.incident.drawn import figures, unseen_text
from governor.reports.incident.seen import Seen
from governor.reports.incident.told import collectives_told, not_observed, summary
from governor.reports.incident.written import (
    STACK_FRAMES_SHOWN,
    fact_rows,
    rank_words,
    resume_advice,
    resumes_from,
)
from governor.reports.node_stop import is_of_node
from governor.reports.resume_text import command_to_copy
from governor.text import page as web
from governor.text.failure_modes import modes_of
from governor.text.failure_modes.mode import FailureMode
from governor.text.moments import Snapshot, moments, since_text
from governor.text.table import Head, plain
from trainer_shim.wire import worded

MOMENTS_MAX: Final = 300
RANKS_MAX: Final = 32
EVIDENCE_CHARS_MAX: Final = 20_000
LINE_CHARS_MAX: Final = 2_000
_MONEY: Final = ("Spent", "Stays billed")
_CODE: Final = re.compile("`([^`]*)`")
_STYLE: Final = (
    web.THEME
    + """
figure { margin: .6rem 0 1.4rem; } figcaption { font-size: .92em; opacity: .85; }
pre { white-space: pre-wrap; border: 1px solid #8886; border-radius: 6px; padding: .6rem .8rem; margin: .5rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
.lead { font-size: 1.05rem; max-width: 62rem; } p, li { max-width: 62rem; }
table.facts td { overflow-wrap: anywhere; }
table.facts th { font-weight: 600; vertical-align: top; white-space: nowrap; }
summary { cursor: pointer; } summary:focus-visible { outline: 2px solid #0072b2; }
"""
)


def incident_page(snapshot: Snapshot, seen: Seen | None) -> str:
    """The whole page. It fetches nothing. What a run or a person named is escaped, and cannot steer it."""
    facts = fact_rows(snapshot)
    dollars: dict[str, str] = {name: facts.pop(name) for name in _MONEY if name in facts}
    unseen = not_observed(snapshot)
    parts = [
        f'<p class="lead">{_line(summary(snapshot))}</p>',
        _facts(facts),
        web.section("Evidence", _plots(snapshot, seen)),
        web.section("Time line", _timeline(snapshot)),
        web.section("Dollars", _facts(dollars)),
        web.section("Resume", _resume(snapshot)),
        *(web.section(f"Failure mode: {mode.name}", _mode(mode)) for mode in modes_of(snapshot)),
        web.section("What was not observed", _items(unseen) or "<p>Everything that was asked for was observed.</p>"),
        "" if is_of_node(snapshot) else web.section("Ranks at the verdict", _ranks(snapshot)),
        web.section("Collectives at the halt", _items(collectives_told(snapshot))),
        web.section("Evidence as recorded", _evidence(snapshot)),
    ]
    return web.page(f"Incident {plain(snapshot['incident_id'])}", f"<main>\n{''.join(parts)}</main>", _STYLE)


def incident_section(snapshot: Snapshot, seen: Seen | None, *, is_drawn: bool = True) -> str:
    """What the page of a run has of one of its halts. `is_drawn`: with plots, or with why there are none."""
    modes = "".join(
        f"<p>Failure mode: {_line(mode.title)} (<code>{mode.place}</code>).</p>" for mode in modes_of(snapshot)
    )
    name = plain(snapshot["incident_id"])
    more = f"<p>In full: <code>costgov incident show {html.escape(name)} --html FILE</code></p>"
    inner = f"<p>{_line(summary(snapshot))}</p>{_plots(snapshot, seen) if is_drawn else ''}{modes}{more}"
    return f'<section id="{web.anchor(name)}"><h2>Halt {html.escape(name)}</h2>{inner}</section>\n'


def _plots(snapshot: Snapshot, seen: Seen | None) -> str:
    if is_of_node(snapshot):
        return ""
    missing = unseen_text(snapshot, seen)
    return (figures(snapshot, seen) if seen is not None else "") + web.quiet(missing)


def _line(text: object) -> str:
    return html.escape(plain(text)[:LINE_CHARS_MAX])


def _marked(text: str) -> str:
    """Our own Markdown: names between backquotes, which nobody's text may hold."""
    return _CODE.sub(r"<code>\1</code>", _line(text))


def _items(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_line(line)}</li>' for line in lines)}</ul>" if lines else ""


def _facts(rows: Mapping[str, str]) -> str:
    body = "".join(
        f'<tr><th scope="row">{_line(name)}</th><td>{_marked(text)}</td></tr>\n' for name, text in rows.items()
    )
    return f'<div class="scroll"><table class="facts">{body}</table></div>' if rows else ""


def _timeline(snapshot: Snapshot) -> str:
    told = moments(snapshot)
    heads = [Head("since the verdict", is_number=True), Head("what"), Head("seen")]
    rows = [
        [f"{'~' if one.by_wall else ''}{since_text(one.since_ns)}", one.label, plain(one.text)[:LINE_CHARS_MAX]]
        for one in told[:MOMENTS_MAX]
    ]
    left = len(told) - len(rows)
    return web.table(heads, rows) + web.quiet(f"{left:,} more are in `costgov incident show --json`." if left else "")


def _resume(snapshot: Snapshot) -> str:
    command = command_to_copy(snapshot)
    if command:
        return f'<pre tabindex="0">{html.escape(plain(command))}</pre><p>{_marked(resume_advice(snapshot))}</p>'
    return f"<p>{_marked(resumes_from(snapshot))}</p>" if snapshot.get("resume") else ""


def _mode(mode: FailureMode) -> str:
    steps = "".join(f"<li>{_marked(step)}</li>" for step in mode.recovery)
    title = mode.title[0].upper() + mode.title[1:]
    return (
        f"<p><b>{_line(title)}.</b> {_marked(mode.symptom)}</p><p>What costgov does: {_marked(mode.action)}</p>"
        f"<p>What to do:</p><ol>{steps}</ol><p>At risk: {_marked(mode.at_risk)}</p>"
        f"<p>In full: <code>{_line(mode.place)}</code></p>"
    )


def _ranks(snapshot: Snapshot) -> str:
    ranks = list(snapshot["ranks"])
    told = [_rank(rank) for rank in ranks[:RANKS_MAX]]
    left = len(ranks) - len(told)
    more = web.quiet(f"{left:,} more are in `costgov incident show --json`." if left else "")
    return ("".join(told) or "<p>None was known.</p>") + more


def _rank(rank: Mapping[str, Any]) -> str:
    head, collective = rank_words(rank)
    stack = [plain(frame)[:LINE_CHARS_MAX] for frame in rank.get("stack") or []]
    shown = [
        *stack[:STACK_FRAMES_SHOWN],
        *([f"… {len(stack) - STACK_FRAMES_SHOWN} more"] if stack[STACK_FRAMES_SHOWN:] else []),
    ]
    frames = html.escape("\n".join(shown))
    block = f"<details><summary>its stack</summary><pre>{frames}</pre></details>" if shown else ""
    return f"<p><b>rank {_line(rank['rank'])}</b> {_marked(head)}; {_line(collective)}</p>{block}"


def _evidence(snapshot: Snapshot) -> str:
    if not snapshot["evidence"]:
        return "<p>None was recorded.</p>"
    text = json.dumps(worded(dict(snapshot["evidence"])), indent=2, default=str)
    cut = web.quiet("Cut: `costgov incident show --json` has all.") if len(text) > EVIDENCE_CHARS_MAX else ""
    return f"<details><summary>as JSON</summary><pre>{html.escape(text[:EVIDENCE_CHARS_MAX])}</pre></details>{cut}"
