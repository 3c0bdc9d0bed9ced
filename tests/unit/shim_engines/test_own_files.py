"""What Lightning, DeepSpeed and Accelerate have saved unasked, as resume() finds it. The files are made here."""

from __future__ import annotations

import pickle
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.shim.weights_files import COUNT, NAN, ONE, torch_zip
from trainer_shim.engines import hooks
from trainer_shim.engines.base import Options
from trainer_shim.engines.deepspeed_engine import DeepSpeedSaver
from trainer_shim.engines.frameworks.accelerate_loops import AccelerateSaver
from trainer_shim.engines.frameworks.lightning_checkpoints import LightningSaver
from trainer_shim.interfaces import OwnCheckpoints, Resumed
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving.resuming import resume_from
from trainer_shim.saving.store import MemoryStore
from trainer_shim.tokens import TokenCount


def meter() -> StepMeter:
    return StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))


class Module:
    """A torch module as far as it is loaded, strictly. A base and an adapter."""

    def __init__(self) -> None:
        self.weights = {name: SimpleNamespace(value=1, requires_grad=name != "base") for name in ("base", "adapter")}
        self.mean = SimpleNamespace(value=1, requires_grad=False)  # A buffer.

    def parameters(self) -> list[SimpleNamespace]:
        return list(self.weights.values())

    def state_dict(self, keep_vars: bool) -> dict[str, SimpleNamespace]:
        return {**self.weights, "mean": self.mean} if keep_vars else {}

    def load_state_dict(self, state: dict[str, SimpleNamespace], strict: bool) -> None:
        own = self.state_dict(keep_vars=True)
        if strict and set(state) != set(own):
            raise RuntimeError(f"Missing or unexpected key(s): {sorted(set(state) ^ set(own))}")
        for name, tensor in state.items():
            own[name].value = tensor.value


class Engine:
    """A DeepSpeedEngine as far as a checkpoint is chosen for it, and its model loaded."""

    global_rank = 0

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.loaded: list[tuple[str, str]] = []
        self.module = Module()
        self.saved = saved

    def save_checkpoint(self) -> None:
        raise NotImplementedError

    def load_checkpoint(self, directory: str, tag: str) -> tuple[str, dict[str, Any]]:
        self.loaded.append((directory, tag))
        if self.saved is not None:
            self.module.load_state_dict(self.saved, strict=True)
        return directory, {}


def trainer(root: Path) -> SimpleNamespace:
    return SimpleNamespace(
        default_root_dir=str(root), loggers=[], checkpoint_callbacks=[], global_rank=0, fit=lambda *_, **__: None
    )


def saved(path: Path, values: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(values, 2))
    return path


def by_deepspeed(directory: Path, tag: str, step: int, partition: bytes = ONE["F32"] * COUNT) -> None:
    """As ZeRO saves: counters beside the weights of rank 0, and each rank's partition."""
    saved(directory / tag / "mp_rank_00_model_states.pt", {"global_steps": step, "ds_config": Path("/c")})
    saved(directory / tag / "layer_00-model_00-model_states.pt", {})
    torch_zip(directory / tag / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "F32", partition)


def resume(saver: Any, directory: Path) -> Resumed | None:
    assert isinstance(saver, OwnCheckpoints)
    return resume_from(saver, str(directory), 0, MemoryStore(), 1)


