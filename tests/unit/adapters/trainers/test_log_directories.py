"""Several files in one directory of logs: which one is the run's, whoever else writes there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from governor.adapters.trainers.jsonl_tail import Position
from governor.adapters.trainers.log_directory import BACK_LOOKS, SILENT_LOOKS
from tests.unit.adapters.trainers.test_file_streams import IN_DIRECTORIES, NAMES, Folder, faults
from tests.unit.core.engine.test_step import at
from tests.unit.wire.files.written import RunFile, begin, scalar


class Writer:
    """One of the files of a directory."""

    def __init__(self, folder: Folder, number: int) -> None:
        self.name, self.path = folder.name, folder.folder / NAMES[folder.name](number)
        self.path.parent.mkdir(exist_ok=True)
        self._file = RunFile()
        self._put(begin() if self.name == "tensorboard" else bytes(self._file.data))

    def _put(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def tell(self, steps: Iterable[int], **values: float) -> None:
        if self.name == "tensorboard":
            self._put(b"".join(scalar(n, name, value) for n in steps for name, value in values.items()))
            return
        before = len(self._file.data)
        for n in steps:
            self._file.row(n, values)
        self._put(bytes(self._file.data[before:]))


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Folder:
    made = Folder(tmp_path, name)
    made.look()
    return made


def train(folder: Folder, writer: Writer, steps: Iterable[int], *others: Writer, loss: float = 2.0) -> list[str]:
    """A step each half second, of each writer a little later than the one before. Returns the alarms."""
    told = []
    for step in steps:
        for one in (writer, *others):
            one.tell([step], loss=loss)
            told += folder.look(1)
        told += folder.look(1)
    told += folder.look(3)
    return [one.name for one in told]


@IN_DIRECTORIES
@pytest.mark.parametrize("values", [None, {"eval/loss": 3.0}, {"gpu_busy": 0.9}])
def test_a_file_that_tells_nothing_of_training_displaces_nobody(
    folder: Folder, values: dict[str, float] | None
) -> None:
    run, other = Writer(folder, 0), None
    for step in range(1, 61):
        run.tell([step], loss=2.0 if step < 60 else math.nan)
        if step == 30:
            other = Writer(folder, 1)
        if other is not None and values is not None:
            other.tell([step], **values)
        assert not folder.look(2)
    folder.look()
    assert folder.run.step == 60
    assert folder.incident.reason == "loss_nan"


@IN_DIRECTORIES
def test_of_the_writers_of_all_ranks_the_one_that_tells_the_loss_is_followed(folder: Folder) -> None:
    ranks = [Writer(folder, n) for n in range(20)]
    folder.look()
    train(folder, ranks[7], range(1, 30))
    assert folder.run.step == 29
    assert folder.run.loss == 2.0


@IN_DIRECTORIES
def test_a_file_with_the_loss_wins_over_one_without(folder: Folder) -> None:
    other = Writer(folder, 1)
    other.tell([1], lr=1e-4)
    folder.look()
    run = Writer(folder, 0)
    for step in range(1, 20):
        run.tell([step], loss=2.0)
        other.tell([step + 100], lr=1e-4)
        folder.look(2)
    folder.look()
    assert (folder.run.step, folder.run.loss) == (19, 2.0)


@IN_DIRECTORIES
def test_of_two_that_tell_the_loss_one_is_followed_and_that_is_said_once(folder: Folder) -> None:
    ranks = [Writer(folder, n) for n in (0, 1)]
    alarms = train(folder, ranks[0], range(1, 60), ranks[1])
    assert alarms == ["stream_rivals"]
    assert folder.run.step == 59


@IN_DIRECTORIES
def test_a_second_run_that_begins_beside_is_an_aside(folder: Folder) -> None:
    run = Writer(folder, 0)
    train(folder, run, range(1, 20))
    other = Writer(folder, 1)
    run.tell([20], loss=2.0)
    folder.look(3)
    alarms = train(folder, run, range(21, 40), other, loss=2.0)
    assert alarms == ["stream_rivals"]
    assert folder.run.step == 39
    other.tell([40], loss=math.nan)
    folder.look(20)
    assert folder.incident is None
    run.tell([40], loss=math.nan)
    folder.look()
    assert folder.incident.reason == "loss_nan"


@IN_DIRECTORIES
def test_a_rival_is_read_on_once_the_followed_one_has_long_been_silent(folder: Folder) -> None:
    ranks = [Writer(folder, n) for n in (0, 1)]
    train(folder, ranks[0], range(1, 30), ranks[1])
    living = next(rank for rank in ranks if folder.watch.stream._files.tail.path != str(rank.path))
    for step in range(30, 40):
        living.tell([step], loss=2.0)
        folder.look(SILENT_LOOKS // 8)
    living.tell([40], loss=math.nan)
    folder.look()
    assert folder.run.step == 40
    assert folder.incident.reason == "loss_nan"


@IN_DIRECTORIES
def test_a_test_in_the_midst_of_training_blinds_for_three_looks(folder: Folder) -> None:
    run = Writer(folder, 0)
    train(folder, run, range(1, 20))
    test = Writer(folder, 1)
    test.tell([19], loss=2.5)
    folder.look(8)
    train(folder, run, range(20, 20 + BACK_LOOKS + 2))
    assert folder.run.step == 20 + BACK_LOOKS + 1
    run.tell([40], loss=math.nan)
    folder.look()
    assert folder.incident.reason == "loss_nan"


@IN_DIRECTORIES
def test_the_last_words_of_an_old_launch_displace_not_the_new_one(folder: Folder) -> None:
    old, new = Writer(folder, 0), Writer(folder, 1)
    old.tell(range(1, 20), loss=2.0)
    new.tell([20], loss=2.0)
    folder.look(6)
    old.tell([20], loss=2.0)
    folder.look(6)
    new.tell([21, 22], loss=math.nan)
    folder.look()
    assert folder.incident.reason == "loss_nan"


@IN_DIRECTORIES
def test_a_restarted_governor_knows_the_rivals(folder: Folder) -> None:
    ranks = [Writer(folder, n) for n in (0, 1)]
    train(folder, ranks[0], range(1, 30), ranks[1])
    followed = folder.watch.stream._files.tail.path
    folder.watch.restart(folder.watch.kept(folder.now), folder.now)
    folder.look()
    for rank in ranks:
        rank.tell([30], loss=2.0 if str(rank.path) == followed else math.nan)
        folder.look(2)
    folder.look(8)
    assert folder.watch.stream._files.tail.path == followed
    assert folder.incident is None
    assert folder.run.step == 30


@IN_DIRECTORIES
def test_a_governor_that_comes_to_two_files_follows_the_one_of_training(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path, name)
    run, _ = Writer(folder, 0), Writer(folder, 1)
    run.tell(range(1, 20), loss=2.0)
    folder.look()
    assert folder.run.step is None, "that is history"
    run.tell([20, 21], loss=math.nan)
    folder.look()
    assert folder.incident.reason == "loss_nan"


@IN_DIRECTORIES
def test_files_that_never_tell_anything_are_passed(folder: Folder) -> None:
    """They grow, and hold up neither the end of the run nor memory."""
    run = Writer(folder, 0)
    others = [Writer(folder, n) for n in range(1, 30)]
    for step in range(1, 50):
        run.tell([step], loss=2.0)
        for other in others:
            other.tell([step], **{"gpu.temp": 60.0})
        folder.look(2)
    tail = folder.watch.stream._files.tail
    assert sum(one.tail is not None for one in tail._beside.values()) <= 8  # type: ignore[union-attr]
    folder.watch.processes.end(4321)
    folder.look(60)
    assert folder.run.step == 49
    assert folder.watch.stream.has_read(at(folder.now - 1)), "so an end is told"


def test_what_a_journal_says_of_others_may_be_anything() -> None:
    row = {"inode": 1, "head": "", "offset": 0}
    for beside in ([1], "ab", {"1": "x"}, {"1": None}, 7):
        assert Position.of(row | {"beside": beside}) is None
    kept = Position.of(row | {"beside": {"5": 9}})
    assert kept is not None
    assert Position.of(kept.row()) == kept


@IN_DIRECTORIES
def test_doctor_says_that_two_write_at_a_time(folder: Folder) -> None:
    run = Writer(folder, 0)
    run.tell(range(1, 20), loss=2.0)
    Writer(folder, 1)
    assert faults(folder.folder, folder.name) == []
    Writer(folder, 2).tell(range(1, 20), loss=2.0)
    (text,) = faults(folder.folder, folder.name)
    assert "several writers at a time" in text


@IN_DIRECTORIES
def test_a_directory_that_is_made_later_has_no_history(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path, name)
    folder.folder.rmdir()
    folder.look()
    folder.folder.mkdir()
    Writer(folder, 0).tell(range(1, 20), loss=2.0)
    folder.look()
    assert folder.run.step == 19


@IN_DIRECTORIES
def test_a_file_that_is_removed_is_followed_by_another(folder: Folder) -> None:
    first, second = Writer(folder, 0), Writer(folder, 1)
    train(folder, first, range(1, 10))
    first.path.unlink()
    second.tell([10], loss=2.0)
    folder.look(6)
    assert folder.run.step == 10


@IN_DIRECTORIES
def test_as_many_newer_files_as_ranks_displace_nobody(folder: Folder) -> None:
    run = Writer(folder, 0)
    train(folder, run, range(1, 10))
    for number in range(1, 80):
        Writer(folder, number)
    train(folder, run, range(10, 30))
    train(folder, run, range(30, 34), loss=math.nan)
    assert folder.incident.reason == "loss_nan"


@pytest.mark.parametrize("name", ["tensorboard"])
def test_writers_that_were_killed_amid_a_record_keep_no_launch_unread(folder: Folder) -> None:
    run = Writer(folder, 0)
    train(folder, run, range(1, 10))
    for number in range(1, 13):
        killed = Writer(folder, number)
        with killed.path.open("ab") as file:
            file.write(scalar(1, "loss", 2.0)[:-6])
    folder.look(20)
    last = Writer(folder, 20)
    train(folder, last, range(1, 40), loss=3.0)
    assert (folder.run.step, folder.run.loss) == (39, 3.0)
