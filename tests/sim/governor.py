"""The governor under simulation: whoever decides, behind a journal, able to die at any moment and to resume.

`Driver` is the seam. The bare table drives it here; the engine can take its place without the world noticing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.effects import HaltEffect
from governor.core.events.inputs import (
    Ack,
    BillingRead,
    Event,
    Hello,
    ProcessesSeen,
    StopReplied,
    TrainerExited,
)
from governor.core.events.machine import PriceRead
from governor.core.events.peers import PeerTold
from governor.core.halt.table import Fact, Halt, HaltState, billing_fact, open_halt, resume, step, stop_fact
from tests.sim.disk import Disk
from tests.sim.faults import INCIDENT, RUN
from tests.sim.trainer import ACK_FACTS
from tests.sim.world import MakeEvent, World

GRID_NS = 250 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Step:
    """One fact put to the table, and what came of it."""

    at: MonoNs
    fact: Fact
    before: Halt
    after: Halt
    effects: tuple[HaltEffect, ...]


class Driver(Protocol):
    @property
    def halt(self) -> Halt:
        """As decided so far."""

    def verdict(self, at: MonoNs, *, asked: bool) -> Sequence[Step]: ...

    def event(self, event: Event) -> Sequence[Step]: ...

    def clock(self, at: MonoNs) -> Sequence[Step]:
        """The deadline has come."""

    def kept(self) -> object:
        """What the journal must hold before the effects of the last step."""

    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        """Become what was kept; return what is to be repeated."""


class TableDriver:
    """The bare table: events become facts as the engine would make them."""

    def __init__(self, world: World) -> None:
        self.plan = world.plan
        self.halt = open_halt(INCIDENT, RUN, "loss_nan", MonoNs(0))

    def verdict(self, at: MonoNs, *, asked: bool) -> Sequence[Step]:
        return self._feed(Fact.VERDICT if asked else Fact.VERDICT_NO_ASK, at)

    def clock(self, at: MonoNs) -> Sequence[Step]:
        return self._feed(Fact.DEADLINE, at)

    def event(self, event: Event) -> Sequence[Step]:
        match event:
            case Ack():
                return self._feed(ACK_FACTS[event.what], event.at)
            case ProcessesSeen():
                return self._feed(Fact.RESPAWNED if event.respawned else Fact.EXITED, event.at)
            case TrainerExited():
                # The ranks are gone; who else is, only a scan tells, and scans begin with TERM.
                asked = self.halt.stage in (HaltState.ARMED, HaltState.ASKED, HaltState.SAVING, HaltState.WAITING)
                return self._feed(Fact.EXITED, event.at) if asked else ()
            case PeerTold():
                return self._feed(Fact.OTHERS_GONE, event.at)
            case Hello():
                return ()  # Whom a connection belongs to is the engine's business.
            case StopReplied():
                return self._feed(stop_fact(event.answer, event.retryable), event.at)
            case BillingRead():
                return self._feed(billing_fact(event.answer), event.at)
            case _:
                raise AssertionError(f"the world sent {event}")

    def kept(self) -> object:
        return self.halt

    def resume(self, kept: object, at: MonoNs) -> tuple[HaltEffect, ...]:
        assert isinstance(kept, Halt)
        self.halt, effects = resume(kept, at, self.plan)
        return effects

    def _feed(self, fact: Fact, at: MonoNs) -> Sequence[Step]:
        before = self.halt
        self.halt, effects = step(before, fact, at, self.plan)
        return (Step(at, fact, before, self.halt, effects),)


class Judge(Protocol):
    """What the invariants want to see, in the order in which it happens."""

    def on_step(self, step: Step) -> None: ...

    def on_effect(self, effect: HaltEffect, halt: Halt, journaled: object) -> None: ...

    def on_resume(self, halt: Halt) -> None: ...


class Governor:
    """Hear, decide, journal, act. Each step may be its last; then it is restarted and resumes."""

    def __init__(self, world: World, make_driver: Callable[[World], Driver], judge: Judge, rng: Random) -> None:
        self.world = world
        self.make_driver = make_driver
        self.driver = make_driver(world)
        self.judge = judge
        self.rng = rng
        self.down = False
        self.disk = Disk()
        self._outbox: list[MakeEvent] = []  # Acks are resent until confirmed.

    # --- hearing -------------------------------------------------------------------------------------------

    def verdict(self, *, asked: bool) -> None:
        if not self.down:
            self._decide(lambda at: self.driver.verdict(at, asked=asked), "verdict")

    def receive(self, make: MakeEvent, stamp: MonoNs) -> None:
        event = make(stamp)
        if not self.down:
            self._decide(lambda _at: self.driver.event(event), _brief(event))
        elif isinstance(event, Ack):
            self._outbox.append(make)

    def next_clock_at(self) -> int | None:
        deadline = self.driver.halt.deadline
        if self.down or deadline is None:
            return None
        return max(self.world.now, -(-deadline // GRID_NS) * GRID_NS)

    def clock(self) -> None:
        self._decide(self.driver.clock, "deadline")

    # --- deciding ------------------------------------------------------------------------------------------

    def _decide(self, decide: Callable[[MonoNs], Sequence[Step]], heard: str) -> None:
        self.world.count_event()
        before = self.driver.halt.stage
        steps = decide(self.world.now)
        after = self.driver.halt.stage
        self.world.note(f"{heard}: {before.name}" + (f" -> {after.name}" if after is not before else ""))
        effects = [effect for taken in steps for effect in taken.effects]
        crash_at = self._draw_crash(len(effects))
        if crash_at == 0:
            self._crash("before the row was whole")  # Nothing of this step survives.
            return
        self._journal()
        for taken in steps:
            self.judge.on_step(taken)
        self._perform(effects, crash_at)

    def _perform(self, effects: Sequence[HaltEffect], crash_at: int | None) -> None:
        for number, effect in enumerate(effects, start=1):
            if crash_at == number:
                self._crash(f"before effect {number}")
                return
            self._act(effect)
        if crash_at is not None:
            self._crash("after acting")

    def _draw_crash(self, effects: int) -> int | None:
        """Return before which effect to die (0: while the row is written), or None."""
        faults = self.world.faults
        if self.rng.random() >= faults.crash:
            return None
        return 0 if self.rng.random() < faults.torn else self.rng.randint(1, effects + 1)

    def _journal(self) -> None:
        full = self.world.faults.disk_full and self.rng.random() < 0.5
        if full:
            self.world.note("    disk full: undurable")
        self.disk.append(self.driver.kept(), full=full)

    def _act(self, effect: HaltEffect) -> None:
        self.judge.on_effect(effect, self.driver.halt, self.disk.newest())
        self.world.performer.do(effect)

    # --- dying and resuming --------------------------------------------------------------------------------

    def _crash(self, where: str) -> None:
        self.world.note(f"!! governor killed {where}")
        self.down = True
        self.world.performer.on_crash()
        self.world.after(self.rng.randrange(NS_PER_S // 10, 10 * NS_PER_S), self._restart)

    def _restart(self) -> None:
        self.down = False
        self.driver = self.make_driver(self.world)  # Nothing in memory survives.
        newest = self.disk.newest()
        if newest is None:
            self.world.note("restarted; nothing was decided yet")
            self.verdict(asked=self.world.schedule.asked)  # The trigger still fires.
            return
        effects = self.driver.resume(newest, self.world.now)
        self.world.note(f"restarted in {self.driver.halt.stage.name}")
        self.judge.on_resume(self.driver.halt)
        self._journal()
        crash_at = self._draw_crash(len(effects))
        self._perform(effects, None if crash_at == 0 else crash_at)
        if not self.down:
            waiting, self._outbox = self._outbox, []
            for make in waiting:
                self.receive(make, self.world.now)


def _brief(event: Event) -> str:
    match event:
        case Ack():
            return f"ack {event.what}"
        case StopReplied():
            return f"stop {event.reason}"
        case BillingRead():
            return f"billing {event.provider_state}"
        case ProcessesSeen():
            return "respawn seen" if event.respawned else "exit seen"
        case PriceRead():
            return "price read"
        case PeerTold():
            return "the other nodes are gone"
        case Hello():
            return f"hello of {event.peer.process.pid}"
        case _:
            return "ranks exited"
