"""What keeps `data_starvation` quick never changes what it says."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from governor.core.rules.triggers.data_starvation import SUMMED_STEPS, _Rank

STEPS = st.lists(
    st.tuples(st.floats(0, 1), st.floats(1e-6, 1e4)).map(lambda one: (one[0] * one[1], one[1])), max_size=60
)


@given(STEPS, st.floats(0.01, 1))
def test_a_share_is_reached_where_the_exact_one_is(steps: list[tuple[float, float]], limit: float) -> None:
    rank = _Rank(steps=deque(maxlen=5))
    for seen, (data_s, step_s) in enumerate(steps, start=1):
        rank.steps_seen = seen
        rank.add(data_s, step_s)
        exact = rank.share_frac
        assert rank.reaches(limit) is (exact is not None and exact >= limit)


def test_the_sums_begin_anew_before_they_drift() -> None:
    rank = _Rank(steps=deque([(1.0, 1.0)] * 5, maxlen=5))
    rank.restored()
    rank._waited_s -= 4.0  # As if it had drifted that far.
    assert not rank.reaches(0.9)
    rank.steps_seen = SUMMED_STEPS
    rank.add(1.0, 1.0)
    assert rank.reaches(0.9)
