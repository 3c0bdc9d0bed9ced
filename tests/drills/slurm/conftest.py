"""One Slurm for each worker; what a drill submits ends with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.slurm.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    root = Path(tempfile.mkdtemp(prefix="cg-"))  # A socket's address is short.
    try:
        with Cluster(root) as running:
            yield running
    finally:
        shutil.rmtree(root, ignore_errors=True)
