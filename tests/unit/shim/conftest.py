"""Fixtures of the shim's unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.shim.governor_end import Ends, Server, connected


@pytest.fixture
def server(short_tmp: Path) -> Iterator[Server]:
    made = Server(short_tmp / "s")
    yield made
    made.close()


@pytest.fixture
def ends(server: Server) -> Iterator[Ends]:
    """A governor that is connected, and its peer; both are closed behind the test, however it ends."""
    governor, peer = connected(server)
    yield governor, peer
    governor.close()
    peer.close()
