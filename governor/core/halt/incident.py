"""The record of one halt: what was seen and when, in that order. incident_json.py writes it as plain JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs, WallNs, format_duration
from governor.core.fleet.members import NodePart
from governor.core.halt.left_launch import NEVER_LOOKED, Below, LeftLaunch, process_of
from governor.core.halt.state import GivenUp, StopTarget
from governor.core.halt.table import Fact, Halt, HaltPlan, HaltState
from governor.core.money.token_price import TokenPrices
from governor.core.runs.last_good import LastGood
from governor.core.runs.state import RANKS_MAX, Run

# Four times the ranks of a node. Beyond it, signalled processes are counted and not listed.
TARGETS_MAX = 256
# Processes announced or restarted since the halt began. Further restarts are found by their tree and group.
# A snapshot of a thousand rows has 100 kB, and each step of the halt writes one.
PROCESSES_MAX = 1_024
# A halt has ~20 entries. A provider that refuses for a week repeats itself, and repeats are merged.
TIMELINE_MAX = 400
OTHER_USER = "other user"  # Why a launcher is left alone.
NO_BOUNDARY = "no_boundary"  # In the timeline.
COLLECTIVES = "collectives"  # In the timeline and in the evidence.


@dataclass(slots=True)
class Incident:
    incident_id: str
    run: str
    uid: int
    attempt: str
    reason: str
    text: str
    halt: Halt
    plan: HaltPlan
    opened_at: MonoNs
    opened_wall: WallNs
    job: str = ""  # The scheduler's, where the plan ends one: its full name (identity.py).
    bad_node: str = ""  # This one, by its scheduler's name, if its hardware failed: "slurm:n1".
    policy: str = ""
    rule: str = ""
    trigger: str = ""
    stage: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    operator_uid: int | None = None
    step: int | None = None
    loss: float | None = None
    tokens_total: int | None = None  # All that the run had trained, each once.
    tokens_at: int | None = None  # At its last step: less, where it trained again what it had.
    rank_processes: tuple[ProcessId, ...] = ()
    launchers: tuple[ProcessId, ...] = ()
    named_uids: tuple[int, ...] = ()  # Beside `uid`: of processes that root's configuration names.
    launch: LeftLaunch | None = None  # The journal's: the halt began under a governor that is gone.
    below: Below = NEVER_LOOKED  # As in LeftLaunch.
    targets: list[dict[str, Any]] = field(default_factory=list)
    # The most signalled processes at one time that are not in the list.
    targets_unlisted: int = 0
    killed_unlisted: int | None = None  # Likewise, of those that SIGKILL has reached. None: none was sent yet.
    ranks: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    agreed_step: int | None = None
    checkpoint: dict[str, Any] | None = None
    last_good: LastGood | None = None
    spend_at_verdict_usd_micros: int = 0
    spend_usd_micros: int = 0
    prices: TokenPrices = TokenPrices()
    wasted_usd_micros: Mapping[str, int] | None = None  # By cause; None: unknown.
    spend_rate_usd_micros_per_hour: int | None = None
    paid_by: str | None = None  # The run that pays for the command in this one's place.
    resume: str | None = None
    framework: str | None = None  # It decides how a script is told to resume.
    resumes: str | None = None  # As in Hello.
    pages: list[str] = field(default_factory=list)
    closed_wall: WallNs | None = None
    undurable: bool = False
    # Of a run with several nodes.
    wanted: str = "none"  # The checkpoint that the verdict asked for, if none can be asked for here.
    decided_by: str = ""  # The node whose verdict it was; "": ours.
    obeyed: str = ""  # The id under which the ranks here had heard of the halt, before any governor told us.
    known_as: str = ""  # The id that all its nodes call it by; "": our own.
    nodes: Mapping[str, NodePart] = field(default_factory=dict)  # The other nodes' parts, by name.
    given_up: str = ""  # Closed in the state in which the halt was, without its end: the word for why.

    @property
    def is_closed(self) -> bool:
        return bool(self.given_up) or self.halt.stage is HaltState.HALTED

    @property
    def stage_name(self) -> str:
        """What every view says: the halt's state, or that it was given up."""
        return self.given_up or self.halt.stage.name

    @property
    def called(self) -> str:
        """The id by which every node of the run calls this halt."""
        return self.known_as or self.incident_id

    def call(self, incident_id: str) -> None:
        """Call it as the run's other nodes do. Its own id stays valid here."""
        self.known_as = incident_id

    def is_of(self, incident_id: str) -> bool:
        """Whether an answer of a rank is about this halt, by any of its names."""
        return incident_id in (self.incident_id, self.known_as, self.obeyed) and incident_id != ""

    def obey(self, incident_id: str) -> None:
        """Note the id that the ranks have for it. They alone say so, and only their own answers are read by it."""
        self.obeyed = incident_id

    def take_nodes(self, parts: Mapping[str, NodePart]) -> None:
        """Take what other nodes have told of their parts."""
        self.nodes = {**self.nodes, **parts}

    def own_part(self, node: str, cloud: str, instance_id: str | None) -> NodePart:
        """This node's part, as it was observed here."""
        is_verified, stops = self.at_of("verified") is not None, self.plan.stop is not StopTarget.PROCESSES
        is_accepted = self.halt.stop_reply is Fact.STOP_ACCEPTED or self.halt.stage is HaltState.VERIFYING
        has_ended = self.halt.stage is HaltState.HALTED and not self.given_up
        return NodePart(
            node=node,
            instance_id=instance_id,
            cloud=cloud,
            stage=self.stage_name,
            gone=has_ended or self.at_of("exited") is not None,
            stopped=is_verified or is_accepted if stops else None,
            verified=is_verified if stops else None,
        )

    @property
    def names_nobody(self) -> bool:
        """No process of the run is known, so none can be ended and none can be seen to end."""
        return not self.rank_processes and not self.launchers

    @property
    def is_stuck(self) -> bool:
        """Whether nothing that we can do ends it: a person is called, or its processes may not be signalled."""
        return not self.is_closed and (self.halt.stage is HaltState.NEEDS_HUMAN or self.unsent is not None)

    def move(self, halt: Halt) -> None:
        """Set the state of the halt that the table returned."""
        self.halt = halt

    def rename(self, run: str) -> None:
        """Its run is watched under another name now. The id stays."""
        self.run = run

    @property
    def is_in_doubt(self) -> bool:
        """Whether it ends whom it knows, and was to know more: decided here alone, and its snapshot says so.

        The end of a machine is the end of all.
        """
        is_cut = bool(self.below.missed) or not self.below.is_looked
        return self.launch is not None and is_cut and self.plan.stop is StopTarget.PROCESSES

    def close(self, wall: WallNs) -> None:
        self.closed_wall = wall

    def end(self, at: MonoNs, wall: WallNs) -> None:
        """Close it in HALTED, or as one of which not all is known."""
        if self.is_in_doubt:
            self.given_up = GivenUp.LEFT_UNNOTED
        self.note(at, wall, GivenUp.LEFT_UNNOTED if self.is_in_doubt else "halted")
        self.close(wall)

    def give_up(self, at: MonoNs, wall: WallNs, word: str, **detail: Any) -> None:
        """Close it as one that has not ended. Nobody goes on with the halt."""
        self.note(at, wall, word, was=self.halt.stage.name, **detail)
        self.move(replace(self.halt, deadline=None))
        self.given_up = word
        self.close(wall)

    def lower_verdict_spend(self, usd_micros: int) -> None:
        """Set what was spent at the verdict to what is known of it: the run's row was to be kept after this one."""
        self.spend_at_verdict_usd_micros = min(self.spend_at_verdict_usd_micros, usd_micros)

    def set_spend(
        self, usd_micros: int, prices: TokenPrices = TokenPrices(), wasted: Mapping[str, int] | None = None
    ) -> None:
        self.spend_usd_micros, self.prices, self.wasted_usd_micros = usd_micros, prices, wasted

    def is_known_as(self, job: str) -> None:
        """Its scheduler can be asked for the job by this full name, also when the run's own part of it is gone."""
        self.job = job

    def suspect(self) -> None:
        """Save a suspect checkpoint beside the good ones: a joined verdict says that the state may be bad."""
        self.plan = replace(self.plan, checkpoint="suspect")

    def agree(self, step: int) -> None:
        """Note the step after which the ranks have agreed to save."""
        self.agreed_step = step

    def take_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self.checkpoint = dict(checkpoint)

    def verify_checkpoint(self, found: Mapping[str, Any]) -> None:
        """Add what the governor saw of the checkpoint that the ranks reported."""
        assert self.checkpoint is not None, "the caller looked"
        self.checkpoint.update(found)

    def take_last_good(self, checkpoint: LastGood | None) -> None:
        """Take the run's: it was saved by this halt or meanwhile, or a look has left it."""
        self.last_good = checkpoint

    def page(self, reason: str) -> None:
        if reason not in self.pages:
            self.pages.append(reason)

    def mark_undurable(self) -> None:
        """Note that one of its rows is only in the fallback file."""
        self.undurable = True

    def note(self, at: MonoNs, wall: WallNs, what: str, **detail: Any) -> None:
        """Add to the timeline. A repetition of the last entry is counted in that entry instead."""
        if self.timeline:
            last = self.timeline[-1]
            if last["what"] == what and last["detail"] == detail:
                last["times"] = last.get("times", 1) + 1
                last["last_mono_ns"] = at
                return
        if len(self.timeline) >= TIMELINE_MAX:
            del self.timeline[TIMELINE_MAX // 2]  # The begin and the end matter more than the days between.
        self.timeline.append({"mono_ns": at, "wall_ns": wall, "what": what, "detail": detail})

    def note_end_of_asking(self, before: Halt, run: Run, at: MonoNs, wall: WallNs) -> None:
        """Note the rank that is not at the agreed step when the grace is over: without a step it cannot save."""
        is_over = before.grace_until is not None and at >= before.grace_until
        if not is_over or (before.stage, self.halt.stage) != (HaltState.ASKED, HaltState.TERMED):
            return
        ranks = [rank for rank in run.ranks.values() if rank.connected and not rank.said_bye]
        last = min(ranks, key=lambda rank: rank.step if rank.step is not None else -1, default=None)
        if last is None or self.agreed_step is None or (last.step is not None and last.step >= self.agreed_step):
            return
        since = last.step_at if last.step_at is not None else last.hello_at
        where = "" if last.phase == "train" else f", in {last.phase},"
        told = f"rank {last.rank}{where} has reached no step boundary in {format_duration(at - since)}"
        self.note(at, wall, NO_BOUNDARY, rank=last.rank, reason=told)

    def note_collectives(self, at: MonoNs, wall: WallNs, found: Mapping[str, Any], text: str | None) -> None:
        """Keep what the ranks have shown of their collectives. Its line is one entry, whoever answers later."""
        self.evidence = {**self.evidence, COLLECTIVES: dict(found)}
        entry = next((entry for entry in self.timeline if entry["what"] == COLLECTIVES), None)
        if entry is not None:
            entry["detail"] = {"text": text}
        elif text is not None:
            self.note(at, wall, COLLECTIVES, text=text)

    def mark_unsent(self, what: str, reason: str) -> None:
        """Note that the newest signal of the timeline was not sent."""
        for entry in reversed(self.timeline):
            if entry["what"] == what:
                entry["detail"] = {**entry["detail"], "unsent": reason}
                return

    def mark_sent(self, what: str) -> None:
        """Note that the newest signal of the timeline was sent after all: one that was repeated, this time."""
        entry = next((entry for entry in reversed(self.timeline) if entry["what"] == what), None)
        if entry is None or "unsent" not in entry["detail"]:
            return
        sent = {**entry, "detail": {key: value for key, value in entry["detail"].items() if key != "unsent"}}
        times, last = sent.pop("times", 1), sent.pop("last_mono_ns", entry["mono_ns"])
        if times == 1:
            entry["detail"] = sent["detail"]
            return
        entry["times"] = times - 1
        wall_ns = entry["wall_ns"] + last - entry["mono_ns"]
        self.timeline.insert(self.timeline.index(entry) + 1, {**sent, "mono_ns": last, "wall_ns": wall_ns})

    @property
    def unsent(self) -> str | None:
        """Why the newest signal was not sent; None if it was, or there is none."""
        newest = next((entry for entry in reversed(self.timeline) if entry["what"] in ("term", "kill")), None)
        return newest["detail"].get("unsent") if newest is not None else None

    def add_targets(self, rows: Iterable[dict[str, Any]]) -> None:
        """Record signalled processes, each once, while there is room."""
        known = {(row["pid"], row["start_ticks"]) for row in self.targets}
        new = [row for row in rows if (row["pid"], row["start_ticks"]) not in known]
        room = TARGETS_MAX - len(self.targets)
        self.targets.extend(new[:room])
        self.targets_unlisted = max(self.targets_unlisted, len(new) - room)

    def note_killed(self, hit: Collection[ProcessId]) -> None:
        """Note of each signalled process whether SIGKILL has reached it: most are gone by then."""
        for row in self.targets:
            row["killed"] = bool(row.get("killed")) or process_of(row) in hit
        unlisted = len(set(hit).difference(map(process_of, self.targets)))
        self.killed_unlisted = max(self.killed_unlisted or 0, unlisted)

    def note_left(
        self, left: Collection[ProcessId], hit: Collection[ProcessId], *, of_others: Collection[ProcessId] = ()
    ) -> None:
        """Note which launchers live on, `left`, until a signal hits them: another run stands below them.

        `of_others`: those that are another user's instead (`sudo`). They may end with what they wait for.
        """
        for row in self.targets:
            process = process_of(row)
            if process in hit:
                row.pop("left", None)
            elif process in left:
                row["left"] = OTHER_USER if process in of_others else True

    def has_ended(self, processes: Iterable[ProcessId]) -> bool:
        """Whether the halt is over and these are among the processes that it ended: none, where it was given up."""
        if not self.is_closed or self.given_up:
            return False
        left = {process_of(row) for row in self.targets if row.get("left")}
        return not (set(processes) - left).isdisjoint((*self.launchers, *self.rank_processes))

    def add_processes(self, processes: Iterable[ProcessId]) -> None:
        """Add processes to the run's. Beyond the limit, the first ranks stay, and the newest of the others."""
        found = tuple(dict.fromkeys((*self.rank_processes, *processes)))
        if len(found) > PROCESSES_MAX:
            found = (*found[:RANKS_MAX], *found[RANKS_MAX - PROCESSES_MAX :])
        self.rank_processes = found

    def note_below(self, below: Below) -> None:
        """Note what is the launch's now."""
        self.below = below

    def add_uids(self, uids: Iterable[int]) -> None:
        self.named_uids = tuple(dict.fromkeys((*self.named_uids, *uids)))

    def at_of(self, what: str) -> MonoNs | None:
        """When the timeline first has `what`."""
        return next((entry["mono_ns"] for entry in self.timeline if entry["what"] == what), None)


def rank_rows(run: Run) -> list[dict[str, Any]]:
    """Every rank's position at this moment, for the report."""
    return [
        {
            "rank": rank.rank,
            "pid": rank.peer.process.pid,
            "connected": rank.connected,
            "phase": rank.phase,
            "step": rank.step,
            "last_hook": rank.last_hook,
            "device_wait": rank.device_wait,
            "stack": list(rank.stack),
            "collective": dict(rank.collective) if rank.collective is not None else None,
        }
        for rank in sorted(run.ranks.values(), key=lambda rank: rank.rank)
    ]
