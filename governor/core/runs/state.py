"""What the governor knows of one run: ranks, progress, money, and the figures that triggers read.

Mutable and owned by the engine. Triggers never write it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.model_speed import NO_NAME, Peak
from governor.core.base.reservoir import Reservoir
from governor.core.base.save_interval import Saves
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.ends import Failure, RunEnd
from governor.core.events.fetch import Fetch
from governor.core.events.forwards import Forwards
from governor.core.events.machine import GpuSample, HostMemory, HostSample, SpotNotice
from governor.core.money.budgets import Cap
from governor.core.money.paid_tokens import PaidTokens
from governor.core.runs.belief import Belief
from governor.core.runs.last_good import LastGood, after_naming
from governor.core.runs.life import TRANSITIONS, Cell, Life, LifeFact
from governor.core.runs.other_nodes import OtherNode
from governor.core.runs.pace import LossRhythm, Pace
from governor.core.runs.rank_tokens import RankTokens
from governor.core.runs.trained_count import TrainedCount

# Ranks of one run on one node: twice the widest node sold (DGX GH200 trays).
RANKS_MAX = 64
UNWATCHED_AFTER_NS = DurationNs(60 * NS_PER_S)  # DESIGN §5: a lost connection becomes `unwatched` after this.
# A log that is not understood does not come back by itself. What a trainer prints before it begins is over by then.
FOREIGN_AFTER_NS = DurationNs(30 * NS_PER_S)


@dataclass(slots=True)
class Rank:
    """One rank of the present attempt, as its connection shows it."""

    rank: int
    local_rank: int
    peer: Peer
    connection: ConnectionId | None  # None once the connection is lost.
    signal: int
    capabilities: frozenset[str]
    hello_at: MonoNs
    last_frame_at: MonoNs
    gpu_uuids: tuple[str, ...] = ()  # The GPUs that it may use, if it knows their names.
    lost_at: MonoNs | None = None
    said_bye: bool = False
    completed: bool = False  # It has reported that it trained to the end.
    # Progress: from beats, steps and phases alike.
    progress_seq: int = -1
    progress_at: MonoNs = MonoNs(0)  # When progress_seq last changed (or was first seen).
    beat_at: MonoNs | None = None
    phase: str = "init"
    phase_at: MonoNs = MonoNs(0)  # When the phase began.
    in_step: bool = False
    paused: bool = False  # It was in another phase than training since its last step.
    last_hook: str | None = None
    device_wait: str | None = None
    stack: tuple[str, ...] = ()
    collective: Mapping[str, Any] | None = None
    fetch: Fetch | None = None
    forwards: Forwards | None = None  # As the last beat said; None once a step came.
    step: int | None = None
    step_at: MonoNs | None = None
    loss: float | None = None
    finite_step: int | None = None  # The last one whose loss was finite.
    # Path and step of the checkpoint of which it has said that all trained parameters are finite in its part.
    vouched: tuple[str | None, int | None] | None = None
    harmed: tuple[str | None, int | None] | None = None  # Likewise, where one is not.
    beside: str | None = None  # As in Hello.
    skipped_steps: int | None = None
    data_parallel_rank: int | None = None  # Its number among the ranks that see different tokens.
    # The longest time in this attempt without a change of progress_seq inside a step that went on.
    silence_longest_ns: int = 0
    clock_behind_ns: int = 2**63  # Its clock is behind ours by no more than this: see own_time.

    @property
    def connected(self) -> bool:
        return self.connection is not None

    @property
    def fetching_since(self) -> MonoNs | None:
        """When its present fetch of data began. Progress after the beat that reports it has ended it."""
        if self.fetch is None or self.beat_at is None or self.beat_at <= self.progress_at:
            return None
        return self.fetch.since


@dataclass(frozen=True, slots=True)
class Trained:
    """How far a run has come over all attempts. It goes on counting from here."""

    step: int | None
    tokens_total: int | None
    counted_step: int | None
    furthest: tuple[int, int] | None
    log_totals: tuple[tuple[int, int], ...] = ()
    is_beyond: bool = False  # See Belief.
    count: Mapping[str, Any] | None = None  # As TrainedCount.row() has it.


@dataclass(slots=True)
class LogStream:
    """What a run's log shows in place of its ranks."""

    has_record: bool = False  # A step or a phase of this attempt was read.
    is_foreign: bool = False  # It is read, and nothing in it is understood.
    phase: str = "train"
    phase_at: MonoNs = MonoNs(0)
    paused: bool = False  # It was in another phase than training since its last step.
    # One line while its file cannot be read. Missing lines are no evidence.
    problem: str | None = None
    lost_at: MonoNs | None = None
    back_at: MonoNs = MonoNs(0)  # Before this, silence was ours and not the trainer's.


