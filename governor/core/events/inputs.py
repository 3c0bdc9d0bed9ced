"""Everything that can happen, as data. `at`: arrival on the governor's monotonic clock. Floats may be non-finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.units import BootNs, MonoNs, WallNs
from governor.core.events.checkpoints import CheckpointEvent, NamedCheckpoint, Origin, SavedCheckpoint
from governor.core.events.ends import EndEvent
from governor.core.events.fetch import Fetch
from governor.core.events.fleet_orders import FleetEvent
from governor.core.events.forwards import Forwards
from governor.core.events.machine import (
    FilesLost,
    GovernorsSeen,
    GpuProcessesSeen,
    HaltMarksRead,
    MachineEvent,
    NodeDrained,
    PriceRead,
    RunRecalled,
    SourceTrouble,
    UidRangesSeen,
)
from governor.core.events.operators import OperatorEvent
from governor.core.events.peers import PeerEvent
from governor.core.events.shown import RankShowed
from governor.core.events.streams import Held, StreamOpened, StreamRead, StreamState, TokensSettled, WriterGone


@dataclass(frozen=True, slots=True)
class Hello:
    at: MonoNs
    connection: ConnectionId
    peer: Peer
    seq: int
    run: str
    attempt: str
    rank: int
    local_rank: int
    world_size: int
    stage: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_uuids: tuple[str, ...] = ()
    framework: str | None = None
    zero_stage: int | None = None
    parameters: int | None = None
    tokens_per_step: int | None = None
    data_parallel_size: int | None = None
    data_parallel_rank: int | None = None
    total_steps: int | None = None
    checkpoint_dir: str | None = None
    resume_argv: tuple[str, ...] = ()
    cwd: str | None = None
    signal: int = 0
    capabilities: frozenset[str] = frozenset()
    shim_version: str | None = None
    started_at: MonoNs | None = None  # attach() in the trainer.
    sent: MonoNs | None = None  # By the rank's clock.
    resumed_step: int | None = None
    resumes: str | None = None  # "called": resume(); "loaded": a checkpoint, by other means; "never": neither yet.
    origin: Origin | None = None  # None: nobody knows.
    loaded_at: int = 0  # `origin` holds behind so many steps of the attempt: the hello may come before these.
    last_good: NamedCheckpoint | None = None
    harmed_save: NamedCheckpoint | None = None  # A trained parameter in this rank's part was not finite.
    beside: str | None = None  # The class of what else its process trains, unwatched.
    mark: int | None = None  # What the rank and all that it starts carry, as it says.
    job: str | None = None  # What all ranks of its start call their launch, on every node.
    master: str | None = None  # Where rank 0 may be, as the rank says: a host or an address.
    of_command: bool = False  # The kernel ties the rank to the command of `costgov run`.
    open_incident: Mapping[str, Any] | None = None


# Never written after it is made. A frozen class would take three times as long to make.
@dataclass(slots=True)
class Step:
    """One optimizer step of one rank, from a frame or a JSONL line. A JSONL line has connection None and rank 0."""

    at: MonoNs
    connection: ConnectionId | None
    run: str
    rank: int
    step: int
    attempt_step: int | None = None
    tokens: int | None = None
    tokens_total: int | None = None
    tokens_nonpad: int | None = None
    tokens_own_total: int | None = None  # This rank's own, since it attached or resumed.
    nonpad_own_total: int | None = None
    loss: float | None = None
    loss_expected: bool | None = None
    grad_norm: float | None = None
    lr: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    applied: bool | None = None
    step_s: float | None = None
    data_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    checkpoint_s: float | None = None
    hold_s: float | None = None
    comm_s: float | None = None
    mem_allocated_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    rss_bytes: int | None = None
    progress_seq: int | None = None
    grad_finite: bool | None = None  # Of a sample of the rank's gradient, where no norm is known.
    ended: MonoNs | None = None  # Of a frame, by its rank's clock: which window the spend is of.
    written: WallNs | None = None  # Of a line, as it says: the same, and how long a step took.
    held: Held | None = None  # Of a line: what earlier ones have trained, and this one tells.
    left_out: str | None = None  # The first figure of it that cannot be, which is absent here: "tokens 2199023255553".
    line_steps: int | None = None  # Of a line: how many steps its tokens are of, where it says so.
    stripped: bool | None = None  # Of a line without a loss: it holds nothing that those with one do not.
    recompute_s: float | None = None  # Of the backward pass: computing again what activation checkpointing left out.
    eval_s: float | None = None
    loop_s: float | None = None  # The loop's own code between steps and micro-steps.
    data_bound: bool | None = None  # data_s has that code, too: an upper bound.
    checkpoint_bound: bool | None = None  # Of a line: checkpoint_s is what the step had beyond the usual.
    eval_bound: bool | None = None  # Of eval_s, the same.
    bubble_s: float | None = None  # A stage of a pipeline waits for others. A part, like data_s.
    offload_s: float | None = None  # Of the optimizer: on the CPU, with the copies.
    comm_between_s: float | None = None  # Of comm_s: between the passes, in loop_s or data_s.

    @property
    def training_s(self) -> float | None:
        """Seconds of the step's own training: without saves, the wait for an agreed step, and evaluations.

        Below zero where these were timed by another clock than the step, or are no such figures. None: not known.
        """
        if self.step_s is None:
            return None
        return self.step_s - (self.checkpoint_s or 0.0) - (self.hold_s or 0.0) - (self.eval_s or 0.0)

    @property
    def reports_training(self) -> bool:
        """Whether it has a figure besides the loss. An evaluation's results, logged as steps, have no such figure."""
        told = (self.step_s, self.grad_norm, self.lr, self.tokens, self.tokens_total, self.loss_scale)
        return any(value is not None for value in (*told, self.applied, self.skipped_steps))


