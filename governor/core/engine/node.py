"""What one governor knows: its node, runs and incidents. Mutable. The engine owns it; status and performer read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from governor.core.base.identity import ConnectionId, ProcessId, SchedulerFacts
from governor.core.base.model_speed import Peak
from governor.core.base.policy import Policy, PolicySet, with_cap_rule
from governor.core.base.run_names import announced_as
from governor.core.base.shares import NOTHING, Claim, UidRange, user_of
from governor.core.base.units import MICROS_PER_USD, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.idle_state import NODE, IdleState
from governor.core.engine.managed_run import ManagedRun, PastRun, PreviousCommand, SupersededRank
from governor.core.events.effects import Record
from governor.core.events.inputs import CommandLaunched
from governor.core.events.machine import SpotNotice
from governor.core.events.streams import StreamOpened
from governor.core.fleet.members import Telling
from governor.core.fleet.shared import Shared
from governor.core.halt.incident import Incident
from governor.core.halt.left_launch import LeftLaunch
from governor.core.money.budgets import Budgets, Scope, ScopedBudget, ScopeKind, by_scope
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_PAYER, Payer, Place, labels_of
from governor.core.money.command_account import CommandAccount
from governor.core.money.group_totals import PAST_MAX
from governor.core.money.ledger import Ledger, new_ledger
from governor.core.money.lines import Lines, PriceRise, compute_line
from governor.core.rules.evaluate import Rules
from governor.core.runs.state import Run

# Live or remembered. One node holds a handful. Beyond it the oldest ended run becomes a past one.
RUNS_MAX = 64
RUNS_PER_UID_MAX = 32  # One user's leak must leave room for another user's runs.
# Names whose last incident is known by number. As many as the journal retains incidents, below 300 KB.
NUMBERS_MAX = 1_000
# What would be lost with a run's history, beside shares.NOTHING.
TRAINED, PROTECTED = 1, 2
SPENT_USD_MICROS = MICROS_PER_USD  # A run that has spent more than this is worth as much as one that has trained.


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What start-up learned of this machine; it does not change while the governor lives."""

    node: str
    boot_id: str
    price_usd_micros_per_hour: UsdMicros | None = None
    price_source: str | None = None
    price_as_of: str = ""  # The day (ISO 8601) on which the source stated the price.
    price_kind: str = ""  # "spot", "on-demand".
    price_since_wall: WallNs | None = None  # When the price came into force, if the source states it.
    lines: Lines = Lines()  # What is billed beside the machine.
    cloud: str = "none"  # The provider's name.
    instance_id: str | None = None
    region: str | None = None
    # The instance is billed from here; None: the provider does not say.
    launched_at_wall: WallNs | None = None
    will_stop: str = ""  # "stop EC2 instance i-0abc …"
    stays_billed: tuple[str, ...] = ()
    can_stop: bool = False  # A provider is configured and its preflight found no obstacle.
    billing_source: str = ""  # Who answers whether the machine is billed, and how it is asked.
    said_running: bool = False  # At the start, this source said that the machine is billed.
    survives_stop: bool | None = None  # Whether the local disk outlives a stop.
    stop_bound_ns: DurationNs = DurationNs(0)  # Declared by the provider.
    granularity_ns: DurationNs = DurationNs(0)
    scheduler: SchedulerFacts = SchedulerFacts()
    observe: bool = False
    has_peers: bool = False  # Governors of other nodes can be told and heard, at once or when their port is had.
    idle_stop_ns: DurationNs | None = None  # From costgov.toml. 0: off; None: the policies decide.
    # Under `costgov run`, the one launched command is the node's tenant.
    exclusive: bool = False
    streams: frozenset[str] = frozenset()  # Names of `[[jsonl]]` streams: the configuration gives them, and no hello.
    gpu_peaks: Mapping[str, Peak] = field(default_factory=dict)  # By the name that a driver has for a GPU.
    redact_keys: tuple[str, ...] = ()  # Options whose values are secrets, beside the usual ones (core.base.secrets).

    @property
    def usd_micros_per_hour(self) -> UsdMicros | None:
        """The price of all lines at the start, rounded up; None while the machine's price is unknown."""
        price = self.price_usd_micros_per_hour
        return None if price is None else UsdMicros(price + self.lines.usd_micros_per_hour)


