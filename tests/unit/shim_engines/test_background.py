"""Checkpoints of Lightning that a thread writes: when they are there. Its parts are made up here, without Lightning."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.weights_files import COUNT, ONE, torch_zip
from trainer_shim.engines import base
from trainer_shim.engines.frameworks.lightning import LightningFit
from trainer_shim.engines.frameworks.lightning_checkpoints import LightningSaver
from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving.save_at_step import SaveAtStep
from trainer_shim.saving.step_gate import Order, StepGate
from trainer_shim.tokens import TokenCount

HOUR_NS = 3_600_000_000_000


class FileIO:
    """As TorchCheckpointIO: the file is there when the call returns."""

    def save_checkpoint(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        torch_zip(Path(path), "F32", ONE["F32"] * COUNT)


class InThread:
    """As AsyncCheckpointIO; nothing is written before `go`."""

    def __init__(self, inner: FileIO, error: OSError | None = None) -> None:
        self.checkpoint_io = inner
        self.go = threading.Event()
        self._executor: ThreadPoolExecutor | None = None
        self._error: OSError | None = None
        self._raised = error

    def save_checkpoint(self, path: str) -> None:
        self._executor = self._executor or ThreadPoolExecutor(max_workers=1)
        self._executor.submit(self._write, path)

    def _write(self, path: str) -> None:
        assert self.go.wait(60)
        if self._raised is None:
            self.checkpoint_io.save_checkpoint(path)
        self._error = self._raised


class Strategy:
    barrier: Any = None

    def __init__(self, checkpoint_io: Any) -> None:
        self.checkpoint_io = checkpoint_io


class Trainer:
    """What the saver and the hooks use of a Trainer."""

    global_step = 40
    is_global_zero = True
    lightning_module = None

    def __init__(self, checkpoint_io: Any) -> None:
        self.strategy = Strategy(checkpoint_io)

    def save_checkpoint(self, path: str, weights_only: bool = False) -> None:
        self.strategy.checkpoint_io.save_checkpoint(path)


class Kept(NoWatch):
    """Keeps what is announced."""

    def __init__(self) -> None:
        self.good: list[dict[str, Any]] = []
        self.told = threading.Condition()

    def hello_field(self, name: str, value: Any) -> None:
        with self.told:
            self.good += [value] if name == "last_good" else []
            self.told.notify_all()

    def await_good(self, path: Path) -> None:
        with self.told:
            assert self.told.wait_for(lambda: self.good and self.good[-1]["path"] == str(path), 60)


@pytest.mark.parametrize(
    ("seen", "told"), [(None, {}), (True, {"own_finite": True}), (False, None)], ids=["unknown", "finite", "harmed"]
)
def test_what_was_seen_of_this_ranks_parameters_is_announced_with_a_save(
    seen: bool | None, told: dict[str, Any] | None
) -> None:
    meter, _ = metered()
    meter.progress.saw_weights(seen)
    record = base.good_record(meter, 40, "/ck/40")
    assert (record is None) == (told is None)
    assert (record or {}).get("own_finite") == (told or {}).get("own_finite")


@pytest.mark.parametrize(("seen", "is_told"), [(None, False), (True, False), (False, True)])
def test_a_rank_whose_own_parameters_are_harmed_says_so_of_a_save(seen: bool | None, is_told: bool) -> None:
    class Told(NoWatch):
        fields: tuple[tuple[str, Any], ...] = ()

        def hello_field(self, name: str, value: Any) -> None:
            self.fields += ((name, value),)

    meter, _ = metered()
    meter.watch = watch = Told()
    meter.progress.saw_weights(seen)
    base.report_last_good(meter, 40, "/ck/40")
    assert (("harmed_save", {"step": 40, "path": "/ck/40"}) in watch.fields) is is_told
    assert (watch.fields[0][0] == "last_good") is not is_told


def metered() -> tuple[StepMeter, Kept]:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = kept = Kept()
    return meter, kept


@pytest.fixture(params=[None, OSError(28, "No space left on device")], ids=["written", "failed"])
def writer(request: pytest.FixtureRequest) -> Iterator[InThread]:
    made = InThread(FileIO(), request.param)
    yield made
    made.go.set()
    if made._executor is not None:
        made._executor.shutdown(wait=True)


def saved(gate: StepGate) -> tuple[str | None, str | None]:
    assert gate.result is not None
    return gate.result.path, gate.result.error


def test_what_a_halt_saves_is_reported_when_the_thread_has_written_it(writer: InThread, tmp_path: Path) -> None:
    meter, _ = metered()
    saver = LightningSaver(meter, str(tmp_path), Trainer(writer))
    gate = StepGate(0)
    loop = SaveAtStep(0, gate, meter.progress, saver, GovernorSocket(["/nonexistent/costgov"], 0, dict))
    deadline_ns = time.monotonic_ns() + HOUR_NS
    gate.promise(2, deadline_ns)
    gate.aim(1)
    gate.order(Order(True, "cg_1", "good", False, 86, deadline_ns, "drill", 1))
    gate.reach(1)
    loop.hold(1, False)
    assert gate.result is None, "nothing is written yet"
    writer.go.set()
    writer._executor.submit(int).result(60)  # type: ignore[union-attr]
    gate.reach(2)
    loop.hold(2, False)
    path, error = saved(gate)
    if writer._raised is None:
        assert (path, error) == (str(tmp_path / "cg_1"), None)
        assert (tmp_path / "cg_1" / "trainer.ckpt").stat().st_size > COUNT
    else:
        assert error == "OSError: [Errno 28] No space left on device"


def test_lightnings_own_save_is_announced_when_the_thread_has_written_it(writer: InThread, tmp_path: Path) -> None:
    meter, kept = metered()
    trainer = Trainer(writer)
    fit = LightningFit(trainer, meter)
    fit._save(trainer.save_checkpoint, str(tmp_path / "a.ckpt"))
    fit.end_batch()
    assert kept.good == []
    writer.go.set()
    if writer._raised is None:
        kept.await_good(tmp_path / "a.ckpt")  # No further step is needed: the run may stand still by now.
        assert [one["step"] for one in kept.good] == [40]
    else:
        fit.end()
        assert kept.good == []


class Later:
    """Another writer in the background, which nothing names."""

    def __init__(self) -> None:
        self.path: str | None = None

    def save_checkpoint(self, path: str) -> None:
        self.path = path


def test_of_another_writer_the_disk_tells(tmp_path: Path) -> None:
    meter, kept = metered()
    later = Later()
    trainer = Trainer(later)
    fit, path = LightningFit(trainer, meter), tmp_path / "a.ckpt"
    path.write_bytes(b"PK what was there before")
    saver = LightningSaver(meter, str(tmp_path), trainer)
    saver.save(str(tmp_path), "cg_1", {})
    fit._save(trainer.save_checkpoint, str(path))
    FileIO().save_checkpoint(str(tmp_path / "whole"))
    raw = (tmp_path / "whole").read_bytes()
    for part in (0, len(raw) // 2):
        for name in (path, tmp_path / "cg_1" / "trainer.ckpt"):
            name.write_bytes(raw[:part])
        fit.end_batch()
        assert saver.pending()
        assert kept.good == []
    for name in (path, tmp_path / "cg_1" / "trainer.ckpt"):
        name.write_bytes(raw)
    fit.end_batch()
    assert not saver.pending()
    assert [one["path"] for one in kept.good] == [str(path)]


def test_what_is_there_at_once_is_told_at_once_and_other_ranks_wait_for_nothing(tmp_path: Path) -> None:
    meter, kept = metered()
    trainer = Trainer(FileIO())
    LightningFit(trainer, meter)._save(trainer.save_checkpoint, str(tmp_path / "a.ckpt"))
    assert [one["path"] for one in kept.good] == [str(tmp_path / "a.ckpt")]
    trainer.is_global_zero = False
    trainer.strategy.checkpoint_io = Later()
    saver = LightningSaver(meter, str(tmp_path), trainer)
    saver.save(str(tmp_path), "cg_1", {})
    assert not saver.pending()


class DDPStrategy(Strategy):
    """By this name one rank writes, and the others wait for it in a barrier."""


@pytest.mark.parametrize("kind", [DDPStrategy, Strategy])
def test_a_rank_that_fails_under_ddp_comes_to_the_barrier_in_which_the_others_wait(
    tmp_path: Path, kind: type[Strategy]
) -> None:
    """A full disk on one of two ranks: the other stood there for ever. Sharded strategies have others of their own."""
    met: list[str] = []

    class Full(Trainer):
        def save_checkpoint(self, path: str, weights_only: bool = False) -> None:
            raise OSError(28, "No space left on device")

    trainer = Full(FileIO())
    trainer.strategy = kind(FileIO())
    trainer.strategy.barrier = met.append
    with pytest.raises(OSError, match="No space left"):
        LightningSaver(metered()[0], str(tmp_path), trainer).save(str(tmp_path), "cg_1", {})
    assert met == (["Trainer.save_checkpoint"] if kind is DDPStrategy else [])


def test_a_relative_path_is_of_the_directory_in_which_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script goes elsewhere while it is written. It is announced to a governor that works elsewhere, too."""
    meter, kept = metered()
    trainer = Trainer(Later())
    fit = LightningFit(trainer, meter)
    monkeypatch.chdir(tmp_path)
    fit._save(trainer.save_checkpoint, "a.ckpt")
    FileIO().save_checkpoint("a.ckpt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fit.end_batch()
    assert [one["path"] for one in kept.good] == [str(tmp_path / "a.ckpt")]
    meter.progress.sound = False
    removed: list[str] = []
    monkeypatch.chdir(tmp_path)
    fit._remove(removed.append, "a.ckpt")
    assert removed == [], "after a NaN it stays"
