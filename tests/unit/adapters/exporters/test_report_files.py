"""Reports as files: what trainers put into an incident costs no halt, and one halt's report not another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from governor.adapters.exporters.report_files import ReportFiles
from tests.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "report" / "nan_halt.json"


def snapshot(**changes: Any) -> dict[str, Any]:
    return {**json.loads(GOLDEN.read_text()), **changes}


def test_a_command_line_that_is_not_utf8_is_written_all_the_same(tmp_path: Path) -> None:
    ReportFiles(tmp_path).incident(snapshot(incident_id="i", resume="python train.py --data /caf\udce9"))
    assert r"/caf\udce9" in (tmp_path / "i.md").read_text(encoding="utf-8")


def test_two_halts_at_once_each_get_their_last_report(tmp_path: Path) -> None:
    files = ReportFiles(tmp_path)
    for stage in ("TERMED", "HALTED"):
        for incident_id in ("one", "two"):
            files.incident(snapshot(incident_id=incident_id, halt_stage=stage))
    stages = [json.loads((tmp_path / f"{name}.json").read_text())["halt_stage"] for name in ("one", "two")]
    assert stages == ["HALTED", "HALTED"]


def test_what_is_known_after_the_end_of_a_halt_is_in_its_report(tmp_path: Path) -> None:
    """The governor's own look at a large checkpoint takes longer than the halt."""
    files, halted = ReportFiles(tmp_path), snapshot(incident_id="one", halt_stage="HALTED", closed_wall_ns=1)
    files.incident(halted)
    read = {**halted["timeline"][-1], "what": "checkpoint_read"}
    files.incident({**halted, "timeline": [*halted["timeline"], read]})
    assert json.loads((tmp_path / "one.json").read_text())["timeline"][-1]["what"] == "checkpoint_read"


def test_what_a_look_at_the_last_good_one_finds_after_the_halt_is_in_both_files(tmp_path: Path) -> None:
    """Where nothing is saved, a halt is over before a reader has answered."""
    good = {"step": 20, "path": "/ck/checkpoint-20"}
    files, halted = ReportFiles(tmp_path), snapshot(incident_id="one", halt_stage="HALTED", closed_wall_ns=1)
    for found in ({"unseen": "the look has not ended"}, {"torn": "model.safetensors is empty"}):
        files.incident({**halted, "checkpoint": None, "last_good": good | found})
    assert "NONE IS LEFT; step 20" in (tmp_path / "one.md").read_text(encoding="utf-8")
    told = json.loads((tmp_path / "one.json").read_text())
    assert (told["last_good"]["torn"], told["resume"]) == ("model.safetensors is empty", None)


def test_reports_of_one_users_halts_remove_no_other_users_and_none_of_an_open_one(tmp_path: Path) -> None:
    ReportFiles(tmp_path).incident(snapshot(incident_id="open", uid=7, closed_wall_ns=None))
    for name, uid in (("good", 1000), ("old", 7)):  # By an earlier governor.
        ReportFiles(tmp_path).incident(snapshot(incident_id=name, uid=uid, closed_wall_ns=1))
    (tmp_path / "notes.json").write_text("mine")
    files = ReportFiles(tmp_path, reports_max=5)
    for n in range(9):
        files.incident(snapshot(incident_id=f"z{n}", uid=7, closed_wall_ns=1))
    left = {path.name for path in tmp_path.iterdir()} - {"notes.json"}
    assert left == {f"{stem}{suffix}" for stem in ("open", "good", "z7", "z8") for suffix in (".md", ".json")}
    assert (tmp_path / "notes.json").read_text() == "mine"
