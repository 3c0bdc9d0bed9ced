"""Which checkpoints that a framework has saved by itself are gone on from. Its files are made here, without it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from governor.adapters.trainers.checkpoints import DiskCheckpoints
from governor.core.base.units import MonoNs
from governor.core.runs.last_good import LastGood
from governor.text.moments import last_good_text
from tests.unit.shim.weights_files import COUNT, MINUS_INF, NAN, ONE, dcp, safetensors, torch_zip
from trainer_shim.engines.frameworks.hf import TrainerRun
from trainer_shim.engines.frameworks.hf_checkpoints import TrainerSaver
from trainer_shim.interfaces import Resumed
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint
from trainer_shim.saving.resuming import resume_from
from trainer_shim.saving.store import MemoryStore
from trainer_shim.tokens import TokenCount


def make_meter() -> StepMeter:
    return StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[TrainerSaver]:
    """A saver keeps no trainer alive: the script does, here for as long as the test lasts."""
    args = SimpleNamespace(output_dir=str(tmp_path))
    trainer = SimpleNamespace(args=args, train=lambda: None, is_world_process_zero=lambda: True)
    yield TrainerSaver(make_meter(), trainer)
    assert trainer.args is args


def resume(saver: TrainerSaver, directory: Path) -> Resumed | None:
    return resume_from(saver, str(directory), 0, MemoryStore(), 1)


def own(directory: Path, step: int, raw: bytes) -> None:
    """As a Trainer under ZeRO-3 saves: the weights are in the optimizer's partitions alone."""
    partitions = directory / f"checkpoint-{step}" / f"global_step{step}"
    partitions.mkdir(parents=True)
    for rank in range(2):
        torch_zip(partitions / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", "F32", ONE["F32"] * COUNT)
        torch_zip(partitions / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", "F32", ONE["F32"])
    torch_zip(partitions / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "F32", raw)
    (directory / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def suspect(directory: Path, step: int) -> None:
    path = directory / f"costgov-suspect-{step}"
    path.mkdir()
    checkpoint.commit(str(path), [], {"step": step, "kind": "suspect"}, move_latest=False)


def own_weights(directory: Path, step: int, *tensors: tuple[str, bytes]) -> None:
    """As a Trainer saves alone."""
    path = directory / f"checkpoint-{step}"
    path.mkdir()
    named = {f"tensor_{index}": tensor for index, tensor in enumerate(tensors)}
    safetensors(path / "model.safetensors", {"weight": ("F32", ONE["F32"] * COUNT), **named})
    torch_zip(path / "optimizer.pt", "F32", ONE["F32"] * COUNT)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def test_beside_a_suspect_one_partitions_of_zero3_with_a_nan_are_not_trusted(
    saver: TrainerSaver, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    own(tmp_path, 10, ONE["F32"] * COUNT)
    own(tmp_path, 20, NAN["F32"] * COUNT)
    suspect(tmp_path, 21)
    resumed = resume(saver, tmp_path)
    assert resumed is not None
    assert resumed.step == 10
    said = capfd.readouterr().err
    assert f"passing over {tmp_path}/checkpoint-20: not finite: global_step20/bf16_zero_pp_rank_1_" in said


@pytest.mark.parametrize("later", [None, 9, 20, 21])
@pytest.mark.parametrize("is_finite", [True, False])
def test_a_suspect_one_of_ours_beside_them_changes_nothing_in_how_they_are_judged(
    saver: TrainerSaver, tmp_path: Path, later: int | None, is_finite: bool
) -> None:
    own_weights(tmp_path, 10)
    own_weights(tmp_path, 20, ("F32", (ONE if is_finite else NAN)["F32"] * COUNT))
    if later is not None:
        suspect(tmp_path, later)
    resumed = resume(saver, tmp_path)
    assert resumed is not None
    assert resumed.step == (20 if is_finite else 10)


@pytest.mark.parametrize(
    "healthy",
    [
        ("F32", (MINUS_INF["F32"] + ONE["F32"]) * COUNT),
        ("BF16", MINUS_INF["BF16"] * COUNT),
        ("F32", NAN["F32"]),
        ("F8_E4M3", b"\x7f" * COUNT),
    ],
    ids=["a causal mask", "a mask in bfloat16", "a best loss so far", "a type that nobody samples"],
)
def test_what_the_governor_calls_good_is_gone_on_from(
    saver: TrainerSaver, tmp_path: Path, healthy: tuple[str, bytes], capfd: pytest.CaptureFixture
) -> None:
    """After a NaN elsewhere. To begin anew would train over all of them."""
    for step in (10, 20):
        own_weights(tmp_path, step, healthy)
    suspect(tmp_path, 21)
    resumed = resume(saver, tmp_path)
    assert resumed is not None
    assert (resumed.step, resumed.path) == (20, str(tmp_path / "checkpoint-20"))
    assert "passing over" not in capfd.readouterr().err


def test_where_all_are_harmed_it_says_so_and_does_not_begin_anew_over_them(
    saver: TrainerSaver, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    for step in (10, 20):
        own_weights(tmp_path, step, ("F32", NAN["F32"] * COUNT))
    suspect(tmp_path, 21)
    resumed = resume(saver, tmp_path)
    assert resumed is not None
    assert resumed.step == 20
    said = capfd.readouterr().err
    assert said.count("passing over") == 2
    assert f"nothing older is finite and whole: going on from {tmp_path}/checkpoint-20 all the same" in said


def test_one_that_is_named_is_known_by_its_state_whatever_its_directory_is_called(
    saver: TrainerSaver, tmp_path: Path
) -> None:
    own(tmp_path, 70, ONE["F32"] * COUNT)
    moved = (tmp_path / "checkpoint-70").rename(tmp_path / "kept")
    found = saver.named_checkpoint(str(moved))
    assert found is not None
    assert (found["step"], found["path"]) == (70, str(moved))
    assert saver.named_checkpoint(str(tmp_path)) is None


def test_what_the_trainer_saves_over_one_of_ours_is_its_own(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """A new training in the same directory. The manifest is of files that are no longer there, or vouches for these."""
    path = tmp_path / "checkpoint-20"
    own_weights(tmp_path, 20)
    checkpoint.write_rank_file(str(path), 0, {"v": 1, "position": {"tokens_total": 9}})
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, time.monotonic_ns() + 10**12)
    checkpoint.commit(str(path), parts, {"step": 20, "kind": "good"}, move_latest=False)
    own_weights(tmp_path, 10)
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path), save_total_limit=None, process_index=0),
        state=SimpleNamespace(global_step=20),
        is_world_process_zero=lambda: True,
        train=lambda: None,
        model_wrapped=None,
    )
    meter = make_meter()
    own_saver = TrainerSaver(meter, trainer)
    seen = []

    def save() -> None:
        seen.append(resume(own_saver, tmp_path))
        assert f"passing over {path}: trainer_state.json is missing" in capfd.readouterr().err
        (path / "trainer_state.json").write_text(json.dumps({"global_step": 20, "log_history": []}))

    TrainerRun(trainer, meter, own_saver)._save_checkpoint(save)
    seen.append(resume(own_saver, tmp_path))
    noted = {"step": 20, "tokens_total": 0, "origin": {}}
    assert [one and (one.step, one.position) for one in seen] == [(10, None), (20, noted)]


@pytest.mark.parametrize("beside", [None, "optimizer.pt", "scheduler.pt", "optimizer_0/__0_0.distcp", "rng_state.pth"])
def test_one_that_the_trainer_saved_without_its_optimizer_is_gone_on_from_and_that_is_said(
    saver: TrainerSaver, tmp_path: Path, beside: str | None, capfd: pytest.CaptureFixture
) -> None:
    """save_only_model=True. The governor's look and resume() ask the same."""
    path = tmp_path / "checkpoint-20"
    own_weights(tmp_path, 20)
    (path / "optimizer.pt").unlink()
    if beside is not None:
        (path / beside).parent.mkdir(exist_ok=True)
        torch_zip(path / beside, "F32", ONE["F32"] * COUNT)
        if beside.endswith(".distcp"):
            dcp((path / beside).parent, {"__0_0.distcp": (ONE["F32"] * COUNT,)})
    resumed = resume(saver, tmp_path)
    assert resumed is not None
    assert resumed.step == 20
    lacks = "no optimizer in it" if beside is None else None
    assert (f"{path}: {lacks}, so optimizer and schedule begin anew" in capfd.readouterr().err) == (lacks is not None)
    (look,) = DiskCheckpoints().find([str(path)], uid=os.getuid(), gid=None)
    assert look.lacks == lacks
    named = LastGood(20, str(path)).seen(look, MonoNs(0))
    assert named.is_fit
    assert last_good_text(named.row()) == (f"{path} ({lacks})" if lacks is not None else str(path))
    more = {"unsampled": "ema.bin"} if lacks is not None else {"gone": "is no longer there", "lacks": "all"}
    told = "its weights were not looked into: ema.bin; no optimizer in it" if lacks else "GONE: it is no longer there"
    assert last_good_text(named.row() | more) == f"{path} ({told})"


class StockTrainer:
    """transformers.Trainer, as far as it saves."""

    def __init__(self, directory: Path, rank: int = 0) -> None:
        self.args = SimpleNamespace(output_dir=str(directory), save_only_model=False, process_index=rank)
        self.state = SimpleNamespace(global_step=20)
        self.model = None

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0

    is_local_process_zero = is_world_process_zero

    def train(self) -> None:
        raise NotImplementedError

    def _get_output_dir(self, trial: object) -> str:
        return str(self.args.output_dir)

    def _push_from_checkpoint(self) -> None:
        raise NotImplementedError

    def _save_rng_state(self, path: str) -> None:
        Path(path, f"rng_state_{self.args.process_index}.pth").touch()

    def _save_checkpoint(self, model: object, trial: object) -> None:
        path = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        path.mkdir(exist_ok=True)
        self._save_rng_state(str(path))
        if self.is_world_process_zero():
            (path / "trainer_state.json").write_text(json.dumps({"global_step": self.state.global_step}))


class AdapterTrainer(StockTrainer):
    """LLaVA's, while it trains the projector."""

    def _save_checkpoint(self, model: object, trial: object) -> None:
        path = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        path.mkdir(exist_ok=True)
        (path / "mm_projector.bin").touch()


class StatelessTrainer(StockTrainer):
    """It saves a state of another step, or none, by means of its own."""

    def _save_checkpoint(self, model: object, trial: object) -> None:
        self._save_rng_state(str(Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")))


class OwnTrainer(StockTrainer):
    """It saves all by itself, in a way of its own: transformers' own save refuses its weights."""

    def _save_checkpoint(self, model: object, trial: object) -> None:
        path = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        path.mkdir(exist_ok=True)
        if self.is_world_process_zero():
            for name in ("model.pt", "optimizer.pt"):
                (path / name).touch()
            (path / "trainer_state.json").write_text(json.dumps({"global_step": self.state.global_step}))


@pytest.mark.parametrize(
    ("kind", "rank", "has"),
    [
        (OwnTrainer, 0, ["model.pt", "optimizer.pt", "trainer_state.json"]),
        (StockTrainer, 0, ["rng_state_0.pth", "trainer_state.json"]),
        (AdapterTrainer, 0, ["mm_projector.bin", "rng_state_0.pth", "trainer_state.json"]),
        (AdapterTrainer, 1, ["mm_projector.bin", "rng_state_1.pth"]),
    ],
)
def test_a_halts_checkpoint_is_whole_where_the_trainers_own_are_adapters(
    tmp_path: Path, kind: type[StockTrainer], rank: int, has: list[str]
) -> None:
    path = TrainerSaver(make_meter(), kind(tmp_path, rank)).save_aside(20)
    assert sorted(one.name for one in Path(path).iterdir()) == has


class RanksStore(MemoryStore):
    """Two ranks' store: it knows when one waits for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Event()

    def get(self, key: str) -> str | None:
        self.waited.set()
        return super().get(key)

    def saver(self, trainer: StockTrainer) -> TrainerSaver:
        trainer.args.world_size = 2
        return TrainerSaver(make_meter(), trainer, lambda *_: self, iter([1]))


@pytest.mark.parametrize(
    ("kind", "saved_by_ours"), [(OwnTrainer, []), (AdapterTrainer, ["rng_state_0.pth", "rng_state_1.pth"])]
)
def test_all_ranks_or_none_save_by_transformers_own(
    tmp_path: Path, kind: type[StockTrainer], saved_by_ours: list[str]
) -> None:
    """The second rank comes to the end of the script's own while the first has still written nothing."""
    ranks, paths = RanksStore(), []
    second = threading.Thread(target=lambda: paths.append(ranks.saver(kind(tmp_path, 1)).save_aside(20)))
    second.start()
    assert ranks.waited.wait(20)
    paths.append(ranks.saver(kind(tmp_path, 0)).save_aside(20))
    second.join()
    assert len(set(paths)) == 1
    assert sorted(one.name for one in Path(paths[0]).glob("rng_state_*")) == saved_by_ours


class FullDiskTrainer(AdapterTrainer):
    def _save_checkpoint(self, model: object, trial: object) -> None:
        raise OSError("disk full")


def test_where_a_rank_fails_in_the_scripts_own_save_the_others_do_not_wait_for_it_in_transformers_own(
    tmp_path: Path,
) -> None:
    ranks = RanksStore()
    with pytest.raises(OSError, match="disk full"):
        ranks.saver(FullDiskTrainer(tmp_path, 1)).save_aside(20)
    with pytest.raises(FileNotFoundError, match=r"has left no trainer_state\.json"):
        ranks.saver(AdapterTrainer(tmp_path, 0)).save_aside(20)


def test_what_train_cannot_go_on_from_is_no_checkpoint_of_a_halt(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has left no trainer_state\.json"):
        TrainerSaver(make_meter(), StatelessTrainer(tmp_path)).save_aside(20)


@pytest.mark.parametrize("kind", [StockTrainer, AdapterTrainer])
def test_what_train_cannot_go_on_from_is_not_named_as_good(
    tmp_path: Path, kind: type[StockTrainer], capfd: pytest.CaptureFixture
) -> None:
    meter, trainer, told = make_meter(), kind(tmp_path), []
    meter.watch.hello_field = lambda _, record: told.append(record["path"])  # type: ignore[method-assign]
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))
    for step in (20, 30):
        trainer.state.global_step = step
        trainer._save_checkpoint(None, None)
        run.saved(trainer.state)
    paths = [f"{tmp_path}/checkpoint-20", f"{tmp_path}/checkpoint-30"]
    line = f"costgov: {paths[0]} has no state of the Trainer: train() cannot go on from it\n"
    assert (told, capfd.readouterr().err) == ((paths, "") if kind is StockTrainer else ([], line))


def test_another_rank_names_it_when_the_first_one_has_written_its_last_file(tmp_path: Path) -> None:
    meter, trainer, told = make_meter(), StockTrainer(tmp_path, rank=1), []
    meter.watch.hello_field = lambda _, record: told.append(record["step"])  # type: ignore[method-assign]
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))
    run._is_deepspeed = True  # Its engine tells of the steps.
    trainer._save_checkpoint(None, None)
    run.saved(trainer.state)
    run.end_step(trainer.state)
    assert told == []
    StockTrainer(tmp_path)._save_checkpoint(None, None)
    for _ in range(2):
        run.end_step(trainer.state)
    assert told == [20]
