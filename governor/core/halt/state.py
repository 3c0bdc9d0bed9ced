"""What a halt is made of: its states, the facts that move it, and its plan. The table is in table.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs


class HaltState(Enum):
    """In order of escalation, except HALTED, which may follow any state that can observe the end."""

    ARMED = "armed"
    ASKED = "asked"
    SAVING = "saving"
    WAITING = "waiting"  # Of several nodes, that of rank 0 goes last.
    TERMED = "termed"
    KILLED = "killed"
    STOPPING = "stopping"
    VERIFYING = "verifying"
    NEEDS_HUMAN = "needs_human"  # A person is called, and the halt goes on trying.
    HALTED = "halted"


class GivenUp(StrEnum):
    """Stands where a halt's state stands: closed without having been seen to its end, and why."""

    ABANDONED = "abandoned"  # The node's own stop: somebody came.
    GAVE_WAY = "gave_way"  # A stranger's: a run of the launched command has taken its place.
    SUPERSEDED = "superseded_by_reboot"
    LEFT_UNSEEN = "left_unseen"  # Its processes are of another PID namespace.
    LEFT_UNNOTED = "left_unnoted"  # What was known of it has ended, and its first governor had not noted all.

    @property
    def is_by_next(self) -> bool:
        """Whether the next governor has closed it, of which it was none of the halts."""
        return self in (GivenUp.SUPERSEDED, GivenUp.LEFT_UNSEEN)

    @classmethod
    def of(cls, stage: object) -> GivenUp | None:
        """None: the word is a state's, or a newer version's."""
        return next((one for one in cls if one.value == stage), None)


class Fact(Enum):
    VERDICT = "verdict"  # Halt, and ask for a checkpoint first.
    # Halt without asking: nothing is worth saving, or there is no time for it.
    VERDICT_NO_ASK = "verdict_no_ask"
    RECEIVED = "received"  # A rank has the checkpoint request.
    SAVING = "saving"
    SAVED = "saved"  # Whole and durable.
    # A rank failed, aborted or declined. Without its part no checkpoint is whole.
    SAVE_FAILED = "save_failed"
    # No process is left, as observed. Before TERMED this is about the announced ranks only.
    EXITED = "exited"
    RESPAWNED = "respawned"  # A new process of the run appeared.
    OTHERS_GONE = "others_gone"  # Of the run's other nodes, each has said that its processes are gone, or is silent.
    DEADLINE = "deadline"  # The clock reached Halt.deadline.
    STOP_ACCEPTED = "stop_accepted"
    STOP_BUSY = "stop_busy"  # 429, 5xx: not now.
    STOP_REFUSED = "stop_refused"  # Final for this rung: permission, protection, not supported here.
    STOP_UNKNOWN = "stop_unknown"  # Timed out or broke off: it may have stopped.
    BILLING_ENDED = "billing_ended"
    BILLING_RUNNING = "billing_running"
    BILLING_UNKNOWN = "billing_unknown"


class StopTarget(Enum):
    # Nothing is stopped at a provider. The report names what stays billed.
    PROCESSES = "processes"
    JOB = "job"  # The scheduler's job.
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True)
class HaltPlan:
    """How to halt this run, from policy, provider and measurements of the trainer. It is fixed at the verdict."""

    checkpoint: str  # good | suspect | none
    # Ask to TERM: min(policy grace, time since the last good checkpoint).
    grace_ns: DurationNs
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
    # How long the node of rank 0 waits for the run's other nodes before SIGTERM. 0: there is nobody to wait for.
    others_ns: DurationNs = DurationNs(0)

    def __post_init__(self) -> None:
        assert self.checkpoint in ("good", "suspect", "none"), self.checkpoint
        assert 0 <= self.rung_max <= 2
        assert 0 < self.poll_min_s <= self.poll_max_s
        assert 0 < self.retry_min_ns <= self.retry_max_ns
        assert min(self.grace_ns, self.save_grace_ns, self.term_grace_ns, self.others_ns) >= 0
        assert min(self.kill_grace_ns, self.stop_reply_ns, self.verify_ns) > 0


@dataclass(frozen=True, slots=True)
class Halt:
    """One incident's halt. Halt and HaltPlan are all that a restarted governor needs."""

    incident_id: str
    run: str
    reason: str
    opened_at: MonoNs
    stage: HaltState
    since: MonoNs  # When this state was entered.
    deadline: MonoNs | None = None  # When the engine feeds DEADLINE.
    grace_until: MonoNs | None = None  # The checkpoint request's deadline. No ack moves it.
    saved: bool = False
    rung: int = 0
    rung_attempts: int = 0  # Stops sent on this rung.
    stop_attempts: int = 0  # Stops sent in all.
    stop_began: MonoNs | None = None  # When the first one was sent; None also in an older journal.
    is_answered: bool = False  # The provider has answered a stop, be it "not now".
    stop_reply: Fact | None = None  # The answer to the last stop sent.
    # The provider has accepted a stop that cannot be undone. It will forget the machine.
    destroyed: bool = False
    poll_n: int = 0  # Reads since the last stop sent.
    poll_due: MonoNs | None = None  # Answers before this belong to an older read.
    retry_n: int = 0  # Rounds in NEEDS_HUMAN.
    # Restarts of the governor in this state that renewed its deadline.
    renewals: int = 0
    page_reason: str = ""
