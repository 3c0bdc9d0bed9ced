"""Shared by every tier. Keep it small: what one directory needs stands in its own conftest."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The gate plays the same examples everywhere and without a clock: what fails on one machine fails on all. To search on,
# with fresh examples each time: pytest --hypothesis-profile=search.
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("gate")

# A shell starts its background jobs with SIGINT ignored, and whatever they start inherits that: tests of what Ctrl-C
# does would then test nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory with a short path: a Unix socket's address holds 107 bytes, and pytest's own paths are longer."""
    path = Path(tempfile.mkdtemp(prefix="cg-"))
    yield path
    shutil.rmtree(path)
