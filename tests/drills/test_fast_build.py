"""The compiled copy that `make fast` builds says what the plain package says, to the byte, or it is worth nothing."""

from __future__ import annotations

import faulthandler
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.real_runs.corpus import ARCHIVE, unpack
from tools import fast_build

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/replay"
SAFETY_S = 1_200  # A build takes two minutes on an idle machine.
LONG_RECORDS = 20_000
ARCHIVE_PART = 50  # One log of so many.
LACKS = fast_build.lacking()

pytestmark = pytest.mark.skipif(LACKS is not None, reason=f"the compiled copy cannot be built: {LACKS}")


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one build of all these tests."""
    faulthandler.cancel_dump_traceback_later()  # Which takes whatever lasts two minutes for stuck.
    directory = tmp_path_factory.mktemp("fast") / "fast"
    built = ran([sys.executable, "-m", "tools.fast_build", str(directory)])
    assert built.returncode == 0, built.stdout + built.stderr
    assert not fast_build.is_stale(directory)
    return directory


def ran(
    argv: Sequence[str | Path], cwd: Path = ROOT, path: Sequence[Path] = (ROOT,)
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), fast_build.OPTIMISE: "0"}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=SAFETY_S)


def assert_same(fast: Path, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """Both programs say the same and end the same; what they said."""
    plain = ran([sys.executable, "-m", "governor", "policy", *arguments], cwd)
    compiled = ran([fast / "costgov", "policy", *arguments], cwd)
    assert (compiled.returncode, compiled.stderr) == (plain.returncode, plain.stderr)
    differing = [
        pair
        for pair in zip(compiled.stdout.splitlines(), plain.stdout.splitlines(), strict=False)
        if pair[0] != pair[1]
    ]
    assert not differing, differing[0]
    assert compiled.stdout == plain.stdout
    return plain.stdout


def test_it_is_the_compiled_code_that_runs(fast: Path) -> None:
    compiled = fast_build.modules()
    assert {"governor.replay.play", "governor.core.rules.evaluate", "governor.core.rules.triggers.hang"} <= set(
        compiled
    )
    asked = (
        "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
    )
    files = ran([sys.executable, "-c", asked, *compiled], cwd=fast, path=(fast,)).stdout.splitlines()
    assert len(files) == len(compiled)
    assert [file for file in files if not (file.startswith(f"{fast}/") and file.endswith(".so"))] == []


def test_golden_logs(fast: Path) -> None:
    logs = sorted(path.name for path in GOLDEN.glob("*.jsonl") if path.name != "verdicts.jsonl")
    said = assert_same(fast, "replay", "--policy", "policy.toml", "--run-on", "1m", "--json", *logs, cwd=GOLDEN)
    assert said == (GOLDEN / "verdicts.jsonl").read_text()
    assert_same(fast, "replay", "--price", "20", *logs, cwd=GOLDEN)
    assert_same(fast, "tune", "--json", *logs, cwd=GOLDEN)


def long_log(kind: str) -> Iterator[dict[str, Any]]:
    """Twenty thousand records of a run that has everything happen to it, or is told by a careless logger."""
    rng = random.Random(kind)
    t, scale = 0.0, 65536.0
    for step in range(LONG_RECORDS):
        took = 0.4 * rng.lognormvariate(0, 0.1) * (12 if 9_000 < step < 9_400 else 1)
        t += took + (4_000 if step == 15_000 else 0)
        drift = max(0, step - 12_000) / 2_000 if kind == "drifts" else 0.0
        loss = 2 + 8 * math.exp(-step / 800) + drift + rng.gauss(0, 0.05) + (rng.random() < 0.001) * 30
        record: dict[str, Any] = {"t": t, "step": step, "loss": loss, "grad_norm": rng.lognormvariate(0, 0.4)}
        record |= {"step_time_s": took, "tokens": 65_536, "lr": 3e-4, "gpu_util": 4.0 if 6_000 < step < 6_900 else 97.0}
        if kind == "overflows":
            record |= {"overflow": rng.random() < (0.6 if 7_000 < step < 7_400 else 0.01), "loss_scale": scale}
            scale = max(1.0, scale / 2) if record["overflow"] else scale
        if kind == "careless":
            record |= careless(rng, record)
        if kind == "breaks" and step > 17_000:
            record |= {"loss": math.nan, "grad_norm": math.inf}
        yield record


def careless(rng: random.Random, record: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers where others have fractions, words, flags, nothing, and numbers that are beyond every float."""
    if rng.random() < 0.9:
        return {"loss": round(record["loss"]), "tokens": float(record["tokens"]), "lr": 0}
    odd = (None, "nan", "2.5", "x", True, -1, 0, 10**400, 2**63, -(2**70), 1e308, -math.inf, [1], {"a": 1}, "")
    return {rng.choice(sorted(record)): rng.choice(odd) for _ in range(3)}


def test_long_logs(fast: Path, tmp_path: Path) -> None:
    kinds = ("drifts", "overflows", "careless", "breaks")
    for kind in kinds:
        lines = (json.dumps(record) for record in long_log(kind))
        (tmp_path / f"{kind}.jsonl").write_text("\n".join(lines) + "\n")
    logs = [f"{kind}.jsonl" for kind in kinds]
    said = assert_same(fast, "replay", "--run-on", "3h", "--price", "20", "--json", *logs, cwd=tmp_path)
    fired = {(line["log"], line["trigger"]) for line in map(json.loads, said.splitlines()) if "trigger" in line}
    assert {("breaks.jsonl", "nonfinite"), ("overflows.jsonl", "overflow_storm")} <= fired
    stages = [f"--policy={path}" for path in sorted((ROOT / "policies").glob("stage*.toml"))]
    assert len(stages) == 4
    assert_same(fast, "replay", *stages, "--json", "careless.jsonl", cwd=tmp_path)


@pytest.mark.skipif(not ARCHIVE.exists(), reason=f"no archive of real runs at {ARCHIVE}")
def test_a_part_of_the_real_runs(fast: Path, tmp_path: Path) -> None:
    logs = unpack(tmp_path)[::ARCHIVE_PART]
    assert_same(fast, "replay", "--run-on", "1h", "--json", *(log.relative_to(tmp_path) for log in logs), cwd=tmp_path)


def test_timelines_and_golden_tests_pass_on_it(fast: Path) -> None:
    first = (
        "import governor.core.engine.step as engine, pytest, sys; assert engine.__file__.endswith('.so');"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    settings = ["-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-o", "pythonpath=", "-p", "no:cacheprovider"]
    suites = [ROOT / "tests/timelines", ROOT / "tests/golden"]
    tested = ran([sys.executable, "-c", first, *settings, *suites], cwd=fast, path=(fast, ROOT))
    assert tested.returncode == 0, tested.stdout[-4_000:] + tested.stderr[-4_000:]


@pytest.mark.parametrize("command", ["daemon", "run", "policy check", "policy", ""])
def test_it_refuses_to_be_more_than_a_replay(fast: Path, command: str) -> None:
    refused = ran([fast / "costgov", *command.split()])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("costgov: the compiled copy only does policy replay, tune and test")
    assert refused.stderr.count("\n") == 1


def test_a_copy_of_other_sources_is_stale(fast: Path, tmp_path: Path) -> None:
    shutil.copy(fast / fast_build.STAMP, tmp_path)
    assert not fast_build.is_stale(tmp_path)
    (tmp_path / fast_build.STAMP).write_text("of other sources")
    assert fast_build.is_stale(tmp_path)