@dataclass(frozen=True, slots=True)
class PhaseChange:
    at: MonoNs
    connection: ConnectionId | None
    run: str
    rank: int
    phase: str
    step: int | None = None
    progress_seq: int | None = None
    detail: str | None = None
    since: MonoNs | None = None  # It began then, and that was seen only later.

    @property
    def began(self) -> MonoNs:
        """When the rank was in it. Its silence counts from `at`: then it spoke."""
        return self.at if self.since is None else self.since


@dataclass(slots=True)  # As Step.
class Beat:
    at: MonoNs
    connection: ConnectionId
    run: str
    rank: int
    progress_seq: int
    phase: str
    phase_since: MonoNs  # By the trainer's clock, which is the same CLOCK_MONOTONIC of this machine.
    step: int | None = None
    in_step: bool = False
    last_hook: str | None = None
    device_wait: str | None = None
    stack: tuple[str, ...] = ()
    collective: Mapping[str, Any] | None = None
    main_cpu_ns: int | None = None
    fetch: Fetch | None = None
    forwards: Forwards | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    at: MonoNs
    connection: ConnectionId
    run: str
    rank: int
    seq: int
    incident_id: str
    what: str  # One of trainer_shim.wire.ACKS.
    step: int | None = None
    reason: str | None = None
    merged_into: str | None = None
    exit_after: bool | None = None
    checkpoint: SavedCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class Bye:
    at: MonoNs
    connection: ConnectionId
    run: str
    rank: int
    seq: int
    reason: str | None = None
    completed: bool = False
    step: int | None = None  # Its last one.


@dataclass(frozen=True, slots=True)
class Disconnected:
    at: MonoNs
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class FramesLost:
    """Frames that the sender could not send, or that we could not read. They are counted, never guessed."""

    at: MonoNs
    connection: ConnectionId | None
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class BadHello:
    """A hello that cannot be accepted, on a connection without a rank. Its sender is not watched and must learn so."""

    at: MonoNs
    connection: ConnectionId
    peer: Peer
    why: str


@dataclass(slots=True)  # As Step.
class Tick:
    """The 250 ms grid on which time-based conditions are judged."""

    at: MonoNs
    boot: BootNs
    wall: WallNs
    unbroken: bool = False  # Set by a replay's clock: nothing was missed since the last tick, however long ago.


