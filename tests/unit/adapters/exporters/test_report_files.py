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
