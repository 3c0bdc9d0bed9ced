"""What is told of each rank's steps: the rank that has the most of a part, and all of its step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution.causes import Amount, Cause
from governor.core.attribution.rows import Whole, time_row
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step
from governor.core.events.step_parts import OF_WHICH_FIELDS, PART_FIELDS
from governor.reports.run.document import _PART_OF, run_document
from governor.reports.run.facts import RunFacts
from governor.reports.run.sections import sections
from governor.reports.run.series import RunSeries
from governor.text.screen import Screen
from governor.text.table import fits
from governor.wire.step_values import step_values
from tests.golden.run_report_cases import FIRST, hello, step

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
        # Nineteen steps, as the first one is no pace. The lead's own saves are all twenty.
        in_all = ("3 s in all" if most == 0 else "2.85 s in all") if part == "checkpoint" else "2.85 s in all"
        assert (in_all if part in ("checkpoint", "evaluation") else "150 ms of a step") in evidence


def test_the_evidence_of_saves_has_the_wait_for_an_agreed_step_and_not_the_saves_alone() -> None:
    series = ran({"hold_s": 0.1}, {"hold_s": 0.1})
    series.see(step(21, 21, **(WORK | {"checkpoint_s": 0.02, "hold_s": 0.1})))
    (row,) = (one for one in run_document(facts_of(series))["causes"] if one["cause"] == "checkpoint_stall")
    assert "20 ms" in row["evidence"], "of the save"
    assert "2.02 s in all" in row["evidence"], "of twenty steps: all that the cause has"


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


# What a frame may have in the place of seconds. A word is a number that JSON has not.
TIME = st.one_of(
    st.floats(-1.0, 3.0), st.integers(0, 3), st.sampled_from(["nan", "inf", math.nan, math.inf, 1e300, 10**400])
)
FRAMES = st.lists(
    st.fixed_dictionaries(
        {"step_s": st.floats(0.5, 4.0)},
        optional=dict.fromkeys((*PART_FIELDS, *OF_WHICH_FIELDS), TIME) | {"data_bound": st.booleans()},
    ), min_size=1, max_size=6,
)  # fmt: skip


@given(FRAMES)
def test_a_step_says_the_same_of_its_rank_as_a_frame_of_the_lead_and_as_a_line_of_another(
    frames: list[dict[str, Any]],
) -> None:
    as_events, as_records = RunSeries(), RunSeries()
    for series in (as_events, as_records):
        series.see(hello(0, 0))
    for number, told in enumerate([{"step_s": 1.0}, *frames]):
        as_events.see(Step(MonoNs(number), FIRST, "llama", 1, number, **step_values(told)))
        assert as_records.see_other({"rank": 1, "step": number, "at_ns": number, **told})
    assert as_records.ranks == as_events.ranks
    assert as_events.ranks[1].steps == len(frames)


def test_ranks_that_offload_alike_compute_alike() -> None:
    """Whichever of them the report takes for the lead."""
    told = {"offload_s": 0.2, "comm_s": 0.1}
    series = ran(told, {})
    for number in range(21, 41):
        series.see_other({"rank": 2, "step": number, **WORK, **told})
    rows = {one["rank"]: one["own_s"] for one in run_document(facts_of(series))["ranks"]}
    assert rows[2] == rows[0] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("backward_s", "named"),
    [((0.2, 0.2, 0.4, 0.4), [2, 3]), ((0.2, 0.2, 0.4, 0.2), [2]), ((0.2, 0.2, 0.203, 0.203), []), ((0.2, 0.4), [1])],
)
def test_the_evidence_of_a_straggler_names_each_rank_that_is_as_slow(
    backward_s: tuple[float, ...], named: list[int]
) -> None:
    series = RunSeries()
    for rank in range(len(backward_s)):
        series.see(hello(0, rank))
    for number in range(1, 21):
        for rank, own_s in enumerate(backward_s):
            told = dataclasses.replace(step(number, number, **WORK), rank=rank, backward_s=own_s, comm_s=0.0)
            series.see(told)
    causes = run_document(facts_of(series))["causes"]
    evidence = next(one["evidence"] for one in causes if one["cause"] == "straggler")
    assert [rank for rank in range(4) if f"rank {rank} " in evidence] == named
    assert ("200 ms longer" in evidence) == (len(named) == 1), "else each one's own time is told"
