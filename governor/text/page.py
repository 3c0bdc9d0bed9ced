"""A self-contained HTML page of drawings, tables and words. It fetches nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final

from governor.text.svg import CURVE, CURVE_ON_DARK, RED, RED_ON_DARK, STYLE
from governor.text.table import Head, plain

_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")

_STYLE: Final = f"""
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1.05rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere; }}
svg {{ display: block; width: 100%; height: auto; }}
{STYLE}.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }}
td, th {{ padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8883; }}
th {{ vertical-align: bottom; }}
td:first-child {{ white-space: nowrap; }}
.n {{ text-align: right; white-space: nowrap; }}
.legend {{ list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; margin: .3rem 0; }}
.legend i {{ display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px; }}
"""
# For pages with drawings of one curve that are made twice, for wide and for narrow screens (class wide, class narrow).
THEME: Final = f"""
.narrow {{ display: none; }}
ul, ol {{ padding-left: 1.4rem; }} li {{ margin: .2rem 0; }}
p, li, pre, summary, figcaption {{ overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #0d1117; color: #d8dee4; }}
  [stroke="{CURVE}"] {{ stroke: {CURVE_ON_DARK}; }} [fill="{CURVE}"] {{ fill: {CURVE_ON_DARK}; }}
  [stroke="{RED}"] {{ stroke: {RED_ON_DARK}; }} [fill="{RED}"] {{ fill: {RED_ON_DARK}; }}
  .legend [style="background:{RED}"] {{ background: {RED_ON_DARK} !important; }}
}}
@media (prefers-color-scheme: light) {{ body {{ background: #ffffff; color: #1f2328; }} }}
@media (max-width: 640px) {{
  body {{ margin: 1rem auto; padding: 0 .6rem; }}
  .wide {{ display: none; }} .narrow {{ display: block; }}
  td, th {{ padding-right: .6rem; }} table {{ font-size: 13px; }} td:first-child {{ white-space: normal; }}
}}
"""


def page(title: str, inner: str, style: str = "") -> str:
    """The whole page. `style`: rules of its own, behind the common ones."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}{style}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        f"{inner}\n</body></html>\n"
    )


def anchor(incident_id: object) -> str:
    """The name of an incident's section in a page: links of drawings lead there."""
    return f"halt-{_NOT_A_NAME.sub('_', plain(incident_id))}"


def section(title: str, inner: str, note: str = "") -> str:
    """A section of the page. Empty if `inner` is empty."""
    return f"<section><h2>{html.escape(title)}</h2>{quiet(note)}{inner}</section>\n" if inner else ""


def quiet(text: str) -> str:
    return f'<p class="quiet">{html.escape(text)}</p>' if text else ""


def table(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> str:
    kinds = [' class="n"' if head.is_number else "" for head in heads]
    top = "".join(f"<th{kind}>{html.escape(head.title)}</th>" for head, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{html.escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>\n"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>\n{body}</table></div>'
