"""Forward passes that no step follows are counted, and what the loop tells of them is looked at. Without torch."""

from __future__ import annotations

import math
import threading

import pytest

from trainer_shim.meter import StepMeter
from trainer_shim.progress import PASSES_MIN, STEPS_OF_PASSES, Progress
from trainer_shim.scalars import EngineFacts
from trainer_shim.sight.outputs import Outputs
from trainer_shim.tokens import TokenCount


@pytest.fixture
def meter() -> StepMeter:
    made = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    made.outputs = Outputs(made.progress, period_ns=0)
    return made


def passes(meter: StepMeter, count: int, loss: float) -> None:
    """As a loop that passes its loss through shim.loss() and then drops it."""
    for _ in range(count):
        meter.enter_forward(True, (), {})
        meter.exit_forward(None)
        meter.enter_backward(loss)


def test_passes_are_many_where_several_of_the_longest_steps_would_have_come(meter: StepMeter) -> None:
    progress = meter.progress
    passes(meter, PASSES_MIN, 1.0)
    assert not progress.is_stepless
    meter.end_step(EngineFacts(1))
    assert (progress.forwards, progress.forwards_longest) == (0, PASSES_MIN)
    passes(meter, STEPS_OF_PASSES * PASSES_MIN, 1.0)
    assert not progress.is_stepless
    passes(meter, 1, 1.0)
    assert progress.is_stepless


def test_a_told_loss_is_looked_at_where_no_step_comes(meter: StepMeter) -> None:
    progress = meter.progress
    passes(meter, 1, 1.0)
    meter.end_step(EngineFacts(1))
    passes(meter, PASSES_MIN, math.nan)
    assert progress.outputs_seen == 0, "as often as a loop may drop a batch"
    passes(meter, 4, math.nan)
    assert (progress.outputs_seen, progress.outputs_nonfinite) == (4, 4)
    passes(meter, 2, 1.0)
    assert (progress.outputs_seen, progress.outputs_nonfinite) == (6, 4)
    meter.end_step(EngineFacts(2))
    assert (progress.outputs_seen, progress.outputs_nonfinite, progress.is_stepless) == (0, 0, False)


def test_no_more_than_one_look_a_second() -> None:
    progress = Progress(threading.get_ident())
    outputs = Outputs(progress)
    progress.forwards = PASSES_MIN + 1
    for _ in range(3):
        outputs.told(math.nan)
    assert (progress.outputs_seen, progress.outputs_nonfinite) == (1, 1)
