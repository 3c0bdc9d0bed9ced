"""Small logs of our own making, and what a policy says of them, byte for byte: the diff is the change of behaviour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli.policy.replay import replay

HERE = Path(__file__).resolve().parent / "replay"


def test_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)  # Logs are named as they are given.
    logs = sorted(path.name for path in HERE.glob("*.jsonl") if path.name != "verdicts.jsonl")
    result = CliRunner().invoke(replay, ["--policy", "policy.toml", "--run-on", "1m", "--json", *logs])
    assert result.exit_code == 0, result.output
    golden = HERE / "verdicts.jsonl"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        golden.write_text(result.stdout)
    assert result.stdout == golden.read_text()
