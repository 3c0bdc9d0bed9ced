"""What a halt is made of: its stages, the facts that move it, the plan it follows. The table is in halt.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs


class HaltState(Enum):
    """In order of escalation, but for HALTED, which may follow any stage that can observe the end."""

    ARMED = "armed"
    ASKED = "asked"
    SAVING = "saving"
    TERMED = "termed"
    KILLED = "killed"
    STOPPING = "stopping"
    VERIFYING = "verifying"
    NEEDS_HUMAN = "needs_human"  # And keeps trying.
    HALTED = "halted"


class Fact(Enum):
    VERDICT = "verdict"  # Halt, and ask for a checkpoint first.
    VERDICT_NO_ASK = "verdict_no_ask"  # Halt; nothing worth saving, or no time in which to save it.
    RECEIVED = "received"  # A rank has the letter.
    SAVING = "saving"
    SAVED = "saved"  # Whole and durable.
    SAVE_FAILED = "save_failed"  # Failed, aborted or declined by a rank: no whole checkpoint without its part.
    EXITED = "exited"  # Observed: nobody left. Before TERMED only of the announced ranks.
    RESPAWNED = "respawned"  # A new process of the run appeared.
    DEADLINE = "deadline"  # The clock reached Halt.deadline.
    STOP_ACCEPTED = "stop_accepted"
    STOP_BUSY = "stop_busy"  # 429, 5xx: not now.
    STOP_REFUSED = "stop_refused"  # Final for this rung: permission, protection, not supported here.
    STOP_UNKNOWN = "stop_unknown"  # Timed out or broke off: it may have stopped.
    BILLING_ENDED = "billing_ended"
    BILLING_RUNNING = "billing_running"
    BILLING_UNKNOWN = "billing_unknown"


class StopTarget(Enum):
    PROCESSES = "processes"  # Nothing is stopped at a provider: what stays billed is the report's business.
    JOB = "job"  # The scheduler's job.
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True)
class HaltPlan:
    """How to halt this run: policy, provider and what was measured of the trainer, fixed at the verdict."""

    checkpoint: str  # good | suspect | none
    grace_ns: DurationNs  # Ask to TERM: min(policy grace, time since the last good checkpoint).
    save_grace_ns: DurationNs  # How long SAVING may last, within the same grace.
    term_grace_ns: DurationNs
    kill_grace_ns: DurationNs
    stop: StopTarget
    stop_reply_ns: DurationNs  # The provider call's own time-outs, all together.
    verify_ns: DurationNs  # Per rung: accepted to observed (AWS 4 min, GCP 3, RunPod 1).
    rung_max: int  # 0 stop, 1 force, 2 destroy where policy allows.
    poll_min_s: float = 2.0
    poll_max_s: float = 15.0
    retry_min_ns: DurationNs = DurationNs(15 * NS_PER_S)
    retry_max_ns: DurationNs = DurationNs(300 * NS_PER_S)  # Never give up, only slow down.

    def __post_init__(self) -> None:
        assert self.checkpoint in ("good", "suspect", "none"), self.checkpoint
        assert 0 <= self.rung_max <= 2
        assert 0 < self.poll_min_s <= self.poll_max_s
        assert 0 < self.retry_min_ns <= self.retry_max_ns
        assert min(self.grace_ns, self.save_grace_ns, self.term_grace_ns) >= 0
        assert min(self.kill_grace_ns, self.stop_reply_ns, self.verify_ns) > 0


@dataclass(frozen=True, slots=True)
class Halt:
    """One incident's halt. With its Plan, everything that a restarted governor needs."""

    incident_id: str
    run: str
    reason: str
    opened_at: MonoNs
    stage: HaltState
    since: MonoNs  # When this stage was entered.
    deadline: MonoNs | None = None  # When the engine feeds DEADLINE.
    grace_until: MonoNs | None = None  # The letter's deadline. No ack moves it.
    saved: bool = False
    rung: int = 0
    rung_attempts: int = 0  # Stops sent on this rung.
    stop_attempts: int = 0  # Stops sent in all.
    stop_reply: Fact | None = None  # What came back of the last stop sent.
    destroyed: bool = False  # The provider has accepted a stop that it does not undo: it will forget the machine.
    poll_n: int = 0  # Reads since the last stop sent.
    poll_due: MonoNs | None = None  # Answers before this belong to an older read.
    retry_n: int = 0  # Rounds in NEEDS_HUMAN.
    renewals: int = 0  # Restarts of the governor in this stage that renewed its deadline.
    page_reason: str = ""
