"""A step's parts add up to the step, whatever a trainer tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution import parts as part
from governor.core.attribution.parts import parts_of
from tests.unit.core.engine.test_step import a_step

SECONDS = st.one_of(st.none(), st.floats(-1.0, 5.0), st.sampled_from([float("nan"), float("inf"), 1e300]))
NAMES = ("data_s", "loop_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "bubble_s")


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, SECONDS)), st.integers(0, 10**10))
def test_the_parts_are_the_step(told: dict[str, float | None], step_ns: int) -> None:
    parts = parts_of(a_step(1, **told), step_ns)
    assert sum(parts) == step_ns
    assert all(ns >= 0 for ns in parts)


def test_parts_of_two_clocks_that_exceed_the_step_shrink_alike() -> None:
    parts = parts_of(a_step(1, data_s=1.0, forward_s=1.0, backward_s=2.0), 2_000)
    assert (parts[part.DATA], parts[part.FORWARD], parts[part.BACKWARD], parts[part.OTHER]) == (500, 500, 1_000, 0)