class Refusal(NamedTuple):
    """Why a hello was refused, and whose it was."""

    reason: str
    uid: int


@dataclass(slots=True)
class Node:
    facts: NodeFacts
    policies: PolicySet
    ledger: Ledger
    began: BootNs  # When this governor's metering began.
    began_wall: WallNs  # The wall clock at that moment.
    account: CommandAccount  # Who pays for the launched command's time.
    metered_wall: WallNs  # The wall clock at the last charged moment.
    away_ns: DurationNs = DurationNs(0)  # How long within this boot no governor had run when we began.
    budgets: Budgets = field(default_factory=Budgets)
    launched: CommandLaunched | None = None  # The command of `costgov run`, until it has exited.
    command: CommandLaunched | None = None  # The same, also when it has exited: its ranks may live on.
    previous_command: PreviousCommand | None = None  # Until we know whether it is the launched command.
    left: LeftLaunch | None = None  # A launch whose command has exited: what that has left is waited for.
    ended_lock: int | None = None  # The stamp of the lock of the last launch that was seen to its end.
    price_rise: PriceRise | None = None  # The last one.
    windows_uncommitted: list[Record] = field(default_factory=list)  # Closed windows that no PersistRuns has taken yet.
    runs: dict[str, ManagedRun] = field(default_factory=dict)
    uid_ranges: tuple[UidRange, ...] = ()  # Whose a uid is that belongs to another user's range.
    past: dict[str, PastRun] = field(default_factory=dict)  # Runs that are no longer managed, by name.
    connections: dict[ConnectionId, tuple[str, int]] = field(default_factory=dict)
    # At most as many as the inbox has connections.
    superseded: dict[ConnectionId, SupersededRank] = field(default_factory=dict)
    ignored: dict[ConnectionId, SupersededRank] = field(default_factory=dict)  # Likewise, until they disconnect.
    # Processes that we do not watch, and why. Each is reported once.
    refusals: dict[ProcessId, Refusal] = field(default_factory=dict)
    incidents: dict[str, str] = field(default_factory=dict)  # Incident id -> run. Each run has its last incident here.
    # The number of each name's last incident, the one opened longest ago first, and the highest number that is no
    # longer here. A name that is not here begins above it: no id is given twice.
    numbers: dict[str, int] = field(default_factory=dict)
    numbers_floor: int = 0
    names_dropped: bool = False  # The journal has runs that memory has not: dropped by us, or by an earlier governor.
    # What waits for the journal's answer, by run. As many as there are streams in costgov.toml, and one command.
    waiting: dict[str, list[StreamOpened | CommandLaunched]] = field(default_factory=dict)
    not_recalled: dict[str, None] = field(default_factory=dict)  # Names of which the journal knows nothing.
    gpu_pids: frozenset[int] = frozenset()  # Processes that use the GPUs; empty also when this is unknown.
    gpu_pids_own: frozenset[int] = frozenset()  # Those of them that descend from the launched command.
    spot_notice: SpotNotice | None = None  # The provider's last notice.
    # The billing source that has said "running". From any other, "ended" is no proof: a check may be mistyped.
    running_source: str | None = None
    idle: IdleState = field(default_factory=IdleState)
    wall_offset_ns: int = 0  # Wall minus monotonic at the last tick: labels only.
    boot_offset_ns: int | None = None  # Boot clock minus monotonic at the last tick. None before the first.
    # What a user may cause at a pace, by user: until when that is used up. What came at once is ahead of the time.
    launches_until: dict[int, MonoNs] = field(default_factory=dict)
    looks_until: dict[int, MonoNs] = field(default_factory=dict)  # At checkpoints, for what they cost.
    persisted_at: MonoNs | None = None  # When runs and money were last persisted; None: this is due.
    persisted_to: BootNs | None = None  # The node's time up to there is in a commit of this governor.
    # Runs whose snapshots could not be read; None: the journal had no node's, either.
    unreadable_runs: set[str] | None = None
    # By which the runs that the journal knew as alive share the time in which no governor ran.
    shares_left: dict[str, int] = field(default_factory=dict)
    frames_total: int = 0
    frames_lost_total: int = 0
    telling: Telling = field(default_factory=Telling)
    shared: Shared | None = None  # Budgets of a fleet.

    def request_persist(self) -> None:
        """Persist runs and money with the next tick, before the period ends."""
        self.persisted_at = None

    def note_persisted(self, at: MonoNs) -> None:
        """Note that all is persisted as of now. The next commit is due a period later."""
        self.persisted_at, self.persisted_to = at, self.ledger.charged_to

    @property
    def believes_the_end(self) -> bool:
        """Whether "ended" proves anything: the same source has said "running", to us or to an earlier governor."""
        return self.running_source is not None and self.running_source == self.facts.billing_source

    def note_running(self) -> None:
        """The billing source said "running". Persist it: a governor that resumes a halt may find the end only."""
        if self.running_source != self.facts.billing_source:
            self.running_source = self.facts.billing_source
            self.request_persist()

    def wall(self, at: MonoNs) -> WallNs:
        return WallNs(at + self.wall_offset_ns)

    def holders(self) -> dict[str, int]:
        """The live runs that pay, and the ranks they hold here: how the node's time is shared.

        A command for which no run speaks has an unallocated share beside them: its ceiling must go on counting.
        """
        held: dict[str, int] = {}
        has_unattached = False
        for name, managed in self.runs.items():
            # Under `costgov run` the command is the tenant, and its ceiling is its only shield.
            if not managed.run.alive or self.pays_nothing(managed):
                continue
            if managed.is_unattached:
                has_unattached = True
            elif managed.follows_command and not self._pays_for_command(name):
                continue
            elif managed.incident is None or not managed.incident.is_closed:
                held[name] = managed.run.share
                if self.ledger.returning:  # The time to charge is that of before: no rank of then has to be back yet.
                    held[name] = self.shares_left.get(name, held[name])
        if held and has_unattached:
            held[UNALLOCATED] = 1
        return held

    def pays_nothing(self, managed: ManagedRun) -> bool:
        """Whether it is a stranger's, or another user's below the command (a sandbox) while the command's user trains.

        Where the command itself has become that user, nobody trains beside it, and it pays.
        """
        command = self.command
        if managed.is_strangers or command is None:
            return managed.is_strangers
        if managed.is_separate or not managed.run.ranks or managed.run.uid == command.uid:
            return False
        own = [t for t in self.runs.values() if t.run.uid == command.uid and t.run.ranks and not t.is_separate]
        return any(t.run.alive and (t.incident is None or not t.incident.is_closed) for t in own)

    def _pays_for_command(self, log: str) -> bool:
        """Whether this log's run pays for the command. One run does, however many logs the command writes.

        None does after a halt that has ended the command: what passes then is nobody's, as where it writes one log.
        """
        command = {*self.runs[log].launch.launchers, *(self.launched.processes if self.launched is not None else ())}
        if any(t.incident is not None and t.incident.has_ended(command) for t in self.runs.values()):
            return False
        its = {name: t for name, t in self.runs.items() if t.run.alive and not t.is_separate}
        its = {name: t for name, t in its.items() if t.incident is None or not t.incident.is_closed}
        first = self.account.run if self.account.run in its else next(iter(its), None)
        return log == first and all(t.follows_command for t in its.values())

    def unannounced_gpu_pids(self) -> frozenset[int]:
        """GPU processes that no run announced."""
        return self.gpu_pids - {p.pid for managed in self.runs.values() for p in managed.processes()}

    def foreign_gpu_pids(self) -> frozenset[int]:
        """Unannounced GPU processes of other tenants, without those that the command started itself."""
        return self.unannounced_gpu_pids() - self.gpu_pids_own

    def enter(self, incident: Incident) -> None:
        """Let answers about this incident find its run. Answers about a replaced incident find no run."""
        current = {t.incident.incident_id for t in self.runs.values() if t.incident is not None}
        self.incidents = {i: run for i, run in self.incidents.items() if i in current or run == NODE}
        self.incidents[incident.incident_id] = incident.run

    def next_incident_id(self, run: str, numbered: int) -> tuple[str, int]:
        """An id that no incident of this node has had, and its number. `numbered`: how many the run has had itself."""
        number = max(numbered, self.numbers.get(run, self.numbers_floor)) + 1
        self.note_number(run, number)
        return f"{run}.{self.facts.node}.{number}", number

    @property
    def has_dropped_names(self) -> bool:
        """Whether the journal may have runs that memory has not. An older governor's has no word for it."""
        is_full = len(self.runs) + len(self.past) >= PAST_MAX  # What was beyond this number it has dropped.
        return self.names_dropped or is_full or self.ledger.book.runs.folded_total > 0

    def note_not_recalled(self, name: str) -> None:
        """Do not ask the journal for this name once more before its run is managed."""
        self.not_recalled[name] = None
        if len(self.not_recalled) > NUMBERS_MAX:
            del self.not_recalled[next(iter(self.not_recalled))]

    def note_number(self, run: str, number: int) -> None:
        """Note that this incident of the run exists."""
        self.numbers[run] = max(number, self.numbers.pop(run, 0))
        if len(self.numbers) > NUMBERS_MAX:
            self.numbers_floor = max(self.numbers_floor, self.numbers.pop(next(iter(self.numbers))))

    def of_incident(self, incident_id: str) -> ManagedRun | None:
        name = self.incidents.get(incident_id)
        if name == NODE:
            return self.idle.stop
        return self.runs.get(name) if name is not None else None

    def spent_by(self, run: str) -> UsdMicros:
        """What a run has spent. For the node itself: the unallocated spend since nobody uses it."""
        if run != NODE:
            return self.ledger.spend(run)
        return UsdMicros(max(0, self.ledger.spend(UNALLOCATED) - self.idle.spent_before_usd_micros))

    def announced(self, incident_id: str) -> tuple[ProcessId, ...]:
        """The rank processes of this halt, dead or alive, of every attempt since it opened."""
        managed = self.of_incident(incident_id)
        if managed is None or managed.incident is None:
            return ()
        return managed.incident.rank_processes

    def policy_for(self, run: str, stage: str | None, labels: Mapping[str, str], uid: int) -> Policy:
        """The policy that judges a run, held to every budget that covers the run.

        A run that is watched as NAME@UID, because another uid has the name, is held to a budget of NAME too.
        """
        policy = self.policies.for_run(labels, stage, uid)
        has_own = self.budgets.of(Scope(ScopeKind.RUN, run)) is not None
        announced = None if has_own else announced_as(run, uid, self.budgets.runs())
        held = self.budgets.over(policy, announced or run, stage, labels, of_command=self.facts.exclusive)
        held = with_cap_rule(held) if self.shared is not None and self.shared.covers(stage, labels) else held
        return held.observing() if self.facts.observe and held is not policy else held

    @property
    def price_source(self) -> str | None:
        """The source of the machine's present price; None while it is unknown."""
        metered = self.ledger.compute.metered
        return metered.line.source or None if metered is not None else None

    def payers(self) -> dict[str, Payer]:
        """Every run as it is charged now, and the unallocated payer."""
        return {UNALLOCATED: UNALLOCATED_PAYER, **{name: payer_of(managed) for name, managed in self.runs.items()}}


