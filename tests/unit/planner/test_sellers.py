"""What sellers can give, at the prices that they list."""

import pytest

from governor.planner.catalog import NoPriceError
from governor.planner.estimate import estimate


def test_a_seller_of_single_gpus_has_no_price_of_more_than_its_largest_machine() -> None:
    values = {"model": "llama3-8b", "gpu": "h100", "provider": "hyperbolic"}
    assert estimate(values | {"gpus": "2"}).plan.asked.price is not None
    with pytest.raises(NoPriceError, match="Hyperbolic lists H100-SXM-80GB in machines of 1, 2 and 3: 64 of them"):
        estimate(values | {"gpus": "64"})
    # Whoever lists whole nodes is taken to have more of them.
    assert estimate(values | {"gpus": "1024", "provider": "lambda"}).plan.asked.price is not None
