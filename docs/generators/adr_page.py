"""docs/adr/README.md: the decisions by number, from the first line of each."""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parents[1] / "adr"

_HEAD = """# Decisions

<!-- Drawn from the first line of each page by `make docs`: change it there. -->

A decision that costs more than a day to undo has a page here: the question, the decision, why, its price, and what would prove it wrong.
A new one begins as a copy of [the template](0000-template.md).

"""


def render() -> str:
    return _HEAD + "".join(_row(path) for path in sorted(HOME.glob("[0-9]*.md")) if not path.name.startswith("0000"))


def _row(path: Path) -> str:
    number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(" · ")
    return f"- [{number}]({path.name}) {title}\n"
