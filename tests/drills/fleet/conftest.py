"""Fleets for drills, and the one EC2 behind them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.demo_cloud import moto
from tests.drills.fleet.nodes import Fleet, nodes

MakeFleet = Callable[[int], Fleet]


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
