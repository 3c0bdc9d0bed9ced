"""A user's own loop around an Accelerator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor
from trainer_shim.saving import checkpoint

needs("accelerate")

WARM = ("torch", "accelerate")


def test_an_accelerate_loop_is_seen_saved_and_not_changed(run_ranks, tmp_path: Path) -> None:
    bare = run_ranks("accelerate_loop.py", "bare")[0]
    seen = run_ranks("accelerate_loop.py", str(tmp_path / "checkpoints"))[0]

    assert bare["losses"] == seen["losses"]
    assert bare["weights"] == seen["weights"]
    frames = seen["frames"]
    assert [frame["step"] for frame in frames] == [1, 2, 3, 4, 5, 6, 5, 6], "steps 5 and 6 once more after resume"
    for index, frame in enumerate(frames[:6]):
        assert frame["loss"] == pytest.approx(sum(seen["losses"][2 * index : 2 * index + 2]) / 2)
        assert frame["tokens"] == 2 * 4 * 16
        assert frame["backward_s"] > 0
    assert frames[4]["checkpoint_s"] > 0
    assert seen["fetches"]["outside"] == 0 < seen["fetches"]["inside"]
    assert seen["again"] == seen["losses"][8:], "accelerator.load_state() and the data position, at step 4"
    assert not seen["left_behind"]


def test_each_rank_reads_its_part_of_a_wrapped_loader_or_it_is_said(run_ranks) -> None:
    """prepare() knows a DataLoader by its class, and left a wrapped one to each rank whole."""
    first, second = run_ranks("accelerate_dealt.py", ranks=2)
    parts = [[0, 1], [4, 5]], [[2, 3], [6, 7]]
    for rank, part in zip((first, second), parts, strict=True):
        assert all(rank["same"]), "prepare() returns the wrapped ones, in their places"
        assert (rank["wrapped"], rank["prepared"]) == (part, [part] * 3)
        assert len(rank["dealt"]) == 2
        assert len(rank["unseen"]) == 4, "wrapped before prepare(), which came before attach()"
        assert not rank["left_behind"]
    before, behind = first["log"].split("only the next one is told of", 1)
    said = "accelerator.prepare() has not seen a wrapped loader. Each of the 2 ranks that iterates it reads all of it."
    assert (before.count(said), behind.count(said)) == (0, 1), "by rank 0, once"


@pytest.fixture
def governor(short_tmp: Path) -> Iterator[FakeGovernor]:
    with FakeGovernor(short_tmp / "s") as made:
        yield made


@pytest.mark.parametrize("naming", [False, True])
def test_what_is_asked_for_is_whole_whoever_names_checkpoints(
    run_ranks, governor: FakeGovernor, tmp_path: Path, naming: bool
) -> None:
    """With its automatic naming, save_state() takes no directory, and load_state() the newest of its own."""
    project, stop = tmp_path / "project", tmp_path / "stop"
    asked_for = str(project / "checkpoints") if naming else str(project)  # Accelerate deletes and numbers in there.
    chosen = {"project": str(project), "naming": naming, "checkpoint_dir": asked_for, "stop": str(stop)}
    env = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "drill"}

    def train(resumes: bool) -> list[dict]:
        return run_ranks("accelerate_saved.py", json.dumps({**chosen, "resumes": resumes}), env=env)

    with ThreadPoolExecutor(1) as trainings:
        first = trainings.submit(train, False)
        try:
            governor.frame("step", step=5)
            governor.ask(0, "keep")
            good = governor.frame("ack", incident="keep", what="saved")
            step = good["step"]
            governor.frame("step", step=step + 5)
            governor.ask(0, "nan", checkpoint="suspect")
            nan = governor.frame("ack", incident="nan", what="saved")
        finally:
            stop.touch()
            governor.until(first.done, "the end of the first training")
        told = first.result()[0]
        expected = [governor.frame("step", step=step + n)["loss"] for n in range(1, 6)]
        assert good["checkpoint"]["path"] == str(project / f"cg_{step}")
        assert nan["checkpoint"]["path"] == str(project / f"cg_{nan['step']}_suspect")
        for record in (good["checkpoint"], nan["checkpoint"]):
            assert checkpoint.verify_manifest(record["path"], hashes=True) == []
            listed = {entry.path for entry in checkpoint.read_manifest(record["path"])["files"]}
            assert {"model.safetensors", "optimizer.bin"} <= listed
        assert (project / "latest").read_text() == f"cg_{step}"
        if naming:
            assert [path.name for path in (project / "checkpoints").iterdir()] == ["checkpoint_0"]
            assert told["iteration"] == 1, "the next one that it names itself"

        governor.frames.clear()
        stop.unlink()
        second = trainings.submit(train, True)
        governor.until(second.done, "the end of the second training")
    assert second.result()[0]["resumed"] == [step, str(project / f"cg_{step}")]
    resumed = [governor.frame("step", step=step + n)["loss"] for n in range(1, 6)]
    assert expected == resumed, "the next five losses, bit for bit"
