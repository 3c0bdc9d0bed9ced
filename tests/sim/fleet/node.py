"""One machine of the fleet: its runs and what they truly spend, its governor, and what that governor has stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_MS, NS_PER_S, MonoNs, WallNs
from governor.core.events.fleet_store import Answer, AskStore
from governor.core.fleet.grant import Use, Why
from governor.core.fleet.reservations import Reservations
from governor.core.fleet.scopes import Holder
from governor.remote_ports import FleetReply
from tests.sim.fleet.history import DOWN_MAX_S, RISE, RunPlan, reserve_ns, reserve_usd_micros

if TYPE_CHECKING:
    from tests.sim.fleet.world import World

UNSEEN_NS = (DOWN_MAX_S + 2) * NS_PER_S  # What a verdict may be late: the governor is down, or has its tick ahead.
GIVES_UP_NS = 2 * NS_PER_MINUTE  # A run that is not let in does not begin any more.
WAKE_MIN_NS, WAKE_MAX_NS = 250 * NS_PER_MS, 60 * NS_PER_S


class SimRun:
    """The truth of one run. `spent` is exact, whoever looks."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.rate = plan, plan.usd_micros_per_hour
        self.began: int | None = None
        self.halt_began: int | None = None
        self.ended: int | None = None
        self.why_halted: Why | None = None
        self._units = self._counted_to = 0

    @property
    def is_running(self) -> bool:
        return self.began is not None and self.ended is None

    def spent(self, at: int) -> int:
        live = self.rate * (at - self._counted_to) if self.is_running else 0
        return -(-(self._units + live) // NS_PER_HOUR)

    def set_rate(self, rate: int, at: int) -> None:
        self._count(at)
        self.rate = rate

    def begin(self, at: int) -> None:
        self.began = self._counted_to = at

    def end(self, at: int) -> None:
        self._count(at)
        self.ended = at

    def _count(self, at: int) -> None:
        if self.is_running:
            self._units += self.rate * (at - self._counted_to)
        self._counted_to = at

    def use(self, at: int) -> Use:
        if self.halt_began is not None:  # What is left of its halt.
            held = max(0, self.halt_began + self.plan.halt_ns - at)
        else:
            grown = self.plan.halt_ns * UNSEEN_NS // self.plan.cycle_ns
            held = min(self.plan.halt_ns, reserve_ns(self.plan, at) + grown) if at >= self.plan.starts else 0
        is_ending = self.halt_began is not None
        return Use(self.spent(at), self.rate, reserve_usd_micros(self.rate, held + UNSEEN_NS), is_ending)


class SimNode:
    def __init__(self, world: World, number: int, plans: list[RunPlan]) -> None:
        self.world, self.number = world, number
        self.runs = {plan.name: SimRun(plan) for plan in plans}
        self.given_up: set[str] = set()
        self.is_gone = False  # The machine has vanished, with its governor.
        self.stored: list[list[Any]] = []
        self.settled: set[tuple[str, str]] = set()
        self.settled_stored: set[tuple[str, str]] = set()
        self.starts = 0
        self.holder = Holder(f"node-{number}", "boot", f"ledger-{world.history.seed}")
        self.governor: Reservations | None = None
        self._wake_at: int | None = None
        self.start()

    # --- the governor's life ---------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_gone:
            return
        self.starts += 1
        self.governor = self.world.kind(self.holder, f"{self.number}.{self.starts}")
        self.settled = set(self.settled_stored)
        if self.starts > 1:
            self.governor.restore(self.stored)
        self.wake()

    def kill(self) -> None:
        self.governor = None

    def store(self) -> None:
        """What its journal has from now on."""
        if self.governor is not None:
            self.stored, self.settled_stored = self.governor.snapshot(), set(self.settled)

    def vanish(self) -> None:
        self.kill()
        self.is_gone = True
        for run in self.runs.values():
            if not run.is_running:
                self.given_up.add(run.plan.name)

    # --- a tick ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        governor, now = self.governor, self.world.now
        if governor is None:
            return
        self._wake_at = None
        self.settled |= set(governor.forget_over())
        self._tell(governor, now)
        self._halt(governor, now)
        if self.world.rng.random() < 0.1:
            self.store()
        for ask in governor.next(MonoNs(now), WallNs(now)):
            if ask.lowers:
                self.store()
            self._send(governor, ask)
        self._sleep(governor, now)

    def _tell(self, governor: Reservations, now: int) -> None:
        for name, run in self.runs.items():
            if self.world.is_over and run.began is None:
                self.given_up.add(name)
            if now < run.plan.starts or all((scope, name) in self.settled for scope in run.plan.scopes):
                continue
            use = run.use(now)
            for scope in run.plan.scopes:
                if (scope, name) in self.settled:
                    continue
                governor.cover(scope, name, use)
                if run.ended is not None or name in self.given_up:
                    governor.end(scope, name, run.spent(now))

    def _halt(self, governor: Reservations, now: int) -> None:
        for name, run in self.runs.items():
            if run.ended is not None or name in self.given_up or now < run.plan.starts or run.halt_began is not None:
                continue
            is_denied = any(governor.grants[scope, name].must_halt for scope in run.plan.scopes)
            if run.began is None:
                self._let_in(run, now, not is_denied)
            elif is_denied:
                halting = next(one for one in governor.standings(MonoNs(now), name) if one.must_halt)
                run.halt_began, run.why_halted = now, halting.why
                self.world.halts(run, halting, self.number)
                lasts = int(reserve_ns(run.plan, now) * self.world.rng.choice((0.3, 0.7, 1.0)))
                self.world.after(lasts, lambda run=run: self.end(run))  # type: ignore[misc]

    def _let_in(self, run: SimRun, now: int, is_granted: bool) -> None:
        if is_granted:
            run.begin(now)
            if run.plan.ends is not None:
                self.world.after(max(0, run.plan.ends - now), lambda: self.end(run))
        elif now - run.plan.starts > GIVES_UP_NS:
            self.given_up.add(run.plan.name)

    def end(self, run: SimRun) -> None:
        if not run.is_running:
            return
        run.end(self.world.now)
        self.world.ended(self, run)
        self.wake()

    def _send(self, governor: Reservations, ask: AskStore) -> None:
        asks, instance = self.world.judge.asks, governor.instance
        asks.sent(instance, ask)

        def deliver(reply: FleetReply) -> None:
            asks.answered(instance, ask, reply.answer)
            if self.governor is governor:
                at = MonoNs(self.world.now)
                governor.answered(ask.request, reply.answer, reply.rows, reply.revision, at=at)
                if reply.answer in (Answer.APPLIED, Answer.READ, Answer.CONFLICT):
                    self.wake()
                else:
                    self.world.after(NS_PER_S, self.wake)

        self.world.network.send(self.number, ask, deliver)

    def _sleep(self, governor: Reservations, now: int) -> None:
        """Until something may be due. The daemon just asks at each of its ticks."""
        expects = (run.ended is None and name not in self.given_up for name, run in self.runs.items())
        if not governor.grants and not any(expects):
            return
        due = now + WAKE_MAX_NS
        if (read := governor.next_read()) is not None and any(not one.is_waiting for one in governor.grants.values()):
            due = min(due, read)
        for grant in governor.grants.values():
            if grant.is_over or grant.is_waiting:
                continue
            if grant.not_before > now:
                due = min(due, grant.not_before)
            run = self.runs[grant.run]
            if run.is_running and run.halt_began is None:
                left = grant.headroom_usd_micros
                # The reserve grows with what is not saved.
                growth = run.rate * 7 * RISE[0] * run.plan.halt_ns // (10 * RISE[1] * run.plan.cycle_ns)
                speed = max(1, run.rate + growth)
                lead = left - grant.asks_below
                room = lead + 1 if lead >= 0 else left
                due = min(due, now + max(0, room) * NS_PER_HOUR // speed)
        waking = max(due, now + WAKE_MIN_NS)
        if self._wake_at is None or waking < self._wake_at or self._wake_at <= now:
            self._wake_at = waking
            self.world.at(waking, lambda: self.wake() if self._wake_at == waking else None)
