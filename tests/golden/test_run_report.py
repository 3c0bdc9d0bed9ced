"""The report of a run, and the comparison of two, word for word."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.reports.run.compare import compare_sections
from governor.reports.run.document import run_document
from governor.reports.run.facts import RunFacts
from governor.reports.run.sections import sections, title_of
from governor.reports.run.written import markdown, terminal
from governor.text.screen import Screen
from tests.golden.run_report_cases import CASES, trained, whole_run
from trainer_shim.wire import worded

GOLDEN = Path(__file__).parent / "run_report"


def _markdown(facts: RunFacts) -> str:
    document = run_document(facts)
    return markdown(title_of(document), sections(document))


def _terminal(facts: RunFacts) -> str:
    document = run_document(facts)
    return terminal(title_of(document), sections(document), Screen(80, is_coloured=False))


VIEWS: dict[str, Callable[[RunFacts], str]] = {
    "md": _markdown,
    "txt": _terminal,
    "json": lambda facts: json.dumps(worded(run_document(facts)), indent=1, allow_nan=False) + "\n",
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", CASES)
def test_the_report_reads_as_agreed(case: str, view: str) -> None:
    _is_as_agreed(f"{case}.{view}", VIEWS[view](CASES[case]()))


def test_the_comparison_reads_as_agreed() -> None:
    before, slower = whole_run(), trained(length=2.6, data_s=1.0)
    after = RunFacts("llama-2", before.told, "ended", None, None, 22.0, series=slower)
    found = compare_sections(before, after)
    _is_as_agreed("compare.txt", terminal("Comparison", found, Screen(100, is_coloured=False)))


def _is_as_agreed(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.write_text(text)
    assert path.read_text() == text
