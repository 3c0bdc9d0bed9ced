"""A staged checkpoint gets its name at the end, and nothing of another is lost for it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.ranks import OneFileSaver, Rank
from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.launch import Place
from trainer_shim.saving import outcome
from trainer_shim.saving.agreement import Phase, Round
from trainer_shim.saving.checkpoint import MANIFEST
from trainer_shim.saving.open_requests import CheckpointRequest
from trainer_shim.saving.publish import discard, publish, remove_abandoned, sign, staging_directory
from trainer_shim.saving.save_at_step import SaveAtStep
from trainer_shim.saving.step_gate import Order
from trainer_shim.saving.store import MemoryStore


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


def test_what_has_failed_goes_but_not_the_earlier_one_that_lies_in_its_place(tmp_path: Path) -> None:
    path = staged(tmp_path, 7, "half")
    (path.parent / "replaced").mkdir()  # A file system that was gone before it was moved back.
    discard(str(path.parent))
    assert (path.parent / "replaced").exists()
    (path.parent / "replaced").rmdir()
    discard(str(path.parent))
    assert list(tmp_path.iterdir()) == []


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


_WRITER = """
import os, sys
from trainer_shim.saving.publish import sign
sign(sys.argv[1])
if os.fork():
    print("signed", flush=True)
sys.stdin.read()
"""


class Writer:
    """Another launch, with other arguments; like a trainer with a data loader it has a forked worker."""

    def __init__(self, directory: Path, step: int) -> None:
        self.weights = Path(staging_directory(str(directory), step)) / f"checkpoint-{step}" / "weights"
        self.weights.parent.mkdir(parents=True)
        self.weights.write_text("half")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(self.weights.parents[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"signed\n"

    def end(self) -> None:
        """With its workers: the pipe is closed when the last of them is gone."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path, 200)
    yield made
    made.end()