def payer_of(managed: ManagedRun) -> Payer:
    run = managed.run
    return Payer(run.run, run.attempt, run.stage, labels_of(run.labels))


def new_node(
    facts: NodeFacts, policies: PolicySet, boot: BootNs, wall: WallNs, budgets: Sequence[ScopedBudget] = (),
    shared: Shared | None = None,
) -> Node:  # fmt: skip
    compute = compute_line(facts.price_usd_micros_per_hour, facts.price_source, facts.price_as_of, facts.price_kind)
    place = Place(facts.node, facts.cloud, facts.instance_id, facts.region)
    ledger = new_ledger(compute, boot, place, wall, facts.lines)
    if policies.typed_ceiling_usd_micros is not None:  # It overrides every file's budget of a run.
        budgets = [budget for budget in budgets if budget.scope.kind is not ScopeKind.RUN]
    configured = Budgets(by_scope(budgets))
    ledger.groups.pin(configured.scopes())
    return Node(
        facts=facts,
        policies=policies.observing() if facts.observe else policies,
        ledger=ledger,
        began=boot,
        began_wall=wall,
        account=CommandAccount(since=boot),
        metered_wall=wall,
        budgets=configured,
        shared=shared,
        running_source=facts.billing_source if facts.said_running else None,
    )


def owner_of(node: Node, name: str) -> int | None:
    """The uid that owns this name, of a managed or a past run; None: the name is free."""
    managed, past = node.runs.get(name), node.past.get(name)
    return managed.run.uid if managed is not None else past.uid if past is not None else None


