"""attach(trainer) of Lightning: frames, identical numbers, a NaN that is seen, a checkpoint that resumes."""

from __future__ import annotations

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor, let_go, saved_in_the_step_behind
from trainer_shim.saving import checkpoint

WARM = ("torch", "lightning.pytorch")
STEPS = 8
HELD = ["step-3", "evaluated-4", "step-7"]

needs("lightning")


def told(directory: Path, **more: object) -> str:
    return json.dumps({"attached": True, "steps": STEPS, "directory": str(directory), **more})


@pytest.mark.parametrize("clip", [None, 0.5])
def test_frames_tell_what_happened_and_change_nothing(run_ranks, tmp_path: Path, clip: float | None) -> None:
    bare = run_ranks("lightning_loop.py", told(tmp_path, attached=False, clip=clip))[0]
    seen = run_ranks("lightning_loop.py", told(tmp_path, clip=clip))[0]
    assert (bare["losses"], bare["weights"]) == (seen["losses"], seen["weights"])
    frames = seen["frames"]
    assert [frame["step"] for frame in frames] == list(range(1, STEPS + 1)) == seen["boundaries"]
    for index, frame in enumerate(frames):
        assert frame["loss"] == pytest.approx(sum(seen["losses"][2 * index : 2 * index + 2]) / 2)
        assert frame["tokens"] == 2 * 4 * 16
        assert frame["lr"] == 1e-2
        assert ("grad_norm" in frame) == (clip is not None)
        assert frame["backward_s"] > 0
    assert (clip is not None) or frames[0]["grad_finite"]
    assert seen["phases"].count("eval") >= 2, "before training, and after eight batches"
    assert seen["hello"]["framework"] == "lightning"
    assert seen["fetches"]["outside"] == 0 < seen["fetches"]["inside"]
    assert seen["hello"]["total_steps"] == STEPS
    assert seen["finished"][0] == ["train_end", True]


def test_a_nan_is_seen_at_its_step(run_ranks, tmp_path: Path) -> None:
    frames = run_ranks("lightning_loop.py", told(tmp_path, broken=5))[0]["frames"]
    assert [math.isfinite(frame["loss"]) for frame in frames] == [True] * 4 + [False] * 4


@pytest.mark.parametrize("stream", [False, True], ids=["of a length", "of none"])
def test_a_checkpoint_in_our_directory_resumes_with_the_same_losses(run_ranks, tmp_path: Path, stream: bool) -> None:
    """Of a loader without a length Lightning fetches one batch ahead."""
    env = {"COSTGOV_RUN": "first"}
    whole = run_ranks("lightning_loop.py", told(tmp_path, save_at=3, stream=stream), env=env)[0]
    path = tmp_path / "costgov" / "cg_drill" / "trainer.ckpt"
    assert whole["hello"]["checkpoint_dir"] == str(tmp_path / "costgov")
    resumed = run_ranks("lightning_loop.py", told(tmp_path, resume=str(path), stream=stream))[0]
    assert resumed["losses"] == whole["losses"][6:]
    assert [frame["step"] for frame in resumed["frames"]] == list(range(4, STEPS + 1))
    assert resumed["hello"]["resumed_step"] == 3
    first = {"run": "first", "step": 3, "tokens_total": whole["frames"][2]["tokens_total"]}
    assert (whole["hello"]["origin"], resumed["hello"]["origin"]) == ({}, first)
    unnamed = {"COSTGOV_RUN": "again", "COSTGOV_UNNAMED_RUN": "again"}
    again = run_ranks("lightning_loop.py", told(tmp_path, resume=str(path), stream=stream), env=unnamed)[0]
    assert again["hello"]["origin"] == {}, "its own directory"


@pytest.mark.parametrize("step", [2, 4], ids=["within an epoch", "at its end"])
def test_a_step_with_a_validation_is_saved_behind_it(run_ranks, tmp_path: Path, step: int) -> None:
    """It draws random numbers, and Lightning does not make up for one that a checkpoint lacks."""
    chosen = {"size": 32, "steps": 12}
    whole = run_ranks("lightning_loop.py", told(tmp_path, save_at=step, **chosen))[0]
    path = str(tmp_path / "costgov" / "cg_drill" / "trainer.ckpt")
    resumed = run_ranks("lightning_loop.py", told(tmp_path / "again", resume=path, **chosen))[0]
    assert resumed["losses"] == whole["losses"][2 * step :]
    later = [one for one in resumed["validations"] if one > step]
    assert later == [one for one in whole["validations"] if one > step]


def test_where_a_rank_may_be_held_does_not_depend_on_what_it_alone_has_seen(run_ranks, tmp_path: Path) -> None:
    """One rank's loss may not be finite where the others' is, and a save that some begin before a validation and some
    behind it stands still. What all agreed on decides: see test_patience."""
    good, bad = (run_ranks("lightning_loop.py", told(tmp_path, size=32, **how))[0] for how in ({}, {"broken": 4}))
    assert good["seen_at"] == bad["seen_at"]


