"""The simulated world: time, links, a trainer's processes, a cloud that keeps its own invoice, a disk.

Nothing here knows the halt table. The world obeys effects as far as its faults let it, and answers with the same core
events that real hands return; `governor.receive` is all it sees of who decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.effects import Ask, CloseIncident, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.events.inputs import Event, ProcessesSeen
from governor.core.events.peers import NodeTold, PeerTold
from tests.sim.cloud import Cloud
from tests.sim.faults import HEALED, INCIDENT, Schedule, some_moment
from tests.sim.trainer import Process, Trainer

START = MonoNs(1_000_000 * NS_PER_S)
EVENTS_MAX = 20_000  # Ten times the busiest schedule: beyond it something multiplies.
STAMP_AGE_NS_MAX = 300 * NS_PER_MS  # More than a tick of the grid, so that stages pass in between.
SCAN_NS = 400 * NS_PER_MS  # Two scans of /proc and what lies between them.

OTHERS = NodeTold("node-2", "boot-2")  # Says that no process of the run is left on the other nodes.
OTHERS_TELL = 3

MakeEvent = Callable[[MonoNs], Event]


class Receiver(Protocol):
    down: bool

    def receive(self, make: MakeEvent, stamp: MonoNs) -> None: ...

    def verdict(self, *, asked: bool) -> None: ...


class World:
    """Virtual time and everything in it. One Random decides all; the order of calls is the order of time."""

    def __init__(self, schedule: Schedule, rng: Random) -> None:
        self.schedule = schedule
        self.faults = schedule.faults
        self.plan = schedule.plan
        self.rng = rng
        self.now = START
        self.healed = False
        self.events_total = 0
        self.log: list[str] = []
        self.trainer = Trainer(self)
        self.cloud = Cloud(self)
        self.performer = Performer(self)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self._governor: Receiver | None = None

    def start(self, governor: Receiver) -> None:
        self._governor = governor
        self.after(self.schedule.healed_after_ns, self.heal)
        for _ in range(self.faults.second_verdicts):
            asked = self.plan.checkpoint != "none" and self.rng.random() < 0.5
            self.after(some_moment(self.rng, self.plan), partial(governor.verdict, asked=asked))
        for _ in range(OTHERS_TELL if self.plan.others_ns else 0):  # A beat a second: it comes in any stage.
            self.tell(lambda at: PeerTold(at, OTHERS), some_moment(self.rng, self.plan))
        self.trainer.start()
        self.cloud.start()

    @property
    def governor(self) -> Receiver:
        assert self._governor is not None, "nobody governs before start()"
        return self._governor

    def after(self, delay_ns: int, do: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (self.now + delay_ns, self._pushed, do))

    def next_at(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def run_next(self) -> None:
        at, _, do = heapq.heappop(self._queue)
        self.advance(at)
        self.count_event()
        do()

    def advance(self, at: int) -> None:
        assert at >= self.now
        self.now = MonoNs(at)

    def count_event(self) -> None:
        self.events_total += 1
        assert self.events_total < EVENTS_MAX, "events multiply"

    def tell(self, make: MakeEvent, delay_ns: int, *, lossy: bool = True, late: float | None = None) -> None:
        """Send something to the governor over a link that may lose, double and delay it."""
        governor = self._governor
        assert governor is not None
        if lossy and self.rng.random() < self.faults.lose:
            return
        for _ in range(2 if lossy and self.rng.random() < self.faults.double else 1):
            is_late = lossy and self.rng.random() < (self.faults.late if late is None else late)
            late_ns = some_moment(self.rng, self.plan) if is_late else 0
            self.after(delay_ns + late_ns, lambda: self._arrive(governor, make))

    def _arrive(self, governor: Receiver, make: MakeEvent) -> None:
        """Stamped now, on whatever thread met it; the loop may take it a moment later."""
        stamp = self.now
        age_ns = self.rng.randrange(STAMP_AGE_NS_MAX) if self.faults.stale_stamps else 0
        if age_ns:
            self.after(age_ns, lambda: governor.receive(make, stamp))
        else:
            governor.receive(make, stamp)

    def heal(self) -> None:
        """Every fault ends, and what it had held back happens: from here on the halt must come to its end."""
        self.note("-- healed --")
        self.healed = True
        self.faults = HEALED
        self.trainer.heal()

    def note(self, line: str) -> None:
        self.log.append(f"{(self.now - START) / NS_PER_S:10.3f}  {line}")


@dataclass(slots=True)
class Performed:
    at: MonoNs
    effect: HaltEffect


@dataclass(slots=True)
class Performer:
    """Do effects to the world, watch the processes, and report what is observed. Dies with the governor."""

    world: World
    performed: list[Performed] = field(default_factory=list)
    ended_samples: list[MonoNs] = field(default_factory=list)
    watching: bool = False
    respawn_watch: bool = False  # From the first Term or Kill until the incident is closed.
    closed: bool = False
    dark: bool = False  # The governor's own machine went down.
    _life: int = 0

    def do(self, effect: HaltEffect) -> None:
        self.world.note(f"    {effect}")
        self.performed.append(Performed(self.world.now, effect))
        match effect:
            case Ask():
                self.world.after(NS_PER_MS, self.world.trainer.on_letter)
            case Term() | Kill():
                self._signal(hard=isinstance(effect, Kill))
            case StopCompute():
                self.world.cloud.stop(effect.rung)
            case ReadBilling():
                life = self._life
                self.world.after(round(effect.after_s * NS_PER_S), lambda: self._read(life))
            case CloseIncident():
                self.closed = True
            case Page():
                pass

    def _signal(self, *, hard: bool) -> None:
        self.watching = self.respawn_watch = True
        for process in self.world.trainer.alive():
            self.world.trainer.kill(process) if hard else self.world.trainer.term(process)
        self.on_death()

    def _read(self, life: int) -> None:
        if life == self._life:  # Else the governor that asked is gone.
            self.world.cloud.read()

    def on_birth(self, process: Process) -> None:
        if self.respawn_watch and not self.closed:
            self._report_newcomers(self._life)

    def _report_newcomers(self, life: int) -> None:
        def look() -> None:
            found = tuple(p.identity for p in self.world.trainer.alive() if p.newcomer and not p.killed)
            if found and life == self._life and not self.closed:
                alive = tuple(p.identity for p in self.world.trainer.alive())
                self.world.tell(lambda at: ProcessesSeen(at, INCIDENT, alive, found), NS_PER_MS, lossy=False)

        self.world.after(self.world.rng.randrange(1, 2 * NS_PER_S), look)

    def on_death(self) -> None:
        if self.watching and not self.world.trainer.alive():
            life = self._life
            self.world.after(SCAN_NS, lambda: self._report_gone(life))

    def _report_gone(self, life: int) -> None:
        if self.watching and life == self._life and not self.world.trainer.alive():
            self.watching = False
            self.world.tell(lambda at: ProcessesSeen(at, INCIDENT, ()), NS_PER_MS, lossy=False)

    def on_machine_off(self) -> None:
        self.dark = self.world.schedule.governor_inside

    def on_crash(self) -> None:
        """What a dead governor knew is gone: watches, waiting reads, replies on their way."""
        self._life += 1
        self.watching = self.respawn_watch = False
