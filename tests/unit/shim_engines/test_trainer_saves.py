"""Where in a step the Trainer saves what was asked for: behind its evaluation, and its own save counts.

The Trainer's loop is made up here as transformers 5 has it; tests/drills/shim_engines/test_trainer.py has the real one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_shim.engines import hooks
from trainer_shim.engines.base import PositionSaver
from trainer_shim.engines.frameworks.hf import TrainerRun
from trainer_shim.engines.frameworks.hf_checkpoints import TrainerSaver, _linked, _tree_linked
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint, patience
from trainer_shim.tokens import TokenCount


class Trainer:
    """Four steps an epoch. `log` has what happens, in its order."""

    lr_scheduler = model_wrapped = hp_search_backend = None
    model = object()

    def __init__(self, root: Path, every: dict[str, int], only_model: bool, *strategies: str) -> None:
        self.root, self.every, self.log = root, every, list[str]()
        self.limits, self.fails = list[int | None](), set[str]()  # Of each save; the saves that fail, as in the log.
        given = (*strategies, "no", "no")
        self.args = SimpleNamespace(
            output_dir=str(root), process_index=0, world_size=1, save_total_limit=1, save_only_model=only_model,
            eval_strategy=SimpleNamespace(value=given[0]), save_strategy=SimpleNamespace(value=given[1]),
        )  # fmt: skip
        self.state = SimpleNamespace(global_step=0, epoch=0.0)
        self.control = SimpleNamespace(
            should_epoch_stop=False, should_training_stop=False, should_save=False, should_evaluate=False
        )
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}])

    def is_world_process_zero(self) -> bool:
        return True

    is_local_process_zero = is_world_process_zero

    def train(self, steps: int, run: TrainerRun) -> None:
        for step in range(1, steps + 1):
            self.state.global_step, self.state.epoch = step, step / 4
            self.control.should_save = step % self.every.get("save", 99) == 0
            run.end_step(self.state)
            self._maybe_log_save_evaluate(step % self.every.get("eval", 99) == 0)
            if step % 4 == 0:
                self.control.should_save = self.args.save_strategy.value == "epoch"
                run.end_epoch()
                self._maybe_log_save_evaluate(self.args.eval_strategy.value == "epoch")

    def _maybe_log_save_evaluate(self, evaluates: bool) -> None:
        if evaluates:
            self.evaluate()
        if self.control.should_save:
            self._save_checkpoint(None, None)
            self.log.append("on_save")

    def evaluate(self) -> None:
        self.log.append("eval")

    def _get_output_dir(self) -> str:
        return str(self.root)

    def _push_from_checkpoint(self) -> None:
        """Nothing."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        path = Path(self._get_output_dir()) / f"checkpoint-{self.state.global_step}"
        kind = "own" if path.parent == self.root else "aside"
        self.log.append(kind)
        self.limits.append(self.args.save_total_limit)
        if kind in self.fails:
            raise OSError("full")
        path.mkdir(exist_ok=True)
        (path / "trainer_state.json").write_text(json.dumps({"global_step": self.state.global_step}))


class Parked(BaseException):
    """Here a rank stands until it is ended."""


class Asks(NoWatch):
    def __init__(self, step: int, kind: str, waits: bool, halts: bool = False) -> None:
        self.step, self.kind, self.saved = step, kind, list[tuple[str | None, str | None]]()
        self.waits, self.halts = waits, halts

    def ends_with_save(self) -> bool:
        return self.halts

    def waits_for_evaluation(self) -> bool:
        return self.waits

    def wants_save(self, step: int) -> str | None:
        return self.kind if step == self.step else None

    def delegate_saved(self, path: str | None, error: str | None) -> None:
        self.saved.append((path, error))
        if self.halts:
            raise Parked


def trained(trainer: Trainer, asked: int, kind: str = "good", steps: int = 6, waits: bool = True) -> list[str]:
    """Train, and return the parts of the place that the asked-for checkpoint has."""
    path, error = saved(trainer, asked, kind, steps, waits)
    assert error is None
    return list(Path(str(path)).relative_to(trainer.root).parts)


