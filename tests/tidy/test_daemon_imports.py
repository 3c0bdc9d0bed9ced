"""The daemon stays small and apart: what it loads is what every node carries for weeks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

HEAVY = (
    "torch", "deepspeed", "transformers", "accelerate", "numpy", "moto", "botocore", "pytest",
    "tensorboard", "wandb", "matplotlib", "google.protobuf",
)  # fmt: skip


COMMANDS = ", ".join(f"governor.cli.{path.stem}" for path in sorted((ROOT / "governor" / "cli").glob("*.py")))


@pytest.mark.parametrize("module", ["governor.daemon.loop", "governor.app.wiring", COMMANDS, "trainer_shim"])
def test_importing_loads_nothing_of_the_trainers_world(module: str) -> None:
    program = f"import {module}, sys; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []


def test_a_table_of_costs_loads_nothing_that_decides(tmp_path: Path) -> None:
    """It answers in less than a second, of which half was the import of what only a governor needs."""
    program = """
import contextlib, io, sys
from governor.cli.main import cli
with contextlib.redirect_stdout(io.StringIO()):
    cli.main(["cost", "--since", "2100-01-01"], standalone_mode=False)
engine = {"governor.core.engine.step", "governor.core.engine.node", "governor.core.events.inputs"}
print(*sorted({*engine, "rich"} & set(sys.modules)))
"""
    environ = os.environ | {"COSTGOV_PATHS__STATE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []
