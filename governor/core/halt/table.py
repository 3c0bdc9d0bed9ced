"""The halt: one complete table from (state, fact) to the next state and the effects.

Pure. The engine turns events into facts, feeds them here, journals the returned Halt, and only then has the effects
performed. Two rules shape the table. Escalation never goes back: the one backward step is VERIFYING to STOPPING, which
climbs a rung. Nothing is inferred: an exit and the end of billing count when they were observed.

Deadlines are absolute instants of CLOCK_MONOTONIC. Within one boot id they stay valid across a restart of the governor:
restore the Halt, `resume` it, journal the result, perform the effects (each is idempotent per incident). Under another
boot id deadlines mean nothing and the processes are gone by definition. A node resumed tomorrow must not be stopped
again, so the engine closes such an incident instead of resuming it.

One incident has one HaltPlan, made from the policy at the verdict. A reload does not change an open halt.

The performer answers every StopCompute and ReadBilling, with UNKNOWN if need be. From a Term or Kill until
CloseIncident, it looks for new processes of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

from governor.core.base.units import DurationNs, MonoNs
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.core.halt import acts
from governor.core.halt.acts import RENEWALS_MAX, STOP_ATTEMPTS_PER_RUNG_MAX, Act, Outcome, entry_effects, resume
from governor.core.halt.state import Fact, Halt, HaltPlan, HaltState, StopTarget

__all__ = [
    "LIVE_STATES",
    "RENEWALS_MAX",
    "STOP_ATTEMPTS_PER_RUNG_MAX",
    "TRANSITIONS",
    "Cell",
    "Fact",
    "Halt",
    "HaltPlan",
    "HaltState",
    "Outcome",
    "StopTarget",
    "billing_fact",
    "entry_effects",
    "open_halt",
    "resume",
    "step",
    "stop_fact",
    "verdict_fact",
]

# Nobody waits for a checkpoint any more.
PAST_ASKING: Final = (
    HaltState.TERMED,
    HaltState.KILLED,
    HaltState.STOPPING,
    HaltState.VERIFYING,
    HaltState.NEEDS_HUMAN,
)
LIVE_STATES: Final = tuple(stage for stage in HaltState if stage is not HaltState.HALTED)


def open_halt(incident_id: str, run: str, reason: str, at: MonoNs) -> Halt:
    """Return a halt that has done nothing yet. Feed VERDICT or VERDICT_NO_ASK next."""
    return Halt(incident_id, run, reason, at, HaltState.ARMED, at)


def step(halt: Halt, fact: Fact, at: MonoNs, plan: HaltPlan) -> Outcome:
    """Return the next Halt, to be journaled first, and the effects. HALTED is final: no fact moves it."""
    if halt.stage is HaltState.HALTED:
        return halt, ()
    # Threads stamp events before the loop takes them, so an answer may be a moment older than the present state.
    at = max(at, halt.since)
    assert fact is not Fact.DEADLINE or (halt.deadline is not None and at >= halt.deadline), "DEADLINE came early"
    cell = TRANSITIONS[halt.stage, fact]
    after, effects = cell.act(halt, at, plan)
    assert after.stage in cell.to, f"{halt.stage} on {fact} led to {after.stage}"
    return after, effects


def verdict_fact(plan: HaltPlan, save_expected_ns: DurationNs | None) -> Fact:
    """Ask only if a checkpoint is wanted and the measured save time (None: not measured yet) fits the grace."""
    hopeless = save_expected_ns is not None and save_expected_ns > min(plan.grace_ns, plan.save_grace_ns)
    return Fact.VERDICT_NO_ASK if plan.checkpoint == "none" or plan.grace_ns == 0 or hopeless else Fact.VERDICT


def stop_fact(answer: StopAnswer, retryable: bool) -> Fact:
    if answer is StopAnswer.REFUSED:
        return Fact.STOP_BUSY if retryable else Fact.STOP_REFUSED
    return Fact.STOP_ACCEPTED if answer is StopAnswer.ACCEPTED else Fact.STOP_UNKNOWN


_BILLING_FACTS: Final = {
    BillingAnswer.ENDED: Fact.BILLING_ENDED,
    BillingAnswer.RUNNING: Fact.BILLING_RUNNING,
    BillingAnswer.UNKNOWN: Fact.BILLING_UNKNOWN,
}


def billing_fact(answer: BillingAnswer) -> Fact:
    return _BILLING_FACTS[answer]


# --- the table -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """`to`: the possible next states, for the diagram and as a check on `act`. `why`: the reason, for readers."""

    to: tuple[HaltState, ...]
    act: Act
    why: str


Row = dict[Fact, tuple[tuple[HaltState, ...] | None, Act, str]]


def _stay(why: str, *facts: Fact) -> Row:
    return dict.fromkeys(facts, (None, acts.stay, why))


def _do(act: Act, why: str, *facts: Fact) -> Row:
    """The act does something, and the state stays."""
    return dict.fromkeys(facts, (None, act, why))


def _go(fact: Fact, act: Act, why: str, *to: HaltState) -> Row:
    return {fact: (to, act, why)}


def _table(rows: dict[HaltState, tuple[Row, ...]]) -> dict[tuple[HaltState, Fact], Cell]:
    table: dict[tuple[HaltState, Fact], Cell] = {}
    for stage, parts in rows.items():
        for part in parts:
            for fact, (to, act, why) in part.items():
                assert (stage, fact) not in table, f"two cells for {stage}, {fact}"
                table[stage, fact] = Cell((stage,) if to is None else to, act, why)
    return table


_ACKS = (Fact.RECEIVED, Fact.SAVING, Fact.SAVE_FAILED)
_VERDICTS = (Fact.VERDICT, Fact.VERDICT_NO_ASK)
_REPLIES = (Fact.STOP_ACCEPTED, Fact.STOP_BUSY, Fact.STOP_REFUSED, Fact.STOP_UNKNOWN)
_READS = (Fact.BILLING_ENDED, Fact.BILLING_RUNNING, Fact.BILLING_UNKNOWN)
_UNASKED = "Nothing was stopped yet, so this ends nothing. The sequence reads billing itself when it gets there."
_TOO_LATE = "Too late: escalation never goes back."
_TOO_LATE_SAVED = "Too late to change anything, but the report may name the checkpoint."
_MERGED = "The first verdict's halt is this halt."
_UNHURRIED = "Nobody here waits for the other nodes."
# The node of rank 0 waits for the others. Every other node, and a run of one node, goes on at once.
_ENDS = (HaltState.TERMED, HaltState.WAITING)
_BROUGHT_BACK = "Something brought the run back: SIGKILL again, without moving any deadline."

TRANSITIONS: Final = _table(
    {
        HaltState.ARMED: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _go(Fact.VERDICT, acts.start_asking, "The work is worth its grace.", HaltState.ASKED),
            _go(Fact.VERDICT_NO_ASK, acts.end, "There is nothing to save, or no time to save it.", *_ENDS),
            _stay("No checkpoint was requested yet.", *_ACKS, Fact.SAVED),
            _stay("No halt was decided yet.", Fact.EXITED, Fact.RESPAWNED, Fact.DEADLINE),
            _stay(_UNASKED, *_REPLIES, *_READS),
        ),
        HaltState.ASKED: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, Fact.VERDICT),
            _go(Fact.VERDICT_NO_ASK, acts.end, "The earlier of two deadlines holds: this one is now.", *_ENDS),
            _stay("A received request is not yet a save. The grace runs on.", Fact.RECEIVED),
            _go(Fact.SAVING, acts.start_saving, "The grace is not extended.", HaltState.SAVING),
            _go(Fact.SAVED, acts.saved_then_end, "The ack that saving began was lost.", *_ENDS),
            _go(Fact.SAVE_FAILED, acts.end, "Waiting longer saves nothing.", *_ENDS),
            _go(Fact.EXITED, acts.end, "The ranks are gone; the sweep finds what outlived them.", *_ENDS),
            _stay("The launcher restarted a rank: the deadline stands for the new one too.", Fact.RESPAWNED),
            _go(Fact.DEADLINE, acts.end, "The ranks do not answer, hang or are too slow.", *_ENDS),
            _stay(_UNASKED, *_REPLIES, *_READS),
        ),
        HaltState.SAVING: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, Fact.VERDICT),
            _stay("A save under way is worth its grace, and that is bounded.", Fact.VERDICT_NO_ASK),
            _stay("Progress extends nothing past the grace.", Fact.RECEIVED, Fact.SAVING),
            _go(
                Fact.SAVED,
                acts.saved_then_end,
                "The checkpoint is whole and durable: every further second is waste.",
                *_ENDS,
            ),
            _go(Fact.SAVE_FAILED, acts.end, "Waiting longer saves nothing.", *_ENDS),
            _go(Fact.EXITED, acts.end, "The ranks are gone; the sweep finds what outlived them.", *_ENDS),
            _stay("The launcher restarted a rank: the deadline stands for the new one too.", Fact.RESPAWNED),
            _go(Fact.DEADLINE, acts.end, "A save that outlasts its grace costs more than it saves.", *_ENDS),
            _stay(_UNASKED, *_REPLIES, *_READS),
        ),
        HaltState.WAITING: (
            _stay(_MERGED, *_VERDICTS),
            _stay("The save is decided. Only its end may still be told.", *_ACKS),
            _do(acts.note_saved, "The checkpoint is whole: the report may name it.", Fact.SAVED),
            _go(Fact.OTHERS_GONE, acts.term, "Nobody needs the store any more.", HaltState.TERMED),
            _stay("A launcher may host the store, and outlives its ranks.", Fact.EXITED),
            _stay("The signals are for it, too.", Fact.RESPAWNED),
            _go(Fact.DEADLINE, acts.term, "The other nodes had their time.", HaltState.TERMED),
            _stay(_UNASKED, *_REPLIES, *_READS),
        ),
        HaltState.TERMED: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, *_VERDICTS),
            _stay(_TOO_LATE, *_ACKS),
            _do(acts.note_saved, _TOO_LATE_SAVED, Fact.SAVED),
            _go(
                Fact.EXITED,
                acts.after_exit,
                "The processes were seen to be gone.",
                HaltState.STOPPING,
                HaltState.HALTED,
            ),
            _do(acts.term_again, "SIGKILL waits for SIGTERM's grace, also for newcomers.", Fact.RESPAWNED),
            _go(Fact.DEADLINE, acts.kill, "SIGTERM is ignored.", HaltState.KILLED),
            _stay(_UNASKED, *_REPLIES, *_READS),
        ),
        HaltState.KILLED: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, *_VERDICTS),
            _stay(_TOO_LATE, *_ACKS),
            _do(acts.note_saved, _TOO_LATE_SAVED, Fact.SAVED),
            _go(
                Fact.EXITED,
                acts.after_exit,
                "The processes were seen to be gone.",
                HaltState.STOPPING,
                HaltState.HALTED,
            ),
            _do(acts.kill_again, _BROUGHT_BACK, Fact.RESPAWNED),
            _go(
                Fact.DEADLINE,
                acts.after_unkillable,
                "What SIGKILL cannot end (D state), the machine stop ends.",
                HaltState.STOPPING,
                HaltState.NEEDS_HUMAN,
            ),
            _stay(_UNASKED, *_REPLIES, *_READS),
        ),
        HaltState.STOPPING: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, *_VERDICTS),
            _stay(_TOO_LATE, *_ACKS),
            _do(acts.note_saved, _TOO_LATE_SAVED, Fact.SAVED),
            _stay("From here on the money decides.", Fact.EXITED),
            _do(acts.kill_again, _BROUGHT_BACK, Fact.RESPAWNED),
            _go(
                Fact.DEADLINE,
                acts.stop_again,
                "No answer, or the pause after a bad one is over.",
                HaltState.STOPPING,
                HaltState.NEEDS_HUMAN,
            ),
            _go(Fact.STOP_ACCEPTED, acts.start_verifying, "Accepted is not stopped.", HaltState.VERIFYING),
            _do(acts.note_busy, "Pause, then the same rung.", Fact.STOP_BUSY),
            _do(
                acts.note_refused,
                "Read before climbing: a machine that was just stopped by hand refuses too, and must not be destroyed.",
                Fact.STOP_REFUSED,
            ),
            _do(acts.note_unknown, "It may have stopped: read, pause, then the same rung.", Fact.STOP_UNKNOWN),
            _go(Fact.BILLING_ENDED, acts.halted, "This stop worked, or another one did.", HaltState.HALTED),
            _stay("The deadline sends the next stop.", Fact.BILLING_RUNNING, Fact.BILLING_UNKNOWN),
        ),
        HaltState.VERIFYING: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, *_VERDICTS),
            _stay(_TOO_LATE, *_ACKS),
            _do(acts.note_saved, _TOO_LATE_SAVED, Fact.SAVED),
            _stay("From here on the money decides.", Fact.EXITED),
            _do(acts.kill_again, _BROUGHT_BACK, Fact.RESPAWNED),
            _go(
                Fact.DEADLINE,
                acts.climb,
                "Accepted, and still billed: the next rung. The one step back.",
                HaltState.STOPPING,
                HaltState.NEEDS_HUMAN,
            ),
            _stay("This answers an earlier stop. Billing's answer outranks it.", *_REPLIES),
            _go(Fact.BILLING_ENDED, acts.halted, "Verified by reading back.", HaltState.HALTED),
            _do(acts.poll, "Billing has not ended yet.", Fact.BILLING_RUNNING),
            _do(acts.poll, "Unknown is not ended.", Fact.BILLING_UNKNOWN),
        ),
        HaltState.NEEDS_HUMAN: (
            _stay(_UNHURRIED, Fact.OTHERS_GONE),
            _stay(_MERGED, *_VERDICTS),
            _stay(_TOO_LATE, *_ACKS),
            _do(acts.note_saved, _TOO_LATE_SAVED, Fact.SAVED),
            _go(
                Fact.EXITED,
                acts.gone_at_last,
                "This is enough where only processes had to end.",
                HaltState.NEEDS_HUMAN,
                HaltState.HALTED,
            ),
            _do(acts.kill_again, _BROUGHT_BACK, Fact.RESPAWNED),
            _do(acts.retry, "Never give up, only slow down.", Fact.DEADLINE),
            _do(acts.accepted_at_last, "Accepted is not stopped, here too.", Fact.STOP_ACCEPTED),
            _do(acts.refused_again, "The next round tries the next rung.", Fact.STOP_REFUSED),
            _stay("The next round tries the same rung.", Fact.STOP_BUSY, Fact.STOP_UNKNOWN),
            _go(Fact.BILLING_ENDED, acts.halted, "The person, or the retry, ended it.", HaltState.HALTED),
            _do(acts.poll, "Billing has not ended yet.", Fact.BILLING_RUNNING),
            _do(acts.poll, "Unknown is not ended.", Fact.BILLING_UNKNOWN),
        ),
    }
)

_holes = set(product(LIVE_STATES, Fact)) - TRANSITIONS.keys()
assert not _holes, f"halt table has holes: {_holes}"
