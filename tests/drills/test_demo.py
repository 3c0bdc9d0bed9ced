"""`make demo`, as a newcomer plays it: it judges itself, and exits 0 only if everything was observed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
SAFETY_S = 400.0
LINES_MAX = 36  # What a person reads, beside the status every few seconds: on a busy machine those are many.


@pytest.mark.parametrize("fault", ["nan", "hang", "deaf", "collapse", "starve", "budget", "none"])
def test_the_demo_sees_what_it_promises(fault: str) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--fault", fault], capture_output=True, text=True, timeout=SAFETY_S, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "demo: ok:" in done.stdout
    assert len([line for line in said.splitlines() if " tok/s  " not in line]) <= LINES_MAX, said
