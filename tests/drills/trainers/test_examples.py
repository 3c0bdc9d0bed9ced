"""The examples of trainers, each under a `costgov run` as its first lines say: steps, tokens, and how it ended."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.drills.attribution.compare import read_run

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
STEPS, SAFETY_S = 40, 200.0
# Tokens of a step, over all ranks.
EXAMPLES = {
    "examples/trainers/lightning_fit.py": ("lightning", 2 * 8 * 64),
    "examples/trainers/trl_sft.py": ("trl", 8 * 32),
    "examples/trainers/titan_fsdp2.py": ("torch", 2 * 2 * 4 * 64),
}


def test_each_example_is_played() -> None:
    assert set(EXAMPLES) == {str(path.relative_to(ROOT)) for path in (ROOT / "examples/trainers").glob("*.py")}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains_to_its_end_under_costgov(example: str) -> None:
    package, step_tokens = EXAMPLES[example]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    (command,) = re.findall(r"^ *(costgov run .+)$", (ROOT / example).read_text(), re.MULTILINE)
    command = command.replace("torchrun ", f"{sys.executable} -m torch.distributed.run --standalone ")
    with tempfile.TemporaryDirectory(prefix="trains-") as directory:  # A short path: sockets lie in it.
        work = Path(directory)
        (work / "examples").symlink_to(ROOT / "examples")
        played = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=work,
            env={
                **{name: value for name, value in os.environ.items() if name != "COSTGOV_SOCKET"},
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "PYTHONWARNINGS": "ignore",
                "OMP_NUM_THREADS": "1",
                "STEPS": str(STEPS),
                "COSTGOV_PATHS__STATE_DIR": str(work / "state"),
                "COSTGOV_PATHS__RUNTIME_DIR": str(work / "run"),
            },
            capture_output=True,
            text=True,
            timeout=SAFETY_S,
        )
        said = played.stdout + played.stderr
        assert played.returncode == 0, said[-6000:]
        run = read_run(next(work.glob("state/**/costgov.db")))
    assert (run["step"], run["completed"]) == (STEPS, True), said[-6000:]
    assert run["tokens_total"] == STEPS * step_tokens, json.dumps(run)[:2000]
    assert run["last_good"] is not None, said[-6000:]
