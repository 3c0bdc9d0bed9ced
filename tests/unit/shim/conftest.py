"""Fixtures of the shim's unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.shim.governor_end import Ends, Server, linked


@pytest.fixture
def server(short_tmp: Path) -> Iterator[Server]:
    made = Server(short_tmp / "s")
    yield made
    made.close()


@pytest.fixture
def ends(server: Server) -> Iterator[Ends]:
    """A link that is connected, and its peer; both are closed behind the test, however it ends."""
    link, peer = linked(server)
    yield link, peer
    link.close()
    peer.close()
