"""Where a profile is written: into a folder of the rank's own user, and through nobody's link."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainer_shim.evidence.profile import FOLDER, StepProfile


class Profiler:
    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("trace")


def written(work: Path) -> str | None:
    profiler: Any = Profiler()
    return StepProfile(0, lambda: str(work))._written(profiler, 7)


def test_a_trace_lies_in_a_folder_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "new")
    assert path is not None
    assert Path(path).read_text() == "trace"
    folder = tmp_path / "new" / FOLDER
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.listdir(folder) == [Path(path).name]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / FOLDER).symlink_to(other)
    with pytest.raises(OSError, match=FOLDER):
        written(tmp_path)
    assert os.listdir(other) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER).chmod(mode)
    with pytest.raises(PermissionError, match="others may write"):
        written(tmp_path)
    assert os.listdir(tmp_path / FOLDER) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(0o700)
    os.chown(tmp_path / FOLDER, 1002, 1002)
    with pytest.raises(PermissionError, match="another user"):
        written(tmp_path)
