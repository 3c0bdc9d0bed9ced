"""Shared by every tier. Keep it small: what one directory needs stands in its own conftest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory with a short path: a Unix socket's address holds 107 bytes, and pytest's own paths are longer."""
    path = Path(tempfile.mkdtemp(prefix="cg-"))
    yield path
    shutil.rmtree(path)
