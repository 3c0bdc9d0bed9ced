"""The daemon stays small and apart: what it loads is what every node carries for weeks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tidy.sources import ROOT

HEAVY = (
    "torch", "deepspeed", "transformers", "accelerate", "numpy", "moto", "botocore", "pytest",
    "tensorboard", "wandb", "matplotlib", "google.protobuf",
)  # fmt: skip


FILES = sorted((ROOT / "governor" / "cli").rglob("*.py"))
COMMANDS = ", ".join(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES)


def test_importing_loads_nothing_of_the_trainers_world() -> None:
    """One process, which imports one after the other: where the first has nothing of it, the next adds its own."""
    modules = ["trainer_shim", "governor.daemon.loop", "governor.app.wiring", COMMANDS]
    program = "import sys\n" + "".join(
        f"import {module}\nprint({module!r}, *sorted(set({HEAVY}) & set(sys.modules)), sep='|')\n" for module in modules
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == modules


def loaded_by(words: list[str], state_dir: Path) -> set[str]:
    """The modules that this command line loads."""
    program = f"""
import contextlib, io, sys
from governor.cli.main import cli
with contextlib.redirect_stdout(io.StringIO()):
    cli.main({words!r}, standalone_mode=False)
print(*sorted(sys.modules))
"""
    environ = os.environ | {"COSTGOV_PATHS__STATE_DIR": str(state_dir)}
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return set(found.stdout.split())


def test_a_table_of_costs_loads_nothing_that_decides(tmp_path: Path) -> None:
    """It answers in less than a second, of which half was the import of what only a governor needs."""
    loaded = loaded_by(["cost", "--since", "2100-01-01"], tmp_path)
    assert "governor.cli.cost.command" in loaded
    assert not loaded & {"governor.core.engine.step", "governor.core.engine.node", "governor.core.events.inputs"}


def test_the_check_of_a_policy_loads_neither_a_replay_nor_the_trainers_side(tmp_path: Path) -> None:
    loaded = loaded_by(["policy", "check", str(ROOT / "policies" / "default.toml")], tmp_path)
    assert "governor.policies.check" in loaded
    apart = (
        "governor.replay",
        "governor.timeline",
        "governor.planner",
        "governor.core.engine.step",
        "trainer_shim.attach",
    )
    assert not [name for name in loaded if name.startswith(apart)]
