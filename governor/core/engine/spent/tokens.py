"""Tokens, the clock of money: each step's tokens go into the window of the step's own time."""

from __future__ import annotations

from governor.core.base.units import MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import keep_window
from governor.core.engine.spent.marks import worth_at
from governor.core.events.inputs import Step
from governor.core.money.token_windows import TokenMeter
from governor.core.runs import intake
from governor.core.runs.counting import take_training
from governor.core.runs.state import Rank


def begin_training(managed: ManagedRun, rank: Rank, step: Step) -> None:
    """An attempt's first step comes. In another training than the last one it is counted by that one's own totals."""
    run, meter = managed.run, managed.history.meter
    if meter is None or step.attempt_step is None or not intake.is_lead(run, rank):
        return
    left, is_anew = meter.trainings.now, step.attempt_step == step.step
    again, barred = run.trains_again, run.trained_count.of_other_origins()
    if meter.begin_attempt(run.attempt, run.saves_in, trains_again=again, is_anew=is_anew, barred=barred):
        has_trained = meter.progress_tokens > meter.earlier_tokens
        take_training(run, left, meter.trainings.now, has_trained=has_trained)


def meter_tokens(node: Node, managed: ManagedRun, step: Step, ended: MonoNs) -> None:
    """Charge the step's tokens to the window of its own time (`ended`). One that closes is persisted with the meter."""
    run = managed.run
    trained_now = (step.tokens or 0) + (step.held.tokens if step.held is not None else 0)
    assert run.tokens_total is not None, "the caller looked"
    if step.attempt_step is not None:
        began, counted, newest = managed.money.metered
        # A process that attaches anew counts its attempt's steps from one again. Its absolute step goes on.
        if began == run.attempt_at and step.attempt_step <= counted and step.step <= newest:
            return  # Reported twice or late: counted already.
        managed.money.note_metered(run.attempt_at, step.attempt_step, step.step)
    meter, first_line = managed.history.meter, managed.money.first_line
    begins = meter is None
    if meter is None:
        # The first window has all spend before the first step, but no tokens that were trained before we saw the run.
        trained = max(0, run.tokens_total - trained_now)
        size, since = managed.policy.budget.window_tokens, managed.history.paid_from
        meter = managed.history.begin_metering(size, trained, since, run.attempt, run.saves_in)
        if step.connection is None and step.tokens is None:
            managed.money.note_first_line((step.step, run.tokens_total))
        # Persisted with the next tick. Otherwise a restarted governor would begin further on, with all of the spend.
        node.request_persist()
    if begins:  # Its metering begins there: nothing was passed over.
        run.trained_count.take_begun()
        meter.take(run.trained_count.strand, run.trained_count.offset)
    has_gone_on = _go_on(node, managed, meter, step, ended)
    worth = worth_at(node, managed, meter, step.at, ended)
    began_at = run.first_step_at if run.first_step_at is not None else run.attempt_at
    if worth.is_lent and worth.usd_micros <= meter.step_usd_micros:
        managed.money.note_first_line(None)
        # Its first step may have ended before it pays for any.
        boot = managed.money.marks.boot_of(ended, worth.boot - ended) if begins else worth.boot
        meter.lend(run.tokens_total, boot, began_at)
        return
    if first_line is not None:
        _count_first_line(managed, meter, first_line, step)
    then_tokens = managed.policy.budget.window_tokens
    window = meter.add(
        run.tokens_total, trained_now, worth.usd_micros, worth.boot, then_tokens, began_at,
        unpriced_ns=worth.unpriced_ns, is_priced=worth.is_priced, has_gone_on=has_gone_on,
    )  # fmt: skip
    if window is not None:
        managed.money.add_window(window, meter.began_tokens)
        keep_window(node, managed, window, meter)


def _go_on(node: Node, managed: ManagedRun, meter: TokenMeter, step: Step, ended: MonoNs) -> bool:
    """Pass over what was trained elsewhere before the attempt's first step. Whether it is known where that goes on.

    Behind a load within the attempt, before the first step since then.
    """
    run, count = managed.run, managed.run.trained_count
    found = count.take_begun()
    if found is None:
        return False
    begun, has_said_bye = found
    began, paid = managed.money.marks.spent(run.attempt_at)[0], 0
    if meter.first_step_at == run.first_step_at:
        began = meter.step_usd_micros  # What was counted last is of this attempt.
    elif not has_said_bye:
        seen = managed.history.split.ended_usd_micros  # None: nobody saw the one before end: until this one began.
        paid = max(0, (began if seen is None else seen) - meter.step_usd_micros)
    if count.loaded_at and count.told_at is not None:
        loaded = worth_at(node, managed, meter, step.at, min(count.told_at, ended)).usd_micros
        paid += max(0, loaded - max(began, meter.step_usd_micros))
    passed = meter.go_on(begun, paid, count.strand, count.offset)
    if passed > (step.tokens or 0):
        run.belief.pass_over(step.step, passed)
    return True


def end_stage(node: Node, managed: ManagedRun, stage: str | None) -> None:
    """Another stage begins, unless it is None or the same: what is trained by now was trained in this one.

    To be called before anything of the run is the new attempt's. What it closes is no sample of a price or a speed.
    """
    meter, known = managed.history.meter, managed.run.stage
    if meter is not None and stage not in (None, known) and (window := meter.cut()) is not None:
        keep_window(node, managed, window, meter)


def _count_first_line(managed: ManagedRun, meter: TokenMeter, first_line: tuple[int, int], step: Step) -> None:
    """Count the tokens of a log's first line, if the second shows that the run began with it.

    Then it is no further from step 0 than from the second, and its total is not of more steps than that.
    """
    managed.money.note_first_line(None)
    (first, total), now = first_line, managed.run.tokens_total
    grown = (now or 0) - total
    if meter.progress_tokens == meter.began_tokens == total and first <= step.step - first and total <= 2 * grown:
        meter.begin_earlier(total)
