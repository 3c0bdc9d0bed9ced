"""k-fold, SFT then DPO, a search over hyperparameters: each training of a process is watched, and frees its model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor

needs("transformers", "lightning", "accelerate", "deepspeed")

WARM = ("torch", "transformers.trainer", "transformers.models.llama.modeling_llama", "lightning.pytorch", "deepspeed")
STEPS = 4


@pytest.fixture
def governor(short_tmp: Path) -> Iterator[FakeGovernor]:
    with FakeGovernor(short_tmp / "s") as made:
        yield made


def played(run_ranks, governor: FakeGovernor, directory: Path, **told: Any) -> dict[str, Any]:
    """What the script reports of its trainings, while the governor listens."""
    env = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "drill", "COSTGOV_ATTEMPT": "a", **told.pop("env", {})}
    chosen = json.dumps({"directory": str(directory), "trainings": 2, **told})
    with ThreadPoolExecutor(1) as trainings:
        done = trainings.submit(run_ranks, "turns_loop.py", chosen, env=env)
        governor.until(done.done, "the end of the trainings")
    return done.result()[0]


def attempts(governor: FakeGovernor) -> list[str]:
    return list(dict.fromkeys(frame["attempt"] for frame in governor.of("hello")))


@pytest.mark.parametrize("kind", ["plain", "accelerate", "hf", "lightning"])
def test_each_of_two_trainings_is_watched_and_what_was_trained_goes_with_the_script(
    run_ranks, governor: FakeGovernor, tmp_path: Path, kind: str
) -> None:
    seen = played(run_ranks, governor, tmp_path, kind=kind)
    assert seen["alive"] == [[False, False]] * 2, "its model and optimizer, though the script has its handle yet"
    assert attempts(governor) == ["a", "a+1"]
    assert [frame["step"] for frame in governor.of("step")] == [*range(1, STEPS + 1)] * 2
    assert seen["steps"] == [STEPS, STEPS]
    assert seen["handles"] == 2
    assert [frame["origin"] for frame in governor.of("hello")] == [{}] * len(governor.of("hello"))
    assert [frame["step"] for frame in governor.of("bye")] == [STEPS, STEPS]
    assert "UNWATCHED" not in seen["log"]


@pytest.mark.parametrize("ends", ["finish", "close"])
@pytest.mark.parametrize("kind", ["plain", "deepspeed"])
def test_who_keeps_the_first_model_says_that_it_is_over(
    run_ranks, governor: FakeGovernor, tmp_path: Path, kind: str, ends: str
) -> None:
    """A teacher that is distilled afterwards; DeepSpeed keeps engines by itself."""
    seen = played(run_ranks, governor, tmp_path, kind=kind, keeps=True, ends=ends)
    assert attempts(governor) == ["a", "a+1"]
    assert [frame["step"] for frame in governor.of("step")] == [*range(1, STEPS + 1)] * 2
    assert "UNWATCHED" not in seen["log"]


def test_a_closed_handle_keeps_nothing(run_ranks, governor: FakeGovernor, tmp_path: Path) -> None:
    for kind in ("plain", "hf", "lightning", "accelerate"):
        seen = played(run_ranks, governor, tmp_path / kind, kind=kind, ends="close", trainings=1)
        assert seen["alive"] == [[False, False]], kind


def test_a_second_that_trains_beside_the_first_is_not_watched_and_said_for_good(
    run_ranks, governor: FakeGovernor, tmp_path: Path
) -> None:
    seen = played(run_ranks, governor, tmp_path, kind="plain", keeps=True)
    assert "UNWATCHED: attach(TinyModel)" in seen["log"]
    assert "resume(): this handle is attached to nothing" in seen["log"]
    assert seen["watching"] == [True, False]
    assert seen["resumed"] == [None, None]
    assert seen["steps"] == [STEPS, 0]
    assert attempts(governor) == ["a"]
    assert governor.of("hello")[-1]["beside"] == "TinyModel"


def test_required_refuses_a_second_that_trains_beside_the_first(
    run_ranks, governor: FakeGovernor, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=r"(?s)UNWATCHED: attach\(TinyModel\).*\[1\] == \[0\]"):
        played(run_ranks, governor, tmp_path, kind="plain", keeps=True, env={"COSTGOV_REQUIRED": "1"})


@pytest.mark.parametrize("unlike", ["close", "probe", "stage"])
def test_ranks_that_attached_unlike_are_together_in_the_next_training(
    run_ranks, governor: FakeGovernor, tmp_path: Path, unlike: str
) -> None:
    """One closes the handle where all keep the model, tries a probe, or begins a stage alone. Then all resume()."""
    env = {"COSTGOV_SOCKET": str(governor.path), "COSTGOV_RUN": "drill", "COSTGOV_ATTEMPT": "a"}
    with ThreadPoolExecutor(1) as trainings:
        done = trainings.submit(run_ranks, "unlike_loop.py", unlike, str(tmp_path), ranks=2, env=env)
        governor.until(done.done, "the end of the trainings")
    seen = done.result()
    assert [each["watching"] for each in seen] == [True, True]
    assert seen[0]["number"] == seen[1]["number"]
    assert [each["saved"] for each in seen] == [True, True], seen[0]["log"]
    assert max(each["waited_s"] for each in seen) < 15
    told = "rank 1 trains something else, or has not attached this: nothing is saved" in seen[0]["log"]
    assert told is (unlike == "stage")
