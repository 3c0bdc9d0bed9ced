"""A node that people come to and leave, under the real engine: a second a step, a few minutes a schedule.

What is true (who is here, what the provider does, whether the machine runs) is drawn from the seed and known to nobody
but the world; the governor is told of it as its adapters would tell it, when it is up, when its sampler is not silent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from governor.core.base.identity import ConnectionId, Peer, ProcessId
from governor.core.base.policy import Policy, PolicySet
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.idle_state import NODE
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Effect, PersistIncident, PersistRuns, ReadBilling, StopCompute
from governor.core.events.inputs import (
    BillingAnswer,
    BillingRead,
    Bye,
    Disconnected,
    Event,
    Hello,
    StopAnswer,
    StopReplied,
    Tick,
    TrainerExited,
)
from governor.core.events.machine import GovernorsSeen, GpuProcessesSeen
from governor.core.events.operators import OperatorHold

FOR_EVER = 10**9
HEALED_FOR = 900  # Seconds in which everything obeys, after which the node must be stopped.
WALL_NS = 1_700_000_000 * NS_PER_S


@dataclass(frozen=True)
class Visit:
    """Somebody uses the node in [began, ended)."""

    kind: str  # run | gpu | hold
    began: int
    ended: int
    well: bool = False  # A run's last word.


@dataclass(frozen=True)
class Schedule:
    limit: int  # idle_stop; 0: off, and only on_finish stops.
    on_finish: bool
    lasts: int  # Seconds of faults and visits.
    visits: tuple[Visit, ...]
    silent: tuple[tuple[int, int], ...]  # The sampler.
    untold: bool  # Silent as in: no event at all.
    restarts: tuple[tuple[int, int], ...]  # The governor is down in [began, ended).
    sleeps: tuple[tuple[int, int], ...]  # It is up and does not run.
    torn: bool  # A restart loses the effects of its last step.
    refused: float  # Of the stops, until healed.
    lost: float
    slow_reply: int
    takes: int  # From a stop that is obeyed to the end of billing.
    powers_off: bool  # And takes the governor along: it is another boot then, when somebody starts it.
    stays: bool  # The last visitor never leaves.


def draw(rng: Random) -> Schedule:
    limit = rng.choice((0, 20, 30, 45, 90))
    lasts = rng.choice((120, 240, 360))

    def spans(most: int, longest: int) -> tuple[tuple[int, int], ...]:
        if rng.random() < 0.5:
            return ()
        begins = sorted(rng.randrange(5, lasts) for _ in range(rng.randint(1, most)))
        return tuple((begin, begin + rng.randint(1, longest)) for begin in begins)

    visits = [
        Visit(rng.choice(("run", "run", "gpu", "hold")), begin, end, rng.random() < 0.6)
        for begin, end in (*spans(4, 80), *spans(3, 15))
    ]
    sleeps = spans(2, 40)
    # Somebody who comes and goes while we sleep, and whom no socket announces.
    visits += [Visit("gpu", begin + 1, end - 1) for begin, end in sleeps if end - begin > 14 and rng.random() < 0.7]
    stays = rng.random() < 0.2 and bool(visits)
    if stays:
        visits[-1] = replace(visits[-1], ended=FOR_EVER)
    return Schedule(
        limit=limit,
        on_finish=rng.random() < 0.5,
        lasts=lasts,
        # The GPUs are looked at every other second: who stays for less than a few of them is seen by nobody.
        visits=tuple(replace(v, ended=max(v.ended, v.began + 12)) if v.kind == "gpu" else v for v in visits),
        silent=spans(3, 60),
        untold=rng.random() < 0.5,
        restarts=spans(3, 25),
        sleeps=sleeps,
        torn=rng.random() < 0.5,
        refused=rng.choice((0.0, 0.0, 0.5, 1.0)),
        lost=rng.choice((0.0, 0.0, 0.5)),
        slow_reply=rng.choice((0, 1, 5, 40)),
        takes=rng.choice((1, 10, 60, 300)),
        powers_off=rng.random() < 0.4,
        stays=stays,
    )


@dataclass
class World:
    schedule: Schedule
    rng: Random
    now: int = 0
    boot: int = 1
    booted_at: int = 0
    is_billed: bool = True
    node: Node | None = None  # None while the governor is down.
    came_up_at: int = 0
    told_gpus_at: int = -FOR_EVER  # When the governor last knew who computes.
    log: list[tuple[int, Effect]] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)  # The journal, as text.
    incidents: dict[str, tuple[str, bool]] = field(default_factory=dict)
    due: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    said: set[Visit] = field(default_factory=set)  # Whose hello was heard by this governor.
    since_before: MonoNs | None = None  # For a planted bug: what a restart must not take up.
    heard: set[Visit] = field(default_factory=set)
    held: dict[Visit, int] = field(default_factory=dict)  # Holds that the governor was told of, and in which boot.
    on_effect: Callable[[World, Effect], None] = lambda _world, _effect: None
    twist: Callable[[World, Event], Event | None] = lambda _world, event: event  # For planted bugs.
    twist_effects: Callable[[World, list[Effect]], list[Effect]] = lambda _world, effects: effects

    # --- truth -------------------------------------------------------------------------------------------------

    @property
    def healed(self) -> bool:
        return self.now >= self.schedule.lasts

    def present(self, second: int) -> list[Visit]:
        return [v for v in self.schedule.visits if v.began <= second < v.ended]

    def _in(self, spans: tuple[tuple[int, int], ...]) -> bool:
        return not self.healed and any(begin <= self.now < end for begin, end in spans)

    # --- a second ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._start()
        while self.now < self.schedule.lasts + HEALED_FOR and not self._is_over():
            self.now += 1
            self._second()

    def _is_over(self) -> bool:
        """Everything obeys, everybody who will go has gone, and nothing more can follow."""
        if self.now < max(self.schedule.lasts, *(v.ended for v in self.schedule.visits if v.ended < FOR_EVER), 0) + 200:
            return False
        return (not self.is_billed or not self.schedule.limit) and all(closed for _, closed in self.incidents.values())

    def _second(self) -> None:
        for _, call in [one for one in self.due if one[0] <= self.now]:
            call()
        self.due = [one for one in self.due if one[0] > self.now]
        if self._in(self.schedule.restarts):
            self._die()
            return
        if self.node is None:
            self._start()
        if self._in(self.schedule.sleeps):
            return
        self._visitors()
        self._looks()
        self.put(Tick(self.mono(), BootNs(self.mono()), WallNs(WALL_NS + self.mono())))

    def _visitors(self) -> None:
        for number, visit in enumerate(self.schedule.visits, 1):
            is_here, name = visit.began <= self.now < visit.ended, f"run-{number}"
            if visit.kind == "hold" and visit.began == self.now:
                self.held = {visit: self.boot}  # The newest hold counts.
                lasts = DurationNs((min(visit.ended, 10**6) - self.now) * NS_PER_S)
                self.put(OperatorHold(self.mono(), NODE, lasts, "x", 0))
            elif visit.kind == "run" and visit not in self.said and (is_here or self._unheard(visit)):
                self.said.add(visit)
                self.heard.add(visit)
                self.put(_hello(self.mono(), number, name, self.boot))
            if visit.kind == "run" and not is_here and visit in self.said:
                self.said.discard(visit)
                if visit.well:
                    self.put(Bye(self.mono(), ConnectionId(number), name, 0, 2, completed=True))
                self.put(Disconnected(self.mono(), ConnectionId(number)))
                self.put(TrainerExited(self.mono(), name, None))
            elif visit.kind == "run" and not is_here and self.node is not None:
                known = self.node.runs.get(name)
                if known is not None and known.run.alive:  # It ended while nobody listened: seen by its pids.
                    self.put(TrainerExited(self.mono(), name, None))

    def _unheard(self, visit: Visit) -> bool:
        """Come and gone while the governor slept: its socket has kept what was said."""
        return visit not in self.heard and self.came_up_at < visit.began <= visit.ended <= self.now

    def _looks(self) -> None:
        if self.now % 2:
            return
        here = self.present(self.now)
        pids = frozenset(
            100 + n for n, visit in enumerate(self.schedule.visits) if visit.kind == "gpu" and visit in here
        )
        if not self._in(self.schedule.silent):
            self.told_gpus_at = self.now
            self.put(GpuProcessesSeen(self.mono(), pids))
        elif not self.schedule.untold:
            self.told_gpus_at = -FOR_EVER
            self.put(GpuProcessesSeen(self.mono(), frozenset(), problem="GPU sampler silent for 12 s"))
        self.put(GovernorsSeen(self.mono(), ()))

    # --- the governor --------------------------------------------------------------------------------------------

    def mono(self) -> MonoNs:
        return MonoNs(self.now * NS_PER_S)

    def _new(self) -> Node:
        facts = NodeFacts(
            "n", f"boot-{self.boot}", UsdMicros(98_320_000), "simulated", cloud="simulated", instance_id="i-1",
            will_stop="stop it", can_stop=True, said_running=True, survives_stop=True,
            stop_bound_ns=DurationNs(60 * NS_PER_S), idle_stop_ns=DurationNs(self.schedule.limit * NS_PER_S),
        )  # fmt: skip
        policy = Policy(name="p", run_on_finish="stop" if self.schedule.on_finish else "keep")
        return new_node(facts, PolicySet((policy,), "digest"), BootNs(self.mono()), WallNs(WALL_NS + self.mono()))

    def _start(self) -> None:
        self.node, self.came_up_at, self.said = self._new(), self.now, set()
        self.told_gpus_at = -FOR_EVER
        at, wall = self.mono(), WallNs(WALL_NS + self.mono())
        effects = restore_runs(self.node, [json.loads(text) for text in self.runs.values()], BootNs(at), at)
        opened = [json.loads(text) for text, closed in self.incidents.values() if not closed]
        self._perform([*effects, *restore_incidents(self.node, opened, at, wall)])

    def _die(self) -> None:
        self.node = None
        self.due = [one for one in self.due if getattr(one[1], "outlives", False)]

    def put(self, event: Event) -> None:
        twisted = self.twist(self, event)
        if twisted is not None and self.node is not None:
            self._perform(engine.step(self.node, twisted))

    def _perform(self, effects: list[Effect]) -> None:
        effects = self.twist_effects(self, effects)
        dies = (
            self.schedule.torn and not self.healed and any(begin == self.now + 1 for begin, _ in self.schedule.restarts)
        )
        for effect in effects:
            self.on_effect(self, effect)
            if isinstance(effect, PersistRuns):
                self.runs |= {name: json.dumps(row) for name, row in effect.runs.items()}
            elif isinstance(effect, PersistIncident):
                self.incidents[effect.incident_id] = (json.dumps(effect.snapshot), effect.closed)
            elif dies and isinstance(effect, StopCompute):
                break  # Journaled, and never done.
            self.log.append((self.now, effect))
            if isinstance(effect, StopCompute):
                self._stop(effect)
            elif isinstance(effect, ReadBilling):
                self._after(max(1, round(effect.after_s)), lambda effect=effect: self._read(effect.incident_id))

    # --- the provider --------------------------------------------------------------------------------------------

    def _after(self, seconds: int, call: Callable[[], None], *, outlives: bool = False) -> None:
        if outlives:
            call.outlives = True  # type: ignore[attr-defined]
        self.due.append((self.now + max(1, seconds), call))

    def _stop(self, effect: StopCompute) -> None:
        rng, schedule = self.rng, self.schedule
        reply = 1 if self.healed else schedule.slow_reply
        if not self.healed and rng.random() < schedule.refused:
            busy = rng.random() < 0.5
            self._answer(effect.incident_id, StopAnswer.REFUSED, reply, busy)
            return
        obeyed = self.healed or rng.random() < 0.9  # Some are accepted, and nothing follows.
        if obeyed:
            boot = self.boot
            takes = min(schedule.takes, 30) if self.healed else schedule.takes
            self._after(takes, lambda: self._end(boot), outlives=True)
        if not self.healed and rng.random() < schedule.lost:
            if rng.random() < 0.5:
                self._answer(effect.incident_id, StopAnswer.UNKNOWN, reply, True)
            return
        self._answer(effect.incident_id, StopAnswer.ACCEPTED, reply, False)

    def _answer(self, incident_id: str, answer: StopAnswer, after: int, retryable: bool) -> None:
        def tell() -> None:
            self.put(StopReplied(self.mono(), incident_id, answer, retryable, answer.value))

        self._after(after, tell)

    def _read(self, incident_id: str) -> None:
        answer = BillingAnswer.RUNNING if self.is_billed else BillingAnswer.ENDED
        self.put(BillingRead(self.mono(), incident_id, answer, answer.value))

    def _end(self, boot: int) -> None:
        """Billing ends. The machine goes down with it, or (a governor that lives elsewhere) is only not billed."""
        if not self.is_billed or boot != self.boot:
            return
        self.is_billed = False
        if self.schedule.powers_off and not self.healed:
            self._die()
            self.is_billed, self.boot, self.booted_at = True, self.boot + 1, self.now
            self.due.clear()


def _hello(at: MonoNs, number: int, name: str, boot: int) -> Hello:
    peer = Peer(ProcessId(1000 + number, number, f"boot-{boot}"), 1000)
    return Hello(at, ConnectionId(number), peer, 1, name, f"a{number}", 0, 0, 1, capabilities=frozenset({"ask"}))


def snapshot_of(world: World, incident_id: str) -> dict[str, Any]:
    snapshot: dict[str, Any] = json.loads(world.incidents[incident_id][0])
    return snapshot
