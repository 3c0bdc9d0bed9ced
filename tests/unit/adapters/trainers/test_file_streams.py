"""Tables, TensorBoard's event files and W&B's local logs, followed as JSONL is, through what befalls a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.trainers.stream_check import StreamCheck
from governor.adapters.trainers.streams import Stream
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Event, Step, TrainerExited
from governor.settings.streams import Jsonl
from tests.contract.fakes import FakeProcesses
from tests.unit.core.engine.test_step import at, play, tick
from tests.unit.followed_log import AtOnce, Watch
from tests.unit.wire.files.written import BEGAN_S, RunFile, begin, events, frame, scalar


def of_table(steps: Iterable[int], loss: float = 2.0) -> bytes:
    return b"step,loss,tokens\n" + b"".join(f"{n},{loss},1000\n".encode() for n in steps)


def of_events(steps: Iterable[int], loss: float = 2.0) -> bytes:
    return begin() + b"".join(scalar(n, "loss", loss) + scalar(n, "tokens_per_step", 1000) for n in steps)


def of_run(steps: Iterable[int], loss: float = 2.0) -> bytes:
    file = RunFile()
    for n in steps:
        file.row(n, {"loss": loss, "tokens_per_step": 1000})
    return bytes(file.data)


WRITERS: dict[str, Callable[..., bytes]] = {"csv": of_table, "tensorboard": of_events, "wandb": of_run}
FORMATS = pytest.mark.parametrize("name", list(WRITERS))
IN_DIRECTORIES = pytest.mark.parametrize("name", ["tensorboard", "wandb"])
NAMES = {
    "tensorboard": lambda n: f"events.out.tfevents.{1_800_000_000 + n}.node.7.0",
    "wandb": lambda n: f"run-20260101_0000{n:02}-id{n}/run-id{n}.wandb",
}


class Followed:
    def __init__(self, directory: Path, name: str, path: Path | None = None) -> None:
        self.name = name
        self.watch = Watch(directory, format=name)
        self.path = path or self.watch.path
        self.now = 1.0

    def write(self, data: bytes, *, mode: str = "ab") -> None:
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open(mode) as file:
            file.write(data)

    def look(self, times: int = 4) -> list[Alarm]:
        told: list[Alarm] = []
        for _ in range(times):
            self.now += 0.25
            effects = [*play(self.watch.node, tick(self.now)), *self.watch.poll(self.now)]
            told += [one for one in effects if isinstance(one, Alarm)]
        return told

    @property
    def run(self) -> Any:
        return self.watch.node.runs["log"].run

    @property
    def incident(self) -> Any:
        return self.watch.node.runs["log"].incident


@pytest.fixture
def followed(tmp_path: Path, name: str) -> Followed:
    return Followed(tmp_path, name)


@FORMATS
def test_a_file_that_grows_byte_by_byte_is_followed(followed: Followed) -> None:
    data = WRITERS[followed.name](range(1, 6))
    for n in range(len(data)):
        followed.write(data[n : n + 1])
        followed.watch.poll(followed.now)
    followed.look()
    assert followed.run.step == 5
    assert followed.run.loss == 2.0
    assert followed.watch.tokens == 5000, "each step once"


@FORMATS
def test_a_nan_in_the_last_record_is_halted(followed: Followed) -> None:
    followed.write(WRITERS[followed.name](range(1, 40)))
    followed.look()
    assert followed.incident is None
    whole = WRITERS[followed.name](range(1, 40))
    if followed.name == "csv":
        followed.write(b"40,nan,1000\n")
    elif followed.name == "tensorboard":
        followed.write(scalar(40, "loss", math.nan))
    else:
        file = RunFile()
        file.data = bytearray(whole)
        file.row(40, {"loss": math.nan})
        followed.write(bytes(file.data[len(whole) :]))
    followed.look()
    assert followed.incident.reason == "loss_nan"


@FORMATS
def test_what_was_written_before_the_governor_came_is_history(followed: Followed) -> None:
    data = WRITERS[followed.name](range(1, 60))
    followed.watch.stream.close()
    followed.write(data[:-20])
    entry = Jsonl(path=followed.path, run="log", **followed.watch.keys)
    followed.watch.stream = Stream(entry, followed.watch.processes, begin=AtOnce)
    followed.look()
    assert followed.run.step is None
    followed.write(data[-20:])
    followed.look()
    assert followed.run.step in (None, 59), "that one may be history, too"
    followed.write(WRITERS[followed.name](range(60, 70), 3.0), mode="wb")
    followed.look(8)
    assert followed.run.step == 69


@FORMATS
def test_rotation_and_truncation_lose_nothing(followed: Followed) -> None:
    followed.write(WRITERS[followed.name](range(1, 20)))
    followed.look()
    os.replace(followed.path, followed.path.with_suffix(".1"))
    followed.write(WRITERS[followed.name](range(20, 40), 2.1))
    followed.look()
    assert followed.run.step == 39
    followed.write(WRITERS[followed.name](range(40, 45), 2.2), mode="wb")
    followed.look()
    assert followed.run.step == 44
    assert followed.watch.tokens == 44_000


@FORMATS
def test_after_a_restart_of_the_governor_each_record_is_judged_once(followed: Followed) -> None:
    data = WRITERS[followed.name](range(1, 60))
    followed.write(data[: len(data) // 2])
    followed.look()
    kept = followed.watch.kept(followed.now)
    followed.write(data[len(data) // 2 :])
    followed.watch.restart(kept, followed.now)
    followed.look()
    assert followed.run.step == 59
    assert followed.watch.tokens == 59_000


@FORMATS
def test_a_log_of_another_kind_is_unwatched_and_what_was_seen_is_said(followed: Followed) -> None:
    followed.write(b"my training, in words\n" * 50 + b"and so on, and so on, and so on, in words\n" * 50)
    told = followed.look(300)
    assert [one.name for one in told] == ["unwatched"]
    assert told[0].text.isprintable()
    wanted = {"csv": "no table with a header", "tensorboard": "no TensorBoard event file", "wandb": "no W&B log"}[
        followed.name
    ]
    assert wanted in told[0].text


@IN_DIRECTORIES
def test_a_log_of_unknown_names_is_unwatched_and_they_are_said(followed: Followed) -> None:
    if followed.name == "tensorboard":
        followed.write(begin() + b"".join(scalar(n, "objective/ce", 2.0) for n in range(1, 60)))
    else:
        file = RunFile()
        for n in range(60):
            file.row(n, {"objective/ce": 2.0})
        followed.write(bytes(file.data))
    told = followed.look(300)
    assert [one.name for one in told] == ["unwatched"]
    assert "objective/ce" in told[0].text
    assert "fields = { loss =" in told[0].text
    assert followed.run.step is None


@FORMATS
def test_a_format_that_is_set_right_is_read_from_where_the_other_one_stopped(followed: Followed) -> None:
    whole = WRITERS[followed.name](range(1, 60))
    followed.watch.keys["format"] = "jsonl"
    followed.watch.restart(followed.watch.kept(followed.now), followed.now)
    followed.write(whole[: len(whole) // 2])
    followed.look()
    followed.watch.keys["format"] = followed.name
    followed.watch.restart(followed.watch.kept(followed.now), followed.now)
    followed.look()
    followed.write(whole[len(whole) // 2 :])
    followed.look()
    assert followed.run.step == 59


@pytest.mark.parametrize("name", ["tensorboard", "csv"])
def test_the_last_record_comes_before_the_end_of_its_process(followed: Followed) -> None:
    """An event file's last step is told a moment later, and so is a table that begins as the one before it did."""
    data = WRITERS[followed.name](range(1, 40))
    followed.write(data)
    followed.look()
    if followed.name == "csv":
        followed.write(WRITERS[followed.name]([1]) + b"2,nan,1000\n", mode="wb")
    else:
        followed.write(scalar(40, "loss", math.nan))
    followed.watch.processes.end(4321)
    events: list[Event] = []
    for _ in range(12):
        followed.now += 0.25
        events += followed.watch.stream.poll(at(followed.now))
    kinds = [type(one) for one in events if isinstance(one, Step | TrainerExited)]
    assert kinds[-1] is TrainerExited
    assert kinds.count(TrainerExited) == 1
    assert math.isnan([one for one in events if isinstance(one, Step)][-1].loss or 0)