def claim_of(node: Node, managed: ManagedRun) -> Claim:
    """Whose the run is, and what would be lost with its history."""
    run, history = managed.run, managed.history
    has_budget = node.budgets.of(Scope(ScopeKind.RUN, run.run)) is not None
    if has_budget or history.incidents_total or history.hold_until is not None:
        return Claim(run.uid, PROTECTED)
    has_used = run.step is not None or node.ledger.spend(run.run) > SPENT_USD_MICROS
    return Claim(run.uid, TRAINED if has_used else NOTHING)


def newest_of_most(node: Node, among: Iterable[ManagedRun], *, in_halts: bool = False) -> ManagedRun | None:
    """Which of these live runs gives way: the newest of the user who has most of them, first one without a step.

    None does during its halt, unless `in_halts`. A user all of whose runs are being halted keeps no other's from
    giving way.
    """
    its = {managed.run.run: user_of(node.uid_ranges, managed.run.uid) for managed in among}
    held = Counter(its.values())
    runs = [node.runs[name] for name in its]
    may_go = [t for t in runs if not t.is_unattached and (in_halts or t.incident is None or t.incident.is_closed)]
    most = max((held[its[t.run.run]] for t in may_go), default=0)
    newest = [t for t in may_go if held[its[t.run.run]] == most]
    return min(newest, key=lambda t: (t.run.step is not None, -t.run.attempt_at), default=None)


