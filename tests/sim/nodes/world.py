"""One run on several nodes: real engines, a network that loses and doubles, machines that die, freeze or are cut off.

The ranks and their store are simulated as the shim behaves: one rank that is asked is enough, all save the same step,
and no rank can agree without the store, which lives on the node of rank 0.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import AT_ONCE, HaltSettings, Mode, Policy, PolicySet, Rule
from governor.core.base.units import NS_PER_MS, NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.node_journal import metered_row
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.checkpoints import SavedCheckpoint
from governor.core.events.effects import (
    Ask,
    Effect,
    Kill,
    PersistIncident,
    PersistRuns,
    ReadBilling,
    StopCompute,
    StopOther,
    TellPeers,
    Term,
)
from governor.core.events.inputs import (
    Ack,
    BillingAnswer,
    BillingRead,
    Event,
    Hello,
    ProcessesSeen,
    Step,
    StopAnswer,
    StopReplied,
    Tick,
)
from governor.core.events.peers import NodeTold, OtherStopped, PeerTold
from governor.core.halt.incident import Incident

RUN: Final = "llama"
JOB: Final = "costgov/llama/a1/watch/0/0/1"
UID: Final = 1000
PRICE: Final = UsdMicros(98_320_000)
RANKS: Final = 2  # Of each node.
GRID_NS: Final = 500 * NS_PER_MS
STEP_NS: Final = NS_PER_S
GRACE_S: Final = 8
TERM_S: Final = 3
SAVE_NS: Final = 2 * NS_PER_S
WALL_NS: Final = 1_700_000_000 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Faults:
    """All that goes wrong in one history. Moments are of the world's clock, seconds."""

    lose: float = 0.0
    double: float = 0.0
    delay_s: float = 0.05
    cut: tuple[tuple[int, float, float], ...] = ()  # Node, from, until: nobody hears it, and it hears nobody.
    frozen: tuple[tuple[int, float, float], ...] = ()  # Node, from, until: nothing there runs.
    dead: tuple[tuple[int, float], ...] = ()  # Node, from: the machine is gone.
    governor_down: tuple[tuple[int, float, float], ...] = ()
    clock_off_s: tuple[float, ...] = ()  # By node: its wall clock.
    deaf: frozenset[int] = frozenset()  # Nodes whose ranks obey nothing but SIGKILL.


@dataclass(slots=True)
class Machine:
    """A node: its engine, what its journal holds, and its ranks."""

    number: int
    node: Node
    rng: Random
    kept_runs: dict[str, str] = field(default_factory=dict)
    kept_incidents: dict[str, str] = field(default_factory=dict)
    kept_metered: Mapping[str, Any] | None = None
    ranks_alive: bool = True
    termed_at: int | None = None
    is_billed: bool = True
    swept_by: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)  # Who has asked for a stop of this machine that was taken.
    step: int = 0

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def incident(self) -> Incident | None:
        managed = self.node.runs.get(RUN)
        return managed.incident if managed is not None else None


