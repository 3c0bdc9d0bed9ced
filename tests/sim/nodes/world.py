"""One run on several nodes: real engines, a network that loses and doubles, machines that die or are cut off."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

from governor.core.base.units import NS_PER_MS, NS_PER_S, BootNs, MonoNs
from governor.core.engine.node_journal import metered_row
from governor.core.engine.resume import restore_incidents, restore_runs
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
from governor.core.events.peers import NodeTold, PeerTold
from tests.sim.nodes.cloud import Cloud
from tests.sim.nodes.machines import GRID_NS, JOB, NEXT_JOB, Faults, Machine, Watched
from tests.sim.nodes.ranks import Pause, Ranks
from tests.sim.nodes.stage import GOES_ON_NS, Stage

_WATCHED = Watched()


class World(Stage):
    """The stage with its ranks, its provider and its network."""

    def __init__(
        self, seed: int, count: int, faults: Faults, watched: Watched = _WATCHED, pause: Pause | None = None
    ) -> None:
        super().__init__(seed, count, faults, watched)
        self.ranks = Ranks(self, pause)
        self.cloud = Cloud(self)
        self.sent: Counter[str] = Counter()
        self.old: list[NodeTold] = []  # Messages of this launch, for a later one.
        self.verdict: tuple[int, int] | None = None  # The first one: when, and what the run had cost.
        self.job = JOB
        self.blind_ns = 0  # For how long no governor of any of its nodes ran.

    def perform(self, machine: Machine, effect: Effect) -> None:
        match effect:
            case PersistRuns():
                machine.kept_runs |= {name: json.dumps(row) for name, row in effect.runs.items()}
            case PersistIncident():
                machine.kept_incidents[effect.incident_id] = json.dumps(effect.snapshot)
                self.verdict = self.verdict or (self.now, self.cloud.cost_usd_micros())
            case TellPeers():
                self._send(machine, effect.told)
            case Ask():
                self.after(NS_PER_MS, partial(self.ranks.ask, machine))
            case Term() | Kill():
                self.ranks.signal(machine, hard=isinstance(effect, Kill))
            case StopCompute():
                self.cloud.stop(effect.incident_id, machine)
            case StopOther():
                self.after(NS_PER_MS, partial(self.cloud.stop_other, machine, effect))
            case ReadBilling():
                delay_ns = round(effect.after_s * NS_PER_S) + NS_PER_MS
                self.after(delay_ns, partial(self.cloud.read, machine, effect.incident_id))
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

    # --- governors -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for machine in self.machines:
            self._begin_on(machine)
            self.ranks.say_hello(machine)
        self.ranks.begin()
        self._watch_governors()

    def _watch_governors(self) -> None:
        self.after(GRID_NS, self._watch_governors)
        self.blind_ns += 0 if any(self.governs(one.number) for one in self.machines) else GRID_NS

    def _begin_on(self, machine: Machine) -> None:
        self.hear(machine, self.tick(machine))
        self.after(self.rng.randrange(1, GRID_NS), partial(self._grid, machine))

    def _grid(self, machine: Machine) -> None:
        self.after(GRID_NS, partial(self._grid, machine))
        if self.governs(machine.number):
            self.hear(machine, self.tick(machine))
            machine.kept_metered = metered_row(machine.node) or machine.kept_metered

    def restart(self, number: int) -> None:
        """Begin from what the journal holds. The ranks come back."""
        machine = self.machines[number]
        if not self.governs(number):
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
            self.perform(machine, effect)
        if machine.ranks_alive:
            self.ranks.say_hello(machine, "a1" if self.job == JOB else "a2", self.job)

    def move(self, number: int) -> None:
        """The run is launched again, and a node that knows nothing of it comes for this one, when this one is gone."""
        gone = self.machines[number]
        if not self.ranks.can_train() or not all(self.governs(one.number) for one in self.machines):
            return  # Somebody could not come with it.
        if any(one.incident is not None for one in self.machines):
            return
        self.note(f"the run is launched again, without {gone.name}")
        self.job = NEXT_JOB
        self.ranks.leave(gone)
        gone.left_at = self.now
        for machine in self.members():
            self.ranks.launch_again(machine)
        self.after(GOES_ON_NS + NS_PER_S, partial(self._join, self.ranks.places[number]))

    def _join(self, place: int) -> None:
        if any(one.incident is not None for one in self.machines):
            return
        fresh = self.new_machine(len(self.machines))
        self.machines.append(fresh)
        self.ranks.places[fresh.number] = place
        self._begin_on(fresh)
        self.ranks.launch_again(fresh)
