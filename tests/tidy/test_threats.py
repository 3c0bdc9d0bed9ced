"""THREATS.md says each thing once, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "THREATS.md").read_text().splitlines()
    if line.startswith("| ")
][1:]


def test_no_threat_stands_twice() -> None:
    said = [row[1].casefold() for row in ROWS]
    assert sorted({text for text in said if said.count(text) > 1}) == []


def test_what_shows_it_exists() -> None:
    named = {name for row in ROWS for name in re.findall(r"`(tests/[\w/.]+)", row[-1])}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
    tests = {name for row in ROWS for name in re.findall(r"\b(test_\w+)(?=`)", row[-1]) if not name.endswith("_py")}
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(name for name in tests if f"def {name}(" not in text) == []