class World:
    """Virtual time, and everything in it. `decide` is where a planted bug sits."""

    def __init__(self, seed: int, count: int, faults: Faults) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.now = 0
        self.count = count
        self.log: list[str] = []
        self.sent: Counter[str] = Counter()
        self.asked_at: int | None = None
        self.saved: set[int] = set()
        self.termed: dict[int, tuple[int, frozenset[int]]] = {}  # By node: when, and whose ranks lived then.
        self.old: list[NodeTold] = []  # Messages of this launch, for a later one.
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self.machines = [Machine(number, self.new_engine(number), self.rng) for number in range(count)]

    # --- time --------------------------------------------------------------------------------------------------

    def after(self, delay_ns: int, do: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (self.now + delay_ns, self._pushed, do))

    def run(self, until_s: float) -> None:
        until = round(until_s * NS_PER_S)
        while self._queue and self._queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = until

    def note(self, line: str) -> None:
        self.log.append(f"{self.now / NS_PER_S:9.3f}  {line}")

    # --- what is so now ----------------------------------------------------------------------------------------

    def is_cut(self, number: int) -> bool:
        return self._within(self.faults.cut, number)

    def is_up(self, number: int) -> bool:
        """Whether anything runs there."""
        return not self.is_dead(number) and not self._within(self.faults.frozen, number)

    def is_dead(self, number: int) -> bool:
        return any(one == number and self.now >= since * NS_PER_S for one, since in self.faults.dead)

    def governs(self, number: int) -> bool:
        return self.is_up(number) and not self._within(self.faults.governor_down, number)

    def _within(self, spans: tuple[tuple[int, float, float], ...], number: int) -> bool:
        return any(one == number and since * NS_PER_S <= self.now < until * NS_PER_S for one, since, until in spans)

    def trains(self) -> bool:
        """Whether the collectives can run: every rank of every node."""
        return all(one.ranks_alive and self.is_up(one.number) and not self.is_cut(one.number) for one in self.machines)

    # --- engines -----------------------------------------------------------------------------------------------

    def new_engine(self, number: int) -> Node:
        settings = HaltSettings(
            stop="instance", grace_ns=DurationNs(GRACE_S * NS_PER_S), term_grace_ns=DurationNs(TERM_S * NS_PER_S),
            kill_grace_ns=DurationNs(NS_PER_S),
        )  # fmt: skip
        rule = Rule("nan", "nonfinite", {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "suspect")
        facts = NodeFacts(
            f"node-{number}", f"boot-{number}", PRICE, "simulated", cloud="simulated", instance_id=f"i-{number}",
            can_stop=True, said_running=True, has_peers=True,
        )  # fmt: skip
        policy = Policy("p", halt=settings, rules=(rule,))
        return new_node(facts, PolicySet((policy,), "digest"), BootNs(self.now), self.wall(number))

    def wall(self, number: int) -> WallNs:
        off = self.faults.clock_off_s[number] if number < len(self.faults.clock_off_s) else 0.0
        return WallNs(WALL_NS + self.now + round(off * NS_PER_S))

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        return engine.step(machine.node, event)

    def hear(self, machine: Machine, event: Event) -> None:
        before = machine.incident.halt.stage.name if machine.incident is not None else "-"
        effects = self.decide(machine, event)
        after = machine.incident.halt.stage.name if machine.incident is not None else "-"
        if before != after:
            self.note(f"{machine.name} {type(event).__name__}: {before} -> {after}")
        for effect in effects:
            self._perform(machine, effect)

    def _perform(self, machine: Machine, effect: Effect) -> None:
        match effect:
            case PersistRuns():
                machine.kept_runs |= {name: json.dumps(row) for name, row in effect.runs.items()}
            case PersistIncident():
                machine.kept_incidents[effect.incident_id] = json.dumps(effect.snapshot)
            case TellPeers():
                self._send(machine, effect.told)
            case Ask():
                self.after(NS_PER_MS, partial(self._asked, machine))
            case Term() | Kill():
                self._signal(machine, hard=isinstance(effect, Kill))
            case StopCompute():
                self._stop(machine, effect.incident_id, machine)
            case StopOther():
                self.after(NS_PER_MS, partial(self._stop_other, machine, effect))
            case ReadBilling():
                self.after(
                    round(effect.after_s * NS_PER_S) + NS_PER_MS, partial(self._read, machine, effect.incident_id)
                )
            case _:
                pass

    # --- the network -------------------------------------------------------------------------------------------

    def _send(self, machine: Machine, told: NodeTold) -> None:
        self.sent[machine.name] += 1
        self.old.append(told)
        for other in self.machines:
            if other is machine or self.is_cut(machine.number):
                continue
            for _ in range(2 if self.rng.random() < self.faults.double else 1):
                if self.rng.random() >= self.faults.lose:
                    delay_ns = round(self.rng.uniform(0.0002, self.faults.delay_s) * NS_PER_S)
                    self.after(delay_ns, partial(self.deliver, other, told))

    def deliver(self, machine: Machine, told: NodeTold) -> None:
        if self.governs(machine.number) and not self.is_cut(machine.number):
            self.hear(machine, PeerTold(MonoNs(self.now), told))

    # --- ranks and their store -----------------------------------------------------------------------------------

    def begin(self) -> None:
        for machine in self.machines:
            self.hear(machine, self.tick(machine))
            self.say_hello(machine)
            self.after(self.rng.randrange(1, GRID_NS), partial(self._grid, machine))
        self.after(STEP_NS, self._train)

    def say_hello(self, machine: Machine, attempt: str = "a1", job: str = JOB) -> None:
        for local in range(RANKS):
            rank = machine.number * RANKS + local
            who = Peer(ProcessId(100 + local, 1000 + local, f"boot-{machine.number}"), UID)
            self.hear(machine, Hello(
                MonoNs(self.now), ConnectionId(local + 1), who, 1, RUN, attempt, rank, local, self.count * RANKS,
                capabilities=frozenset({"ask"}), signal=10, job=job,
            ))  # fmt: skip

    def tick(self, machine: Machine) -> Tick:
        return Tick(MonoNs(self.now), BootNs(self.now), self.wall(machine.number))

    def _grid(self, machine: Machine) -> None:
        self.after(GRID_NS, partial(self._grid, machine))
        if self.governs(machine.number):
            self.hear(machine, self.tick(machine))
            machine.kept_metered = metered_row(machine.node) or machine.kept_metered

    def _train(self) -> None:
        self.after(STEP_NS, self._train)
        if self.asked_at is None and self.trains():
            for machine in self.machines:
                self.tell_step(machine)

    def tell_step(self, machine: Machine, loss: float = 2.0) -> None:
        machine.step += 1
        if self.governs(machine.number):
            for local in range(RANKS):
                rank = machine.number * RANKS + local
                self.hear(machine, Step(
                    MonoNs(self.now), ConnectionId(local + 1), RUN, rank, machine.step, attempt_step=machine.step,
                    loss=loss, loss_expected=True,
                ))  # fmt: skip

    def _asked(self, machine: Machine) -> None:
        """One asked rank is enough: the others learn it from the store, and save together."""
        if not machine.ranks_alive or not self.is_up(machine.number):
            return
        self._ack(machine, "received")
        if self.asked_at is None:
            self.asked_at = self.now
            self.after(SAVE_NS, self._save)

    def _save(self) -> None:
        if not self.trains() or any(one.number in self.faults.deaf for one in self.machines):
            return  # Without a rank, or without the store, no step is agreed.
        self.note("every rank saves")
        for machine in self.machines:
            self.saved.add(machine.number)
            self._ack(machine, "saved")

    def _ack(self, machine: Machine, what: str) -> None:
        incident = machine.incident
        if incident is None or not self.governs(machine.number):
            return
        checkpoint = SavedCheckpoint("/ckpt/7", "/ckpt/7/manifest.json") if what == "saved" else None
        rank = machine.number * RANKS
        self.hear(machine, Ack(
            MonoNs(self.now), ConnectionId(1), RUN, rank, 1, incident.incident_id, what, step=7, checkpoint=checkpoint,
            exit_after=True,
        ))  # fmt: skip

    def _signal(self, machine: Machine, *, hard: bool) -> None:
        if machine.termed_at is None:
            machine.termed_at = self.now
            lived = frozenset(one.number for one in self.machines if one.ranks_alive and one is not machine)
            self.termed[machine.number] = (self.now, lived)
        if hard or machine.number not in self.faults.deaf:
            self.after(self.rng.randrange(NS_PER_MS, NS_PER_S), partial(self._die, machine))

    def _die(self, machine: Machine) -> None:
        if not self.is_up(machine.number):
            if not self.is_dead(machine.number):  # What is frozen goes on where it stood.
                self.after(GRID_NS, partial(self._die, machine))
            return
        machine.ranks_alive = False
        if self.governs(machine.number) and machine.incident is not None:
            self.hear(machine, ProcessesSeen(MonoNs(self.now), machine.incident.incident_id, ()))

    # --- the provider --------------------------------------------------------------------------------------------

    def _stop(self, machine: Machine, incident_id: str, by: Machine) -> None:
        if machine.is_billed and not machine.stops:  # A second stop of what is stopping does nothing.
            machine.stops.append(by.name)
            self.after(2 * NS_PER_S, partial(self._end_billing, machine))
        reply = StopReplied(MonoNs(self.now), incident_id, StopAnswer.ACCEPTED, False, "accepted")
        self.after(NS_PER_MS, partial(self._reply, by, reply))

    def _stop_other(self, by: Machine, asked: StopOther) -> None:
        """As the daemon does it: read first, and stop what is billed and not stopping."""
        machine = next(one for one in self.machines if one.name == asked.node)
        if machine.is_billed and not machine.stops:
            self.note(f"{by.name} stops the machine of {machine.name}")
            machine.swept_by.append(by.name)
            machine.stops.append(by.name)
            self.after(2 * NS_PER_S, partial(self._end_billing, machine))
        seen = OtherStopped(
            MonoNs(self.now), asked.incident_id, asked.node, stopped=True, verified=not machine.is_billed, reason="",
        )  # fmt: skip
        if self.governs(by.number):
            self.hear(by, seen)

    def _end_billing(self, machine: Machine) -> None:
        machine.is_billed = machine.ranks_alive = False

    def _read(self, machine: Machine, incident_id: str) -> None:
        answer = BillingAnswer.RUNNING if machine.is_billed else BillingAnswer.ENDED
        self._reply(machine, BillingRead(MonoNs(self.now), incident_id, answer, answer.value))

    def _reply(self, machine: Machine, event: StopReplied | BillingRead) -> None:
        if self.governs(machine.number):
            self.hear(machine, replace(event, at=MonoNs(self.now)))
        elif not self.is_up(machine.number) and not self.is_dead(machine.number):
            self.after(GRID_NS, partial(self._reply, machine, event))

    # --- a governor that begins again ------------------------------------------------------------------------------

    def restart(self, number: int) -> None:
        """Begin from what the journal holds. The ranks come back."""
        machine = self.machines[number]
        if not self.is_up(number):
            return
        self.note(f"{machine.name}: its governor begins again")
        machine.node = self.new_engine(number)
        rows = {name: json.loads(text) for name, text in machine.kept_runs.items()}
        at = MonoNs(self.now)
        effects = restore_runs(machine.node, list(rows.values()), BootNs(self.now), at, machine.kept_metered)
        opened = [json.loads(text) for text in machine.kept_incidents.values()]
        still = [row for row in opened if row["closed_wall_ns"] is None]
        effects += restore_incidents(machine.node, still, at, self.wall(number))
        for effect in effects:
            self._perform(machine, effect)
        if machine.ranks_alive:
            self.say_hello(machine)
