"""One command under `costgov run`, the demo's cloud beside it, and what the incident report says afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
SAFETY_S = 90.0

POLICY = """
[policy]
name = "drill"
[halt]
checkpoint = "suspect"
grace = "3s"
term_grace = "1s"
kill_grace = "5s"
stop = "{stop}"
per_day_max = 100
[[rule]]
name = "nonfinite"
trigger = "nonfinite"
for = "1 step"
response = "halt"
"""


@dataclass
class Halted:
    """What `costgov run` left behind."""

    code: int
    output: str
    incidents: list[dict[str, Any]]
    work: Path

    @property
    def incident(self) -> dict[str, Any]:
        assert len(self.incidents) == 1, self.output
        return self.incidents[0]

    @property
    def seen(self) -> list[str]:
        return [entry["what"] for entry in self.incident["timeline"]]

    def running(self) -> list[int]:
        """Which of the trainee's processes still run."""
        pids = json.loads((self.work / "pids").read_text())
        return [pid for pid in pids if _state(pid) not in (None, "Z")]


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def configuration(work: Path, cloud: str = "") -> Path:
    config = work / "costgov.toml"
    config.write_text(
        f"""
[node]
name = "drill"
price_usd_per_hour = 98.32
[paths]
state_dir = "{work}/state"
runtime_dir = "{work}/run"
[metrics]
enabled = false
{cloud}
"""
    )
    return config


Run = Callable[..., Halted]


@pytest.fixture
def costgov_run(tmp_path: Path) -> Run:
    def run(
        argv: list[str], *, stop: str = "processes", cloud: str = "", environ: dict[str, str] | None = None
    ) -> Halted:
        policy = tmp_path / "policy.toml"
        policy.write_text(POLICY.format(stop=stop))
        command = [
            str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path, cloud)), "--policy", str(policy),
            "--name", "drill", "--", *argv,
        ]  # fmt: skip
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **(environ or {})}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SAFETY_S, env=env, check=False)
        reports = sorted((tmp_path / "state" / "incidents").glob("*.json"))
        output = done.stdout + done.stderr
        return Halted(done.returncode, output, [json.loads(report.read_text()) for report in reports], tmp_path)

    return run


@pytest.fixture
def trainee(costgov_run: Run, tmp_path: Path) -> Callable[..., Halted]:
    def run(mode: str, **options: Any) -> Halted:
        return costgov_run([sys.executable, str(HERE / "trainee.py"), mode, str(tmp_path)], **options)

    return run
