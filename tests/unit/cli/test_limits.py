"""What `costgov run` refuses before it starts anything."""

from __future__ import annotations

import pytest

from governor.cli.run.limits import too_dear
from governor.core.base.units import UsdMicros, usd

TEXT = "$98.32/h on-demand (built-in table, as of 2025-06)"


@pytest.mark.parametrize(("price", "refused"), [(59.99, False), (60.0, False), (60.000001, True), (98.32, True)])
def test_a_machine_above_the_highest_rate_is_refused(price: float, refused: bool) -> None:
    assert (too_dear(usd(60), usd(price), TEXT) is not None) == refused


def test_the_line_names_the_price_and_where_it_is_from() -> None:
    told = too_dear(usd(60), usd(98.32), TEXT)
    assert told == f"not launched: --max-rate $60.00/h is below the price of this machine, {TEXT}"


def test_an_unknown_price_is_refused_and_without_the_option_nothing_is() -> None:
    told = too_dear(usd(60), None, "unknown")
    assert told is not None
    assert "the price of this machine is unknown: pass --price" in told
    assert too_dear(None, UsdMicros(10**15), TEXT) is None
    assert too_dear(None, None, "unknown") is None
