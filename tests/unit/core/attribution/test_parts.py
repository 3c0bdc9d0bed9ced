"""A step's parts add up to the step, whatever a trainer tells."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution import parts as part
from governor.core.attribution.hardware_time import computed_ns
from governor.core.attribution.log_pace import of_steps
from governor.core.attribution.parts import RankSums, parts_of
from governor.core.base.units import NS_PER_S
from governor.core.events.step_parts import EACH_STEP_FIELDS, OF_WHICH_FIELDS, PART_FIELDS, PARTS, told_parts
from tests.unit.core.engine.test_step import a_step

SECONDS = st.one_of(st.none(), st.floats(-1.0, 5.0), st.sampled_from([float("nan"), float("inf"), 1e300]))
INDICES = (
    part.DATA, part.LOOP, part.FORWARD, part.BACKWARD, part.OPTIMIZER, part.CHECKPOINT, part.EVALUATION, part.BUBBLE,
)  # fmt: skip


def test_each_part_has_its_place_and_its_index() -> None:
    for place, (index, (name, fields)) in enumerate(zip(INDICES, PARTS.items(), strict=True)):
        for field in fields:
            told: dict[str, Any] = {field: 1.0}
            step = a_step(1, **told)
            assert [at for at, seconds in enumerate(told_parts(step)) if seconds] == [place], f"{name}: {field}"
            assert parts_of(step, 2 * NS_PER_S)[index] == NS_PER_S, f"{name}: {field}"


def test_a_line_of_ten_steps_has_ten_times_what_comes_in_each_and_the_rest_once() -> None:
    told: dict[str, Any] = dict.fromkeys(("step_s", *PART_FIELDS, *OF_WHICH_FIELDS), 1.0)
    line = of_steps(a_step(1, **told), 10)
    each = {"step_s", *EACH_STEP_FIELDS, *OF_WHICH_FIELDS}
    assert {name: getattr(line, name) for name in told} == {name: 10.0 if name in each else 1.0 for name in told}
    once = {*PART_FIELDS} - {*EACH_STEP_FIELDS}
    assert once
    for name in PART_FIELDS:  # What is no training of a step is what does not come in each.
        assert a_step(1, step_s=3.0, **{name: 1.0}).training_s == (2.0 if name in once else 3.0), name


@pytest.mark.parametrize("tells", [True, False])
def test_a_rank_computes_by_itself_what_is_no_communication_and_no_offload(tells: bool) -> None:
    told: dict[str, Any] = {"forward_s": 0.2, "backward_s": 0.4, "optimizer_s": 0.4, "offload_s": 0.35}
    step, sums = a_step(1, step_s=1.0, **told, **({"comm_s": 0.1} if tells else {})), RankSums()
    sums.add(parts_of(step, NS_PER_S), step)
    assert sums.own_ns == (550_000_000 if tells else 200_000_000)
    assert computed_ns(sums) == (550_000_000 if tells else 650_000_000)


@given(st.fixed_dictionaries(dict.fromkeys((*PART_FIELDS, "comm_between_s"), SECONDS)), st.integers(0, 10**10))
def test_the_parts_are_the_step(told: dict[str, float | None], step_ns: int) -> None:
    parts = parts_of(a_step(1, **told), step_ns)
    assert sum(parts) == step_ns
    assert all(ns >= 0 for ns in parts)


def test_parts_of_two_clocks_that_exceed_the_step_shrink_alike() -> None:
    parts = parts_of(a_step(1, data_s=1.0, forward_s=1.0, backward_s=2.0), 2_000)
    assert (parts[part.DATA], parts[part.FORWARD], parts[part.BACKWARD], parts[part.OTHER]) == (500, 500, 1_000, 0)


STEPS = st.lists(st.tuples(st.integers(1_000, 10**9), st.booleans()), min_size=1, max_size=60)


@given(STEPS, st.integers(0, 100))
def test_steps_that_do_not_tell_their_communication_have_the_share_of_those_that_do(
    steps: list[tuple[int, bool]], percent: int
) -> None:
    sums, whole_ns = RankSums(), 0
    for number, (backward_ns, tells) in enumerate(steps, start=1):
        told = {"backward_s": backward_ns / 1e9, "data_s": 0.5, "eval_s": 1.0}
        step = a_step(number, **told, **({"comm_s": backward_ns / 1e9 * percent / 100} if tells else {}))
        parts = parts_of(step, 2_500_000_000)
        whole_ns += parts[part.BACKWARD]
        sums.add(parts, step)
    told_any = any(tells for _, tells in steps)
    assert sums.tells_communication is told_any
    assert abs(sums.communication_ns - (whole_ns * percent / 100 if told_any else 0)) <= whole_ns / 100


def test_steps_that_say_they_had_no_collective_are_given_none() -> None:
    """Weights averaged in each tenth step, between the passes: 0.04 s of ten steps of 0.5 s."""
    sums = RankSums()
    for number in range(1, 11):
        own = {"comm_s": 0.04, "comm_between_s": 0.04, "loop_s": 0.05} if number == 10 else {"comm_s": 0.0}
        step = a_step(number, data_s=0.0, forward_s=0.2, backward_s=0.2, optimizer_s=0.05, **own)
        sums.add(parts_of(step, 500_000_000), step)
    assert sums.communication_ns == 40_000_000
    assert sums.working_ns == 10 * 450_000_000 + 40_000_000
    assert sums.parts[part.LOOP] == 10_000_000
    assert sums.total_ns == 5_000_000_000


def test_what_lies_between_the_passes_is_not_taken_out_of_them() -> None:
    step = a_step(1, data_s=0.5, data_bound=True, forward_s=1.0, backward_s=1.0, comm_s=0.6, comm_between_s=0.4)
    sums, parts = RankSums(), parts_of(step, 2_500_000_000)
    sums.add(parts, step)
    assert (parts[part.DATA], parts[part.BETWEEN]) == (100_000_000, 400_000_000)
    assert sums.working_ns - sums.communication_ns == 2_000_000_000 - 200_000_000


def test_no_step_communicates_for_longer_than_it_computes() -> None:
    sums, step = RankSums(), a_step(1, forward_s=1.0, backward_s=1.0, comm_s=50.0)
    sums.add(parts_of(step, 3_000_000_000), step)
    assert sums.communication_ns == 2_000_000_000


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("step_parts.PAUSES = {**step_parts.PAUSES, 'verify': 'loop'}", "OF_PHASE"),
        ("step_parts.PARTS = {**step_parts.PARTS, 'verify': ('verify_s',)}", "its index"),
        ("from governor.core.attribution import parts; parts.BETWEEN, parts.OTHER = 9, 10", "_NAMED:"),
        ("from governor.core.attribution import parts; parts.APART = parts.APART[:3]", "its cause"),
    ],
)
def test_a_table_of_parts_that_lacks_one_is_named_at_import(change: str, where: str) -> None:
    script = f"from governor.core.events import step_parts; {change}; import governor.core.attribution.account"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "AssertionError" in found.stderr
    assert where in found.stderr
