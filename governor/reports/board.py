"""The page of the metrics port as HTML: one document that fetches nothing but itself again.

Drawn here and not in the browser, so that it reads without scripts too. The script only replaces what is shown by a
newer copy; where scripts are off, the whole page is fetched again.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.core.base.units import utc_text
from governor.reports.causes import (
    CauseRow,
    cause_rows,
    count_text,
    drift_text,
    goodput_text,
    money_text,
    percent,
    seconds_text,
    spent_text,
)
from governor.reports.terminal import loss_text, stands_still_text
from governor.text.failure_modes import modes_of
from governor.text.table import plain

CAUSES_MAX: Final = 8  # The least of all others are one row.
GPUS_MAX: Final = 16  # The widest node there is.
GIB: Final = 2**30
BAR_COLUMNS: Final = 100  # The width of a bar for all of the time.
STALE_AFTER_S: Final = 5  # The loop leaves a document within a quarter of a second.
# No text of anybody can hold it: "<" is escaped.
_AGE: Final = '<b id="age">0</b>'
_FRESH: Final = '<p id="asof">'

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --bad: #b3261e; --warn: #8a5a00; --good: #1b6e3c;
  --bar: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --warn: #ffc46b; --good: #7fd39a; --bar: #56b4e9; } }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.1rem; margin: 0 0 .5rem; } h1, h2, td, p, dd
  { overflow-wrap: anywhere; }
p { margin: .3rem 0; } #asof, .quiet, dt { color: color-mix(in srgb, currentColor 70%, transparent); }
article, section { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: 1rem 0; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .5rem 1rem; margin: 0 0 .6rem; }
dt { font-size: .8rem; } dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-top: 1px solid var(--line); }
th { border: 0; font-size: .8rem; } .n { text-align: right; white-space: nowrap; }
.sure, .whole { white-space: nowrap; } .incidents td { min-width: 5rem; }
svg { width: 6rem; height: .7rem; background: var(--soft); } rect { fill: var(--bar); }
.bad { color: var(--bad); font-weight: 600; } .warn { color: var(--warn); font-weight: 600; }
.good { color: var(--good); font-weight: 600; }
#lost { display: none; } .lost #lost { display: block; }
@media (max-width: 40rem) {
  body { padding: .6rem; } article, section { padding: .6rem .7rem; }
  dl { grid-template-columns: repeat(2, 1fr); }
  tr { display: grid; grid-template-columns: 1fr auto auto auto; column-gap: .7rem; border-top: 1px solid var(--line);
    padding: .3rem 0; }
  tr.heads, td.bar, td.sure { display: none; } td { border: 0; padding: 0; } td.wide { grid-column: 1 / -1; }
  .incidents tr { grid-template-columns: 1fr auto; }
}
"""
# After each answer it waits, so a slow governor is asked less. A tab that nobody sees asks nothing.
_SCRIPT: Final = """
"use strict";
const again = async () => {
  if (!document.hidden) {
    try {
      const reply = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!reply.ok) throw new Error(reply.status);
      const newer = new DOMParser().parseFromString(await reply.text(), "text/html");
      document.querySelector("main").replaceWith(newer.querySelector("main"));
      document.body.classList.remove("lost");
    } catch { document.body.classList.add("lost"); }
  }
  setTimeout(again, 2000);
};
setTimeout(again, 2000);
"""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Our own style and script alone, and no address but our own. A name that became markup would still do nothing.
CSP: Final = (
    f"default-src 'none'; style-src {_digest(_STYLE)}; script-src {_digest(_SCRIPT)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def render_board(document: Mapping[str, Any]) -> str:
    """The page of a document of core.views.board with its `incidents`, as of 0 s ago (see `aged`)."""
    runs = "".join(map(_run, document["runs"]))
    if document["runs_more"]:
        runs += f'<p class="quiet">and {document["runs_more"]} more: <code>costgov status</code> has all</p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript><link rel="icon" href="data:,">'
        f"<title>costgov: {_text(document['node'])}</title><style>{_STYLE}</style></head><body>\n"
        '<p id="lost" class="bad" role="alert">No answer from the governor. What follows is what it said last.</p>\n'
        f"<main>\n<h1>{_text(document['node'])}</h1>\n<p>{_head(document)}</p>\n"
        f"{_FRESH}as of {_AGE} s ago</p>\n"
        f"{runs or '<p>No run yet.</p>'}\n{_incidents(document['incidents'])}</main>\n"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def aged(page: str, age_s: float) -> str:
    """With the document's age, which is known only when it is sent."""
    whole = max(0, int(age_s))
    told = page.replace(_AGE, f'<b id="age">{whole}</b>', 1)
    if whole < STALE_AFTER_S:
        return told
    return told.replace(_FRESH, '<p id="asof" class="bad">The governor stands still: ', 1)


def _text(value: object) -> str:
    return html.escape(plain(value))


def _head(document: Mapping[str, Any]) -> str:
    price = document["price_usd_per_hour"]
    told = "price unknown" if price is None else f"{money_text(price)}/h"
    source = f" ({document['price_source']})" if price is not None and document["price_source"] else ""
    return f"{_text(document['mode'])} · {_text(told + source)}"


_GOOD: Final = ("training", "eval", "checkpoint", "compile")
_BAD: Final = ("halting", "halted", "unwatched")


def _run(run: Mapping[str, Any]) -> str:
    state = run["state"]
    style = "good" if state in _GOOD else "bad" if state in _BAD else "quiet"
    figures = "".join(f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in _figures(run))
    notes = "".join(f'<p class="{style}">{_text(text)}</p>' for text, style in _notes(run))
    return (
        f'<article><h2>{_text(run["run"])} <span class="{style}">{_text(state)}</span></h2>\n'
        f"<dl>{figures}</dl>\n{notes}{_causes(run)}</article>\n"
    )


def _figures(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    total = run["total_steps"]
    expected, drift = run["expected_usd_per_mtok"], drift_text(run)
    return [
        ("step", count_text(run["step"]) + (f" of {count_text(total)}" if total else "")),
        ("loss", loss_text(run["loss"])),
        ("tokens/s", count_text(run["tokens_per_s"])),
        *([("MFU", percent(run["mfu"]))] if run["mfu"] is not None else []),
        ("spent", spent_text(run)),
        ("$/1M tokens now", money_text(run["usd_per_mtok"])),
        ("$/1M tokens all-in", money_text(run["usd_per_mtok_all_in"])),
        ("$/1M tokens expected", money_text(expected) + (f" ({drift})" if expected is not None and drift else "")),
        ("runway", seconds_text(run["runway_s"])),
        ("goodput", goodput_text(run)),
        ("ranks", f"{run['ranks_connected']} of {run['world_size']}"),
        *_gpus(run["gpus"]),
    ]


def _gpus(gpus: Sequence[Mapping[str, Any]] | None) -> list[tuple[str, str]]:
    return [(f"GPU {place}", gpu_text(gpu)) for place, gpu in enumerate((gpus or ())[:GPUS_MAX])]


def gpu_text(gpu: Mapping[str, Any]) -> str:
    """How busy it is and what it holds. "-" is unknown."""
    busy, memory = gpu.get("busy_frac"), gpu.get("memory_used_bytes")
    return f"{'-' if busy is None else f'{100 * busy:.0f}%'} {'-' if memory is None else f'{memory / GIB:.1f} GiB'}"


def _notes(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    notes = []
    if run["halt"] is not None:
        halt = run["halt"]
        notes.append((f"halt: {halt['stage']}, {halt['reason']}, incident {halt['incident_id']}", "bad"))
    if run["exit_code"]:
        notes.append((f"its last attempt ended with exit code {run['exit_code']}", "bad"))
    if run["hold_left_s"] is not None:
        notes.append((f"held for another {seconds_text(run['hold_left_s'])}: no rule halts it", "warn"))
    if (still := stands_still_text(run)) is not None:
        notes.append((still, "warn"))
    if run["mode"] == "observe":
        notes.append(("its policy only observes: it would be recorded, not halted", "warn"))
    return [*notes, *((f'rule "{one["rule"]}" sees: {one["reason"]}', "bad") for one in run["firing"])]


_CAUSE_HEADS: Final = ("cause", "", "$/h", "share", "time", "sure", "what to do")


def _causes(run: Mapping[str, Any]) -> str:
    rows = cause_rows(run, CAUSES_MAX)
    if not rows:
        return ""
    kinds = ("", ' class="bar"', *[' class="n"'] * 3, ' class="sure"', ' class="wide"')
    heads = "".join(f"<th{kind}>{head}</th>" for head, kind in zip(_CAUSE_HEADS, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(_cells(row), kinds, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f'<table><tr class="heads">{heads}</tr>\n{body}</table>\n'


def _cells(row: CauseRow) -> tuple[str, ...]:
    # Attributes, not a style: the policy above allows none in a tag.
    width = round(BAR_COLUMNS * min(1.0, max(0.0, row.share_frac)))
    bar = (
        f'<svg viewBox="0 0 {BAR_COLUMNS} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{_text(percent(row.share_frac))}"><rect width="{width}" height="10"/></svg>'
    )
    told = (row.per_hour, row.share, row.time, row.confidence, row.next_step)
    return (_text(row.cause), bar, *map(_text, told))


_INCIDENT_HEADS: Final = ("incident", "run", "stage", "reason", "spent by then", "opened", "failure mode")


def _modes(row: Mapping[str, Any]) -> str:
    """By name, as the catalogue has them. The port serves no other page that could be linked."""
    found = modes_of(row)
    told = "; ".join(f'{_text(mode.title)} (<span class="quiet">{_text(mode.place)}</span>)' for mode in found)
    return told or '<span class="quiet">none</span>'


def _incidents(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<section><h2>Incidents</h2><p>None.</p></section>\n"
    heads = "".join(f"<th>{head}</th>" for head in _INCIDENT_HEADS)
    body = "".join(
        f'<tr><td class="wide">{_text(row["incident_id"])}</td><td>{_text(row["run"])}</td>'
        f'<td class="{"quiet" if row["closed"] else "bad"} whole">{_text(row["halt_stage"])}</td>'
        f'<td>{_text(row["reason"])}</td><td class="whole">{_text(money_text(row["spend_usd"]))}</td>'
        f'<td class="wide whole">{_text(utc_text(row["opened_wall_ns"]))}</td>'
        f'<td class="wide">{_modes(row)}</td></tr>\n'
        for row in rows
    )
    rows_shown = f'<tr class="heads">{heads}</tr>\n{body}'
    return f'<section><h2>Incidents</h2><table class="incidents">{rows_shown}</table></section>\n'
