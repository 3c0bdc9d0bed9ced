"""How many steps the tokens of a log's line are of. All that is told of a line's tokens follows from this one place.

A line stands for as many steps as have passed since the line before that told tokens. `Step.line_steps` says how many
its tokens are of. Where it is 1 (`tokens_per_step`, or a rate times a step's time), a log that prints each tenth step
tells a tenth of what it trains. Where a line does not say it, its tokens are of all its steps.
"""

from __future__ import annotations

from dataclasses import replace

from governor.core.events.inputs import Step, steps_of_line
from governor.core.runs.state import Run


def of_all_its_steps(run: Run, step: Step) -> Step:
    """The line, not yet applied to its run, with the tokens of all steps that it stands for, and how many those are.

    How many steps the first line of an attempt stands for is not known. It counts as one.
    """
    told = step.line_steps
    if step.tokens is None or run.first_step_at is None or (told is not None and told != 1):
        return step
    steps = steps_of_line(step.step, _line_before(run, step))
    if steps == 1:
        return step
    return replace(step, tokens=step.tokens if told is None else step.tokens * steps, line_steps=steps)


def _line_before(run: Run, line: Step) -> int | None:
    """The step of the last line that told tokens. Others may have come in between, and some train a step again."""
    step = line.step
    if line.held is not None:  # The lines before count with this one.
        return line.held.lines[-1][0]
    totals, held = run.log_totals, run.belief.held
    last = run.counted_step
    if totals and totals[-1][0] < step and totals[-1][1] >= (run.tokens_total or 0):
        last = totals[-1][0]
    if held is not None and held.step < step:
        last = held.step if last is None else max(last, held.step)
    return last if last is not None and last < step else None
