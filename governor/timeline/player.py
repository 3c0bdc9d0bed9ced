"""One run under one policy, on a clock that only the caller moves: events go in, verdicts come out.

Performs what a timeline's lines say, without their text (governor.timeline.series). The engine does the bookkeeping.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import merge
from typing import Any, ClassVar, Final

from governor.core.base.findings import Finding, Response
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import Policy, PolicySet
from governor.core.base.units import (
    NS_PER_HOUR,
    NS_PER_S,
    TICK_NS,
    BootNs,
    MonoNs,
    UsdMicros,
    WallNs,
    parse_duration,
)
from governor.core.engine import verdicts
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import NodeFacts, new_node
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Effect, Record
from governor.core.events.fetch import Fetch
from governor.core.events.hardware import GpuFigures
from governor.core.events.inputs import Beat, Bye, Disconnected, Event, Hello, PhaseChange, Step, Tick
from governor.core.events.machine import GpuSample, MachineEvent
from governor.core.money.budgets import Cap
from governor.core.rules.evaluate import Rules
from governor.core.runs import intake
from governor.core.runs.line_steps import of_all_its_steps
from governor.core.runs.state import Run
from governor.timeline.entries import OBSERVES, OBSTACLES, Decided

BEAT_NS: Final = NS_PER_S
GPU_BYTES: Final = 80 * 2**30
SOUND_GPU: Final = GpuFigures(clock_reasons=0, ecc_uncorrected_total=0, xid_total=0)
GPU_LOOK_NS: Final = 2 * NS_PER_S  # The daemon's own period.
Settings = Mapping[str, str]


class Player:
    """Plays a run of some ranks, or a log (`log`: no connections, no beats). `verdicts` fills as time passes."""

    facts: ClassVar[NodeFacts] = NodeFacts("test", "boot")

    def __init__(
        self,
        policy: Policy,
        ranks: int,
        world_size: int,
        *,
        log: bool = False,
        stage: str | None = None,
        labels: Mapping[str, str] | None = None,
        recorded: Collection[str] = (),
    ) -> None:
        """`recorded`: rules whose findings are recorded in `history` as they change."""
        self.policy = policy
        self.ranks = range(ranks)
        self.world_size = world_size
        self.log = log
        self.now = 0
        self.step = 0
        self.seq = 0  # Progress, the same on all ranks.
        self.run = Run(
            "run", uid=1000, first_seen_at=MonoNs(0), jsonl_only=log,
            world_size=world_size, stage=stage, labels=dict(labels or {}),
        )  # fmt: skip
        self.rules = Rules(policy, self.run)
        # A verdict's consequence is decided as in the daemon. Halts are opened here. Only HaltPlayer plays them.
        self._node = new_node(self.facts, PolicySet((policy,), ""), BootNs(0), WallNs(0))
        self._managed = ManagedRun(self.run, policy, self.rules)
        self.verdicts: list[Decided] = []
        self.accrues = False  # The ledger charges the run at its rate with each tick.
        self.gpus_busy: tuple[float | None, ...] = ()  # As the driver or the log reports from now on.
        self.gpu_figures: dict[int, GpuFigures] = {}  # By place, of those that are not sound.
        self.history: dict[str, list[tuple[int, Finding]]] = {rule: [] for rule in recorded}
        self._left_out_ticks = False  # Since the last tick.
        self._attempt = 0
        self._tokens_total = 0
        self._skipped = 0

    # --- what trainers do ---------------------------------------------------------------------------------------

    def hello(self) -> None:
        """Every rank connects (0 .. ranks-1 of world_size)."""
        for rank in self.ranks:
            peer = Peer(ProcessId(1000 + rank, 1, "boot"), 1000)
            at = MonoNs(self.now)
            hello = Hello(
                at, connection_of(rank), peer, 1, "run", str(self._attempt), rank, rank, self.world_size,
                capabilities=frozenset({"ask"}),
            )  # fmt: skip
            if self.run.attempt != hello.attempt:
                intake.begin_attempt(self.run, hello.attempt, hello.at)
            intake.apply_hello(self.run, hello)
            self.rules.observe(hello)

    def attempt(self) -> None:
        """Launch the run again. A previous halt is over."""
        self._attempt += 1
        self._managed.drop_latch()
        intake.begin_attempt(self.run, str(self._attempt), MonoNs(self.now))
        self.rules.new_attempt()  # As the engine has it: the rules hear the new rank after that.
        self.hello()

    def one_step(
        self, dt_ns: int, fields: Mapping[str, Any], *, micro: int = 1, stride: int = 1,
        of_rank: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """Progress at the start of each micro-step, beats in between, the step frames at the end.

        `fields` are those of core.events.Step; `of_rank` overrides them for single ranks. "skipped" counts the updates
        skipped
        in this step.
        """
        start = self.now
        events: list[Event] = []
        for at in range((start // BEAT_NS + 1) * BEAT_NS, start + dt_ns + 1, BEAT_NS):
            seq = self.seq + 1 + (at - start) * micro // dt_ns
            events.extend(self._beat(rank, at, seq, {"in_step": "true"}, start) for rank in self.ranks if not self.log)
        self.seq += micro + 1
        self.step += stride
        at = MonoNs(start + dt_ns)
        common = {"step": self.step, **self._totals(fields)}
        for rank in self.ranks:
            if self.log:
                events.append(Step(at, None, "run", 0, **common))
            else:
                own = {"step_s": dt_ns / NS_PER_S, "progress_seq": self.seq, **common, **(of_rank or {}).get(rank, {})}
                events.append(Step(at, connection_of(rank), "run", rank, **own))
        self.let_pass(dt_ns, events)

    def _totals(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The step's fields, plus the trainer's counts over all steps."""
        values = dict(fields)
        if "skipped" in values:
            self._skipped += values.pop("skipped")
            values["skipped_steps"] = self._skipped
        if values.get("tokens") is not None:
            self._tokens_total += values["tokens"]
            values["tokens_total"] = self._tokens_total
        return values

    def beats(self, duration_ns: int, by_rank: Mapping[int, Settings], *, moves: bool) -> None:
        """Beats alone for a while; with `moves`, progress too. A `silent` rank sends none."""
        self.let_pass(duration_ns, self._beats(self.now, duration_ns, by_rank, moves=moves))

    def _beats(self, since: int, duration_ns: int, by_rank: Mapping[int, Settings], *, moves: bool) -> Iterator[Beat]:
        for at in range(since + BEAT_NS, since + duration_ns + 1, BEAT_NS):
            self.seq += moves
            for rank, settings in by_rank.items():
                if "silent" not in settings:
                    yield self._beat(rank, at, self.seq, settings, since)

    def _beat(self, rank: int, at: int, seq: int, settings: Settings, since: int) -> Beat:
        is_waiting = "device_wait" in settings or ("in_step" in settings and "fetch" not in settings)
        return Beat(
            MonoNs(at),
            connection_of(rank),
            "run",
            rank,
            seq,
            settings.get("phase", "train"),
            MonoNs(since),
            step=self.step,
            in_step="in_step" in settings,
            last_hook=settings.get("last_hook"),
            device_wait=settings.get("device_wait"),
            stack=("distributed_c10d.py:all_reduce:10",),
            collective={"op": "all_reduce", "count": int(settings.get("count", "7")), "done": not is_waiting},
            fetch=_fetch(settings, since),
        )

    def phase(self, phase: str, ranks: Iterable[int]) -> None:
        self.seq += 1
        for rank in ranks:
            connection = None if self.log else connection_of(rank)
            self.apply(PhaseChange(MonoNs(self.now), connection, "run", rank, phase, progress_seq=self.seq))

    def lose(self, rank: int) -> None:
        """A rank's connection is lost."""
        connection = connection_of(rank)
        intake.lose_connection(self.run, connection, MonoNs(self.now))
        self.rules.observe(Disconnected(MonoNs(self.now), connection))

    def bye(self, rank: int) -> None:
        """A rank leaves in order."""
        intake.apply_bye(self.run, self.run.ranks[rank])
        self.rules.observe(Bye(MonoNs(self.now), connection_of(rank), "run", rank, 9))

    def saved(self) -> None:
        """Record a good checkpoint now."""
        self.run.name_last_good(NamedCheckpoint(self.step, None), MonoNs(self.now))

    # --- what the governor does ---------------------------------------------------------------------------------

    def restart(self) -> None:
        """Restart the governor: the rules are saved, discarded and restored."""
        saved = json.dumps(self.rules.snapshot(), allow_nan=False)
        self._left_out_ticks = False  # The new governor has seen none.
        self.rules = Rules(self.policy, self.run)
        self.rules.restore(json.loads(saved))
        self._managed = replace(self._managed, rules=self.rules)

    def hold(self, duration_ns: int) -> None:
        """Hold the run as an operator does: no rule halts it for so long."""
        self._managed.history.hold(MonoNs(self.now + duration_ns), "hold")

    def put_cap(self, cap: Cap) -> None:
        """Put a cap on the run. Each scope has one; the newest replaces it."""
        self.run.set_caps((*(known for known in self.run.caps if known.scope != cap.scope), cap))
        self.judge()

    def be_blind(self, duration_ns: int) -> None:
        """The governor itself does not run for so long. Until now it did, whichever ticks were left out."""
        if self._left_out_ticks:
            self._observe_tick(self.now // TICK_NS * TICK_NS)
        self.now += duration_ns

    # --- time ---------------------------------------------------------------------------------------------------

    def let_pass(self, duration_ns: int, events: Iterable[Event] = ()) -> None:
        """Let time pass: events in their order at their times, ticks on their grid, events first."""
        start, end = self.now, self.now + duration_ns
        if self.gpus_busy:
            events = merge(map(self._gpu_sample, _grid(start, end, GPU_LOOK_NS)), events, key=_at)
        tick_at = (start // TICK_NS + 1) * TICK_NS
        for event in events:
            tick_at = self._ticks(tick_at, min(event.at, end + 1))
            self.now = event.at
            self.apply(event)
        self._ticks(tick_at, end + 1)
        self.now = end

    def _ticks(self, tick_at: int, before: int) -> int:
        """Tick on the grid, and leave out the ticks that would change nothing: a quiet week has two million.

        Return where the grid goes on.
        """
        while tick_at < before:
            tick_at = self._one_tick(tick_at, before)
        return tick_at

    def _one_tick(self, tick_at: int, before: int) -> int:
        """Tick once. Return the next tick that may change something, or the first one that is not before `before`."""
        self._tick(tick_at)
        tick_at += TICK_NS
        if tick_at < before:
            steady_until = min(before, self._steady_until())
            if steady_until > tick_at:
                tick_at = -(-steady_until // TICK_NS) * TICK_NS
                self._left_out_ticks = True
        return tick_at

    def _steady_until(self) -> int:
        """Until when ticks change nothing if no event comes."""
        at = MonoNs(self.now)
        if self.accrues:
            return at
        retry_at = verdicts.next_retry_at(self._node, self._managed, at)
        steady_until = self.rules.steady_until(at)
        return steady_until if retry_at is None else min(retry_at, steady_until)

    def _gpu_sample(self, at: MonoNs) -> GpuSample:
        """A sample of the run's GPUs. A log's list names no GPU; the driver's does, as the engine assigned them."""
        uuids = () if self.log else tuple(f"GPU-{place}" for place in range(len(self.gpus_busy)))
        figures = tuple(self.gpu_figures.get(place, SOUND_GPU) for place in range(len(uuids)))
        sizes = tuple(GPU_BYTES for _ in uuids)
        return GpuSample(at, "run", self.gpus_busy, uuids, memory_total_bytes=sizes, figures=figures)

    def apply(self, event: Event) -> None:
        """Apply an event and show it to the rules. A step is judged, as a tick is."""
        run = self.run
        if isinstance(event, Step):
            event = of_all_its_steps(run, event) if self.log else event
            intake.apply_step(run, None if self.log else run.ranks[event.rank], event)
        elif isinstance(event, Beat):
            intake.apply_beat(run, run.ranks[event.rank], event)
        elif isinstance(event, PhaseChange):
            intake.apply_phase(run, None if self.log else run.ranks[event.rank], event)
        elif isinstance(event, MachineEvent):
            intake.apply_machine(run, event)
        self.rules.observe(event)
        if isinstance(event, Step):
            self.judge(event)

    def _tick(self, at: int) -> None:
        self.now = at
        self._accrue()
        self._observe_tick(at)
        self.judge()
        self._retry()

    def _accrue(self) -> None:
        run = self.run
        if self.accrues and run.spend_rate_usd_micros_per_hour is not None:
            charged = run.spend_rate_usd_micros_per_hour * TICK_NS // NS_PER_HOUR
            spent = UsdMicros(run.spend_usd_micros + charged)
            run.set_money(spent, run.spend_rate_usd_micros_per_hour, run.reserve_usd_micros)

    def _observe_tick(self, at: int) -> None:
        self.rules.observe(Tick(MonoNs(at), BootNs(at), WallNs(at), unbroken=self._left_out_ticks))
        self._left_out_ticks = False

    def judge(self, event: Step | None = None) -> None:
        self._perform(verdicts.judge(self._node, self._managed, MonoNs(self.now), event))
        if self.history:
            findings = self.rules.findings
            for rule, changes in self.history.items():
                finding = findings.get(rule)
                if finding is not None and (not changes or not _alike(changes[-1][1], finding)):
                    changes.append((self.now, finding))

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Only what tells of verdicts matters here. governor.timeline.halt_player does the rest too."""
        for effect in effects:
            self._note(effect)

    def _note(self, effect: Effect) -> None:
        if isinstance(effect, Record) and effect.kind == "verdict":
            data = effect.data
            acts = data["response"] if data["enforced"] else OBSERVES
            self.verdicts.append(Decided(self.now, data["rule"], data["reason"], acts))
        elif isinstance(effect, Record) and effect.kind == "held":  # It follows its verdict.
            self.verdicts[-1] = self.verdicts[-1]._replace(acts=OBSTACLES[effect.data["by"]])

    def _retry(self) -> None:
        """Open a halt that was held back and still applies. It comes without another verdict."""
        before = self._managed.incident
        self._perform(verdicts.retry_held_back(self._node, self._managed, MonoNs(self.now)))
        incident = self._managed.incident
        if incident is not None and incident is not before:
            self.verdicts.append(Decided(self.now, incident.rule, incident.reason, Response.HALT.value))

    def findings(self) -> Mapping[str, Finding]:
        """The present finding of each rule's trigger."""
        return self.rules.findings


def _at(event: Event) -> MonoNs:
    return event.at


def _grid(start: int, end: int, every_ns: int) -> Iterator[MonoNs]:
    """Multiples of the spacing after `start`, up to `end`."""
    return map(MonoNs, range((start // every_ns + 1) * every_ns, end + 1, every_ns))


def _alike(one: Finding, other: Finding) -> bool:
    return one.reading is other.reading and one.reason == other.reason


def _fetch(settings: Settings, since: int) -> Fetch | None:
    """What a beat reports of fetches. A fetch begins with the line that says so."""
    if not {"fetch", "fetched"} & settings.keys():
        return None
    starts = settings.get("starts")
    return Fetch(
        MonoNs(since) if "fetch" in settings else None,
        parse_duration(settings.get("fetched", "0s")),
        int(starts) if starts is not None else None,
    )


def connection_of(rank: int) -> ConnectionId:
    return ConnectionId(100 + rank)
