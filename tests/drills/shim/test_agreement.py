"""Real DeepSpeed, two gloo ranks, also under its launchers: asking ONE rank makes all of them save the same step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor, assert_governor_counts
from trainer_shim.saving import checkpoint

needs("deepspeed")

RANKS = (0, 1)
HALTING = ["received", "agreed", "saving", "saved"]


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        ("zero0", "forks"),
        ("zero2", "torchrun"),
        *((kind, "deepspeed") for kind in ("zero0", "zero2", "zero3", "pipe")),
        ("zero3", "forks"),
        ("pipe", "forks"),
        ("accelerate", "forks"),
    ],
)
def test_one_asked_rank_saves_all_and_the_resume_is_bit_identical(
    kind: str, launcher: str, launch, governor: FakeGovernor, tmp_path: Path
) -> None:
    if kind == "accelerate":
        pytest.importorskip("accelerate", reason="needs accelerate")
    job = launch(launcher, kind=kind, steps=10**6)
    for rank in RANKS:
        governor.frame("step", rank, step=3)
    if kind == "accelerate":
        assert governor.frame("hello")["zero_stage"] == 2, "the plugin is in use, and not Accelerate's own loop"

    # One rank is asked, and the request says to go on.
    governor.ask(1, "keep", checkpoint="good")
    records = [governor.frame("ack", rank, incident="keep", what="saved") for rank in RANKS]
    step = records[0]["step"]
    assert [step, step] == [record["step"] for record in records], "every rank saved the same step"
    of_all = [{**record["checkpoint"], "mono_ns": None} for record in records]  # Each was there at its own moment.
    assert of_all[0] == of_all[1]
    for rank in RANKS:
        assert governor.acks(rank, "keep") == HALTING
        governor.frame("step", rank, step=step + 6)
    assert f"cg_{step}" == (tmp_path / "checkpoints" / "latest").read_text()
    assert checkpoint.verify_manifest(records[0]["checkpoint"]["path"], hashes=True) == []
    assert_governor_counts(records[0]["checkpoint"]["path"])

    # The other rank is asked, and the request says to end: all park at the step they saved.
    governor.ask(0, "halt", checkpoint="suspect", exit_after=True)
    last = [governor.frame("ack", rank, incident="halt", what="saved")["step"] for rank in RANKS]
    assert last[0] == last[1]
    for rank in RANKS:
        governor.frame("phase", rank, phase="idle", step=last[0])
        assert governor.of("step", rank)[-1]["step"] == last[0], "nothing trains on after an agreed halt"
    assert f"cg_{step}" == (tmp_path / "checkpoints" / "latest").read_text(), "a suspect one never moves latest"
    job.end()

    again = launch(name="again", run="another", kind=kind, steps=step + 5, resume=True)
    assert again.wait() == 0
    of_first = {"run": "drill", "step": step, "tokens_total": of_all[0]["tokens_total"]}
    for rank in RANKS:
        hello = governor.frame("hello", rank, run="another", resumed_step=step)
        assert hello["origin"] == of_first, "no hello has the step and another origin"
        began = [frame["origin"] for frame in governor.of("hello", rank) if frame["run"] == "drill"]
        assert began == [{}] * len(began)
        before, after = job.losses(rank), again.losses(rank)
        assert list(range(step + 1, step + 6)) == list(after)
        assert {n: before[n] for n in after} == after, "the next five losses, bit for bit"
