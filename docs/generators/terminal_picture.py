"""docs/start/halt.svg: the terminal of docs/start/halt.txt, the output of a real `make demo FAULT=nan`.

The text is a capture: `make demo FAULT=nan > docs/start/halt.txt`. Drawn is what a reader looks at: lines that repeat,
or say nothing about the halt, are left out (dots stand for them), and long ones are cut.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

CAPTURE = Path(__file__).parents[1] / "start" / "halt.txt"
TITLE = "make demo FAULT=nan"
COLUMNS = 108
CHAR_W, LINE_H, PAD, BAR_H = 8.1, 19, 18, 34  # Pixels, of the widest usual font of 13.
LEFT_OUT = ("demo: EC2", "$ COSTGOV_STAGE", "starting", "costgov: self-test", "costgov: metrics")
# Readable on the terminal's own dark ground, which is the same on a light page and on a dark one.
INK, DIM, RED, GREEN, YELLOW, BLUE = "#e6edf3", "#8b949e", "#ff7b72", "#56d364", "#e3b341", "#79c0ff"
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
NBSP = "\u00a0"  # Chromium folds a run of blanks in a picture, whatever the style says.
_MOMENT = re.compile(r"^( *[\d.]+ m?s )(\s*\S+)(.*)$")
_FACT = re.compile(r"^(spent|stays billed|checkpoint|last good|resume|report)(\s.*)$")
_MOMENT_INK = {"verdict": RED, "saved": GREEN, "checked": GREEN, "VERIFIED": GREEN, "halted": GREEN, "gone": GREEN}


def render() -> str:
    lines = shown(CAPTURE.read_text(encoding="utf-8"))
    width = round(COLUMNS * CHAR_W + 2 * PAD)
    height = BAR_H + LINE_H * len(lines) + 2 * PAD - 4
    rows = "".join(
        f'<text x="{PAD}" y="{BAR_H + PAD + LINE_H * index + 8}">{_spans(line)}</text>\n'
        for index, line in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{20 + 18 * index}" cy="17" r="5.5" fill="{ink}"/>'
        for index, ink in enumerate((RED, YELLOW, GREEN))
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>A terminal: {escape(TITLE)}</title>
<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9" fill="#0d1117" stroke="#3d444d"/>
{dots}
<g font-family="{FONT}" font-size="13">
<text x="{width / 2:.0f}" y="22" text-anchor="middle" fill="{DIM}">{escape(TITLE)}</text>
<g fill="{INK}">
{rows}</g>
</g>
</svg>
"""


def shown(text: str) -> list[str]:
    """Return the lines to draw, each at most COLUMNS wide."""
    lines = [f"$ {TITLE}"]
    for line in text.splitlines():
        if line.startswith(LEFT_OUT):
            if lines[-1] != "…":
                lines.append("…")
        else:
            lines.append(line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…")
    return lines


def _spans(line: str) -> str:
    if line.startswith("HALT"):
        return _span(line, RED, bold=True)
    if line.startswith(("$", "demo: ok")):
        return _span(line, INK, bold=True)
    if moment := _MOMENT.match(line):
        what = moment[2].strip()
        return _span(moment[1], DIM) + _span(moment[2], _MOMENT_INK.get(what, INK), bold=True) + _span(moment[3], INK)
    if fact := _FACT.match(line):
        return _span(fact[1], BLUE) + _span(fact[2], INK)
    return _span(line, DIM if line.startswith(("costgov:", "…")) else INK)


def _span(text: str, ink: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<tspan fill="{ink}"{weight}>{escape(text).replace(" ", NBSP)}</tspan>'
