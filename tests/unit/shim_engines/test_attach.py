"""attach() where it can go wrong, and what it finds out by itself. No framework is needed for either."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainer_shim
from trainer_shim.attach import _as_json
from trainer_shim.interfaces import NoWatch
from trainer_shim.launch import Launch, clean_labels, gpu_uuids, is_required, parse_labels
from trainer_shim.lifetime.meeting import Where


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
    with pytest.raises(RuntimeError, match="attached to nothing"):
        shim.resume("checkpoints/cg_101")
    assert (shim.step, shim.tokens_total) == (0, 0)
    shim.finish()
    shim.close()


@pytest.mark.parametrize(
    ("given", "named", "told"),
    [
        (("model", "optimizer"), {"checkpoint_dir": "ck"}, "all else by name, as in optimizer=optimizer"),
        (("model",), {"checkpoints_dir": "ck"}, "unexpected keyword argument 'checkpoints_dir'"),
        ((), {}, "missing 1 required positional argument: 'engine'"),
    ],
)
def test_a_call_that_the_signature_refuses_costs_one_line_too(
    given: tuple[str, ...], named: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attach: Any = trainer_shim.attach
    shim = attach(*given, **named)
    said = capsys.readouterr().err
    assert said.startswith("costgov: attach() failed, training goes on unwatched: TypeError: ")
    assert told in said
    assert said.count("\n") == 1
    assert not shim.watching
    assert shim.loss(2.5) == 2.5


def test_required_refuses_a_call_that_watches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSTGOV_REQUIRED", "1")
    attach: Any = trainer_shim.attach
    with pytest.raises(SystemExit, match="refuses to train unwatched"):
        attach("model", "optimizer")


@pytest.mark.parametrize("word", ["1", "true", "YES", " on "])
def test_required_refuses_to_train_what_it_cannot_watch(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("COSTGOV_REQUIRED", word)
    with pytest.raises(SystemExit, match="refuses to train unwatched"):
        trainer_shim.attach(object())


@pytest.mark.parametrize("word", ["", "0", "False", "no", "off"])
def test_not_required_is_not_a_word_that_needs_a_line(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_required({"COSTGOV_REQUIRED": word})
    assert capsys.readouterr().err == ""


def test_required_in_a_word_that_nobody_knows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_required({"COSTGOV_REQUIRED": "ja"})
    assert "COSTGOV_REQUIRED=ja is neither 1 nor 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_what_is_no_number_of_ranks_ends_attach_before_a_thread_loops_over_them(name: str) -> None:
    with pytest.raises(ValueError, match="no number of ranks"):
        Launch({name: "99999999999999999999"}, None)


def test_resume_before_attach_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer_shim.resume() is None
    assert "resume() comes after attach()" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="comes after attach"):
        trainer_shim.resume("checkpoints/cg_101")


def test_the_public_names_are_functions_although_a_module_shares_one() -> None:
    import trainer_shim.attach

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


ATTEMPT = "import os; from trainer_shim.launch import Launch; print(Launch(os.environ, None).attempt)"


def ranks_attempts(ranks: int, port: int, *, below_a_launcher: bool = False) -> set[str]:
    """Start that many ranks, which have no process group, and return the attempts they believe in."""
    known = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environ = {**known, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", ATTEMPT]
    if below_a_launcher:
        command = ["/bin/sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, ATTEMPT]
    found = [
        subprocess.run(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        for _ in range(ranks)
    ]
    return {run.stdout.strip() for run in found}


ROOT = Path(trainer_shim.__file__).parents[1]


def test_ranks_that_attach_before_their_process_group_name_the_same_attempt() -> None:
    first = ranks_attempts(2, 29500)
    assert len(first) == 1
    assert first != ranks_attempts(2, 29501), "one shell launched twice"
    assert first != ranks_attempts(1, 29500, below_a_launcher=True), "two launchers, one fixed port"


def test_one_process_after_the_other_are_two_attempts() -> None:
    assert ranks_attempts(1, 29500) != ranks_attempts(1, 29500)


def test_what_was_given_is_told_in_plain_text_and_numbers() -> None:
    class Numpyish:
        def __int__(self) -> int:
            return 4096

    given = {"run": Path("runs/a"), "stage": "s" * 2000, "tokens_per_step": Numpyish(), "total_steps": None}
    assert _as_json(given) == {"run": "runs/a", "stage": "s" * 512, "tokens_per_step": 4096}


@pytest.mark.parametrize("argv", [["python", "x" * 5000], ["python"] * 65, ["python"] + ["y" * 2000] * 5])
def test_a_command_that_fits_no_hello_is_left_out_whole(argv: list[str]) -> None:
    show = "from trainer_shim import launch; print(launch.resume_argv())"
    run = subprocess.run([argv[0], "-c", show, *argv[1:]], executable=sys.executable, cwd=ROOT, stdout=subprocess.PIPE)
    assert run.stdout.strip() == b"[]"


class OneTurn:
    """All ranks resume together."""

    def gather(self) -> tuple[Where, int]:
        return Where.TOGETHER, 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_load_is_progress_as_it_begins_and_as_it_ends(fails: bool) -> None:
    """It passes no hook: a rank that stands still behind it would seem to have hung since attach()."""
    shim: Any = trainer_shim.attach({"not": "an engine"})
    progress, inside = shim._meter.progress, list[int]()

    class Loads(NoWatch):
        def resume(self, directory: str | None = None) -> None:
            inside.append(progress.progress_seq)
            if fails:
                raise TimeoutError("a rank did not join")

    shim.watching, shim._way, shim._meter.watch = True, OneTurn(), Loads()
    before = progress.progress_seq
    with pytest.raises(TimeoutError) if fails else contextlib.nullcontext():
        shim.resume()
    assert before < inside[0] < progress.progress_seq
    ended = progress.progress_seq
    with pytest.raises(TimeoutError) if fails else contextlib.nullcontext():
        shim.resume()
    assert progress.progress_seq == ended, "a loop that asks again finds nothing, and stands still"
