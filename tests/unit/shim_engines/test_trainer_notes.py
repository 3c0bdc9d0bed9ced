"""What is noted beside the Trainer's own checkpoints, and what train() knows that goes on from one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.shim.test_origin import Heard, metered
from trainer_shim.engines import base, hooks
from trainer_shim.engines.frameworks.hf import TrainerRun
from trainer_shim.engines.frameworks.hf_checkpoints import TrainerSaver
from trainer_shim.meter import StepMeter
from trainer_shim.saving import checkpoint
from trainer_shim.tokens import Replicas

FOREIGN = {"run": "alpha", "step": 7, "tokens_total": 70}


class State:
    """The Trainer's, whose file is the last one of a checkpoint. `noted` is what stood beside it by then."""

    def __init__(self, step: int) -> None:
        self.global_step, self.noted = step, list[bool]()

    def save_to_json(self, json_path: str) -> None:
        path = Path(json_path)
        self.noted.append((path.parent / checkpoint.rank_file(0)).exists())
        path.write_text(json.dumps({"global_step": self.global_step}))


class Trainer:
    """Two ranks save: the first one writes the state."""

    model_wrapped = None

    def __init__(self, root: Path, step: int, rank: int = 0) -> None:
        self.args = SimpleNamespace(output_dir=str(root), process_index=rank, save_total_limit=None)
        self.state, self.fails = State(step), False

    def is_world_process_zero(self) -> bool:
        return bool(self.args.process_index == 0)

    is_local_process_zero = is_world_process_zero

    def _get_output_dir(self) -> str:
        return str(self.args.output_dir)

    def _save_checkpoint(self, *_: Any) -> None:
        path = Path(self._get_output_dir()) / f"checkpoint-{self.state.global_step}"
        path.mkdir(exist_ok=True, parents=True)
        if self.fails:
            raise OSError("full")
        if self.args.process_index == 0:
            self.state.save_to_json(str(path / "trainer_state.json"))


def save(trainer: Trainer, meter: StepMeter) -> Path:
    saver = TrainerSaver(meter, trainer)
    TrainerRun(trainer, meter, saver)._save_checkpoint(trainer._save_checkpoint)
    return Path(saver.path_of(trainer.state.global_step))


def gone_on(path: Path, run: str, rank: int = 0) -> tuple[StepMeter, Heard]:
    meter, heard = metered(run)
    base.go_on_from(meter, 40, str(path), rank)
    return meter, heard


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("began", "run", "origin"),
    [
        ({}, "beta", {}),
        ({}, "gamma", {"run": "beta", "step": 40, "tokens_total": 4000}),
        (FOREIGN, "beta", FOREIGN),
        (None, "beta", None),
    ],
    ids=["its own", "another run's", "its own of a fine-tune", "its own of which nobody knows"],
)
def test_what_the_trainer_has_saved_itself_says_whose_it_is_and_what_went_before(
    tmp_path: Path, rank: int, began: Any, run: str, origin: Any
) -> None:
    """Each rank notes it, and a rank that was not there when it was saved reads the first one's."""
    meter, _ = metered("beta")
    meter.resumed(40, 4000)
    meter.progress.origin = began
    path = save(Trainer(tmp_path, 40), meter)
    again, heard = gone_on(path, run, rank)
    assert (again.tokens_known, again.tokens_total, again.progress.origin) == (True, 4000, origin)
    assert heard.fields[:3] == [("origin", origin), ("loaded_at", 0), ("resumed_step", 40)]


def test_it_stands_there_before_the_last_file_does(tmp_path: Path) -> None:
    """Behind that the Trainer may still upload, and delete what is older, for minutes."""
    meter, _ = metered("beta")
    trainer = Trainer(tmp_path, 40)
    save(trainer, meter)
    assert trainer.state.noted == [True]
    assert "save_to_json" not in vars(trainer.state), "the hook is off"
    assert checkpoint.position_in(str(tmp_path / "checkpoint-40"), 0)["step"] == 40


def test_where_tokens_are_not_known_it_says_whose_it_is(tmp_path: Path) -> None:
    meter, _ = metered("beta")
    meter.resumed(40, None)
    again, _ = gone_on(save(Trainer(tmp_path, 40), meter), "gamma")
    assert (again.tokens_known, again.progress.origin) == (False, {"run": "beta", "step": 40})


def test_one_of_an_older_shim_says_nothing(tmp_path: Path) -> None:
    again, _ = gone_on(tmp_path, "beta")
    assert (again.tokens_known, again.progress.origin) == (False, None)


