"""What the cells of the halt table do: each act returns the next Halt and the effects, and does nothing else.

An act does not know the table. Only table.py says which act answers which fact, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import Ask, CloseIncident, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.halt.state import Fact, Halt, HaltPlan, HaltState, StopTarget

# With the pauses between them, about a minute of 429 or 5xx. Then a person is called.
STOP_ATTEMPTS_PER_RUNG_MAX: Final = 5
# A provider that has answered no stop for so long is a person's matter too. Stops go on being sent.
NO_ANSWER_NS: Final = 60 * NS_PER_S
PUT_OFF: Final = "the provider answers, and puts each stop off"
UNANSWERED: Final = "the provider has not answered the stop for a minute; stop the machine by hand if you can"
RENEWALS_MAX: Final = 3  # Renewals of one state's deadline by restarts in it.
# Keeps 2**n small. Every interval reaches its upper bound long before.
DOUBLINGS_MAX: Final = 10
# Why a person is called; also when the halt is resumed.
UNKILLABLE: Final = "processes survive SIGKILL"

Outcome = tuple[Halt, tuple[HaltEffect, ...]]
Act = Callable[[Halt, MonoNs, HaltPlan], Outcome]


def resume(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    """Go on after a restart in the middle of a state: repeat its effects, and give the repeated ones their time.

    An ask keeps its deadline, because grace is money. A SIGTERM that was journaled and never sent must still come its
    whole grace before SIGKILL. No rung is climbed before billing was read again: a machine that stopped while no
    governor ran must not be destroyed. Each state's deadline is renewed at most RENEWALS_MAX times: a governor that
    dies every few seconds must not delay the halt for ever. The caller journals the returned Halt like any other.
    """
    lasts_ns = {
        HaltState.TERMED: plan.term_grace_ns,
        HaltState.KILLED: plan.kill_grace_ns,
        HaltState.STOPPING: plan.stop_reply_ns,
        HaltState.VERIFYING: plan.stop_reply_ns,
        HaltState.NEEDS_HUMAN: plan.stop_reply_ns,
    }.get(halt.stage)
    # Pending reads and replies ended with the previous governor. The next answer belongs to a new request.
    halt = replace(halt, poll_due=None, stop_reply=None if halt.stage is HaltState.STOPPING else halt.stop_reply)
    if lasts_ns is not None and halt.renewals < RENEWALS_MAX:
        assert halt.deadline is not None
        deadline = MonoNs(max(halt.deadline, at + lasts_ns))
        halt = replace(halt, deadline=deadline, renewals=halt.renewals + 1)
    return halt, entry_effects(halt, plan)


def entry_effects(halt: Halt, plan: HaltPlan) -> tuple[HaltEffect, ...]:
    """The effects of entering this state, to repeat them after a restart of the governor."""
    match halt.stage:
        case HaltState.ARMED | HaltState.WAITING:
            return ()
        case HaltState.ASKED | HaltState.SAVING:  # Ranks that know the incident ignore a second checkpoint request.
            return _ask(halt, plan)
        case HaltState.TERMED:
            return (Term(halt.incident_id, halt.run),)
        case HaltState.KILLED:
            return (Kill(halt.incident_id, halt.run),)
        # From here on, Kill is for restarted processes: a new performer begins to look for them again.
        case HaltState.STOPPING:
            paged = (Page(halt.incident_id, halt.run, halt.page_reason),) if halt.page_reason else ()
            return (Kill(halt.incident_id, halt.run), _stop_compute(halt), _read(halt, 0.0), *paged)
        case HaltState.VERIFYING:
            return (Kill(halt.incident_id, halt.run), _read(halt, 0.0))
        case HaltState.NEEDS_HUMAN:
            effects = (Page(halt.incident_id, halt.run, halt.page_reason), Kill(halt.incident_id, halt.run))
            return effects if plan.stop is StopTarget.PROCESSES else (*effects, _read(halt, 0.0))
        case HaltState.HALTED:
            return (CloseIncident(halt.incident_id, halt.run),)


# --- before the processes are gone -----------------------------------------------------------------------


def stay(halt: Halt, _at: MonoNs, _plan: HaltPlan) -> Outcome:
    return halt, ()


def start_asking(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    assert plan.checkpoint != "none", "nothing to ask for: feed VERDICT_NO_ASK"
    halt = replace(_move(halt, HaltState.ASKED, at, plan.grace_ns), grace_until=MonoNs(at + plan.grace_ns))
    return halt, _ask(halt, plan)


def start_saving(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    assert halt.grace_until is not None
    return _move(halt, HaltState.SAVING, at, max(0, min(halt.grace_until - at, plan.save_grace_ns))), ()


def end(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    """Send SIGTERM, on the node of rank 0 only after the other nodes: it hosts the store in which they agree."""
    return (_move(halt, HaltState.WAITING, at, plan.others_ns), ()) if plan.others_ns else term(halt, at, plan)


def term(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return _move(halt, HaltState.TERMED, at, plan.term_grace_ns), (Term(halt.incident_id, halt.run),)


def saved_then_end(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return end(replace(halt, saved=True), at, plan)


def note_saved(halt: Halt, _at: MonoNs, _plan: HaltPlan) -> Outcome:
    return replace(halt, saved=True), ()


def term_again(halt: Halt, _at: MonoNs, _plan: HaltPlan) -> Outcome:
    return halt, (Term(halt.incident_id, halt.run),)


def kill(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return _move(halt, HaltState.KILLED, at, plan.kill_grace_ns), (Kill(halt.incident_id, halt.run),)


def kill_again(halt: Halt, _at: MonoNs, _plan: HaltPlan) -> Outcome:
    return halt, (Kill(halt.incident_id, halt.run),)


def after_exit(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return halted(halt, at, plan) if plan.stop is StopTarget.PROCESSES else _send_stop(halt, at, plan, 0)


def after_unkillable(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    if plan.stop is StopTarget.PROCESSES:
        return _call_human(halt, at, plan, UNKILLABLE)
    return _send_stop(halt, at, plan, 0)


# --- ending the spending ---------------------------------------------------------------------------------


def note_busy(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return _note_reply(halt, at, plan, Fact.STOP_BUSY)


def note_refused(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return _note_reply(halt, at, plan, Fact.STOP_REFUSED)


def note_unknown(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return _note_reply(halt, at, plan, Fact.STOP_UNKNOWN)


def stop_again(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    if halt.stop_reply is Fact.STOP_REFUSED:
        if halt.rung < plan.rung_max:
            return _send_stop(halt, at, plan, halt.rung + 1)
        return _call_human(halt, at, plan, "the provider refuses the stop")
    silent_since = _silent_since(halt)
    pages: tuple[HaltEffect, ...] = ()
    if silent_since is not None and at - silent_since >= NO_ANSWER_NS:
        halt = replace(halt, page_reason=UNANSWERED)
        pages = (Page(halt.incident_id, halt.run, UNANSWERED),)
    if halt.stop_reply is None and pages and at < (until := halt.since + plan.stop_reply_ns):
        return replace(halt, deadline=MonoNs(until)), pages  # The call has its own time yet. A person has not.
    if halt.rung_attempts < STOP_ATTEMPTS_PER_RUNG_MAX:
        halt, effects = _send_stop(halt, at, plan, halt.rung)
        return halt, (*effects, *pages)
    # A harsher rung uses the same throttled or broken API: it would destroy more, not sooner.
    return _call_human(halt, at, plan, PUT_OFF if halt.is_answered else "the provider does not answer the stop")


def _silent_since(halt: Halt) -> MonoNs | None:
    """Since when no stop has been answered, while nobody was told so. None elsewhere."""
    return halt.stop_began if not halt.is_answered and not halt.page_reason else None


def _told_in_time(halt: Halt, at: MonoNs) -> Halt:
    """The same halt with a deadline no later than the moment when a person must hear of the provider's silence."""
    since = _silent_since(halt)
    if since is None or halt.deadline is None:
        return halt
    return replace(halt, deadline=MonoNs(min(halt.deadline, max(at, since + NO_ANSWER_NS))))


