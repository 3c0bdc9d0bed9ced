"""What is told of each rank's steps: the rank that has the most of a part, and all of its step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import Whole, time_row
from governor.core.base.units import NS_PER_S
from governor.reports.run.document import _PART_OF, run_document
from governor.reports.run.facts import RunFacts
from governor.reports.run.sections import sections
from governor.reports.run.series import RunSeries
from governor.text.screen import Screen
from governor.text.table import fits
from tests.golden.run_report_cases import hello, step

# Of a step of one second: as the lead has it, and as rank 1 has it.
TOLD = {"data": "data_s", "loop": "loop_s", "checkpoint": "checkpoint_s", "evaluation": "eval_s", "bubble": "bubble_s",
        "communication": "comm_s", "offload": "offload_s", "recompute": "recompute_s"}  # fmt: skip
WORK = {"forward_s": 0.2, "backward_s": 0.25, "optimizer_s": 0.25, "data_s": None, "comm_s": None, "step_s": 1.0}


def ran(lead: dict[str, Any], other: dict[str, Any]) -> RunSeries:
    """Twenty steps of two ranks."""
    series = RunSeries()
    for rank in (0, 1):
        series.see(hello(0, rank))
    for number in range(1, 21):
        series.see(step(number, number, **(WORK | lead)))
        series.see(dataclasses.replace(step(number, number, **(WORK | other)), rank=1))
    return series


def facts_of(series: RunSeries) -> RunFacts:
    amounts = {cause: Amount(NS_PER_S, 1_000_000) for cause in Cause}
    return RunFacts("llama", {"time": time_row(Whole(amounts, 20, {}))}, "ended", series=series)


@pytest.mark.parametrize(("cause", "part"), _PART_OF.items())
def test_the_evidence_of_a_cause_is_of_the_rank_that_has_the_most_of_it(cause: str, part: str) -> None:
    for most in (0, 1):
        series = ran(*({TOLD[part]: 0.15 if rank == most else 0.002} for rank in (0, 1)))
        (evidence,) = (one["evidence"] for one in run_document(facts_of(series))["causes"] if one["cause"] == cause)
        assert f" on rank {most}" in evidence
        assert "150 ms" in evidence


def test_a_part_that_no_rank_has_told_has_no_figure() -> None:
    document = run_document(facts_of(ran({}, {})))
    assert not [one["cause"] for one in document["causes"] if " on rank " in one["evidence"]]


@pytest.mark.parametrize("comm_s", [None, 0.1])
def test_the_columns_of_a_rank_add_up_to_its_step(comm_s: float | None) -> None:
    told: dict[str, Any] = {
        "loop_s": 0.05,
        "data_s": 0.1,
        "checkpoint_s": 0.02,
        "comm_s": comm_s,
        "comm_between_s": 0.01,
    }
    told = {"offload_s": 0.1} | (told if comm_s is not None else {**told, "comm_between_s": None})
    for row in run_document(facts_of(ran(told, told | {"loop_s": 0.15})))["ranks"]:
        columns = [row[name] or 0.0 for name in ("data_s", "loop_s", "own_s", "communication_s", "other_s")]
        assert sum(columns) == pytest.approx(row["step_s"])
        assert row["loop_s"] == pytest.approx((0.15 if row["rank"] else 0.05) - (0.01 if comm_s is not None else 0.0))
        assert row["other_s"] > 0


def test_the_table_of_ranks_fits_a_terminal() -> None:
    uneven = dict.fromkeys(TOLD.values(), 0.012345)
    (found,) = (one for one in sections(run_document(facts_of(ran(uneven, uneven)))) if one.title == "Ranks")
    assert found.table is not None
    assert fits(found.table.heads, found.table.rows, Screen(80, is_coloured=False))