def saved(
    trainer: Trainer,
    asked: int,
    kind: str,
    steps: int,
    waits: bool,
    halts: bool = False,
    make: type[TrainerSaver] = TrainerSaver,
) -> tuple[str | None, str | None]:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = watch = Asks(asked, kind, waits, halts)
    run = TrainerRun(trainer, meter, make(meter, trainer))
    hooks.replace(run._undo, trainer, "_save_checkpoint", hooks.around(run._save_checkpoint))
    hooks.replace(run._undo, trainer, "evaluate", hooks.around(run._evaluate))
    hooks.replace(run._undo, trainer, "_maybe_log_save_evaluate", hooks.around(run._after_step))
    with contextlib.suppress(Parked):
        trainer.train(steps, run)
    (only,) = watch.saved
    return only


OWN, ASIDE = ["checkpoint-3"], ["costgov-saving-3", "checkpoint-3"]


@pytest.mark.parametrize(
    ("every", "only_model", "place", "log"),
    [
        ({}, False, ASIDE, ["aside"]),
        ({"eval": 3}, False, ASIDE, ["eval", "aside", "eval"]),
        ({"eval": 3, "save": 3}, False, OWN, ["eval", "own", "on_save", "eval", "own", "on_save"]),
        ({"eval": 3, "save": 3}, True, ASIDE, ["eval", "own", "on_save", "aside", "eval", "own", "on_save"]),
    ],
    ids=["plain", "evaluated", "saved anyway", "saved without the optimizer"],
)
def test_what_is_asked_for_is_saved_where_the_trainer_itself_would(
    tmp_path: Path, every: dict[str, int], only_model: bool, place: list[str], log: list[str]
) -> None:
    trainer = Trainer(tmp_path, every, only_model)
    assert (trained(trainer, 3), trainer.log) == (place, log)


@pytest.mark.parametrize(
    ("every", "log"),
    [
        ({"eval": 3}, ["aside", "eval", "eval"]),
        ({"eval": 3, "save": 3}, ["aside", "eval", "own", "on_save", "eval", "own", "on_save"]),
        ({"eval": 2}, ["eval", "aside", "eval", "eval"]),
    ],
    ids=["evaluated", "saved anyway", "not evaluated"],
)
def test_before_an_evaluation_that_might_outlast_the_grace_it_is_saved(
    tmp_path: Path, every: dict[str, int], log: list[str]
) -> None:
    trainer = Trainer(tmp_path, every, False)
    assert (trained(trainer, 3, waits=False), trainer.log) == (ASIDE, log)


def test_a_halt_for_a_nan_waits_for_no_evaluation(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {"eval": 3, "save": 3}, False)
    assert trained(trainer, 3, "suspect", steps=3) == ASIDE
    assert trainer.log == ["aside", "eval", "own", "on_save"], "where it lives on, its own is saved as ever"
    assert trainer.limits == [1, None], "and for that no older one goes"


@pytest.mark.parametrize(
    ("strategies", "place", "log"),
    [
        (("epoch",), ["costgov-saving-4", "checkpoint-4"], ["eval", "aside"]),
        (("no", "epoch"), ["checkpoint-4"], ["own", "on_save"]),
        (("epoch", "epoch"), ["checkpoint-4"], ["eval", "own", "on_save"]),
    ],
)
def test_at_the_end_of_an_epoch_it_waits_for_what_the_trainer_does_there(
    tmp_path: Path, strategies: tuple[str, ...], place: list[str], log: list[str]
) -> None:
    trainer = Trainer(tmp_path, {}, False, *strategies)
    assert (trained(trainer, 4), trainer.log) == (place, log)


def test_a_loop_that_does_not_come_to_that_place_saves_at_once(tmp_path: Path) -> None:
    """A loop of a subclass's own, and the first step of any: nobody has seen yet where it saves."""
    trainer = Trainer(tmp_path, {"eval": 1}, False)
    assert trained(trainer, 1, steps=1) == ["costgov-saving-1", "checkpoint-1"]
    assert trainer.log == ["aside", "eval"]


