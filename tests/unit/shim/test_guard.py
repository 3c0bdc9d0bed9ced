"""The one place that catches everything."""

from __future__ import annotations

import pytest

from trainer_shim import guard


def test_a_fault_costs_a_line_and_a_count_and_nothing_else(capfd: pytest.CaptureFixture) -> None:
    @guard.guarded(fallback=7)
    def hook(value: int) -> float:
        return 1 / value

    assert hook(2) == 0.5
    assert [hook(0), hook(0)] == [7, 7]
    assert capfd.readouterr().err.count("ZeroDivisionError") == 1
    assert sum(count for name, count in guard.faults.items() if name.endswith("<locals>.hook")) == 2


@pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_process_passes(exit_: type[BaseException]) -> None:
    @guard.guarded()
    def hook() -> None:
        raise exit_

    with pytest.raises(exit_):
        hook()


def test_attempt_returns_the_error() -> None:
    assert guard.attempt(int, "5") == (5, None)
    result, error = guard.attempt(int, "x")
    assert result is None
    assert isinstance(error, ValueError)
