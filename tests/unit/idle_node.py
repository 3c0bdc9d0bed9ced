"""A node under a clock of whole seconds, its GPUs looked at every other one: for tests of who uses it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Policy, PolicySet
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, WallNs
from governor.core.engine import step as engine
from governor.core.engine.idle_state import NODE
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Alarm, Effect, PersistIncident, PersistRuns, StopCompute
from governor.core.events.inputs import (
    BillingAnswer,
    BillingRead,
    Bye,
    Event,
    StopAnswer,
    StopReplied,
    Tick,
    TrainerExited,
)
from governor.core.events.machine import GovernorsSeen, GpuProcessesSeen
from governor.core.events.operators import OperatorHold
from governor.core.halt.incident import Incident
from tests.unit.core.engine.test_step import PRICE, at, hello

FACTS = NodeFacts(
    "node-a", "boot-1", PRICE, "test", cloud="aws", instance_id="i-1", will_stop="stop EC2 instance i-1",
    can_stop=True, said_running=True, survives_stop=True, stays_billed=("EBS volume vol-1",),
)  # fmt: skip


def seconds(count: float) -> DurationNs:
    return DurationNs(round(count * NS_PER_S))


@dataclass
class Idle:
    """`pids` compute on the GPUs; `problem`: why nobody can tell."""

    facts: NodeFacts = FACTS
    policy: Policy = Policy(name="p")
    now: int = 0
    suspended: int = 0  # Seconds that passed while the monotonic clock stood still.
    pids: frozenset[int] = frozenset()
    problem: str | None = None
    unnamed: int = 0
    governors: tuple[int, ...] = ()
    effects: list[tuple[int, Effect]] = field(default_factory=list)  # With the second in which they came.
    incidents: dict[str, dict[str, Any]] = field(default_factory=dict)  # As the journal holds them.
    kept: dict[str, Any] = field(default_factory=dict)
    node: Node = field(init=False)

    def __post_init__(self) -> None:
        self.node = self._new()

    def _new(self) -> Node:
        return new_node(self.facts, PolicySet((self.policy,), "digest"), self._tick().boot, self._tick().wall)

    def tell(self, *events: Event) -> list[Effect]:
        told = [effect for event in events for effect in engine.step(self.node, event)]
        self._take(told)
        return told

    def _take(self, effects: list[Effect]) -> None:
        self.effects += [(self.now, effect) for effect in effects]
        for effect in effects:
            if isinstance(effect, PersistIncident):
                self.incidents[effect.incident_id] = json.loads(json.dumps(effect.snapshot)) | {"_": effect.closed}
            elif isinstance(effect, PersistRuns):
                self.kept |= json.loads(json.dumps(dict(effect.runs)))

    def until(self, second: int) -> list[Effect]:
        """Let the seconds pass, each with its tick."""
        told: list[Effect] = []
        while self.now < second:
            self.now += 1
            if self.now % 2 == 0:
                told += self.tell(
                    GpuProcessesSeen(at(self.now), self.pids, self.unnamed, self.problem),
                    GovernorsSeen(at(self.now), self.governors),
                )
            told += self.tell(self._tick())
        return told

    def _tick(self) -> Tick:
        boot = BootNs(at(self.now + self.suspended))
        return Tick(at(self.now), boot, WallNs(boot + 10**18))

    def restart(self, down: int = 1, boot_id: str | None = None) -> list[Effect]:
        """The governor dies and comes back, with what the journal holds; under another boot the machine did."""
        self.now += down
        if boot_id is not None:
            self.facts = replace(self.facts, boot_id=boot_id)
        self.node = self._new()
        told = restore_runs(self.node, list(self.kept.values()), self._tick().boot, at(self.now))
        still_open = [snapshot for snapshot in self.incidents.values() if not snapshot["_"]]
        told += restore_incidents(self.node, still_open, at(self.now), self._tick().wall)
        self._take(told)
        return told

    # --- what comes and goes ---------------------------------------------------------------------------------

    def begins(self, run: str = "llama", rank: int = 0, world_size: int = 1) -> None:
        self.tell(hello(rank, self.now, run=run, attempt=f"a{self.now}", world_size=world_size))

    def ends(self, run: str = "llama", *, well: bool = True, ranks: int = 1) -> None:
        for rank in range(ranks):
            self.tell(Bye(at(self.now), ConnectionId(rank + 1), run, rank, 9, completed=well))
        self.tell(TrainerExited(at(self.now), run, None))

    def holds(self, duration_s: float, reason: str = "debugging") -> None:
        self.tell(OperatorHold(at(self.now), NODE, seconds(duration_s), reason, 0))

    def replies(self, answer: StopAnswer, *, retryable: bool = False) -> list[Effect]:
        return self.tell(StopReplied(at(self.now), self.incident.incident_id, answer, retryable, answer.value))

    def reads(self, answer: BillingAnswer) -> list[Effect]:
        return self.tell(BillingRead(at(self.now), self.incident.incident_id, answer, answer.value))

    # --- what was seen of it -----------------------------------------------------------------------------------

    @property
    def incident(self) -> Incident:
        assert self.node.idle.stop is not None
        assert self.node.idle.stop.incident is not None
        return self.node.idle.stop.incident

    def stops(self) -> list[int]:
        """The seconds in which a stop was asked of the provider."""
        return [second for second, effect in self.effects if isinstance(effect, StopCompute)]

    def alarms(self) -> list[tuple[int, str]]:
        return [(second, effect.name) for second, effect in self.effects if isinstance(effect, Alarm)]

    def said(self, name: str) -> str:
        return next(effect.text for _, effect in self.effects if isinstance(effect, Alarm) and effect.name == name)

    def stage(self) -> str:
        return str(self.incidents[self.incident.incident_id]["halt_stage"])
