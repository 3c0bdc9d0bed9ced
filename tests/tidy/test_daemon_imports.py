"""The daemon stays small and apart: what it loads is what every node carries for weeks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.sources import ROOT

HEAVY = ("torch", "deepspeed", "transformers", "accelerate", "numpy", "moto", "botocore", "pytest")


@pytest.mark.parametrize("module", ["governor.daemon", "governor.wiring", "governor.cli", "trainer_shim"])
def test_importing_loads_nothing_of_the_trainers_world(module: str) -> None:
    program = f"import {module}, sys; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []
