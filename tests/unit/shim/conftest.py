"""Fixtures of the shim's unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.shim.governor_end import Server


@pytest.fixture
def server(short_tmp: Path) -> Iterator[Server]:
    made = Server(short_tmp / "s")
    yield made
    made.close()
