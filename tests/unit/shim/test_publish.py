"""A staged checkpoint gets its name at the end, and nothing of another is lost for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_shim.saving.publish import publish, sign, staging_directory


def staged(directory: Path, step: int, content: str) -> Path:
    path = Path(staging_directory(str(directory), step)) / f"checkpoint-{step}"
    path.mkdir(parents=True)
    sign(str(path.parent))
    (path / "weights").write_text(content)
    return path


def test_it_moves_and_the_staging_directory_goes(tmp_path: Path) -> None:
    publish(str(staged(tmp_path, 7, "new")), str(tmp_path / "checkpoint-7"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]
    assert (tmp_path / "checkpoint-7" / "weights").read_text() == "new"


def test_the_same_step_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / "weights").write_text("old")
    publish(str(staged(tmp_path, 7, "new")), str(tmp_path / "checkpoint-7"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]
    assert (tmp_path / "checkpoint-7" / "weights").read_text() == "new"


def test_what_cannot_move_leaves_the_earlier_one_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / "weights").write_text("old")
    path = staged(tmp_path, 7, "new")
    with pytest.raises(FileNotFoundError):
        publish(str(path.with_name("checkpoint-8")), str(tmp_path / "checkpoint-7"))
    assert (tmp_path / "checkpoint-7" / "weights").read_text() == "old"
    assert (path / "weights").read_text() == "new"


def test_what_earlier_saves_left_unfinished_goes(tmp_path: Path) -> None:
    staged(tmp_path, 5, "torn")
    publish(str(staged(tmp_path, 7, "new")), str(tmp_path / "costgov-suspect-7"))
    assert [path.name for path in tmp_path.iterdir()] == ["costgov-suspect-7"]


@pytest.mark.parametrize("other", ["named", "unnamed", "strange"])
def test_what_another_run_is_writing_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setenv("COSTGOV_RUN", "beta")
    theirs = staged(tmp_path, 200, "half")
    if other == "unnamed":
        (theirs.parent / "owner").unlink()
    elif other == "strange":
        (theirs.parent / "owner").write_bytes(b"\xff" * 4096)
    monkeypatch.setenv("COSTGOV_RUN", "alpha")
    publish(str(staged(tmp_path, 100, "new")), str(tmp_path / "checkpoint-100"))
    assert (theirs / "weights").read_text() == "half"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-100", "costgov-saving-200"}
