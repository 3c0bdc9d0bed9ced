"""Fixtures of the shim's unit tests."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.shim.governor_end import Ends, Server, connected
from tests.unit.shim.ranks import RANKS, SAFETY_S, Rank
from trainer_shim.saving.store import MemoryStore


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


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    store = MemoryStore()
    pace = random.Random(5)
    made = [Rank(rank, store, tmp_path, pace.uniform(0.0003, 0.003)) for rank in range(RANKS)]
    yield made
    for rank in made:
        rank.halt.set()
        rank.gate.finish()
        rank.agreement.stop(SAFETY_S)
        if rank.thread.ident is not None:
            rank.thread.join(SAFETY_S)


@pytest.fixture
def listener(short_tmp: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(short_tmp / "s"))
        server.listen()
        yield server
