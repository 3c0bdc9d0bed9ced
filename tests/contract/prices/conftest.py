from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.prices.rigs import RIGS, Loopback, Rig, loopback


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback() as told:
        yield told


@pytest.fixture(params=sorted(RIGS))
def rig(request: pytest.FixtureRequest, server: Loopback) -> Rig:
    """Every look-up there is. A new one is added to RIGS and passes the suite unedited."""
    return RIGS[request.param](server)
