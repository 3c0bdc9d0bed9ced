"""The rule of layers closes on what it is for. The mistakes are planted in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

ONLY_FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
# Where, what is planted, and the contract that it breaks.
PLANTED = (
    ("governor/adapters/machine/clock.py", "from governor.daemon import loop", "Floors"),
    ("governor/daemon/recorder.py", "from governor.adapters.machine import clock", "Floors"),
    ("governor/wire/frames.py", "from governor.settings import model", "Floors"),
    ("governor/core/runs/intake.py", "from governor.core.engine import node", "Inside the core"),
    ("governor/core/events/inputs.py", f"{ONLY_FOR_TYPES}from governor.core.engine import node", "Inside the core"),
    ("governor/core/halt/acts.py", "from governor.core.rules import evaluate", "Inside the core"),
    ("governor/core/base/units.py", "import time", "The core is pure"),
    ("governor/planner/keys.py", "from governor.core.engine import node", "The planner knows nothing"),
    ("governor/replay/play.py", "import torch", "The daemon never loads"),
    ("governor/cli/run/supervise.py", "import subprocess", "Commands start, signal and look at no process"),
    ("governor/app/wiring.py", "import wandb", "The daemon reads no trackers' files"),
)


def test_each_planted_import_breaks_the_contract_that_is_for_it(tmp_path: Path) -> None:
    for top in ("governor", "trainer_shim"):
        shutil.copytree(ROOT / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, line, _ in PLANTED:
        with (tmp_path / path).open("a") as file:
            file.write(f"\n{line}\n")
    linter = Path(sys.executable).parent / "lint-imports"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    found = subprocess.run([linter, "--no-cache"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert found.returncode == 1, found.stdout + found.stderr
    for path, line, contract in PLANTED:
        module = path.removesuffix(".py").replace("/", ".")
        imported = ".".join(word for word in line.splitlines()[-1].replace("from", "").replace("import", "").split())
        assert any(text.startswith(contract) and "BROKEN" in text for text in found.stdout.splitlines()), contract
        assert f"{module} -> {imported}" in found.stdout, f"{module} -> {imported} is not named"
