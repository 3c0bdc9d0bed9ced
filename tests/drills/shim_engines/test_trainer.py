"""transformers.Trainer, with and without DeepSpeed, on two gloo ranks and on one."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.drills.components import needs
from tests.drills.shim.conftest import free_port
from tests.drills.shim.fake_governor import FakeGovernor, let_go, saved_in_the_step_behind
from trainer_shim.engines.frameworks.hf import TrainerRun
from trainer_shim.engines.frameworks.hf_checkpoints import TrainerSaver
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint
from trainer_shim.saving.resuming import resume_from
from trainer_shim.saving.store import MemoryStore
from trainer_shim.tokens import TokenCount

needs("transformers", "accelerate")

WARM = ("torch", "transformers.trainer", "transformers.models.llama.modeling_llama")

PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "loop_s")
HELD = ["step-3", "evaluated-4", "step-7"]
STEPS, TOKENS = 6, 4 * 16 * 2


@pytest.mark.parametrize(("deepspeed", "ranks"), [(False, 1), (True, 2)])
def test_frames_tell_what_happened_and_change_nothing(run_ranks, tmp_path: Path, deepspeed: bool, ranks: int) -> None:
    chosen = {"deepspeed": deepspeed, "output_dir": str(tmp_path / "out")}
    bare = run_ranks("trainer_loop.py", json.dumps({**chosen, "attached": False}), ranks=ranks)
    seen = run_ranks("trainer_loop.py", json.dumps({**chosen, "save_at": 4}), ranks=ranks)

    for rank in range(ranks):
        assert bare[rank]["weights"] == seen[rank]["weights"]
        assert bare[rank]["logged"] == seen[rank]["logged"]
        frames = seen[rank]["frames"]
        assert [frame["step"] for frame in frames] == list(range(1, STEPS + 1)) == seen[rank]["boundaries"]
        for frame in frames:
            assert frame["tokens"] == TOKENS * ranks
            assert frame["loss_expected"]
            assert frame["lr"] >= 0
            assert sum(frame.get(part, 0.0) for part in PARTS) <= frame["step_s"] * 1.001
            assert frame["grad_norm"] > 0
        # Of the step that was disturbed least: what the machine takes away between two parts, nothing can explain.
        assert max(sum(frame.get(part, 0.0) for part in PARTS) / frame["step_s"] for frame in frames[1:]) >= 0.95
        assert frames[4]["checkpoint_s"] > 0
        # Every rank saved at the same agreed step, by the Trainer's own means.
        path = tmp_path / "out" / "checkpoint-4"
        assert seen[rank]["delegated"] == [[str(tmp_path / "out" / "costgov-saving-4" / "checkpoint-4"), None]]
        assert (path / "trainer_state.json").exists()
        assert seen[rank]["hello"]["framework"] == "hf"
        assert seen[rank]["hello"]["total_steps"] == STEPS
        assert seen[rank]["finished"] == [["train_end", True]]
        assert seen[rank]["fetches"]["outside"] == 0 < seen[rank]["fetches"]["inside"]
        assert "checkpoint" in seen[rank]["phases"]
    mean = [sum(seen[rank]["frames"][step]["loss"] for rank in range(ranks)) / ranks for step in range(STEPS)]
    assert mean == pytest.approx(seen[0]["logged"], abs=2e-4), "the Trainer logs four digits"


def test_beside_a_suspect_checkpoint_the_trainers_own_are_looked_into(tmp_path: Path) -> None:
    """What the Trainer saved between a NaN and its verdict is broken as well."""
    import torch
    from safetensors.torch import save_file

    for step, weight in ((30, 1.0), (40, float("nan")), (70, 1.0)):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir()
        mask = torch.full((16, 16), float("-inf")).triu(1)
        save_file({"weight": torch.full((100,), weight), "mask": mask}, path / "model.safetensors")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    suspect = tmp_path / "costgov-suspect-72"
    suspect.mkdir()
    (suspect / checkpoint.MANIFEST).write_text(json.dumps({"kind": "suspect", "step": 72, "files": []}))
    trainer = Trainer(str(tmp_path))
    saver = TrainerSaver(cast(StepMeter, SimpleNamespace(teach_directory=lambda _: None)), trainer)
    steps = []
    for _ in range(2):
        resumed = resume_from(saver, str(tmp_path), 0, MemoryStore(), 1)
        assert resumed is not None
        steps.append(resumed.step)
        os.truncate(tmp_path / f"checkpoint-{resumed.step}" / "model.safetensors", 20)
    assert steps == [70, 30], "torn: passed over, not raised"


class Trainer:
    """As far as a checkpoint is chosen for it."""

    def __init__(self, output_dir: str) -> None:
        self.args = SimpleNamespace(output_dir=output_dir)

    def train(self) -> None:
        raise NotImplementedError

    def is_world_process_zero(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("harm", "is_good"), [(float("nan"), False), (float("inf"), False), (float("-inf"), True), (1.0, True)]
)
def test_what_is_saved_of_broken_weights_deletes_nothing_and_is_not_announced(
    tmp_path: Path, harm: float, is_good: bool
) -> None:
    """The loss of the step was finite, and the update broke the weights."""
    import torch

    announced: list[int] = []
    limits: list[int | None] = []
    meter = StepMeter(Progress(1), TokenCount(None, None, 1))
    meter.watch.hello_field = lambda _, record: announced.append(record["step"])  # type: ignore[method-assign]
    model = torch.nn.Sequential(torch.nn.Embedding(500, 32), torch.nn.Linear(32, 500, bias=False))
    args = SimpleNamespace(output_dir=str(tmp_path), save_total_limit=1)
    state = SimpleNamespace(global_step=0)
    trainer = SimpleNamespace(args=args, model_wrapped=model, state=state, is_world_process_zero=lambda: True)
    run = TrainerRun(trainer, meter, TrainerSaver(meter, trainer))

    def save(step: int) -> None:
        run._save_checkpoint(lambda: limits.append(args.save_total_limit))
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        run.saved(SimpleNamespace(global_step=step))

    save(10)
    with torch.no_grad():
        model[1].weight[100:].fill_(harm)
    save(20)
    with torch.no_grad():
        model[1].weight.fill_(0.5)
    save(30)
    assert limits == [1, 1 if is_good else None, 1]
    assert announced == ([10, 20, 30] if is_good else [10, 30])


def test_a_resumed_trainer_goes_on_at_its_step(run_ranks, tmp_path: Path) -> None:
    chosen = {"output_dir": str(tmp_path / "out")}
    run_ranks("trainer_loop.py", json.dumps({**chosen, "save_at": 4}))
    resumed = run_ranks("trainer_loop.py", json.dumps({**chosen, "resume": str(tmp_path / "out" / "checkpoint-4")}))[0]

    assert [frame["step"] for frame in resumed["frames"]] == [5, 6]
    assert [frame["attempt_step"] for frame in resumed["frames"]] == [1, 2]
    assert resumed["hello"]["resumed_step"] == 4
    assert resumed["frames"][0]["tokens_total"] == 5 * TOKENS, "counted over the run, not since launch"
    assert resumed["hello"]["origin"] == {}, "its own line, which began with nothing"


def test_a_trainer_that_goes_on_from_another_runs_checkpoint_says_so(run_ranks, tmp_path: Path) -> None:
    """The checkpoint is in the directory of that run: in its own one of the same step is another one."""
    for run, gas in (("first", 1), ("second", 2)):
        chosen = {"output_dir": str(tmp_path / run), "save_at": 4, "gas": gas}
        seen = run_ranks("trainer_loop.py", json.dumps(chosen), env={"COSTGOV_RUN": run})[0]
        assert seen["hello"]["origin"] == {}
    told = {"output_dir": str(tmp_path / "second"), "resume": str(tmp_path / "first" / "checkpoint-4"), "gas": 1}
    other = run_ranks("trainer_loop.py", json.dumps(told), env={"COSTGOV_RUN": "second"})[0]
    assert other["hello"]["origin"] == {"run": "first", "step": 4, "tokens_total": 2 * TOKENS}
    assert other["frames"][0]["tokens_total"] == 2 * TOKENS + TOKENS // 2


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_trainer_whose_run_nobody_named_goes_on_with_its_output_directory_as_its_own(
    run_ranks, tmp_path: Path, place: str
) -> None:
    """Each launch has another name then."""
    names = ({"COSTGOV_RUN": name, "COSTGOV_UNNAMED_RUN": name} for name in ("run-1", "run-2"))
    chosen = {"output_dir": str(tmp_path / "first"), "save_at": 4}
    run_ranks("trainer_loop.py", json.dumps(chosen), env=next(names))
    told = {"output_dir": str(tmp_path / place), "resume": str(tmp_path / "first" / "checkpoint-4")}
    again = run_ranks("trainer_loop.py", json.dumps(told), env=next(names))[0]
    another = {"run": "run-1", "step": 4, "tokens_total": 4 * TOKENS}
    assert again["hello"]["origin"] == ({} if place == "first" else another)


@pytest.mark.parametrize(("deepspeed", "ranks"), [(False, 1), (True, 2)])
@pytest.mark.parametrize(
    ("first", "second", "origin"),
    [
        ({"COSTGOV_RUN": "a"}, {"COSTGOV_RUN": "a"}, {}),
        ({"COSTGOV_RUN": "a"}, {"COSTGOV_RUN": "b"}, {"run": "a", "step": 4}),
        ({"COSTGOV_RUN": "1", "COSTGOV_UNNAMED_RUN": "1"}, {"COSTGOV_RUN": "2", "COSTGOV_UNNAMED_RUN": "2"}, {}),
    ],
    ids=["its own", "another run's", "without a name"],
)
def test_a_trainer_that_resumes_from_what_it_saved_itself_knows_what_went_before(
    run_ranks, tmp_path: Path, first: Any, second: Any, origin: Any, deepspeed: bool, ranks: int
) -> None:
    """`resume_from_checkpoint=True`: nobody has asked the shim for anything."""
    chosen = {"deepspeed": deepspeed, "output_dir": str(tmp_path / "out")}
    saves = {"save_strategy": "steps", "save_steps": 2}
    run_ranks("trainer_loop.py", json.dumps({**chosen, "args": saves, "steps": 4}), ranks=ranks, env=first)
    told = run_ranks("trainer_loop.py", json.dumps({**chosen, "resume": True}), ranks=ranks, env=second)
    before = {**origin, "tokens_total": 4 * TOKENS * ranks} if origin else origin
    for one in told:
        hello, frames = one["hello"], one["frames"]
        assert (hello["origin"], hello["loaded_at"], hello["resumed_step"]) == (before, 0, 4)
        assert [frame["tokens_total"] for frame in frames] == [5 * TOKENS * ranks, 6 * TOKENS * ranks]


def test_evaluation_is_a_phase_and_what_is_saved_then_has_it(run_ranks, tmp_path: Path) -> None:
    """It draws random numbers: a run that went on from before it would go on otherwise."""
    chosen = {"output_dir": str(tmp_path / "out"), "evaluate": True, "save_at": 3}
    seen = run_ranks("trainer_loop.py", json.dumps(chosen))[0]

    told = [phase for phase, _ in itertools.groupby(seen["phases"])]
    assert told == ["compile", "train", "eval", "train", "checkpoint", "train", "eval", "train"]
    assert [frame["tokens"] for frame in seen["frames"]] == [TOKENS] * STEPS
    state = json.loads((tmp_path / "out" / "checkpoint-3" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "eval_loss" in entry] == [3]


@pytest.fixture
def governor(short_tmp: Path) -> Iterator[FakeGovernor]:
    with FakeGovernor(short_tmp / "s") as made:
        yield made


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_shim_has_saved_costs_no_good_checkpoint(
    run_ranks, governor: FakeGovernor, tmp_path: Path, ranks: int
) -> None:
    """One save that the Trainer does itself, a suspect one, a good one, under save_total_limit=1.

    With one rank also save_only_model=True: ours has the optimizer all the same. With two ranks DDP.
    """
    out, stop = tmp_path / "out", tmp_path / "stop"
    chosen: dict[str, Any] = {"watched": True, "output_dir": str(out), "steps": 10**6}
    if ranks > 1:
        chosen["port"] = free_port()
    env = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "drill"}

    def start(**options: Any) -> Future[list[dict[str, Any]]]:
        return trainings.submit(run_ranks, "trainer_loop.py", json.dumps({**chosen, **options}), ranks=ranks, env=env)

    with ThreadPoolExecutor(1) as trainings:
        first = start(own_save=4, stop=str(stop))
        try:
            governor.frame("step", step=5)
            own = _contents(out / "checkpoint-4")
            governor.ask(0, "nan", checkpoint="suspect")
            nan = governor.frame("ack", incident="nan", what="saved")["checkpoint"]
            suspect = _step_of(nan)
            assert _contents(out / "checkpoint-4") == own, "the last good one is still there"
            assert nan["path"] == str(out / f"costgov-suspect-{suspect}")
            assert checkpoint.verify_manifest(nan["path"], hashes=True) == []
            assert _names(out) == {"checkpoint-4", f"costgov-suspect-{suspect}"}
            governor.frame("step", step=suspect + 5)
            governor.ask(0, "budget")
            record = governor.frame("ack", incident="budget", what="saved")["checkpoint"]
            good = _step_of(record)
            assert record["path"] == str(out / f"checkpoint-{good}")
            assert checkpoint.verify_manifest(record["path"], hashes=True) == []
            assert _names(out) == {"checkpoint-4", f"checkpoint-{good}", f"costgov-suspect-{suspect}"}
            assert _contents(out / "checkpoint-4") == own
            governor.frame("step", step=good + 5)
        finally:
            stop.touch()
            governor.until(first.done, "the end of the first training")
        told = first.result()[0]
        assert told["on_save"] == [4], "no callback is told of our saves: they would upload them"
        assert told["last"] == str(out / f"checkpoint-{good}")
        before = _losses(governor)
        governor.frames.clear()

        (out / f"checkpoint-{good + 3}").mkdir()  # Torn: the Trainer's last file is not there.
        second = start(resume="shim", then=nan["path"], steps=good + 5)
        governor.until(second.done, "the end of the second training")
    told = second.result()[0]
    assert told["resumed"] == [good, str(out / f"checkpoint-{good}")]
    assert "trainer.train() continues from" in told["log"]
    after = _losses(governor)
    for step in (suspect, good):
        steps = range(step + 1, step + 6)
        assert [before[n] for n in steps] == [after[n] for n in steps], "the next five losses, bit for bit"


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_might_not_live_to_see_the_end_of_an_evaluation_is_saved_before_it(
    run_ranks, governor: FakeGovernor, tmp_path: Path, ranks: int
) -> None:
    """A first one, of which nobody knows how long it takes; then one that fits well. Both resume."""
    out = tmp_path / "out"
    chosen: dict[str, Any] = {"watched": True, "output_dir": str(out), "evaluate": True, "eval_steps": 4}
    env = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "drill"}

    def start(**options: Any) -> Future[list[dict[str, Any]]]:
        port = {"port": free_port()} if ranks > 1 else {}
        told = json.dumps({**chosen, **port, "steps": 10, **options})
        return trainings.submit(run_ranks, "trainer_loop.py", told, ranks=ranks, env=env)

    def evaluated(path: Path) -> list[int]:
        history = json.loads((path / "trainer_state.json").read_text())["log_history"]
        return [entry["step"] for entry in history if "eval_loss" in entry]

    with ThreadPoolExecutor(1) as trainings:
        first = start(holds=str(tmp_path), at=HELD)
        with let_go(tmp_path, *HELD):
            record = saved_in_the_step_behind(governor, tmp_path, 3, grace_s=20)
            (tmp_path / "evaluated-4").touch()
            saved_in_the_step_behind(governor, tmp_path, 7, grace_s=600)
        governor.until(first.done, "the end of the first training")
        whole = first.result()[0]
        assert checkpoint.verify_manifest(record["path"], hashes=True) == []
        assert (evaluated(out / "checkpoint-4"), evaluated(out / "checkpoint-8")) == ([], [4, 8])
        assert "step 4 is saved before its evaluation" in whole["log"]
        assert "step 8" not in whole["log"]
        before = _losses(governor)
        for step, lacks in ((8, False), (4, True)):
            governor.frames.clear()
            second = start(resume=str(out / f"checkpoint-{step}"))
            governor.until(second.done, "the end of the second training")
            after = _losses(governor)
            assert sorted(after) == [*range(step + 1, 11)]
            # What it draws is missing then: the generators stand where they stood before it.
            assert lacks or after == {n: before[n] for n in range(step + 1, 11)}, "bit for bit"
            told = second.result()[0]
            assert ("the checkpoint lacks the evaluation of step 4" in told["log"]) == lacks
            assert told["evaluated"] == ([8, 10] if lacks else [4, 8, 10])


BEST = {
    "evaluate": True,
    "eval_steps": 2,
    "steps": 12,
    "best": {"2": 9.0, "4": 8.0, "6": 7.0, "8": 1.0, "10": 9.0},
    "args": {
        "save_strategy": "steps",
        "save_steps": 6,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
    },
}


def test_the_best_model_at_the_end_is_the_one_that_it_is_without_us(run_ranks, tmp_path: Path) -> None:
    """We save its best step, which the Trainer does not. Its state must not name where that was staged."""
    bare_out, out = tmp_path / "bare", tmp_path / "out"
    bare = run_ranks("trainer_loop.py", json.dumps({**BEST, "output_dir": str(bare_out), "attached": False}))[0]
    seen = run_ranks("trainer_loop.py", json.dumps({**BEST, "output_dir": str(out), "save_at": 8}))[0]
    assert seen["delegated"] == [[str(out / "costgov-saving-8" / "checkpoint-8"), None]]
    assert bare["best"] == str(bare_out / "checkpoint-6")
    assert (seen["best"], seen["weights"]) == (str(out / "checkpoint-6"), bare["weights"])
    assert (_names(out), seen["on_save"]) == ({"checkpoint-6"}, [6]), "the limit is 1"


def test_a_checkpoint_of_ours_that_is_the_best_is_so_for_the_train_that_goes_on_from_it(
    run_ranks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chosen = {**BEST, "output_dir": str(out), "args": {**BEST["args"], "save_total_limit": 2}}
    run_ranks("trainer_loop.py", json.dumps({**chosen, "save_at": 8}))
    ours = out / "checkpoint-8"
    state = json.loads((ours / "trainer_state.json").read_text())
    named = {"best_global_step": 8, "best_metric": 1.0, "best_model_checkpoint": str(ours)}
    assert {name: state[name] for name in named} == named

    from safetensors.torch import load_file

    resumed = run_ranks("trainer_loop.py", json.dumps({**chosen, "resume": str(ours)}))[0]
    assert (resumed["best"], resumed["evaluated"]) == (str(ours), [2, 4, 6, 8, 10])
    saved = sum(float(one.double().sum()) for one in load_file(ours / "model.safetensors").values())
    assert sum(resumed["weights"]) == pytest.approx(saved), "those of step 8, not of step 10"


def test_what_the_trainer_saves_without_the_optimizer_it_saves_although_we_save_that_step(
    run_ranks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chosen = {"output_dir": str(out), "own_save": 4, "save_at": 4, "notes": True, "args": {"save_only_model": True}}
    seen = run_ranks("trainer_loop.py", json.dumps(chosen))[0]
    assert seen["on_save"] == [4]
    assert {"optimizer.pt", "trainer_state.json", "noted"} <= _names(out / "checkpoint-4")
    assert _names(out) == {"checkpoint-4"}


def _step_of(record: dict[str, Any]) -> int:
    return int(record["path"].rsplit("-", 1)[1])


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def _contents(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def _losses(governor: FakeGovernor) -> dict[int, float]:
    return {frame["step"]: frame["loss"] for frame in governor.of("step")}
