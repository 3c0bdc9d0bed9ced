"""Incidents are shared: no secret of a command line is in anything that is written, and no stranger may read them."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from pathlib import Path

from tests.drills.halt.conftest import HERE, Run

CANARY = "SECRETCANARY11"
OWN = "OWNCANARY22"


def test_secrets_of_the_command_line_are_nowhere(costgov_run: Run, tmp_path: Path) -> None:
    trainee = shlex.join([sys.executable, str(HERE / "trainee.py"), "polite", str(tmp_path)])
    script = f"export HF_TOKEN='{CANARY} x'; WANDB_API_KEY={CANARY} {trainee}; exit $?; t.py --bf16 --token {CANARY}"
    argv = ["sh", "-c", script, "trainer", "--api_key", CANARY, f"--url=https://ada:{CANARY}@host/", "--pin", OWN]
    before = os.umask(0)  # A careless one.
    try:
        halted = costgov_run(argv, cloud='[redact]\nkeys = ["pin"]')
    finally:
        os.umask(before)
    assert halted.code == 86, halted.output
    assert halted.incident["resume"].endswith(
        "trainer --api_key '<redacted>' '--url=https://ada:<redacted>@host/' --pin '<redacted>'"
    )
    found = [
        path for directory in ("state", "run") for path in (tmp_path / directory).rglob("*")
        if path.is_file() and any(canary.encode() in path.read_bytes() for canary in (CANARY, OWN))
    ]  # fmt: skip
    assert found == []
    assert CANARY not in halted.output
    assert OWN not in halted.output
    incidents = tmp_path / "state" / "incidents"
    assert stat.S_IMODE(incidents.stat().st_mode) == 0o750
    reports = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in incidents.iterdir()}
    assert reports == {".json": 0o640, ".md": 0o640}
