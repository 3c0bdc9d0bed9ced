from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.reservoir import Reservoir


def test_empty_has_no_quantile() -> None:
    assert Reservoir(4).median() is None
    assert Reservoir(4).quantile(0.99) is None


def test_keeps_only_the_last_values() -> None:
    window = Reservoir(3)
    for value in (9.0, 1.0, 2.0, 3.0):
        window.add(value)
    assert list(window) == [1.0, 2.0, 3.0]
    assert window.median() == 2.0


def test_equal_values_leave_one_at_a_time() -> None:
    window = Reservoir(2)
    for value in (5.0, 5.0, 1.0):
        window.add(value)
    assert list(window) == [5.0, 1.0]
    assert window.quantile(1.0) == 5.0


def test_clear_forgets_everything() -> None:
    window = Reservoir(2)
    window.add(1.0)
    window.clear()
    assert (len(window), window.median()) == (0, None)


@given(
    st.lists(st.floats(allow_nan=False), max_size=60),
    st.integers(1, 20),
    st.floats(0, 1),
)
def test_agrees_with_sorting_the_tail(values: list[float], size: int, frac: float) -> None:
    window = Reservoir(size)
    for value in values:
        window.add(value)
    tail = sorted(values[-size:])
    expected = tail[min(len(tail) - 1, int(frac * len(tail)))] if tail else None
    assert window.quantile(frac) == expected