def test_where_ours_fails_the_trainers_own_of_that_step_is_there(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {"save": 3}, True)
    trainer.fails = {"aside"}
    assert saved(trainer, 3, "good", 3, True) == (None, "OSError: full")
    assert trainer.log == ["own", "on_save", "aside"]
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-3"}


@pytest.mark.parametrize(
    ("only_model", "strategies", "log"),
    [
        (False, (), ["own"]),
        (True, (), ["aside"]),
        (True, ("epoch",), ["aside"]),
        (False, ("epoch", "epoch"), ["eval", "own"]),
        (True, ("epoch", "epoch"), ["eval", "aside"]),
    ],
)
@pytest.mark.parametrize("waits", [True, False])
def test_a_halt_waits_for_no_callbacks_on_save(
    tmp_path: Path, waits: bool, only_model: bool, strategies: tuple[str, ...], log: list[str]
) -> None:
    """An upload there may outlast the grace. Less than the whole the Trainer saves first no more, either."""
    trainer = Trainer(tmp_path, {} if len(strategies) == 2 else {"save": 4}, only_model, *strategies)
    path, error = saved(trainer, 4, "good", 4, True if "eval" in log else waits, halts=True)
    assert (trainer.log, error) == (log, None)
    assert path == str(tmp_path / ("checkpoint-4" if "own" in log else "costgov-saving-4/checkpoint-4"))


def test_in_a_loop_of_a_subclasss_own_a_halt_waits_for_no_callbacks_either(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {"save": 1}, True)
    assert saved(trainer, 1, "good", 1, True, halts=True) == (str(tmp_path / "costgov-saving-1/checkpoint-1"), None)
    assert trainer.log == ["aside"]


@pytest.mark.parametrize(("ranks", "log"), [(1, ["aside", "own"]), (2, ["aside"])])
def test_where_ours_fails_in_a_halt_one_process_alone_saves_the_trainers_own(
    tmp_path: Path, ranks: int, log: list[str]
) -> None:
    """Of several ranks the others stand still, and the one that has failed would wait for them in that save."""
    trainer = Trainer(tmp_path, {"save": 3}, True)
    trainer.fails, trainer.args.world_size = {"aside"}, ranks
    assert saved(trainer, 3, "good", 3, True, halts=True) == (None, "OSError: full")
    assert trainer.log == log


def test_what_the_trainer_saves_over_ours_without_the_optimizer_is_still_gone_on_from(tmp_path: Path) -> None:
    """Ours was saved before the evaluation, and is published. The Trainer's own writes adapters alone, say."""
    trainer = Trainer(tmp_path, {}, True)
    saver = TrainerSaver(StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1)), trainer)
    path = tmp_path / "checkpoint-3"
    path.mkdir()
    (path / "trainer_state.json").write_text('{"global_step": 3}')
    (path / checkpoint.MANIFEST).write_text("{}")
    saver.forget(3, is_ours_alike=True)
    assert ([one["step"] for one in saver.own_checkpoints(str(tmp_path))], saver.has_state(str(path))) == ([3], True)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["good", "suspect"])
def test_what_failed_leaves_its_room_to_the_trainers_own_saves(tmp_path: Path, kind: str, ranks: int) -> None:
    """Of several ranks others may still write there: that goes with their next step."""
    trainer = Trainer(tmp_path, {}, True)
    trainer.fails, trainer.args.world_size = {"aside"}, ranks
    assert saved(trainer, 3, kind, 3, True) == (None, "OSError: full")
    staging = tmp_path / "costgov-saving-3"
    assert staging.exists() is (ranks > 1)
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    TrainerSaver(meter, trainer).discard(3)
    assert not staging.exists()


class Full(TrainerSaver):
    """On a disk that has no room for what callbacks have written besides."""

    def add_own_files(self, step: int, path: str) -> None:
        raise OSError("full")


def test_what_callbacks_have_put_there_and_cannot_be_added_fails_it(tmp_path: Path) -> None:
    """The Trainer's own of that step still has all of it."""
    trainer = Trainer(tmp_path, {"save": 3}, True)
    assert saved(trainer, 3, "good", 3, True, make=Full) == (None, "OSError: full")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-3"}


