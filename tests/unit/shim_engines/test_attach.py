"""attach() where it can go wrong, and what it finds out by itself. No framework is needed for either."""

from __future__ import annotations

import pytest

import trainer_shim
from trainer_shim.launch import Launch, clean_labels, gpu_uuids, parse_labels


def test_a_wrong_object_costs_one_clear_line_and_gives_a_handle_that_does_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shim = trainer_shim.attach({"not": "an engine"})
    told = capsys.readouterr().err

    assert told.count("\n") == 1
    assert "TypeError: attach() takes a DeepSpeedEngine" in told
    assert "builtins.dict" in told
    assert not shim.watching
    assert shim.loss(2.5) == 2.5
    assert list(shim.wrap_loader([1, 2])) == [1, 2]
    with shim.phase("eval"):
        pass
    assert shim.resume() is None
    assert (shim.step, shim.tokens_total) == (0, 0)
    shim.finish()
    shim.close()


def test_required_refuses_to_train_what_it_cannot_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    with pytest.raises(SystemExit, match="refuses to train unwatched"):
        trainer_shim.attach(object())


def test_resume_before_attach_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer_shim.resume() is None
    assert "resume() comes after attach()" in capsys.readouterr().err


def test_the_public_names_are_functions_although_modules_share_them() -> None:
    import trainer_shim.attach
    import trainer_shim.resume

    assert callable(trainer_shim.attach)
    assert callable(trainer_shim.resume)


def test_the_launch_is_read_from_the_environment() -> None:
    environ = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "COSTGOV_RUN": "night",
        "COSTGOV_STAGE": "stage1",
        "COSTGOV_LABELS": "team=nlp, owner = ada",
        "COSTGOV_ATTEMPT": "a1",
        "SLURM_JOB_ID": "77",
    }
    launch = Launch(environ, None)

    assert (launch.rank, launch.local_rank, launch.world_size) == (5, 1, 8)
    assert (launch.run, launch.stage, launch.attempt) == ("night", "stage1", "a1")
    assert launch.labels == {"team": "nlp", "owner": "ada", "scheduler_job": "77"}


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({"COSTGOV_ATTEMPT": "a1", "TORCHELASTIC_RESTART_COUNT": "0"}, "a1"),
        ({"COSTGOV_ATTEMPT": "a1", "TORCHELASTIC_RESTART_COUNT": "2"}, "a1.2"),
        ({"SLURM_JOB_ID": "77"}, "77.0"),
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "3"}, "77.1.3"),
    ],
)
def test_every_restart_is_an_attempt_of_its_own(environ: dict[str, str], attempt: str) -> None:
    assert Launch(environ, None).attempt == attempt


def test_a_derived_run_name_survives_a_restart_and_tells_directories_apart() -> None:
    assert Launch({}, "/ckpt/a").run == Launch({"RANK": "1"}, "/ckpt/a").run
    assert Launch({}, "/ckpt/a").run != Launch({}, "/ckpt/b").run


def test_labels_that_are_none_are_told_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_labels("team=nlp,oops,=x") == {"team": "nlp"}
    assert capsys.readouterr().err.count("left out") == 2


def test_labels_are_bounded() -> None:
    labels = clean_labels({f"k{n}": "v" * 1_000 for n in range(100)})

    assert len(labels) == 32
    assert {len(value) for value in labels.values()} == {512}


def test_gpu_uuids_come_from_the_environment_without_touching_a_driver() -> None:
    assert gpu_uuids({"CUDA_VISIBLE_DEVICES": "GPU-aa, MIG-bb"}) == ["GPU-aa", "MIG-bb"]
    assert gpu_uuids({"CUDA_VISIBLE_DEVICES": "0,1"}) == []