def start_verifying(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    halt = replace(
        _move(halt, HaltState.VERIFYING, at, plan.verify_ns), stop_reply=Fact.STOP_ACCEPTED, is_answered=True
    )
    return poll(halt, at, plan)


def poll(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    """Plan the next read, once per answer. Doubled or late answers must not multiply the polls."""
    if plan.stop is StopTarget.PROCESSES or (halt.poll_due is not None and at < halt.poll_due):
        return halt, ()
    after_s = _doubled(plan.poll_min_s, plan.poll_max_s, halt.poll_n)
    due = MonoNs(at + round(after_s * NS_PER_S))
    return replace(halt, poll_n=halt.poll_n + 1, poll_due=due), (_read(halt, after_s),)


def climb(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    if halt.rung < plan.rung_max:
        return _send_stop(halt, at, plan, halt.rung + 1)
    return _call_human(halt, at, plan, "the stop was accepted, billing goes on")


def halted(halt: Halt, at: MonoNs, _plan: HaltPlan) -> Outcome:
    halt = replace(halt, stage=HaltState.HALTED, since=at, deadline=None)
    return halt, (CloseIncident(halt.incident_id, halt.run),)


# --- with a person called --------------------------------------------------------------------------------


def retry(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    """Go on from the present rung, then round again: a person may repair any rung."""
    pause_ns = int(_doubled(plan.retry_min_ns, plan.retry_max_ns, halt.retry_n + 1))
    halt = replace(halt, retry_n=halt.retry_n + 1, deadline=MonoNs(at + pause_ns))
    if plan.stop is StopTarget.PROCESSES:
        return kill_again(halt, at, plan)
    in_vain = halt.stop_reply in (Fact.STOP_REFUSED, Fact.STOP_ACCEPTED)
    halt = _count_stop(halt, (halt.rung + 1) % (plan.rung_max + 1) if in_vain else halt.rung)
    return halt, (_stop_compute(halt), _read(halt, 0.0))


def accepted_at_last(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    if plan.stop is StopTarget.PROCESSES or halt.stop_reply is Fact.STOP_ACCEPTED:
        return halt, ()
    # The stop gets its full time to show. Otherwise rungs would be used up faster than machines stop.
    halt = replace(halt, stop_reply=Fact.STOP_ACCEPTED, deadline=MonoNs(at + plan.verify_ns), poll_n=0, poll_due=None)
    return poll(halt, at, plan)


def refused_again(halt: Halt, _at: MonoNs, _plan: HaltPlan) -> Outcome:
    return replace(halt, stop_reply=Fact.STOP_REFUSED), ()


def gone_at_last(halt: Halt, at: MonoNs, plan: HaltPlan) -> Outcome:
    return halted(halt, at, plan) if plan.stop is StopTarget.PROCESSES else (halt, ())


# --- shared ----------------------------------------------------------------------------------------------


def _move(halt: Halt, stage: HaltState, at: MonoNs, lasts_ns: int) -> Halt:
    return replace(halt, stage=stage, since=at, deadline=MonoNs(at + lasts_ns), renewals=0)


def _ask(halt: Halt, plan: HaltPlan) -> tuple[HaltEffect, ...]:
    assert halt.grace_until is not None
    return (Ask(halt.incident_id, halt.run, plan.checkpoint, halt.grace_until, exit_after=True, reason=halt.reason),)


def _stop_compute(halt: Halt) -> StopCompute:
    return StopCompute(halt.incident_id, halt.run, attempt=halt.stop_attempts, rung=halt.rung)


def _read(halt: Halt, after_s: float) -> ReadBilling:
    return ReadBilling(halt.incident_id, halt.run, after_s, halt.destroyed)


def _send_stop(halt: Halt, at: MonoNs, plan: HaltPlan, rung: int) -> Outcome:
    first = halt.stop_attempts == 0
    began = at if first else halt.stop_began
    halt = replace(_count_stop(_move(halt, HaltState.STOPPING, at, plan.stop_reply_ns), rung), stop_began=began)
    halt = _told_in_time(halt, at)
    # From the second stop on, billing is read too: an earlier stop may have worked and its answer been lost.
    return halt, (_stop_compute(halt),) if first else (_stop_compute(halt), _read(halt, 0.0))


def _count_stop(halt: Halt, rung: int) -> Halt:
    return replace(
        halt,
        rung=rung,
        rung_attempts=halt.rung_attempts + 1 if rung == halt.rung else 1,
        stop_attempts=halt.stop_attempts + 1,
        stop_reply=None,
        poll_n=0,
        poll_due=None,
    )


def _note_reply(halt: Halt, at: MonoNs, plan: HaltPlan, fact: Fact) -> Outcome:
    """Note a stop that was not accepted: read billing all the same, pause, and let the deadline send the next stop."""
    worse = fact is Fact.STOP_REFUSED and halt.stop_reply is not Fact.STOP_REFUSED
    if halt.stop_reply is not None and not worse:
        return halt, ()  # A second answer to one stop must not lengthen the pause.
    pause_ns = round(_doubled(plan.poll_min_s, plan.poll_max_s, halt.rung_attempts - 1) * NS_PER_S)
    is_answered = halt.is_answered or fact is not Fact.STOP_UNKNOWN
    halt = replace(halt, stop_reply=fact, deadline=MonoNs(at + pause_ns), is_answered=is_answered)
    return _told_in_time(halt, at), (_read(halt, 0.0),)


def _call_human(halt: Halt, at: MonoNs, plan: HaltPlan, reason: str) -> Outcome:
    halt = _move(halt, HaltState.NEEDS_HUMAN, at, plan.retry_min_ns)
    halt = replace(halt, page_reason=reason, retry_n=0, poll_n=0, poll_due=None)
    return halt, entry_effects(halt, plan)


def _doubled(first: float, most: float, n: int) -> float:
    return min(most, first * float(2 ** min(n, DOUBLINGS_MAX)))
