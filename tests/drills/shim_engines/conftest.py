"""Runs a child script per rank and returns what each one reported."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHILD_LIMIT_S = 300  # Safety only: a child takes seconds on an idle machine.

RunRanks = Callable[..., list[dict[str, Any]]]
ENVIRON = {
    "PYTHONPATH": str(ROOT),  # These sources, whatever else is installed.
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "PYTHONWARNINGS": "ignore",
}


class Warm:
    """The program that ranks are forks of. It has imported what the drills of one file name as WARM."""

    def __init__(self, modules: tuple[str, ...], environ: dict[str, str]) -> None:
        self._argv = [sys.executable, str(HERE / "warm.py"), *modules]
        self.environ = {**os.environ, **ENVIRON, **environ}
        self._process: subprocess.Popen[str] | None = None

    def run(self, argv: list[str], cwd: Path, ranks: list[dict[str, Any]]) -> list[int]:
        """The exit codes of all ranks; TimeoutExpired after CHILD_LIMIT_S, when they have been killed."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._argv, env=self.environ, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"argv": argv, "cwd": str(cwd), "ranks": ranks}) + "\n")
        self._process.stdin.flush()
        pids: list[int] = []
        try:
            pids = self._answer()
            return self._answer()
        except subprocess.TimeoutExpired:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)  # Not reaped before: whoever started them waits for each.
            self._answer()
            raise

    def _answer(self) -> list[int]:
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], CHILD_LIMIT_S)[0]:
            raise subprocess.TimeoutExpired(self._argv, CHILD_LIMIT_S)
        line = self._process.stdout.readline()
        assert line, f"{self._argv} ended: {self._process.wait()}"
        answer: list[int] = json.loads(line)
        return answer

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()


@pytest.fixture(scope="module")
def warm(request: pytest.FixtureRequest) -> Iterator[Warm]:
    made = Warm(request.module.WARM, getattr(request.module, "ENVIRON", {}))
    yield made
    made.end()


@pytest.fixture
def run_ranks(warm: Warm, tmp_path: Path) -> RunRanks:
    """Return run(script, *args, ranks=1, env={}): start the ranks together, wait for all, return their reports."""

    def run(script: str, *args: str, ranks: int = 1, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
        nth = len(list(tmp_path.glob("report*")))
        report = tmp_path / f"report{nth}"
        shared = {
            **warm.environ,
            "WORLD_SIZE": str(ranks),
            "DRILL_REPORT": str(report),
            "DRILL_RENDEZVOUS": str(tmp_path / f"rendezvous{nth}"),
            **(env or {}),
        }
        logs = [tmp_path / f"log{nth}.{rank}" for rank in range(ranks)]
        told = [
            {"env": {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, "log": str(log)}
            for rank, log in enumerate(logs)
        ]
        codes = warm.run([str(HERE / script), *args], tmp_path, told)
        said = "\n".join(log.read_text()[-4000:] for log in logs)
        assert codes == [0] * ranks, said
        reports = [json.loads(Path(f"{report}.{rank}").read_text()) for rank in range(ranks)]
        for each in reports:
            each["log"] = said
        return reports

    return run
