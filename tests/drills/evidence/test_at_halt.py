"""Two real ranks on gloo under `costgov run`, one of which sleeps in its data: what the halt keeps of who is behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.drills.halt.conftest import BIN, HERE, Run, costgov_run
from trainer_shim.wire import HALT_EXIT_CODE

__all__ = ["costgov_run"]

POLICY = """
[policy]
name = "drill"
[halt]
grace = "4s"
term_grace = "1s"
kill_grace = "5s"
stop = "{{stop}}"
[[rule]]
name = "hang"
trigger = "hang"
response = "halt"
checkpoint = "{checkpoint}"
tight_min = "1s"
data_min = "1s"
"""
SLEEP_AT = 100


def test_the_incident_of_a_hang_names_the_rank_that_is_behind(costgov_run: Run, tmp_path: Path) -> None:
    words = [str(HERE / "sleeper.py"), str(tmp_path), "-1", "0", str(SLEEP_AT)]
    environ = {"COSTGOV_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    halted = costgov_run([sys.executable, *words], policy=POLICY.format(checkpoint="good"), environ=environ)
    assert halted.code == HALT_EXIT_CODE, halted.output
    incident = halted.incident
    assert incident["evidence"]["suspects"] == [1], "what the rule had judged is kept"
    found = incident["evidence"]["collectives"]
    assert found["problems"] == {}
    (group,) = found["groups"]
    assert group["behind"] == [1], group
    assert group["ranks"]["0"]["number"] == group["ranks"]["1"]["number"] + 1
    entries = [entry for entry in incident["timeline"] if entry["what"] == "collectives"]
    assert [entry["detail"]["text"] for entry in entries] == [group["text"]]
    at = {entry["what"]: entry["mono_ns"] for entry in incident["timeline"]}
    assert at["asked"] <= at["collectives"] < at["term"], "both ranks have answered while the checkpoint was waited for"
    assert group["text"] in halted.output, "on the terminal"
    page = tmp_path / "page.html"
    argv = [str(BIN / "costgov"), "incident", "show", "last", "--html", str(page)]
    argv += ["--config", str(tmp_path / "costgov.toml")]
    subprocess.run(argv, check=True, timeout=60, capture_output=True)
    assert "Collectives at the halt" in page.read_text()
    assert halted.running() == []


def test_a_halt_without_a_checkpoint_waits_for_no_answer(costgov_run: Run, tmp_path: Path) -> None:
    """SIGTERM follows at once. Whatever has come or not, the evidence says it of each rank."""
    words = [str(HERE / "sleeper.py"), str(tmp_path), "-1", "0", str(SLEEP_AT)]
    halted = costgov_run([sys.executable, *words], policy=POLICY.format(checkpoint="none"))
    assert halted.code == HALT_EXIT_CODE, halted.output
    incident = halted.incident
    found = incident["evidence"]["collectives"]
    told = {rank for group in found["groups"] for rank in group["ranks"]} | set(found["problems"])
    assert told == {"0", "1"}
    assert "asked" not in [entry["what"] for entry in incident["timeline"]]
    assert halted.running() == []
