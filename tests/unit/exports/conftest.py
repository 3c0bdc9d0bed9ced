from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.exports.exported import leave_journal, leave_recording


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory, which the commands look into."""
    for name, value in (("STATE_DIR", "state"), ("RUNTIME_DIR", "run")):
        monkeypatch.setenv(f"COSTGOV_PATHS__{name}", str(tmp_path / value))
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def left(state: Path) -> Path:
    """The state directory with a recording and a journal of the run."""
    leave_recording(state)
    leave_journal(state)
    return state
