"""`costgov run --gate`: a run that would land above its ceiling is ended after its first steps, and can go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.drills.halt.conftest import BIN, HERE, SAFETY_S, configuration

# A billion tokens in steps of 1,000 and a hundredth of a second: $10,000 at $3,600 an hour, and more.
GOAL = """
[policy]
name = "goal"
[budget]
tokens = "1B"
[halt]
grace = "10s"
term_grace = "1s"
kill_grace = "5s"
[[rule]]
name = "budget"
trigger = "budget"
response = "halt"
"""


def test_a_run_that_lands_above_its_ceiling_is_halted_after_its_first_steps(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(GOAL)
    asked = ("--policy", str(policy), "--ceiling", "500", "--price", "3600", "--gate", "20steps", "--name", "drill")
    argv = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), *asked, "--", sys.executable]
    trainee = [str(HERE / "trainee.py"), "healthy", str(tmp_path)]
    done = subprocess.run([*argv, *trainee], capture_output=True, text=True, timeout=SAFETY_S, check=False)
    assert done.returncode == 86, done.stderr
    (report,) = (tmp_path / "state" / "incidents").glob("*.json")
    incident: dict[str, Any] = json.loads(report.read_text())
    assert (incident["reason"], incident["halt_stage"]) == ("gate", "HALTED")
    assert 20 <= incident["step"] <= 80
    assert incident["evidence"]["landing_low_usd_micros"] > 500_000_000
    assert incident["spend_usd"] < 100
    assert incident["checkpoint"]["kind"] == "good", incident["checkpoint"]
    said = done.stderr  # On its one line, and in the command that goes on.
    assert "at its goal of 1,000,000,000 tokens, above the ceiling $500.00 less $" in said
    assert "what would do: a ceiling from $" in said
    resume, what = (line for line in said.splitlines() if line.startswith(("resume  ", "resume with")))
    copied = resume.partition(" --ceiling ")[2].partition(" --price 3600 --gate 20steps ")[0]
    assert int(copied) * 1_000_000 > incident["evidence"]["enough_usd_micros"]
    assert " on, or a goal of " in what
    assert f"The command has {copied} in place of 500: " in what
    assert f" --ceiling {copied} --price 3600 " in incident["resume_raised"]
    assert " --ceiling 500 --price 3600 " in incident["resume"], "no program raises a ceiling by itself"