def test_what_a_script_saved_by_deepspeed_is_gone_on_from(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The report names it as the last good one, and its command calls resume()."""
    by_deepspeed(tmp_path, "global_step20", 20)
    by_deepspeed(tmp_path, "epoch-one", 40)
    by_deepspeed(tmp_path, "global_step60", 60, NAN["F32"] * COUNT)
    (tmp_path / "latest").write_text("global_step60")
    engine = Engine()
    resumed = resume(DeepSpeedSaver(engine, meter(), str(tmp_path)), tmp_path)
    assert resumed is not None
    assert (resumed.step, resumed.path) == (40, str(tmp_path / "epoch-one"))
    assert engine.loaded == [(str(tmp_path), "epoch-one")]
    assert f"passing over {tmp_path}/global_step60: not finite: bf16_zero_pp_rank_0_" in capfd.readouterr().err


def test_one_of_deepspeed_s_whose_step_nobody_can_read_is_passed_over_aloud(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for tag in ("mine", "global_step20"):
        (tmp_path / tag).mkdir()
        (tmp_path / tag / "mp_rank_00_model_states.pt").write_bytes(b"of a writer that is not torch")
    resumed = resume(DeepSpeedSaver(Engine(), meter(), str(tmp_path)), tmp_path)
    assert resumed is not None
    assert resumed.step == 20, "by its name"
    assert f"passing over {tmp_path}/mine: " in capfd.readouterr().err


def test_nothing_of_deepspeed_s_is_nothing(tmp_path: Path) -> None:
    assert resume(DeepSpeedSaver(Engine(), meter(), str(tmp_path)), tmp_path / "none") is None


def by_lightning(path: Path, step: int, **more: Any) -> None:
    whole = {"epoch": 0, "global_step": step, "state_dict": {}, "callbacks": {}, "optimizer_states": [{"state": {}}]}
    saved(path, {**whole, **more})


def test_one_of_lightning_s_with_objects_of_its_script_is_gone_on_from(tmp_path: Path) -> None:
    """save_hyperparameters() kept a path. fit() may want weights_only=False for it; step 0 says nothing."""
    by_lightning(tmp_path / "checkpoints" / "epoch=0-step=20.ckpt", 20)
    by_lightning(tmp_path / "checkpoints" / "epoch=0-step=30.ckpt", 30, hyper_parameters={"data_dir": Path("/data")})
    resumed = resume(LightningSaver(meter(), str(tmp_path / "costgov"), trainer(tmp_path)), tmp_path / "costgov")
    assert resumed is not None
    assert (resumed.step, resumed.path) == (30, str(tmp_path / "checkpoints" / "epoch=0-step=30.ckpt"))


@pytest.mark.parametrize("root", ["default_root_dir", "dirpath", "save_dir"])
def test_relative_paths_of_lightning_s_are_told_as_the_governor_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made = trainer(tmp_path / "elsewhere")
    made.default_root_dir = "out" if root == "default_root_dir" else "elsewhere"
    made.checkpoint_callbacks = [SimpleNamespace(dirpath="out/checkpoints")] if root == "dirpath" else []
    made.loggers = [SimpleNamespace(save_dir="out")] if root == "save_dir" else []
    by_lightning(tmp_path / "out" / "checkpoints" / "epoch=0-step=20.ckpt", 20)
    resumed = resume(LightningSaver(meter(), str(tmp_path / "costgov"), made), tmp_path / "costgov")
    assert resumed is not None
    assert resumed.path == str(tmp_path / "out" / "checkpoints" / "epoch=0-step=20.ckpt")


def test_shards_that_lightning_saved_unasked_are_gone_on_from(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints" / "epoch=0-step=30.ckpt" / "meta.pt", {"global_step": 30, "callbacks": {}})
    resumed = resume(LightningSaver(meter(), str(tmp_path / "costgov"), trainer(tmp_path)), tmp_path / "costgov")
    assert resumed is not None
    assert resumed.step == 30


def named_like_an_expert_s(count: int) -> dict[str, Any]:
    return {f"model.layers.0.mlp.experts.{i}.gate_proj.weight{'_' * 200}": None for i in range(count)}


def test_the_many_names_of_a_large_model_refuse_none_of_its_checkpoints(tmp_path: Path) -> None:
    """48 layers of 128 experts and their optimizer: 8.3 MiB of values, and a step behind them."""
    many = named_like_an_expert_s(40_000)
    path = tmp_path / "checkpoints" / "epoch=0-step=30.ckpt"
    by_lightning(path, 30, state_dict=many)
    saver = LightningSaver(meter(), str(tmp_path / "costgov"), trainer(tmp_path))
    resumed = resume(saver, tmp_path / "costgov")
    assert resumed is not None
    assert (resumed.step, resumed.path) == (30, str(path))
    own = saver.named_checkpoint(str(path))
    assert own is not None
    assert own["step"] == 30
    saved(tmp_path / "ds" / "mine" / "mp_rank_00_model_states.pt", {"module": many, "global_steps": 20})
    found = resume(DeepSpeedSaver(Engine(), meter(), str(tmp_path / "ds")), tmp_path / "ds")
    assert found is not None
    assert found.step == 20


def test_what_is_too_large_to_be_read_has_the_step_of_its_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """To read it takes a minute; to refuse it loses the training."""
    path = tmp_path / "checkpoints" / "epoch=0-step=30.ckpt"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", bytes((64 << 20) + 1))
    by_lightning(tmp_path / "checkpoints" / "epoch=0-step=20.ckpt", 20)
    resumed = resume(LightningSaver(meter(), str(tmp_path / "costgov"), trainer(tmp_path)), tmp_path / "costgov")
    assert resumed is not None
    assert (resumed.step, resumed.path) == (30, str(path))
    assert f"{path}: its step is known by its name alone, since its values are too large" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"global_step": 30, "state_dict": {}}, "holds weights alone"),
        ({"callbacks": {"costgov": {"sound": False}}}, "was saved after a loss that was not finite"),
        (None, "cannot be read"),
    ],
)
def test_none_of_lightning_s_is_passed_over_in_silence(
    tmp_path: Path, values: dict[str, Any] | None, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoints" / "epoch=0-step=30.ckpt"
    if values is None:
        path.parent.mkdir()
        path.write_bytes(b"PK cut")
    elif "state_dict" in values:
        saved(path, values)
    else:
        by_lightning(path, 30, **values)
    saver = LightningSaver(meter(), str(tmp_path / "costgov"), trainer(tmp_path))
    assert resume(saver, tmp_path / "costgov") is None
    assert f"passing over {path}: it {why}" in capfd.readouterr().err
    if why != "was saved after a loss that was not finite":
        with pytest.raises(ValueError, match=why):
            saver.named_checkpoint(str(path))


def test_one_of_accelerate_s_that_was_saved_without_us_is_passed_over_aloud(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its step is not known: the first launch under costgov would begin anew over it without a word."""
    (tmp_path / "mine_30").mkdir()
    (tmp_path / "mine_30" / "random_states_0.pkl").touch()
    (tmp_path / "logs").mkdir()
    saver = AccelerateSaver(meter(), str(tmp_path), SimpleNamespace(process_index=0), Options())
    assert resume(saver, tmp_path) is None
    said = capfd.readouterr().err
    assert said.count("passing over") == 1
    assert f"passing over {tmp_path}/mine_30: it was saved without costgov, or after a loss that was not" in said


def test_what_lightning_saves_unasked_is_where_resume_looks(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.checkpoint_callbacks = [SimpleNamespace(dirpath=str(tmp_path / "best"))]
    for place in ("checkpoints", "lightning_logs/version_3/checkpoints"):
        (tmp_path / place).mkdir(parents=True)
    places = LightningSaver(meter(), str(tmp_path / "costgov"), made).resume_places()
    assert {Path(place).relative_to(tmp_path).as_posix() for place in places} == {
        "best", "checkpoints", "lightning_logs/version_3/checkpoints"
    }  # fmt: skip


def test_the_folder_that_accelerate_numbers_is_where_resume_looks(tmp_path: Path) -> None:
    automatic = SimpleNamespace(automatic_checkpoint_naming=True)
    accelerator = SimpleNamespace(project_dir=str(tmp_path), project_configuration=automatic)
    assert AccelerateSaver(meter(), str(tmp_path), accelerator, Options()).resume_places() == [
        str(tmp_path / "checkpoints")
    ]
    automatic.automatic_checkpoint_naming = False
    assert AccelerateSaver(meter(), str(tmp_path), accelerator, Options()).resume_places() == []


def test_where_the_script_has_loaded_from_is_known(tmp_path: Path) -> None:
    watched = meter()
    saver = DeepSpeedSaver(Engine(), watched, str(tmp_path / "ours"))
    watched.learn_directory(str(tmp_path / "theirs"))
    assert saver.loaded_from is None
    watched.learn_directory(str(tmp_path / "theirs"), is_loaded=True)
    assert (saver.loaded_from, saver.directory) == (str(tmp_path / "theirs"), str(tmp_path / "ours"))


@pytest.mark.parametrize(
    ("saved", "missing"),
    [
        (["adapter", "mean"], None),
        (["base", "adapter", "mean"], None),
        (["base", "mean"], "adapter"),
        (["base", "adapter"], "mean"),
        (["adapter", "mean", "strange"], "strange"),
    ],
)
def test_what_save_checkpoint_leaves_out_as_frozen_is_no_fault_of_a_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture, saved: list[str], missing: str | None
) -> None:
    """save_checkpoint(exclude_frozen_parameters=True), as LoRA's scripts call it. All else is loaded strictly."""
    state = {name: SimpleNamespace(value=2) for name in saved}
    engine = Engine(state)
    saver = DeepSpeedSaver(engine, meter(), str(tmp_path))
    if missing is not None:
        with pytest.raises(RuntimeError, match=missing):
            saver.load(str(tmp_path), "cg_9")
    else:
        saver.load(str(tmp_path), "cg_9")
        values = {name: tensor.value for name, tensor in engine.module.state_dict(keep_vars=True).items()}
        assert values == {"base": 1, "adapter": 2, "mean": 2, **dict.fromkeys(saved, 2)}
    assert "load_state_dict" not in vars(engine.module)
    assert sorted(state) == sorted(saved)
    line = "costgov: resume(): the checkpoint leaves out 1 frozen parameters: they stay as they are\n"
    assert capfd.readouterr().err == ("" if "base" in saved else line)


class Accelerator:
    """As far as the script saves and loads by it."""

    process_index = 0
    _models: tuple[()] = ()
    _optimizers: tuple[()] = ()

    def __init__(self, project: Path | None = None) -> None:
        self.project_dir = project
        self.project_configuration = SimpleNamespace(automatic_checkpoint_naming=project is not None, iteration=1)

    def save_state(self, output_dir: str | None = None) -> str:
        path = Path(output_dir or f"{self.project_dir}/checkpoints/checkpoint_7")
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    def load_state(self, input_dir: str | None = None) -> None:
        """Nothing."""


@pytest.mark.parametrize("numbers", [True, False])
def test_what_the_script_loads_by_accelerate_says_whose_it_is_and_what_went_before(
    tmp_path: Path, numbers: bool
) -> None:
    given = () if numbers else (str(tmp_path / "mine"),)
    accelerator = Accelerator(tmp_path if numbers else None)

    def attached(run: str) -> StepMeter:
        of_run, undo = meter(), hooks.Undo()
        of_run.progress.run = run
        saver = AccelerateSaver(of_run, str(tmp_path), accelerator, Options())
        saver.hook_saves(undo)
        saver.hook_loads(undo)
        undos.append(undo)
        return of_run

    undos: list[hooks.Undo] = []
    first = attached("alpha")
    first.resumed(40, 4000)
    accelerator.save_state(*given)
    undos.pop()()
    (tmp_path / "checkpoints" / "checkpoint_2").mkdir(parents=True)

    second = attached("beta")
    with second.unannounced():
        accelerator.load_state(*given)
    assert second.progress.step == 0, "by resume(), which says it itself"
    accelerator.load_state(*given)
    assert (second.progress.step, second.tokens_known, second.tokens_total) == (40, True, 4000)
    assert second.progress.origin == {"run": "alpha", "step": 40, "tokens_total": 4000}
    second.progress.step = 50
    accelerator.load_state(str(tmp_path / "without"))
    assert second.progress.step == 50, "nobody knows of which step that is"
    undos.pop()()
    assert not {"save_state", "load_state"} & vars(accelerator).keys()