@pytest.mark.parametrize(
    ("ends", "places"),
    [
        ({}, [("validations", 4), ("steps", 2), ("steps", 4)]),
        ({"epochs": 3, "validates": 0}, [("epochs", 4), ("steps", 4)]),
        ({"epochs": 3, "validates": 0, "seed": 5}, [("epochs", 8)]),
        ({"epochs": 3, "validates": 0, "workers": 1}, [("epochs", 4), ("steps", 4)]),
    ],
    ids=["steps", "epochs", "a generator of the loader's own", "workers that live on"],
)
def test_its_own_checkpoints_resume_with_the_same_losses_at_the_end_of_an_epoch_too(
    run_ranks, tmp_path: Path, ends: dict[str, int], places: list[tuple[str, int]]
) -> None:
    """Four steps an epoch, in an order that is drawn at its begin, and perhaps a validation after each second step.

    At the end of an epoch's last batch Lightning counts it as done, behind the validation after that it asks for
    nothing more of it, and at the epoch's end for one batch, or, told epochs and no steps, gives the loader no state.
    What is saved at the end of a batch lacks the step's validation, which Lightning by itself never makes.
    """
    chosen = {"size": 32, "steps": 12, **ends}
    saves = sorted({place for place, _ in places})
    seen = run_ranks("lightning_loop.py", told(tmp_path, saves=saves, **chosen))[0]
    whole = seen["losses"]
    assert len(whole) == 24
    for place, step in places:
        path = str(tmp_path / place / f"step={step}.ckpt")
        resumed = run_ranks("lightning_loop.py", told(tmp_path / "again", resume=path, **chosen))[0]
        assert resumed["losses"] == whole[2 * step :], (place, step)
        made = [one for one in seen["validations"] if one > step - (place == "steps")]
        assert [one for one in resumed["validations"] if one > 0][-len(made) :] == made
        assert ("it comes now" in resumed["log"]) == (place == "steps" and not ends)


@pytest.mark.parametrize(
    ("chosen", "step"),
    [
        ({"stream": True, "epochs": 3, "interval": 1.0}, 4),
        ({"epochs": 3, "interval": 1.0}, 12),
        ({"steps": 12, "interval": 1.0}, 12),
        ({"epochs": 3, "interval": 1.0, "every": 2}, 8),
    ],
    ids=["no length", "the last epoch", "the last step", "every second epoch"],
)
def test_a_validation_that_is_not_made_up_for_takes_no_step_along_and_is_said_once(
    run_ranks, tmp_path: Path, chosen: dict[str, Any], step: int
) -> None:
    """Saved at the end of an epoch's last batch, before its validation."""
    how = {"size": 32, **chosen}
    whole = run_ranks("lightning_loop.py", told(tmp_path, saves=["steps"], **how))[0]
    assert len(whole["losses"]) == 24
    path = str(tmp_path / "steps" / f"step={step}.ckpt")
    resumed = run_ranks("lightning_loop.py", told(tmp_path / "again", resume=path, **how))[0]
    assert len(resumed["losses"]) == 24 - 2 * step
    made = [one for one in whole["validations"] if one > step]
    assert [one for one in resumed["validations"] if one > step] == made
    assert "it comes now" not in resumed["log"]
    said = f"the checkpoint lacks the validation of step {step}: Lightning does not make up for it"
    assert resumed["log"].count(said) == 1


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_a_plateau_that_lightning_does_not_step_is_told(run_ranks, tmp_path: Path, interval: str) -> None:
    how = {"size": 32, "steps": 6, "plateau": interval}
    first = run_ranks("lightning_loop.py", told(tmp_path, saves=["steps"], **how))[0]
    path = str(tmp_path / "steps" / "step=2.ckpt")
    resumed = run_ranks("lightning_loop.py", told(tmp_path / "again", resume=path, **how))[0]
    assert "ReduceLROnPlateau" not in first["log"]
    assert ("does not step ReduceLROnPlateau" in resumed["log"]) == (interval == "epoch")


def test_what_might_not_live_to_see_the_end_of_a_validation_is_saved_before_it(
    run_ranks, short_tmp: Path, tmp_path: Path
) -> None:
    """A first one, of which nobody knows how long it takes; then one that fits well. Both resume alike."""
    chosen: dict[str, Any] = {"watched": True, "steps": 10}
    with FakeGovernor(short_tmp / "s") as governor, ThreadPoolExecutor(1) as trainings:
        env = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "drill"}
        ask = told(tmp_path, holds=str(tmp_path), at=HELD, **chosen)
        first = trainings.submit(run_ranks, "lightning_loop.py", ask, env=env)
        with let_go(tmp_path, *HELD):
            record = saved_in_the_step_behind(governor, tmp_path, 3, grace_s=20)
            (tmp_path / "evaluated-4").touch()
            saved_in_the_step_behind(governor, tmp_path, 7, grace_s=600)
        governor.until(first.done, "the end of the first training")
        whole = first.result()[0]
        assert "step 4 is saved before its evaluation" in whole["log"]
        assert "step 8" not in whole["log"]
        assert checkpoint.verify_manifest(record["path"], hashes=True) == []
        for step, lacks in ((8, False), (4, True)):
            second = trainings.submit(run_ranks, "lightning_loop.py", told(tmp_path, resume="shim", **chosen), env=env)
            governor.until(second.done, "the end of the second training")
            resumed = second.result()[0]
            assert resumed["losses"] == whole["losses"][2 * step :]
            assert ([one for one in resumed["validations"] if one] == [4, 8]) == lacks
            assert ("the checkpoint lacks the validation of step 4: it comes now" in resumed["log"]) == lacks
            shutil.rmtree(tmp_path / "costgov" / f"cg_{step}")
