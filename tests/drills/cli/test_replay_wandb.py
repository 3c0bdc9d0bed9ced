"""W&B's local logs, written by W&B itself in offline mode, as logs of a replay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from governor.replay.readers.wandb import OFFLINE
from tests.unit.replayed import rows, run

RUN = """
import os, signal, sys, wandb
run = wandb.init(project="p", dir=sys.argv[1], settings=wandb.Settings(x_disable_stats=True, silent=True))
for n in range(30):
    run.log({"train/loss": float("nan") if n == 20 else 3.0, "train/grad_norm": 1.0, "train/global_step": n})
run.finish()
"""


@pytest.fixture(scope="module")
def offline_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wandb")
    subprocess.run([sys.executable, "-c", RUN, str(directory)], env=os.environ | OFFLINE, check=True, timeout=120)
    (path,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    return path


def test_an_offline_run_is_a_log_also_where_a_directory_is_walked(
    offline_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise SystemExit('somebody else')")  # What lies about is not started.
    monkeypatch.chdir(tmp_path)
    result = run(offline_run.parents[2], "--json")
    assert result.exit_code == 0, result.stderr
    verdict, summary = rows(result)
    assert (verdict["rule"], verdict["step"], verdict["evidence"]["loss"]) == ("nonfinite", 20, "nan")
    assert 0 < verdict["t"] < 120
    assert (summary["log"], summary["records"]) == (str(offline_run), 30)


def test_what_is_torn_or_no_log_of_wandb_is_said_in_one_line_and_the_others_go_on(
    offline_run: Path, tmp_path: Path
) -> None:
    data = offline_run.read_bytes()
    bad = {"torn": data[: len(data) // 2], "garbage": bytes(range(256)) * 40, "empty": b""}
    for name, content in bad.items():
        (tmp_path / f"run-{name}.wandb").write_bytes(content)
    os.mkfifo(tmp_path / "run-fifo.wandb")
    paths = [tmp_path / f"run-{name}.wandb" for name in (*bad, "fifo", "missing")]
    result = run(*paths, offline_run, "--json")
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    for line, path, words in zip(said, paths, (
        "reached the end of an incomplete .wandb file", "bad header", "holds no record",
        "not a regular file", "No such file",
    ), strict=True):  # fmt: skip
        assert line.startswith(f"costgov: {path}: ")
        assert words in line
    counts = {row["log"]: row["records"] for row in rows(result) if "records" in row}
    assert 0 < counts[str(paths[0])] < 30
    assert counts[str(offline_run)] == 30


def test_without_wandb_one_line_names_the_extra(offline_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = run(offline_run, "--json")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        f"costgov: {offline_run}: W&B's local logs need its own reader: pip install 'costgov[wandb]'"
    )