def test_what_is_gone_meanwhile_from_the_trainers_own_is_in_neither_and_fails_nothing(tmp_path: Path) -> None:
    """The lock file of an uploader that runs beside: all that we saved was given up for it."""
    _linked(str(tmp_path / "gone.lock"), str(tmp_path / "checkpoint"))
    _tree_linked(str(tmp_path / "gone"), str(tmp_path / "tree"))
    (tmp_path / "there").write_text("x")
    with pytest.raises(FileNotFoundError):
        _linked(str(tmp_path / "there"), str(tmp_path / "missing" / "there"))


@pytest.mark.parametrize("comes", [True, False])
def test_in_a_loop_of_a_subclasss_own_what_the_trainer_saves_comes_first(tmp_path: Path, comes: bool) -> None:
    """Two saves of one step at a time would write to one place. Where its own does not come, ours does all the same."""
    trainer = Trainer(tmp_path, {}, True)
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = Asks(1, "good", True)
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))
    hooks.replace(run._undo, trainer, "_save_checkpoint", hooks.around(run._save_checkpoint))
    trainer.state.global_step, trainer.control.should_save = 1, True
    run.end_step(trainer.state)
    assert trainer.log == []
    if comes:
        trainer._save_checkpoint(None, None)
        run.saved(trainer.state)
    run.begin_step()
    run.begin_step()
    assert trainer.log == (["own", "aside"] if comes else ["aside"])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("best", "named"), [(3, 3), (2, 2), (1, 9), (None, 9)])
def test_the_best_checkpoint_is_never_where_ours_is_staged(
    tmp_path: Path, best: int | None, named: int, fails: bool
) -> None:
    """In memory it stays 9. The file names the best step's: this one, one that is there, else what it was."""
    kept, written = str(tmp_path / "checkpoint-9"), list[str]()
    (tmp_path / "checkpoint-2").mkdir()
    trainer = Trainer(tmp_path, {}, False)
    state = SimpleNamespace(global_step=3, best_global_step=best, best_model_checkpoint=kept)
    state.save_to_json = lambda: written.append(state.best_model_checkpoint)
    make = trainer._save_checkpoint

    def save(model: Any, trial: Any) -> None:
        state.best_model_checkpoint = str(Path(trainer._get_output_dir()) / "checkpoint-3")
        state.save_to_json()
        if fails:
            raise OSError("full")
        make(model, trial)

    vars(trainer).update(state=state, _save_checkpoint=save)
    saver = TrainerSaver(StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1)), trainer)
    with contextlib.suppress(OSError):
        saver.save_aside(3)
    assert (state.best_model_checkpoint, written) == (kept, [str(tmp_path / f"checkpoint-{named}")])


def test_what_an_earlier_train_has_saved_of_a_step_with_that_number_is_not_this_ones(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {"save": 3}, False)
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))
    hooks.replace(run._undo, trainer, "_save_checkpoint", hooks.around(run._save_checkpoint))
    hooks.replace(run._undo, trainer, "_maybe_log_save_evaluate", hooks.around(run._after_step))
    trainer.train(3, run)
    meter.watch = Asks(3, "good", True)
    trainer.every = {}
    trainer.train(4, run)
    assert trainer.log == ["own", "on_save", "aside"]


def test_the_first_of_the_trainers_own_saves_after_a_nan_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(tmp_path, {"save": 1}, False)
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = Asks(99, "good", True)
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))
    hooks.replace(run._undo, trainer, "_save_checkpoint", hooks.around(run._save_checkpoint))
    trainer.train(2, run)
    assert capsys.readouterr().err == ""
    meter.progress.sound = False
    trainer.train(4, run)
    assert capsys.readouterr().err.count("checkpoint-1 after something was not finite") == 1


def test_a_position_says_whether_the_evaluation_of_its_step_is_yet_to_come() -> None:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    saver = PositionSaver(meter)
    assert patience.DUE not in saver.position()
    meter.expect_evaluation(True)
    assert saver.position()[patience.DUE] is True
