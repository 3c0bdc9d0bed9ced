"""Where the time between the passes goes: fetches, evaluations that nobody marks, the script's own saves, the end."""

from __future__ import annotations

import io
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer_shim.any_loop import own_saves
from trainer_shim.engines import hooks
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.scalars import EngineFacts
from trainer_shim.tokens import TokenCount

US = 1_000


class Kept(NoWatch):
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.frames: list[dict[str, Any]] = []
        self.phases: list[str] = []
        self.began: list[int] = []  # In microseconds, where that was seen only later.
        self.finished: list[str] = []

    def step_frame(self, fields: dict[str, Any]) -> None:
        self.frames.append(fields)

    def phase_changed(self) -> None:
        self.phases.append(self.progress.phase)
        self.began.append(self.progress.phase_from_ns // US)

    def finish(self, reason: str, completed: bool) -> None:
        self.finished.append(self.progress.phase)


class Loop:
    """A plain loop on a clock of its own, in microseconds. `mode`: what its model was put to."""

    def __init__(self) -> None:
        progress = Progress(threading.get_ident())
        self.meter = StepMeter(progress, TokenCount(512, None, 1))
        self.at_ns = 0
        self.mode: bool | None = True  # None: to training, without gradients.
        self.meter.clock.now_ns = lambda: self.at_ns
        self.meter.clock.started_ns = self.meter.clock.since_ns = 0
        self.watch = self.meter.watch = Kept(progress)
        self.meter.ask_mode(lambda: self.mode)

    def work(self, us: int) -> None:
        self.at_ns += us * US

    def fetch(self, us: int, has_batch: bool = True) -> None:
        part = self.meter.enter_load()
        self.work(us)
        self.meter.exit_load(part, has_batch)

    def evaluate(self, puts_mode: bool = True) -> None:
        """Of 82 us up to the end of the last pass, and 3 behind it."""
        self.mode = False if puts_mode else None
        for _ in range(2):
            self.fetch(30)
            self.forward(10, trains=False)
            self.work(2)  # Metrics.
        self.fetch(1, has_batch=False)

    def train(self) -> None:
        """model.train()"""
        self.mode = True
        self.meter.set_training(True)

    def forward(self, us: int, trains: bool = True) -> None:
        self.meter.enter_forward(trains, (), {})
        self.work(us)
        self.meter.exit_forward(None)

    def backward(self, us: int) -> None:
        is_timed = self.meter.enter_unreported_backward()
        self.work(us)
        if is_timed:
            self.meter.exit_unreported_backward()

    def step(self, us: int) -> dict[str, Any]:
        self.meter.enter_optimizer()
        self.work(us)
        self.meter.end_step(EngineFacts(self.meter.progress.step + 1))
        self.meter.boundary()
        return {name: round(value * 1e6) for name, value in self.watch.frames[-1].items() if name.endswith("_s")}

    def plain_step(self) -> dict[str, Any]:
        self.fetch(1)
        self.forward(1)
        self.backward(1)
        return self.step(1)


@pytest.fixture
def loop() -> Loop:
    made = Loop()
    made.plain_step()
    return made


def parts(**told: int) -> dict[str, int]:
    return {
        **dict.fromkeys(("data_s", "backward_s", "forward_s", "optimizer_s", "checkpoint_s", "hold_s", "loop_s"), 0),
        "step_s": sum(told.values()),
        **told,
    }


def test_fetches_of_every_micro_step_are_data_and_what_is_clipped_is_the_optimizers(loop: Loop) -> None:
    for _ in range(2):
        loop.work(3)  # The loop's own.
        loop.fetch(100)
        loop.forward(10)
        loop.work(5)  # The loop computes its loss.
        loop.backward(20)
    loop.work(7)  # Clipping.
    assert loop.step(2) == parts(data_s=200, loop_s=6, forward_s=30, backward_s=40, optimizer_s=9)


def test_a_loop_that_draws_its_batches_itself_has_a_bound(loop: Loop) -> None:
    for _ in range(2):
        loop.work(100)
        loop.forward(10)
        loop.backward(20)
    told = loop.step(2)
    assert (told["data_s"], told.get("loop_s"), loop.watch.frames[-1]["data_bound"]) == (200, None, True)
    assert told["backward_s"] == 40, "the draw of the second micro-step is no backward pass"


@pytest.mark.parametrize("puts_mode", [True, False], ids=["model.eval()", "no_grad() alone"])
def test_an_evaluation_has_the_fetches_before_its_passes_and_not_the_next_steps(loop: Loop, puts_mode: bool) -> None:
    loop.work(3)
    loop.mode = False if puts_mode else None
    for _ in range(3):
        loop.fetch(50)
        loop.forward(10, trains=False)
    loop.mode = True
    loop.fetch(100)
    loop.forward(10)
    loop.backward(20)
    assert loop.step(2) == parts(eval_s=180, data_s=100, loop_s=3, forward_s=10, backward_s=20, optimizer_s=2)
    assert loop.watch.phases == ["compile", "train", "eval", "train"]


def test_a_mode_that_is_put_behind_the_next_fetch_leaves_that_one_to_the_step(loop: Loop) -> None:
    """`for batch in loader: model.train(); …`, after an evaluation that ended with model.eval()."""
    loop.mode = False
    loop.fetch(50)
    loop.forward(10, trains=False)
    loop.fetch(100)
    loop.mode = True
    loop.forward(10)
    loop.backward(20)
    assert loop.step(2) == parts(eval_s=60, data_s=100, forward_s=10, backward_s=20, optimizer_s=2)
    assert "data_bound" not in loop.watch.frames[-1]


def test_an_evaluation_ends_where_the_loop_trains_again(loop: Loop) -> None:
    loop.evaluate()
    loop.train()
    assert loop.watch.phases[-1] == "train"
    loop.work(1000)  # The loop's own: it uploads its report, say.
    loop.fetch(100)
    loop.forward(10)
    loop.backward(20)
    assert loop.step(2) == parts(eval_s=85, loop_s=1000, data_s=100, forward_s=10, backward_s=20, optimizer_s=2)


@pytest.mark.parametrize("puts_mode", [True, False], ids=["model.eval()", "no_grad() alone"])
@pytest.mark.parametrize("trains", ["behind its fetch", "never"])
def test_else_an_evaluation_ended_with_its_last_pass(loop: Loop, puts_mode: bool, trains: str) -> None:
    loop.evaluate(puts_mode)
    loop.mode = loop.mode if puts_mode else True  # Gradients are on again.
    loop.work(1000)
    loop.fetch(100)
    if trains != "never":
        loop.train()
    loop.mode = True
    loop.forward(10)
    loop.backward(20)
    told = loop.step(2)
    assert told["eval_s"] == 82
    assert (told["data_s"] + told["loop_s"], told["data_s"] // 10) == (1103, 10)


def test_metrics_between_the_passes_are_the_evaluations_where_each_pass_alone_has_no_gradients(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch(50)
        loop.mode = None
        loop.forward(10, trains=False)
        loop.mode = True
        loop.work(40)
    loop.fetch(100)
    loop.forward(10)
    loop.backward(20)
    assert loop.step(2) == parts(eval_s=260, loop_s=40, data_s=100, forward_s=10, backward_s=20, optimizer_s=2)


def test_a_pass_that_does_not_train_within_a_step_leaves_the_backward_pass_its_time(loop: Loop) -> None:
    loop.fetch(100)
    loop.forward(10)
    loop.forward(7, trains=False)
    loop.work(3)
    loop.backward(20)
    assert loop.step(2) == parts(eval_s=7, loop_s=3, data_s=100, forward_s=10, backward_s=20, optimizer_s=2)


def test_behind_the_last_step_an_evaluations_end_is_told_as_it_was(loop: Loop) -> None:
    loop.evaluate()
    ended = loop.at_ns // US - 3
    loop.work(4000)
    loop.meter.finish("exit", True)
    assert list(zip(loop.watch.phases, loop.watch.began, strict=True))[-1] == ("train", ended)
    loop.watch.progress.finish()
    assert (loop.watch.progress.phase, loop.watch.progress.phase_from_ns // US) == ("finish", ended)


def test_the_end_begins_behind_the_last_pause_and_not_within_a_step(loop: Loop) -> None:
    progress = loop.watch.progress
    loop.meter.exit_phase(loop.meter.enter_phase("checkpoint"))
    saved_ns = progress.phase_since_ns
    progress.finish()
    assert progress.phase_from_ns == saved_ns
    progress.set_phase("train")
    loop.forward(1)
    progress.finish()
    assert progress.phase_from_ns == 0


def test_before_the_first_step_a_mode_says_nothing() -> None:
    """A model that was loaded is in evaluation mode, and many loops put it to training behind the first fetch."""
    loop = Loop()
    loop.mode = False
    loop.fetch(50)
    assert loop.watch.phases == []


def test_the_training_ends_an_evaluation_that_nothing_has_ended(loop: Loop) -> None:
    loop.forward(10, trains=False)
    loop.meter.finish("exit", True)
    assert loop.watch.phases[-2:] == ["eval", "train"]
    assert loop.watch.finished == ["train"]


def test_what_the_script_compiles_makes_the_next_step_compile(loop: Loop) -> None:
    loop.plain_step()
    loop.meter.expect_compilation()
    loop.plain_step()
    assert loop.watch.phases == ["compile", "train", "compile", "train"]


@pytest.fixture
def saving(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """torch.save(), which takes 30 us, and a checkpoint's that calls it."""
    torch, serialization = types.ModuleType("torch"), types.ModuleType("torch.serialization")
    distributed = types.ModuleType("torch.distributed.checkpoint")

    def save(_what: Any, f: Any) -> None:
        assert f is not None
        loop.work(30)

    torch.save = serialization.save = save  # type: ignore[attr-defined]
    distributed.save = lambda state, **_: torch.save(state, "part")  # type: ignore[attr-defined]
    for name, _ in own_saves._PLACES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for module in (torch, serialization, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    undo = hooks.Undo()
    own_saves.watch(loop.meter, undo)
    yield lambda name, *args, **kwargs: sys.modules[name].save(*args, **kwargs)
    undo()
    assert not hasattr(torch.save, "costgov_before"), "what was there is back"


@pytest.mark.parametrize("module", ["torch", "torch.serialization", "torch.distributed.checkpoint"])
def test_what_the_script_saves_is_the_checkpoints(loop: Loop, saving: Callable[..., Any], module: str) -> None:
    saving(module, {}, **({} if "distributed" in module else {"f": "model.pt"}))
    told = loop.plain_step()
    assert (told["checkpoint_s"], told["data_s"], told["loop_s"]) == (30, 1, 0)
    assert loop.watch.phases[-2:] == ["checkpoint", "train"]


def test_what_is_pickled_to_memory_is_no_phase(loop: Loop, saving: Callable[..., Any]) -> None:
    saving("torch", {}, io.BytesIO())
    assert loop.plain_step()["checkpoint_s"] == 30
    assert loop.watch.phases == ["compile", "train"]


def test_a_save_behind_an_evaluation_is_none_of_its_time(loop: Loop, saving: Callable[..., Any]) -> None:
    loop.mode = False
    loop.forward(10, trains=False)
    loop.mode = True
    saving("torch", {}, "model.pt")
    told = loop.plain_step()
    assert (told["eval_s"], told["checkpoint_s"]) == (10, 30)
    assert loop.watch.phases[-4:] == ["eval", "train", "checkpoint", "train"]


def test_a_save_on_another_thread_holds_nobody_up(loop: Loop, saving: Callable[..., Any]) -> None:
    thread = threading.Thread(target=saving, args=("torch", {}, "model.pt"))
    thread.start()
    thread.join()
    assert loop.watch.phases == ["compile", "train"]


def test_a_save_that_fails_ends_its_phase_and_raises(loop: Loop, saving: Callable[..., Any]) -> None:
    with pytest.raises(TypeError):
        saving("torch", "no file")
    assert loop.watch.phases[-2:] == ["checkpoint", "train"]


def test_a_save_within_a_save_is_one(loop: Loop, saving: Callable[..., Any]) -> None:
    part = loop.meter.enter_phase("checkpoint")
    saving("torch", {}, "model.pt")
    loop.meter.exit_phase(part)
    assert loop.plain_step()["checkpoint_s"] == 30
    assert loop.watch.phases == ["compile", "train", "checkpoint", "train"]
