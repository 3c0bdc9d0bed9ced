"""transformers.Trainer over DeepSpeed, two gloo ranks: the Trainer saves by its own means, at the agreed step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor, assert_governor_counts
from trainer_shim.saving import checkpoint

needs("deepspeed", "transformers")

RANKS = (0, 1)


@pytest.mark.parametrize(("launcher", "stage"), [("forks", 2), ("deepspeed", 3)])
def test_one_asked_rank_makes_the_trainer_save_everywhere(
    launcher: str, stage: int, launch, governor: FakeGovernor, tmp_path: Path
) -> None:
    job = launch(launcher, script="train_hf.py", steps=10**5, stage=stage, own_save=2)
    for rank in RANKS:
        governor.frame("step", rank, step=3)
    output = tmp_path / "output"
    governor.ask(0, "nan", checkpoint="suspect")
    nan = [governor.frame("ack", rank, incident="nan", what="saved") for rank in RANKS]
    suspect = output / f"costgov-suspect-{nan[0]['step']}"
    assert [str(suspect)] * 2 == [record["checkpoint"]["path"] for record in nan]
    assert checkpoint.verify_manifest(str(suspect), hashes=True) == []
    assert {path.name for path in output.iterdir()} == {"checkpoint-2", suspect.name}
    for rank in RANKS:
        last_good = governor.of("hello", rank)[-1]["last_good"]
        assert last_good["path"] == str(output / "checkpoint-2"), "not what the engine saved"
    governor.ask(1, "keep")
    saved = [governor.frame("ack", rank, incident="keep", what="saved") for rank in RANKS]
    step = saved[0]["step"]
    assert saved[1]["step"] == step
    path = output / f"checkpoint-{step}"
    assert [str(path)] * 2 == [record["checkpoint"]["path"] for record in saved]
    assert checkpoint.verify_manifest(str(path), hashes=True) == []
    assert_governor_counts(str(path))
    assert {path.name for path in output.iterdir()} == {"checkpoint-2", suspect.name, path.name}
    expected = [[governor.frame("step", rank, step=step + n)["loss"] for n in range(1, 6)] for rank in RANKS]

    governor.ask(0, "halt", exit_after=True)
    last = [governor.frame("ack", rank, incident="halt", what="saved")["step"] for rank in RANKS]
    assert last[0] == last[1]
    for rank in RANKS:
        governor.frame("phase", rank, phase="idle", step=last[0])
        assert governor.of("step", rank)[-1]["step"] == last[0]
    job.end()

    governor.frames.clear()
    (output / f"checkpoint-{last[0]}" / checkpoint.MANIFEST).write_text("{}")  # What a crash may leave.
    again = launch(name="again", script="train_hf.py", steps=step + 5, stage=stage, resumes=True)
    for rank in RANKS:
        governor.frame("bye", rank)
    assert again.wait() == 0
    resumed = [[governor.frame("step", rank, step=step + n)["loss"] for n in range(1, 6)] for rank in RANKS]
    assert expected == resumed, "the next five losses, bit for bit"
