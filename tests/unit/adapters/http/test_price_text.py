"""An amount in a provider's answer is a number of ASCII digits, or no price."""

from __future__ import annotations

from decimal import Decimal

import pytest

from governor.adapters.http.price_lookup import Failure, usd_micros


@pytest.mark.parametrize("text", ["22", "22.00", "0.000001"])
def test_an_amount_as_text(text: str) -> None:
    assert usd_micros(text) == Decimal(text) * 1_000_000


@pytest.mark.parametrize("text", ["\u0662\u0662", "22.\u0660", "\uff12\uff12", "2_2", " 22", "22\n", "1e3", "+22", ""])
def test_what_is_no_number_is_no_price(text: str) -> None:
    assert usd_micros(text) == Failure("no_price")