def test_a_save_is_what_it_is_without_us_where_nothing_can_be_noted(tmp_path: Path) -> None:
    meter, _ = metered("beta")
    path = tmp_path / "checkpoint-40"
    (path / checkpoint.rank_file(0)).mkdir(parents=True)
    trainer = Trainer(tmp_path, 40)
    saver = TrainerSaver(meter, trainer)
    with saver.noting(40):
        trainer._save_checkpoint()
    assert json.loads((path / "trainer_state.json").read_text()) == {"global_step": 40}


@pytest.mark.parametrize("has_place", [True, False])
def test_a_trainer_of_another_version_saves_as_ever(tmp_path: Path, has_place: bool) -> None:
    """Its state is written otherwise, or by no such method: then it is noted behind the save, where one is."""
    meter, _ = metered("beta")
    trainer = Trainer(tmp_path, 40)
    calls = list[str]()
    vars(trainer)["state"] = SimpleNamespace(global_step=40, save_to_json=lambda: calls.append("state"))
    saver = TrainerSaver(meter, trainer)
    if has_place:
        (tmp_path / "checkpoint-40").mkdir()
    with saver.noting(40):
        trainer.state.save_to_json()
    assert calls == ["state"]
    del trainer.state.save_to_json
    with saver.noting(40):
        pass
    assert [path.name for path in tmp_path.glob("*/*")] == ([checkpoint.rank_file(0)] if has_place else [])


def test_a_save_that_fails_raises_as_without_us_and_leaves_no_hook(tmp_path: Path) -> None:
    meter, _ = metered("beta")
    trainer = Trainer(tmp_path, 40)
    trainer.fails = True
    with pytest.raises(OSError, match="full"):
        save(trainer, meter)
    assert "save_to_json" not in vars(trainer.state)
    assert list((tmp_path / "checkpoint-40").iterdir()) == []


def test_what_the_shim_has_saved_is_noted_by_those_who_save_it(tmp_path: Path) -> None:
    """All ranks agree on that one: what stands beside it is of all of them."""
    meter, _ = metered("beta")
    trainer = Trainer(tmp_path, 40)
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))
    undo = hooks.Undo()
    hooks.replace(undo, trainer, "_save_checkpoint", hooks.around(run._save_checkpoint))
    with meter.unannounced():
        trainer._save_checkpoint()
    assert [path.name for path in tmp_path.glob("*/*")] == ["trainer_state.json"]


# --- ranks whose batches have various lengths -------------------------------------------------------------------------


def of_ranks(tmp_path: Path, *own: int, before: int = 1000, step: int = 40) -> Path:
    """Each rank has trained so many tokens since it went on from `before`."""
    for place, tokens in enumerate(own):
        meter, _ = metered("beta")
        meter.resumed(step, before)
        meter.count.share = Replicas(len(own), "drill", place)
        meter.count.own_total = tokens
        meter.tokens_total += tokens * len(own)
        path = save(Trainer(tmp_path, step, place), meter)
    return path


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_total_is_of_what_each_rank_has_counted(tmp_path: Path, rank: int) -> None:
    assert gone_on(of_ranks(tmp_path, 300, 50, 10), "beta", rank)[0].tokens_total == 1000 + 360


def changed(path: Path, rank: int, **position: Any) -> None:
    state = checkpoint.read_rank_file(str(path), rank) or {}
    checkpoint.write_rank_file(str(path), rank, {**state, "position": {**state["position"], **position}})


@pytest.mark.parametrize(
    "other",
    [
        None, {"step": 39}, {"step": None}, {"tokens_own": None}, {"tokens_own": {}}, {"tokens_own": [1]},
        {"tokens_own": {"total": "x", "place": 1, "size": 2}}, {"tokens_own": {"total": -900, "place": 1, "size": 2}},
        {"tokens_own": {"total": 5, "place": 1, "size": 3}},
    ],
)  # fmt: skip
def test_where_another_rank_has_noted_nothing_of_that_step_its_own_tokens_stand_for_it(
    tmp_path: Path, other: dict[str, Any] | None
) -> None:
    path = of_ranks(tmp_path, 300, 50)
    if other is None:
        (path / checkpoint.rank_file(1)).unlink()
    else:
        changed(path, 1, **other)
    assert gone_on(path, "beta")[0].tokens_total == 1600


@pytest.mark.parametrize("total", ["x", -1, True, 2**63, [1]])
def test_a_total_of_nonsense_is_none(tmp_path: Path, total: Any) -> None:
    path = of_ranks(tmp_path, 300, 50)
    changed(path, 0, tokens_total=total)
    assert not gone_on(path, "beta")[0].tokens_known


def test_of_very_many_ranks_one_stands_for_all(tmp_path: Path) -> None:
    """Each rank would read all those files, on one file system."""
    path = of_ranks(tmp_path, 300, 50)
    for rank in range(2, checkpoint.RANKS_READ_MAX + 1):
        (path / checkpoint.rank_file(rank)).write_text("{}")
    assert gone_on(path, "beta")[0].tokens_total == 1600
