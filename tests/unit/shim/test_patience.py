"""What is asked for waits for the evaluation of its step where that fits well into what every rank has left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.unit.shim.ranks import OneFileSaver
from trainer_shim.governor_socket import GovernorSocket
from trainer_shim.progress import Progress
from trainer_shim.saving import patience
from trainer_shim.saving.save_at_step import SaveAtStep
from trainer_shim.saving.step_gate import Order, StepGate


@pytest.mark.parametrize(
    ("told", "fits"),
    [
        ([{"left_s": 100.0, "eval_s": 50.0}], True),
        ([{"left_s": 100.0, "eval_s": 50.1}], False),
        ([{"left_s": 100.0, "eval_s": 30.0, "checkpoint_s": 20.1}], False),
        ([{"left_s": 100.0, "eval_s": 1.0}, {"left_s": 1.0, "eval_s": 1.0}], False),
        ([{"left_s": 100.0, "eval_s": 1.0}, {"left_s": 100.0}], True),
        ([{"left_s": 100.0}], False),
        ([{"eval_s": 900.0}], True),
        ([{"eval_s": 900.0}, {"left_s": 100.0, "eval_s": 900.0}], False),
        ([{}], True),
    ],
    ids=[
        "twice", "not twice", "with its save", "the least time counts", "one rank evaluates", "not seen yet",
        "the script asked", "the script, and on one rank a governor", "the script, and not seen yet",
    ],
)  # fmt: skip
def test_it_waits_where_evaluation_and_save_fit_twice(told: list[dict[str, float]], fits: bool) -> None:
    assert patience.fits([{"times": one} for one in told]) == fits


def test_the_longest_whole_phase_counts_with_what_is_inside() -> None:
    progress = Progress(threading.get_ident())
    progress.push_phase("eval")
    begun_ns = time.monotonic_ns()
    progress.push_phase("eval")
    progress.pop_phase()
    assert not progress.longest_ns, "the outer one goes on"
    inside_ns = time.monotonic_ns() - begun_ns
    progress.pop_phase()
    longest_ns = progress.longest_ns["eval"]
    assert longest_ns >= inside_ns
    progress.push_phase("eval")
    progress.pop_phase()
    assert progress.longest_ns["eval"] >= longest_ns
    assert list(patience.times_of(progress, 7_000_000_000, False)) == ["eval_s", "left_s"]
    assert list(patience.times_of(progress, 7_000_000_000, True)) == ["eval_s"]
    progress.forget_longest("eval")
    assert patience.times_of(progress, 7_000_000_000, False) == {"left_s": 7.0}


@pytest.mark.parametrize("waits", [True, False])
def test_what_waits_is_saved_at_the_boundary_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], waits: bool
) -> None:
    gate = StepGate(0)
    saver = OneFileSaver(tmp_path, 0)
    saver.gate = gate
    progress = Progress(threading.get_ident())
    saving = SaveAtStep(0, gate, progress, saver, GovernorSocket(["/nonexistent"], 0, dict))
    deadline_ns = time.monotonic_ns() + 60_000_000_000
    gate.promise(1, deadline_ns)
    gate.aim(1)
    gate.order(Order(True, "cg_1", "good", False, 86, deadline_ns, "i", 1, waits))
    assert gate.reach(1)
    saving.hold(1, False, evaluates=True)
    assert saver.steps == ([] if waits else [1])
    assert gate.reach(1) == waits
    saving.hold(1, False, evaluates=False)
    assert saver.steps == [1]
    assert ("step 1 is saved before its evaluation" in capsys.readouterr().err) != waits
    assert gate.result is not None
    assert gate.result.error is None