def test_what_a_launch_with_other_arguments_left_goes_when_its_processes_are_gone(
    tmp_path: Path, writer: Writer, capfd: pytest.CaptureFixture[str]
) -> None:
    remove_abandoned(str(tmp_path))
    publish(str(staged(tmp_path, 100, "new")), str(tmp_path / "checkpoint-100"))
    assert writer.weights.read_text() == "half", "it is being written"
    writer.end()
    remove_abandoned(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-100"]
    assert f"removing {tmp_path}/costgov-saving-200: it is not whole" in capfd.readouterr().err


def test_a_whole_one_that_could_not_move_stays(tmp_path: Path, writer: Writer) -> None:
    (writer.weights.parent / MANIFEST).touch()
    writer.end()
    remove_abandoned(str(tmp_path))
    assert writer.weights.read_text() == "half"


@pytest.mark.parametrize("has_moved", [True, False])
def test_the_replaced_one_goes_where_its_successor_stands_and_stays_where_none_does(
    tmp_path: Path, writer: Writer, has_moved: bool
) -> None:
    """The process ended between the move and the removal of what it replaced, or could move neither."""
    shutil.rmtree(writer.weights.parent)
    replaced = writer.weights.parents[1] / "replaced"
    replaced.mkdir()
    (replaced / MANIFEST).touch()
    if has_moved:
        (tmp_path / "checkpoint-200").mkdir()
    writer.end()
    remove_abandoned(str(tmp_path))
    left = tmp_path / "checkpoint-200" if has_moved else writer.weights.parents[1]
    assert list(tmp_path.iterdir()) == [left]


def test_a_failed_save_takes_nothing_of_another_run_that_saves_the_same_step_in_one_place(
    tmp_path: Path, writer: Writer
) -> None:
    staging = writer.weights.parents[1]
    sign(str(staging))
    discard(str(staging))
    assert writer.weights.read_text() == "half"
    writer.end()
    sign(str(staging))
    discard(str(staging))
    assert list(tmp_path.iterdir()) == []


def test_what_another_attempt_of_the_same_run_writes_stays_too(tmp_path: Path, writer: Writer) -> None:
    (own,) = (staged(tmp_path / "own", 1, "new").parent / "owner").read_text().splitlines()[:1]
    signed = writer.weights.parents[1] / "owner"
    signed.write_text(signed.read_text().replace(owner(writer)[0], own))
    remove_abandoned(str(tmp_path))
    assert writer.weights.read_text() == "half"
    writer.end()
    remove_abandoned(str(tmp_path))
    assert not writer.weights.exists()


def owner(writer: Writer) -> list[str]:
    return (writer.weights.parents[1] / "owner").read_text().split()


@pytest.mark.parametrize("days", [0, 2])
@pytest.mark.parametrize("where", ["of another boot 7", "without locks"])
def test_of_what_was_written_elsewhere_only_time_tells(tmp_path: Path, writer: Writer, where: str, days: int) -> None:
    writer.end()
    signed = writer.weights.parents[1] / "owner"
    signed.write_text(f"{owner(writer)[0]}\n{where}\n")
    for path in (writer.weights, signed, *writer.weights.parents[:2]):
        os.utime(path, (signed.stat().st_mtime - days * 86_400,) * 2)
    remove_abandoned(str(tmp_path))
    assert writer.weights.exists() == (days == 0)


def test_one_that_was_being_removed_goes(tmp_path: Path) -> None:
    staged(tmp_path, 5, "torn").parent.rename(tmp_path / "costgov-saving-5.gone")
    remove_abandoned(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    remove_abandoned(str(tmp_path / "absent"))


class Elsewhere(OneFileSaver):
    """interfaces.OwnMeans of which the final place cannot be written."""

    def final_path(self, path: str, step: int, kind: str) -> str:
        return str(Path(path).parents[1] / "missing" / f"checkpoint-{step}")

    def discard(self, step: int) -> None:
        discard(staging_directory(str(self.directory), step))

    def resume_directory(self) -> str:
        raise NotImplementedError

    def own_checkpoints(self, directory: str) -> list[dict[str, Any]]:
        raise NotImplementedError


@pytest.mark.parametrize(("committed", "failed"), [(False, True), (True, True), (False, False)])
def test_what_a_framework_has_failed_to_save_goes_with_the_next_step(
    tmp_path: Path, committed: bool, failed: bool
) -> None:
    path = staged(tmp_path, 1, "half")
    if committed:
        (path / MANIFEST).write_text("{}")
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    governor = GovernorSocket(["/nonexistent/costgov"], 0, dict)
    saving = SaveAtStep(0, rank.gate, rank.progress, Elsewhere(tmp_path, 0), governor)
    deadline_ns = time.monotonic_ns() + 10**12
    rank.gate.promise(2, deadline_ns)
    rank.gate.aim(1)
    rank.gate.order(Order(True, "cg_1", "good", False, 86, deadline_ns, "own.1", 1))
    rank.progress.step = 1
    rank.gate.reach(1)
    assert saving.hold(1, True) == "good"
    saving.delegate_saved(None, "full")
    saving.note_end(has_failed=failed)
    saving.step_passed(1)
    assert path.exists(), "others may still be writing there"
    saving.step_passed(2)
    assert path.exists() is (committed or not failed)


def test_what_is_whole_and_cannot_move_is_said_to_lie_where_it_does(tmp_path: Path) -> None:
    path = staged(tmp_path, 7, "new")
    rank = Rank(0, MemoryStore(), tmp_path, 0.0)
    governor = GovernorSocket(["/nonexistent/costgov"], 0, dict)
    saving = SaveAtStep(0, rank.gate, rank.progress, Elsewhere(tmp_path, 0), governor)
    saving.delegate()
    order = Order(True, "cg_7", "good", False, 86, 0, "own.7", 7)
    request = CheckpointRequest("own.7", "good", 0, False, 86, "")
    round_, place = Round(MemoryStore(), 0, 0, 1), Place("run", "attempt", 0, 1, 0, 1)
    round_.post(Phase.OUTCOME, outcome.vote_of(place, order, str(path)))
    told = outcome.commit(round_, order, str(path), place, request, {}, saving)
    assert told == {"abort": f"rank 0: whole, but it has to stay in {path}: No such file or directory"}
    assert (path / MANIFEST).exists()


@pytest.mark.parametrize("name", ["checkpoint-100", "costgov-suspect-100"])
def test_one_that_the_framework_has_written_where_it_stays_costs_nothing_beside_it(tmp_path: Path, name: str) -> None:
    for step in (90, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text(str(step))
    publish(str(tmp_path / "checkpoint-100"), str(tmp_path / name))
    assert {path.name: (path / "weights").read_text() for path in tmp_path.iterdir()} == {
        "checkpoint-90": "90",
        name: "100",
    }
