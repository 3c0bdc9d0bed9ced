"""The tokens of a log's line that says them of one step, and stands for as many as have passed since the line before.

`Step.line_steps` says how many steps a line's tokens are of. Where it is 1 (`tokens_per_step`, or a rate times a step's
time), a log that prints each tenth step tells a tenth of what it trains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from governor.core.events.inputs import Step
from governor.core.runs.state import Run

# A step's number that is further on is a broken one, or of another training, sooner than that of a log's next line.
LINE_STEPS_MAX: Final = 10_000


def of_all_its_steps(run: Run, step: Step, *, is_first: bool) -> Step:
    """The line, not yet entered, with the tokens of each step that it stands for.

    `is_first`: of its attempt. How many steps that one stands for is not known, and it counts as one.
    """
    if step.tokens is None or is_first:
        return step
    steps = steps_of_line(step.step, _line_before(run, step.step))
    return step if steps == 1 else replace(step, tokens=step.tokens * steps, line_steps=steps)


def steps_of_line(step: int, before: int | None) -> int:
    """How many steps a line stands for, where `before` is the step of the line before. 1 where that says nothing."""
    advanced = step - before if before is not None else 1
    return advanced if 1 < advanced <= LINE_STEPS_MAX else 1


def _line_before(run: Run, step: int) -> int | None:
    """The step of the last line that told tokens. Others may have come in between, and some train a step again."""
    totals, held = run.log_totals, run.belief.held
    last = run.counted_step
    if totals and totals[-1][0] < step and totals[-1][1] >= (run.tokens_total or 0):
        last = totals[-1][0]
    if held is not None and held.step < step:
        last = held.step if last is None else max(last, held.step)
    return last if last is not None and last < step else None
