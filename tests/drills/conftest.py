"""What drills with processes of other users need: an interpreter, the sources and a directory that those may reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def is_reachable_by_everyone(path: Path) -> bool:
    return path.exists() and all(directory.stat().st_mode & 0o001 for directory in path.resolve().parents)


@pytest.fixture
def interpreter() -> str:
    """An interpreter that other users may run, too: ours may lie under a private directory."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if is_reachable_by_everyone(Path(candidate)):
            version = subprocess.run([candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"])
            if version.returncode == 0:
                return candidate
    pytest.skip("no Python 3.11 that other users may run (apt-get install python3)")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="costgov-drill-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture
def public_source(public: Path) -> str:
    """The sources where other users may read them."""
    for package in ("governor", "trainer_shim"):
        shutil.copytree(ROOT / package, public / package, ignore=shutil.ignore_patterns("__pycache__"))
    return str(public)