@dataclass(slots=True)
class Run:
    """One run across attempts. Times are on the governor's monotonic clock."""

    run: str
    uid: int
    first_seen_at: MonoNs
    attempt: str = ""
    attempt_at: MonoNs = MonoNs(0)  # attach() of the attempt's first rank, or its first frame.
    trains_again: bool = False  # The attempt is another training of the same processes: no launch.
    stage: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    job: str | None = None  # As in Hello, of this attempt.
    other_nodes: tuple[OtherNode, ...] = ()  # Of this launch, as their governors tell.
    master: str | None = None
    world_size: int = 1
    framework: str | None = None
    checkpoint_dir: str | None = None
    saves_in: str | None = None  # The same, as this attempt itself has told it.
    resume_argv: tuple[str, ...] = ()
    cwd: str | None = None
    resumes: str | None = None  # As in Hello.
    has_loaded: bool = False  # Its process has loaded a checkpoint.
    tokens_per_step: int | None = None
    total_steps: int | None = None
    parameters: int | None = None  # Of the whole model.
    ranks: dict[int, Rank] = field(default_factory=dict)
    # From the journal: the ranks that this attempt had before our restart. They say hello again one after another.
    ranks_before: frozenset[int] = frozenset()
    jsonl_only: bool = False
    stream: LogStream = field(default_factory=LogStream)
    # Progress of the run, from its lowest connected rank ("lead rank").
    step: int | None = None
    attempt_step: int = 0  # Optimizer steps seen of this attempt.
    first_step_at: MonoNs | None = None
    # This attempt's first step, or its start if the governor came later.
    working_since: MonoNs | None = None
    step_at: MonoNs | None = None
    # The same two by their senders' clock, which is what they cost by: see own_time.
    first_step_ended_at: MonoNs | None = None
    step_ended_at: MonoNs | None = None
    step_gap_ns: int = 0  # The longest time lately without a step: logs show each tenth, or many at once.
    tokens_total: int | None = None  # What was trained, and not what is told: see TrainedCount.
    counted_step: int | None = None  # The step to which `tokens_total` belongs, across attempts.
    furthest: tuple[int, int] | None = None  # The highest of those steps so far, and the total at it.
    # When the attempt began whose steps say how many tokens a step has, the first of them, and the total at it.
    counted_from: tuple[MonoNs, int, int] | None = None
    # Of a log that tells each step's tokens: some steps of all attempts in their order, and the total at each.
    log_totals: list[tuple[int, int]] = field(default_factory=list)
    loss: float | None = None
    loss_rhythm: LossRhythm = field(default_factory=LossRhythm)  # Of a log.
    finite_step: int | None = None  # This attempt's last one whose loss was finite.
    grad_norm: float | None = None
    lr: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    pace: Pace = field(default_factory=Pace)
    step_tokens: int | None = None  # Of the last step.
    data_parallel_size: int | None = None  # Ranks that see different tokens, on all nodes.
    rank_tokens: RankTokens = field(default_factory=RankTokens)
    belief: Belief = field(default_factory=Belief)
    trained_count: TrainedCount = field(default_factory=TrainedCount)
    nonpad_tokens: int | None = None  # Of all steps heard that told it: tokens that are no padding.
    nonpad_of_tokens: int = 0  # All tokens of those steps.
    tokens_per_s: float | None = None  # Over the last steps, as `pace` has them.
    # The machine under it.
    gpus: GpuSample | None = None  # Its own GPUs, as last shown.
    peak: Peak | str = NO_NAME  # Of one of them; a text: why it is unknown.
    host_memory: HostMemory | None = None
    group_memory: HostMemory | None = None
    host_use: HostSample | None = None  # Its own processes', as last shown.
    spot_notice: SpotNotice | None = None
    # Checkpoints.
    saves: Saves = field(default_factory=Saves)
    last_good: LastGood | None = None
    last_good_at: MonoNs | None = None
    named_before: tuple[LastGood, ...] = ()  # What was the last good one before, newest first.
    save_longest_ns: int | None = None
    # Money, from the ledger.
    spend_usd_micros: UsdMicros = UsdMicros(0)
    spend_rate_usd_micros_per_hour: UsdMicros | None = None  # None: the price is unknown.
    paid_tokens: PaidTokens = field(default_factory=PaidTokens)  # What that has bought.
    reserve_usd_micros: UsdMicros | None = None  # The price of this run's own halt; None: unknown.
    # Budgets of its stage, labels, day and node, as they stand, and a command's ceiling that counts more than this run.
    caps: tuple[Cap, ...] = ()
    last_frame_at: MonoNs | None = None
    last_frame_wall_ns: int | None = None
    # Only `move` writes these two.
    life: Life = Life.LIVE
    ended_at: MonoNs | None = None  # When the run last ended.
    # A rank has completed. For a run restored from the journal: all ranks had.
    completed: bool = False
    failures: dict[int, Failure] = field(default_factory=dict)  # Of this attempt, by rank, in the order of arrival.
    oom_kills: int = 0  # Of this attempt, as its control group counts.
    oom_kill_at: MonoNs | None = None  # When the last one was seen.
    end: RunEnd | None = None  # How the last attempt ended. None: not yet, or well.

    @property
    def step_times(self) -> Reservoir:
        """Step times of this attempt, seconds."""
        return self.pace.times

    @property
    def began_at(self) -> MonoNs:
        """When the attempt began. Behind a restart of ours `attempt_at` is our start: no step is of before its own."""
        first = self.first_step_ended_at
        return self.attempt_at if first is None else min(first, self.attempt_at)

    @property
    def last_trained(self) -> tuple[int, int] | None:
        """The last counted step, and all that was trained. None: not known."""
        if self.counted_step is None or self.tokens_total is None:
            return None
        return self.counted_step, max(self.tokens_total, self.furthest[1] if self.furthest is not None else 0)

    @property
    def pad_frac(self) -> float | None:
        """How much of the tokens was padding, in the steps that told it."""
        if self.nonpad_tokens is None or self.nonpad_of_tokens == 0:
            return None
        return 1.0 - self.nonpad_tokens / self.nonpad_of_tokens

    @property
    def counted_usd_micros(self) -> UsdMicros:
        """What its own ceiling counts: under `costgov run` that may be more than its spend."""
        counted = (cap.spend_usd_micros for cap in self.caps if cap.scope == f"run:{self.run}")
        return max((self.spend_usd_micros, *counted))

    def move(self, fact: LifeFact, at: MonoNs) -> Cell:
        """Put one fact to the table of its life. The caller begins the attempt where the cell says that one begins."""
        cell = TRANSITIONS[self.life, fact]
        self.life = cell.to
        if cell.ends:
            self.ended_at = at
        elif cell.to is not Life.ENDED:
            self.ended_at = None
        return cell

    def trained(self) -> Trained:
        totals, is_beyond = tuple(self.log_totals), self.belief.is_beyond
        count = self.trained_count.row()
        return Trained(self.step, self.tokens_total, self.counted_step, self.furthest, totals, is_beyond, count)

    def rename(self, name: str) -> None:
        """Watch it under another name: another run has its own now."""
        self.run = name

    def take_up(self, trained: Trained) -> None:
        self.step, self.tokens_total = trained.step, trained.tokens_total
        self.counted_step, self.furthest = trained.counted_step, trained.furthest
        self.log_totals, self.belief.is_beyond = list(trained.log_totals), trained.is_beyond
        self.trained_count = TrainedCount.of(trained.count)

    def name_last_good(self, named: NamedCheckpoint, at: MonoNs) -> None:
        """Take what a rank names as newly saved. `at`: when it said so; it may know when it saved."""
        saved_at = at if named.mono_ns is None else MonoNs(min(named.mono_ns, at))
        if saved_at >= self.attempt_at and (self.last_good is None or named.step != self.last_good.step):
            self.saves.keep(saved_at)  # Each rank may name the same one, and each connection does it anew.
        last_good, before = after_naming(self.last_good, self.named_before, named)
        self.take_last_good(last_good, saved_at, before)

    def take_last_good(self, checkpoint: LastGood | None, at: MonoNs | None, before: tuple[LastGood, ...] = ()) -> None:
        """Take what the journal names, or what a look leaves. `at`: None if this boot has no time of it."""
        self.last_good, self.last_good_at, self.named_before = checkpoint, at, before

    def note_save(self, took: DurationNs) -> None:
        self.save_longest_ns = max(self.save_longest_ns or 0, took)

    def set_other_nodes(self, others: tuple[OtherNode, ...]) -> None:
        self.other_nodes = others

    def set_caps(self, caps: tuple[Cap, ...]) -> None:
        self.caps = caps

    def set_money(self, spend: UsdMicros, rate: UsdMicros | None, reserve: UsdMicros | None) -> None:
        """Set what the run has spent, its spend rate per hour, and the price of its own halt."""
        self.spend_usd_micros, self.spend_rate_usd_micros_per_hour, self.reserve_usd_micros = spend, rate, reserve

    def set_paid_tokens(self, paid: PaidTokens) -> None:
        """Let rules read what the spend has bought. It is read as it is then: nothing is noted with a step."""
        self.paid_tokens = paid

    @property
    def unheard_ns(self) -> int | None:
        """While it lives, for how long nobody listened, if tokens of that time may come: see Awaited. None: not so."""
        return self.paid_tokens.unheard_ns if self.alive else None

    def known_ranks(self) -> frozenset[int]:
        """The ranks of this attempt on this node, connected or not: one of each process, which may say any number."""
        if len(self.ranks) == 1:
            return self.ranks_before | self.ranks.keys()
        of_process: dict[ProcessId, int] = {}
        for number in sorted(self.ranks):
            of_process.setdefault(self.ranks[number].peer.process, number)
        return self.ranks_before | frozenset(of_process.values())

    @property
    def share(self) -> int:
        """The weight by which the run pays for the node."""
        return max(1, len(self.known_ranks()))

    @property
    def beside(self) -> str | None:
        """The class of what a process of it trains unwatched beside it."""
        if not self.alive:
            return None
        return next((rank.beside for rank in self.ranks.values() if rank.connected and rank.beside), None)

    def connected_ranks(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.connected]

    def is_cut_off(self) -> bool:
        """Whether no rank is connected and no log replaces them; also true after our restart until the first hello.

        Called at every step frame. Mostly the first rank decides.
        """
        if not self.ranks:
            return not self.jsonl_only
        for rank in self.ranks.values():  # noqa: SIM110 - a generator costs more than the loop.
            if rank.connection is not None:
                return False
        return True

    @property
    def alive(self) -> bool:
        return self.life is not Life.ENDED

    @property
    def ended_well(self) -> bool:
        """Whether every known rank has reported that it trained to the end."""
        return all(rank.completed for rank in self.ranks.values()) if self.ranks else self.completed

    def covers_world(self) -> bool:
        """Whether every rank of the whole job is connected to this governor."""
        return len(self.connected_ranks()) == self.world_size

    @property
    def has_ranks_elsewhere(self) -> bool:
        """Whether its launch has ranks on other nodes, as far as its own ranks know."""
        return self.world_size > len(self.known_ranks())

    def unsaved_ns(self, at: MonoNs) -> int:
        """Work that a kill now would lose: since the last good checkpoint, at most since this attempt began to work.

        Between two attempts no work is done, and the state from which an attempt begins is saved.
        """
        if self.working_since is None:
            return 0
        return max(0, at - max(self.working_since, self.last_good_at or self.working_since))

    def is_unwatched(self, at: MonoNs) -> bool:
        """Whether the run seems alive but has been silent for so long that this is no longer known."""
        if not self.alive:
            return False
        if self.jsonl_only:
            # A deleted file that is still written and read counts as heard.
            lost_at = self.stream.lost_at
            after_ns = FOREIGN_AFTER_NS if self.stream.is_foreign else UNWATCHED_AFTER_NS
            return lost_at is not None and at - max(lost_at, self.last_frame_at or 0) >= after_ns
        return (
            not self.connected_ranks()
            and self.last_frame_at is not None
            and (at - self.last_frame_at >= UNWATCHED_AFTER_NS)
        )


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def is_nonfinite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
