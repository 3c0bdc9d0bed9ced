"""The examples of trainers, each under a `costgov run` as its first lines say: steps, tokens, causes, and its end."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import whole_of
from tests.drills.attribution.compare import read_run

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
STEPS, SAFETY_S = 40, 200.0
# Tokens of a step, over all ranks, and the causes that its hook tells besides those of every run.
STOPS = {Cause.CHECKPOINT, Cause.EVALUATION}
EXAMPLES: dict[str, tuple[str, int, set[Cause]]] = {
    "examples/trainers/accelerate_loop.py": ("accelerate", 2 * 2 * 4 * 64, STOPS),
    "examples/trainers/composer_fit.py": ("composer", 2 * 8 * 64, STOPS),
    "examples/trainers/deepspeed_zero.py": ("deepspeed", 2 * 2 * 4 * 64, STOPS),
    "examples/trainers/hf_trainer.py": ("transformers", 2 * 4 * 32, STOPS),
    "examples/trainers/lightning_fit.py": ("lightning", 2 * 8 * 64, STOPS),
    "examples/trainers/megatron_core.py": ("megatron", 2 * 2 * 4 * 64, STOPS),
    "examples/trainers/trl_sft.py": ("trl", 8 * 32, {Cause.CHECKPOINT}),
    "examples/trainers/titan_fsdp2.py": ("torch", 2 * 2 * 4 * 64, {*STOPS, Cause.RECOMPUTE}),
}
# What a script runs in here, as it stands: without GPUs megatron-core's allocations are redirected.
RIGS = {"examples/trainers/megatron_core.py": "tests/drills/shim_engines/megatron_rig.py"}
PRINTED = "examples/trainers/megatron_log.py"  # No rank of it attaches.


def test_each_example_is_played() -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "examples/trainers").glob("*.py")}
    assert {*EXAMPLES, PRINTED} == there


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains_to_its_end_under_costgov(example: str) -> None:
    package, step_tokens, causes = EXAMPLES[example]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    run, said = play(example)
    assert (run["step"], run["completed"]) == (STEPS, True), said[-6000:]
    assert run["tokens_total"] == STEPS * step_tokens, json.dumps(run)[:2000]
    assert run["last_good"] is not None, said[-6000:]
    told = whole_of(TimeAccount.restored(run["time"], same_boot=False)).by_cause
    assert {Cause.PRODUCTIVE, *causes} <= {cause for cause, amount in told.items() if amount.ns}, told


def test_stages_of_megatron_core_count_once_what_both_are_fed() -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs megatron")
    run, said = play("examples/trainers/megatron_core.py", PP="2")
    assert (run["step"], run["tokens_total"]) == (STEPS, STEPS * 2 * 4 * 64), said[-6000:]
    assert run["last_good"] is not None, said[-6000:]


def test_what_megatron_prints_tells_steps_and_tokens() -> None:
    run, said = play(PRINTED)
    assert (run["step"], run["tokens_total"]) == (STEPS, STEPS * 16 * 64), said[-6000:]


def play(example: str, **environ: str) -> tuple[dict[str, Any], str]:
    """The run as the journal has it, and what was printed."""
    (command,) = re.findall(r"^ *(costgov run .+)$", (ROOT / example).read_text(), re.MULTILINE)
    command = command.replace("torchrun ", f"{sys.executable} -m torch.distributed.run --standalone ")
    if example in RIGS:
        command = command.replace(example, f"{ROOT / RIGS[example]} {example}")
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
                "DS_ACCELERATOR": "cpu",
                "PYTHONWARNINGS": "ignore",
                "OMP_NUM_THREADS": "1",
                "STEPS": str(STEPS),
                **environ,
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
    return run, said
