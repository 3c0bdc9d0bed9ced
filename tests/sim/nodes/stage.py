"""Virtual time, the nodes of a run, and their real engines. `decide` is where a planted bug sits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Final

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Budget, HaltSettings, Mode, Policy, PolicySet, Rule
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.events.effects import Effect
from governor.core.events.inputs import Event, Tick
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from tests.sim.nodes.machines import GRACE_S, KILL_S, STOP_BOUND_S, TERM_S, WALL_NS, Faults, Machine, Span, Watched

# Of the rule `hang`, shorter than in any policy: a history lasts two minutes.
TIGHT_S: Final = 10
SILENT_S: Final = 20
LOOSE_S: Final = 60
GOES_ON_NS: Final = 5 * NS_PER_S  # A governor, where its run has left its node.
_LOOSE: Final = ("eval_limit", "checkpoint_limit", "between_limit", "start_limit", "start_limit_without_beats")


class Stage:
    """Who is there, what is so now, and what each engine says. What becomes of that is the World's."""

    def __init__(self, seed: int, count: int, faults: Faults, watched: Watched) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.watched = watched
        self.now = 0
        self.count = count
        self.log: list[str] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self.machines = [self.new_machine(number) for number in range(count)]

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
        left_at = self.machines[number].left_at
        is_gone = left_at is not None and self.now >= left_at + GOES_ON_NS
        return self.is_up(number) and not is_gone and not self._within(self.faults.governor_down, number)

    def _within(self, spans: tuple[Span, ...], number: int) -> bool:
        return any(one == number and since * NS_PER_S <= self.now < until * NS_PER_S for one, since, until in spans)

    def members(self) -> list[Machine]:
        """The nodes of the launch that trains now."""
        return [one for one in self.machines if one.left_at is None]

    # --- engines -----------------------------------------------------------------------------------------------

    def new_machine(self, number: int) -> Machine:
        return Machine(number, self.new_engine(number), self.watched.price(number), joined_at=self.now)

    def new_engine(self, number: int) -> Node:
        facts = NodeFacts(
            f"node-{number}", f"boot-{number}", self.watched.price(number), "simulated", cloud="simulated",
            instance_id=f"i-{number}", can_stop=True, said_running=True, has_peers=True,
            stop_bound_ns=DurationNs(STOP_BOUND_S * NS_PER_S),
        )  # fmt: skip
        return new_node(facts, PolicySet((self._policy(),), "digest"), BootNs(self.now), self.wall(number))

    def _policy(self) -> Policy:
        settings = HaltSettings(
            stop="instance", grace_ns=DurationNs(GRACE_S * NS_PER_S), term_grace_ns=DurationNs(TERM_S * NS_PER_S),
            kill_grace_ns=DurationNs(KILL_S * NS_PER_S),
        )  # fmt: skip
        rules = [Rule("nan", "nonfinite", {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "suspect")]
        if self.watched.hang:
            tight = {"tight_min": TIGHT_S, "worth_max": TIGHT_S, "data_min": TIGHT_S, "silent_min": SILENT_S}
            seconds = dict.fromkeys(_LOOSE, LOOSE_S) | tight
            limits = {name: DurationNs(value * NS_PER_S) for name, value in seconds.items()}
            params = defaults(load()["hang"].KEYS) | limits
            rules.append(Rule("hang", "hang", params, AT_ONCE, Response.HALT, Mode.ENFORCE, "good"))
        if self.watched.ceiling_usd_micros is not None:
            rules.append(Rule("ceiling", "budget", {}, AT_ONCE, Response.HALT, Mode.ENFORCE, "good"))
        return Policy("p", halt=settings, rules=tuple(rules), budget=Budget(self.watched.ceiling_usd_micros))

    def wall(self, number: int) -> WallNs:
        off = self.faults.clock_off_s[number] if number < len(self.faults.clock_off_s) else 0.0
        return WallNs(WALL_NS + self.now + round(off * NS_PER_S))

    def tick(self, machine: Machine) -> Tick:
        return Tick(MonoNs(self.now), BootNs(self.now), self.wall(machine.number))

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        return engine.step(machine.node, event)

    def hear(self, machine: Machine, event: Event) -> None:
        before = machine.incident.halt.stage.name if machine.incident is not None else "-"
        effects = self.decide(machine, event)
        after = machine.incident.halt.stage.name if machine.incident is not None else "-"
        if before != after:
            self.note(f"{machine.name} {type(event).__name__}: {before} -> {after}")
        for effect in effects:
            self.perform(machine, effect)

    def perform(self, machine: Machine, effect: Effect) -> None:
        raise NotImplementedError
