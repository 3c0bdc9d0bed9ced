"""Dividing whole amounts: nothing is lost, and nothing is made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution.causes import Cause, apportion

WEIGHTS = st.dictionaries(st.sampled_from(Cause), st.integers(0, 10**15), max_size=len(Cause))


@given(st.integers(-(10**12), 10**12), WEIGHTS)
def test_the_parts_add_up_and_each_is_its_share_to_one(amount: int, weights: dict[Cause, int]) -> None:
    parts = apportion(amount, weights)
    assert sum(parts.values()) == amount
    total = sum(weights.values())
    if total:
        assert all(abs(part * total - amount * weights[cause]) < total for cause, part in parts.items())


def test_without_weights_nobody_knows() -> None:
    assert apportion(7, {}) == {Cause.UNKNOWN: 7}
