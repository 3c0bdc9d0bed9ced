"""Runs a child script per rank and returns what each one reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CHILD_LIMIT_S = 300  # Safety only: a child takes seconds on an idle machine.

RunRanks = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run_ranks(tmp_path: Path) -> RunRanks:
    """Return run(script, *args, ranks=1, env={}): start the ranks together, wait for all, return their reports."""
    pytest.importorskip("torch", reason="needs torch")

    def run(script: str, *args: str, ranks: int = 1, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
        nth = len(list(tmp_path.glob("report*")))
        report = tmp_path / f"report{nth}"
        shared = {
            **os.environ,
            "PYTHONPATH": str(HERE.parents[2]),  # These sources, whatever else is installed.
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "WORLD_SIZE": str(ranks),
            "PYTHONWARNINGS": "ignore",
            "DRILL_REPORT": str(report),
            "DRILL_RENDEZVOUS": str(tmp_path / f"rendezvous{nth}"),
            **(env or {}),
        }
        children = []
        for rank in range(ranks):
            log = (tmp_path / f"log{nth}.{rank}").open("wb")
            children.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / script), *args],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=tmp_path,
                )
            )
            log.close()
        try:
            codes = [child.wait(CHILD_LIMIT_S) for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        logs = "\n".join((tmp_path / f"log{nth}.{rank}").read_text()[-4000:] for rank in range(ranks))
        assert codes == [0] * ranks, logs
        reports = [json.loads(Path(f"{report}.{rank}").read_text()) for rank in range(ranks)]
        for each in reports:
            each["log"] = logs
        return reports

    return run