def make_past(node: Node, managed: ManagedRun, claim: Claim | None = None) -> None:
    """Stop managing the run. `claim` if more would be lost than the run shows."""
    run = managed.run
    node.runs.pop(run.run, None)
    node.past[run.run] = managed.past()
    folded = node.ledger.make_past(run.run, claim or claim_of(node, managed))
    if folded is not None:
        node.past.pop(folded, None)


def recall(node: Node, managed: ManagedRun) -> None:
    """Manage the run, for the first time or again. A past run gets its history back."""
    run = managed.run
    node.ledger.recall(run.run)
    node.runs[run.run] = managed
    node.not_recalled.pop(run.run, None)
    past = node.past.pop(run.run, None)
    if past is None:
        managed.history.begins_to_pay(node.ledger.charged_to)
        managed.history.spent_before(node.ledger.spend(run.run))
        if managed.history.paid_before:  # Of a journal that had lost all but the run's charges.
            managed.history.split.begin_untold(managed.history.paid_before)
        return
    managed.take_up(past)


def manage(node: Node, name: str, uid: int, stage: str | None, labels: Mapping[str, str], at: MonoNs) -> ManagedRun:
    """Enter a run that is not managed. The caller has made sure of room, if only an ended run's place."""
    if len(node.runs) >= RUNS_MAX:
        make_past(node, min((t for t in node.runs.values() if not t.run.alive), key=lambda t: t.run.ended_at or 0))
    run = Run(run=name, uid=uid, first_seen_at=at, stage=stage, labels=labels)
    policy = node.policy_for(name, stage, labels, uid)
    managed = ManagedRun(run, policy, Rules(policy, run))
    recall(node, managed)
    # The journal needs its owner, and that it holds the node from here on.
    node.request_persist()
    return managed