class StopAnswer(Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # Timed out or broke off: it may have stopped.


class BillingAnswer(Enum):
    ENDED = "ended"
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StopReplied:
    at: MonoNs
    incident_id: str
    answer: StopAnswer
    retryable: bool
    reason: str  # Named, without secrets: "accepted", "http_429", "UnauthorizedOperation".
    destroys: bool = False  # The accepted stop is final: the provider will forget the machine.
    ended_as: str = ""  # Of a job: by which full name it can be asked for later.


@dataclass(frozen=True, slots=True)
class BillingRead:
    at: MonoNs
    incident_id: str
    answer: BillingAnswer
    provider_state: str  # The provider's own word, e.g. "stopping".


@dataclass(frozen=True, slots=True)
class ProcessesSeen:
    """What a scan after TERM or KILL found. `alive` is empty only after two empty scans in a row."""

    at: MonoNs
    incident_id: str
    alive: tuple[ProcessId, ...]
    respawned: tuple[ProcessId, ...] = ()
    # With `alive` empty: processes that live on and are perhaps of the run, each as pid and command.
    unsure: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TrainerExited:
    """The command under `costgov run`, or the last announced rank, is gone."""

    at: MonoNs
    run: str
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class CommandLaunched:
    """`costgov run` has started its command. Its ranks may use this run's name or another one, or never attach."""

    at: MonoNs
    run: str
    uid: int
    processes: tuple[ProcessId, ...]
    command: tuple[str, ...] = ()  # How to launch it again.
    marks: tuple[int, ...] = ()  # What the command and all that it starts carry.
    cgroups: tuple[str, ...] = ()  # The control group that was made for it.
    cwd: str | None = None  # Where `costgov run` was started.


@dataclass(frozen=True, slots=True)
class LauncherExited:
    """The process that `costgov run` started is gone. Its ranks may still train."""

    at: MonoNs


@dataclass(frozen=True, slots=True)
class LaunchersSeen:
    """What the process table shows at a rank's hello: the launchers of the run's ranks, and how to know its processes.

    `launchers`: outermost first.
    """

    at: MonoNs
    run: str
    launchers: tuple[ProcessId, ...]
    command: tuple[str, ...] = ()  # Command line of the outermost.
    marks: tuple[int, ...] = ()  # What the rank and all that it starts carry, as the kernel says.
    cgroups: tuple[str, ...] = ()  # Control groups that began with the launch.
    unsure: tuple[ProcessId, ...] = ()  # Orphans that began while the run was starting.
    programs: tuple[str, ...] = ()  # Of the rank: core/halt/programs.py.
    place: str = ""  # The rank's control group. Empty: it was gone.


@dataclass(frozen=True, slots=True)
class CommandExited:
    """The command of `costgov run` and every process of its session are gone."""

    at: MonoNs
    run: str
    exit_code: int  # As a shell reports it.


Event = (
    Hello
    | Step
    | PhaseChange
    | Beat
    | Ack
    | Bye
    | RankShowed
    | Disconnected
    | FramesLost
    | BadHello
    | Tick
    | StopReplied
    | BillingRead
    | NodeDrained
    | ProcessesSeen
    | CheckpointEvent
    | OperatorEvent
    | FleetEvent
    | TrainerExited
    | CommandLaunched
    | LauncherExited
    | LaunchersSeen
    | StreamOpened
    | StreamState
    | StreamRead
    | TokensSettled
    | WriterGone
    | GpuProcessesSeen
    | PriceRead
    | CommandExited
    | EndEvent
    | FilesLost
    | GovernorsSeen
    | UidRangesSeen
    | MachineEvent
    | PeerEvent
    | SourceTrouble
    | RunRecalled
    | HaltMarksRead
)


# A step's number that is further on is a broken one, or of another training, sooner than that of a log's next line.
LINE_STEPS_MAX: Final = 10_000


def steps_of_line(step: int, before: int | None) -> int:
    """How many steps a line stands for, where `before` is the step of the line before. 1 where that says nothing."""
    advanced = step - before if before is not None else 1
    return advanced if 1 < advanced <= LINE_STEPS_MAX else 1