# --- directories ----------------------------------------------------------------------------------------------


class Folder(Followed):
    """A directory with a file for each launch."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, name)
        self.watch.path.unlink()
        self.folder = self.watch.path
        self.folder.mkdir()

    def launch(self, number: int) -> None:
        self.path = self.folder / NAMES[self.name](number)


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Folder:
    made = Folder(tmp_path, name)
    made.look()
    return made


@IN_DIRECTORIES
def test_each_launch_writes_a_file_of_its_own(folder: Folder) -> None:
    assert folder.run.step is None
    for launch in range(3):
        folder.launch(launch)
        folder.write(WRITERS[folder.name](range(10 * launch + 1, 10 * launch + 11), 2.0 + launch))
        folder.look()
        assert folder.run.step == 10 * launch + 10
    assert folder.watch.tokens == 30_000


@IN_DIRECTORIES
def test_launches_between_two_looks_are_read_in_their_order(folder: Folder) -> None:
    data = {n: WRITERS[folder.name](range(10 * n + 1, 10 * n + 11), 2.0 + n) for n in range(4)}
    folder.launch(0)
    folder.write(data[0][:-30])
    folder.look()
    folder.write(data[0][-30:])
    for launch in (1, 2, 3):
        folder.launch(launch)
        folder.write(data[launch])
    folder.look(6)
    assert folder.run.step == 40
    assert folder.watch.tokens == 40_000


@IN_DIRECTORIES
def test_a_restarted_governor_goes_on_in_the_file_that_it_has_left(folder: Folder) -> None:
    folder.launch(0)
    folder.write(WRITERS[folder.name](range(1, 11)))
    folder.look()
    kept = folder.watch.kept(folder.now)
    data = WRITERS[folder.name](range(1, 21))
    folder.write(data[folder.path.stat().st_size :])
    folder.launch(1)
    folder.write(WRITERS[folder.name](range(21, 31), 2.5))
    folder.watch.restart(kept, folder.now)
    folder.look(6)
    assert folder.run.step == 30
    assert folder.watch.tokens == 30_000


@IN_DIRECTORIES
def test_nothing_but_regular_files_is_opened(folder: Folder) -> None:
    folder.launch(5)
    folder.path.parent.mkdir(exist_ok=True)
    os.mkfifo(folder.path)
    folder.look()
    assert "not a regular file" in (folder.watch.stream._state.problem or "") or folder.run.step is None
    folder.path.unlink()
    folder.write(WRITERS[folder.name](range(1, 5)))
    folder.look()
    assert folder.run.step == 4


def test_files_of_validation_and_of_the_profiler_are_not_the_runs(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "tensorboard")
    folder.look()
    for name, step in (("train", 10), ("validation", 99)):
        (folder.folder / name).mkdir()
        (folder.folder / name / NAMES["tensorboard"](step)).write_bytes(of_events([step]))
    (folder.folder / "train" / "events.out.tfevents.1900000000.node.profile-empty").write_bytes(b"")
    folder.look()
    assert folder.run.step == 10


@pytest.mark.parametrize("name", ["tensorboard"])
def test_a_damaged_event_file_is_left_for_the_next_one(folder: Folder) -> None:
    folder.launch(0)
    folder.write(of_events(range(1, 5)) + b"\0" * 100)
    told = folder.look(300)
    assert [one.name for one in told] == ["unwatched"]
    assert "damaged at byte" in told[0].text
    folder.launch(1)
    folder.write(of_events(range(5, 9)))
    folder.look()
    assert folder.run.step == 8


@pytest.mark.parametrize("name", ["tensorboard"])
def test_a_picture_that_is_on_its_way_is_passed(followed: Followed) -> None:
    picture = frame(bytes(3 * 1024 * 1024))
    followed.write(of_events(range(1, 5)) + picture[:2_000_000])
    followed.look()
    followed.write(picture[2_000_000:] + events([5]))
    followed.look()
    assert followed.run.step == 5
    assert followed.run.loss == 2.0


# --- the writers themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csv"])
def test_lightnings_own_logger_writes_its_table_again(followed: Followed) -> None:
    logs = pytest.importorskip("lightning.fabric.loggers.csv_logs")
    logger = logs.CSVLogger(str(followed.path.parent), name="run", version=0, flush_logs_every_n_steps=1)
    followed.path.unlink()
    for step in range(1, 40):
        logger.log_metrics({"loss": 2.0 + step / 100, "tokens": 1000.0}, step=step)
        if step == 20:
            logger.log_metrics({"a_new_one": 1.0, "val_loss": 3.0}, step=step)
        if step == 1:
            os.symlink(Path(logger.log_dir) / "metrics.csv", followed.path)
        followed.watch.poll(followed.now + step)
    followed.now += 40
    followed.look()
    assert followed.run.step == 39
    assert followed.run.loss == pytest.approx(2.39)
    assert followed.watch.tokens == 39_000, "no row counts twice"


# --- costgov doctor -------------------------------------------------------------------------------------------


def faults(path: Path, name: str) -> list[str]:
    check = StreamCheck(Jsonl(path=path, run="log", format=name), FakeProcesses())
    check.run()
    return [f"{fault.text} -> {fault.advice}" for fault in check.faults]


@FORMATS
def test_doctor_reads_them(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    assert faults(path, name) == []
    path.write_bytes(WRITERS[name](range(1, 30)))
    assert faults(path, name) == []
    path.write_bytes(b"".join(json.dumps({"at": BEGAN_S, "ce": n}).encode() + b"\n" for n in range(40)))
    (text,) = faults(path, name)
    assert str(path) in text
    assert text.isprintable()
    if name in NAMES:
        path.unlink()
        path.mkdir()
        assert faults(path, name) == [], "the first file is waited for"


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_log_that_is_taken_for_jsonl_is_told_what_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(WRITERS[name](range(1, 300)))
    (text,) = faults(path, "jsonl")
    assert text.endswith(f'write format = "{name}"')
