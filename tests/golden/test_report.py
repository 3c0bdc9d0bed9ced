"""The reports, word for word: a change of what people read shows as a diff."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from governor.reports.incident import incident_json, incident_markdown, timeline_lines
from tests.golden.report_cases import CASES as ONE_NODE
from tests.golden.report_cases import MS, OPENED_MONO
from tests.golden.report_nodes import NODE_CASES

GOLDEN = Path(__file__).parent / "report"
CASES = ONE_NODE | NODE_CASES
FAULT_MONO = OPENED_MONO - 12 * MS

VIEWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "md": incident_markdown,
    "json": incident_json,
    "verdict.txt": lambda snapshot: "\n".join(timeline_lines(snapshot)) + "\n",
    "fault.txt": lambda snapshot: "\n".join(timeline_lines(snapshot, FAULT_MONO)) + "\n",
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", CASES)
def test_the_report_reads_as_agreed(case: str, view: str) -> None:
    """`make golden-update` rewrites the files; read the diff."""
    path = GOLDEN / f"{case}.{view}"
    text = VIEWS[view](CASES[case]())
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.write_text(text)
    assert path.read_text() == text
