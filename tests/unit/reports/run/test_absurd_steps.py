"""A figure that no step can have is in no sum of a report, and the report says how many it has left out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.core.base.units import NS_PER_S
from governor.core.events.step_parts import FIGURES, TIME_FIELDS
from governor.reports.run.compare import compare_document
from governor.reports.run.document import run_document
from governor.reports.run.facts import RunFacts
from governor.reports.run.sections import sections
from governor.reports.run.series import RunSeries
from tests.golden.run_report_cases import at, hello, step, whole_run
from tests.sweeps import share_of

ABSURD = (1e308, 1e300, 9e8, 3e8, -1.0, math.nan, math.inf, -math.inf, 1e-320, 5e-324, 100.0, 0.0, 0.019, 4e38)
STEP_S = 0.02


def series_of(wrong: dict[int, dict[str, Any]], steps: int = 40) -> RunSeries:
    """Two ranks of steps of 20 ms, but for those."""
    series = RunSeries()
    for rank in (0, 1):
        series.see(hello(0, rank))
    for number in range(1, steps + 1):
        told: dict[str, Any] = {
            "step_s": STEP_S, "data_s": 0.004, "forward_s": 0.005, "backward_s": 0.008, "optimizer_s": 0.002,
            "comm_s": 0.001,
        } | wrong.get(number, {})  # fmt: skip
        series.see(step(number * STEP_S, number, **told))
        series.see_other({"rank": 1, "step": number, "at_ns": at(number * STEP_S), **told})
    return series


def facts_of(series: RunSeries) -> RunFacts:
    return RunFacts("absurd", whole_run().told, "ended", None, None, 22.0, series=series)


def numbers(found: Any, path: str = "") -> list[tuple[str, float]]:
    if isinstance(found, dict):
        return [one for key, value in found.items() for one in numbers(value, f"{path}.{key}")]
    if isinstance(found, list | tuple):
        return [one for value in found for one in numbers(value, path)]
    return [(path, found)] if isinstance(found, int | float) and not isinstance(found, bool) else []


WRONG = st.dictionaries(
    st.integers(1, 40),
    st.dictionaries(st.sampled_from((*TIME_FIELDS, *FIGURES)), st.sampled_from(ABSURD), min_size=1, max_size=4),
    max_size=12,
)


@settings(max_examples=share_of(100), deadline=None)
@given(WRONG)
def test_a_report_of_any_frames_is_made_of_finite_numbers(wrong: dict[int, dict[str, Any]]) -> None:
    facts = facts_of(series_of(wrong))
    document = run_document(facts)
    json.dumps(document, allow_nan=False)
    json.dumps(compare_document(facts, facts_of(series_of({}))), allow_nan=False)
    assert all(math.isfinite(number) for _, number in numbers(document))
    for part in document["parts"]:
        assert 0 <= part["share"] <= 1 + 1e-9
    assert sum(part["share"] for part in document["parts"] if not part["of_which"]) == pytest.approx(1)
    for rank in document["ranks"]:
        assert 0 <= rank["data_s"] <= rank["step_s"] * (1 + 1e-9)
    told = [one.table.rows for one in sections(document) if one.key == "stability" and one.table is not None]
    assert all(len(cell) < 60 for rows in told for row in rows for cell in row)


@pytest.mark.parametrize("name", TIME_FIELDS)
@pytest.mark.parametrize("value", [1e308, 9e8, -1.0, math.inf])
def test_what_is_left_out_is_counted_by_its_field(name: str, value: float) -> None:
    series = series_of({20: {name: value}, 21: {name: value}})
    assert series.left_out.values == {name: 4}
    assert any(f"4 of {name}" in line for line in run_document(facts_of(series))["not_verified"])


def test_a_hundred_good_steps_leave_nothing_out() -> None:
    series = series_of({}, steps=100)
    assert series.left_out.values == {}
    assert series.windows.overlong == 0


def test_a_step_after_a_long_silence_of_the_governor_is_believed() -> None:
    """Its frames were read late, all at once."""
    series = RunSeries()
    series.see(hello(0))
    for number in range(1, 11):
        series.see(step(500, number, step_s=45.0))
    assert series.left_out.values == {}
    assert series.windows.seconds_per_step() == 45.0


def test_parts_longer_than_their_step_fill_it() -> None:
    series = series_of({20: {"data_s": 100.0}})
    assert series.windows.overlong == 1
    assert series.windows.part_total_s("data") < 39 * STEP_S
    assert series.length_s < 40 * STEP_S + 1 / NS_PER_S


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_beyond_floats_of_32_bits_is_left_out(name: str) -> None:
    series = series_of({20: {name: 1e308}, 21: {name: math.inf}})
    assert series.left_out.values == {name: 1}
