"""After a NaN what Lightning saves takes nothing from the newest good checkpoint. Its parts are made up here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainer_shim.engines.frameworks.lightning import LightningFit
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving.newest_good import SPARED_MAX, NewestGood
from trainer_shim.tokens import TokenCount


class Trainer:
    """As far as it saves: a text says of which step a file is. A path is written over in place."""

    global_step = 0
    is_global_zero = True
    lightning_module = None
    checkpoint_io: Any = None

    @property
    def strategy(self) -> Trainer:
        return self

    def save_checkpoint(self, path: str, weights_only: bool = False) -> None:
        Path(path).write_text(str(self.global_step))

    def remove_checkpoint(self, path: str) -> None:
        Path(path).unlink()


class InThread(Trainer):
    """As with AsyncCheckpointIO: nothing is written before `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self._executor = ThreadPoolExecutor(max_workers=1)
        self.checkpoint_io = self

    def save_checkpoint(self, path: str, weights_only: bool = False) -> None:
        step = str(self.global_step)
        self._executor.submit(lambda: self.go.wait(60) and Path(path).write_text(step))

    def drain(self) -> None:
        self.go.set()
        self._executor.shutdown(wait=True)


class Told(NoWatch):
    def __init__(self) -> None:
        self.good: list[tuple[int, str]] = []

    def hello_field(self, name: str, value: Any) -> None:
        if name == "last_good":
            self.good.append((value["step"], Path(value["path"]).name))


class Run:
    """A fit() and the ModelCheckpoint of most templates: `save_top_k=1, save_last=True`."""

    def __init__(self, folder: Path, trainer: Trainer | None = None) -> None:
        self.folder, self.trainer = folder, trainer or Trainer()
        self.meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
        self.meter.watch = self.told = Told()
        self.fit = LightningFit(self.trainer, self.meter)

    def save(self, name: str, step: int, *, is_good: bool = True) -> None:
        self.trainer.global_step, self.meter.progress.sound = step, is_good
        self.fit._save(self.trainer.save_checkpoint, str(self.folder / name))

    def remove(self, name: str) -> None:
        self.fit._remove(self.trainer.remove_checkpoint, str(self.folder / name))

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.folder.iterdir())}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Run]:
    trainer = InThread()
    yield Run(tmp_path, trainer)
    trainer.drain()


def test_the_file_beside_last_ckpt_outlasts_the_save_of_a_nan(run: Run) -> None:
    run.save("30.ckpt", 30)
    run.save("last.ckpt", 30)
    run.save("40.ckpt", 40, is_good=False)
    run.remove("30.ckpt")
    run.save("last.ckpt", 40, is_good=False)
    assert run.files() == {"30.ckpt": "30", "40.ckpt": "40", "last.ckpt": "40"}


def test_a_path_that_alone_holds_the_newest_good_one_is_kept_under_a_name_of_its_own(run: Run) -> None:
    run.save("last.ckpt", 20)
    run.save("last.ckpt", 30)
    assert run.files() == {"last.ckpt": "30"}, "while all is good nothing is kept"
    for step in (40, 50, 60, 70, 80):
        run.save("last.ckpt", step, is_good=False)
    run.remove("last-kept-step=30.ckpt")
    assert run.files() == {"last-kept-step=30.ckpt": "30", "last.ckpt": "80"}
    assert run.told.good == [(20, "last.ckpt"), (30, "last.ckpt"), (30, "last-kept-step=30.ckpt")]


def test_what_was_gone_on_from_is_not_written_over_by_the_first_save(run: Run) -> None:
    (run.folder / "last.ckpt").write_text("30")
    run.fit._good.note({"step": 30, "path": str(run.folder / "last.ckpt"), "mono_ns": 1})
    run.save("last.ckpt", 40, is_good=False)
    assert run.files() == {"last-kept-step=30.ckpt": "30", "last.ckpt": "40"}


def test_another_rank_moves_nothing_and_tells_the_same(run: Run) -> None:
    run.save("last.ckpt", 30)
    run.trainer.is_global_zero = False
    run.save("last.ckpt", 40, is_good=False)
    assert run.files() == {"last.ckpt": "40"}, "the first rank alone has the file"
    assert run.told.good[-1] == (30, "last-kept-step=30.ckpt")


def test_older_ones_stay_for_a_few_saves_and_when_all_is_good_again_room_is_made_as_ever(run: Run) -> None:
    for step in (10, 20, 30):
        run.save(f"{step}.ckpt", step)
    for step in range(40, 40 + 10 * SPARED_MAX, 10):
        run.save("last.ckpt", step, is_good=False)
        run.remove("10.ckpt")
    assert "10.ckpt" in run.files()
    run.save("last.ckpt", 90, is_good=False)
    run.remove("10.ckpt")
    run.remove("30.ckpt")
    assert list(run.files()) == ["20.ckpt", "30.ckpt", "last.ckpt"]
    run.save("100.ckpt", 100)
    run.remove("30.ckpt")
    assert list(run.files()) == ["100.ckpt", "20.ckpt", "last.ckpt"]


def test_what_a_thread_still_writes_is_waited_for_before_it_is_moved(behind: Run) -> None:
    assert isinstance(behind.trainer, InThread)
    behind.save("last.ckpt", 30)
    threading.Thread(target=behind.trainer.go.set).start()
    behind.save("last.ckpt", 40, is_good=False)
    behind.trainer.drain()
    assert behind.files() == {"last-kept-step=30.ckpt": "30", "last.ckpt": "40"}


def test_what_a_thread_still_writes_is_not_removed(behind: Run) -> None:
    assert isinstance(behind.trainer, InThread)
    behind.save("30.ckpt", 30)
    for step in range(40, 100, 10):
        behind.save("40.ckpt", step, is_good=False)
    behind.remove("30.ckpt")
    behind.trainer.drain()
    assert behind.files()["30.ckpt"] == "30"


def test_a_directory_of_shards_takes_the_place_of_an_earlier_attempts(tmp_path: Path) -> None:
    good = NewestGood()
    for name, text in (("last.ckpt", "30"), ("last-kept-step=30.ckpt", "30 before")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.pt").write_text(text)
    good.note({"step": 30, "path": str(tmp_path / "last.ckpt")})
    record = good.make_way(str(tmp_path / "last.ckpt"), moves=True)
    assert record == {"step": 30, "path": str(tmp_path / "last-kept-step=30.ckpt")}
    assert [(path.name, (path / "meta.pt").read_text()) for path in tmp_path.iterdir()] == [
        ("last-kept-step=30.ckpt", "30")
    ]
