"""A fleet in virtual time: twenty machines, fifty runs, one store, and whoever looks after them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from governor.core.base.units import NS_PER_MINUTE, NS_PER_S
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.reservations import Reservations, Standing
from governor.core.fleet.scopes import (
    Holder,
    ceiling_change,
    grant_row,
    grants_of,
    may_have_spent,
    names_in,
    scope_key,
    settlement,
)
from governor.remote_ports import FleetReply, FleetStore
from tests.sim.fleet.history import GOVERNORS, History
from tests.sim.fleet.judge import Judge
from tests.sim.fleet.network import Network
from tests.sim.fleet.node import SimNode, SimRun

MakeGovernor = Callable[[Holder, str], Reservations]
EVENTS_MAX = 30_000  # Twice the busiest history in which nobody is cut off for long: beyond it something multiplies.
EVENTS_CUT_MAX = 80  # More, for each minute that a governor is cut off: it asks for each of its grants all the time.
OVER_NS = 30 * NS_PER_MINUTE  # By then every run without an end has met a ceiling.
# After the last fault every governor has settled: fifty tries, and the worst network still loses half of them.
SETTLES_NS = 20 * NS_PER_MINUTE
SWEPT_NS = 60 * NS_PER_MINUTE  # By then all has arrived that a machine sent before it vanished.
SWEEP_NS = 5 * NS_PER_MINUTE


class World:
    def __init__(self, history: History, store: FleetStore, kind: MakeGovernor = Reservations) -> None:
        self.history, self.store, self.kind = history, store, kind
        self.rng = random.Random(f"world/{history.seed}")
        self.now = 0
        self.events_total = 0
        self.is_over = False
        self.partitions = list(history.partitions)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self.judge = Judge(self)
        self.network = Network(self, random.Random(f"network/{history.seed}"))
        for scope, ceiling in history.ceilings.items():
            self.set_ceiling(scope, ceiling)
        of = {number: [run for run in history.runs if run.governor == number] for number in range(GOVERNORS)}
        self.nodes = [SimNode(self, number, plans) for number, plans in of.items()]
        self._plan()

    # --- time ------------------------------------------------------------------------------------------

    def at(self, when: int, do: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (max(when, self.now), self._pushed, do))

    def after(self, ns: int, do: Callable[[], None]) -> None:
        self.at(self.now + ns, do)

    def play(self) -> Judge:
        events_max = EVENTS_MAX + EVENTS_CUT_MAX * self.history.cut_ns // NS_PER_MINUTE
        while self._queue:
            self.now, _, do = heapq.heappop(self._queue)
            do()
            self.events_total += 1
            self.judge.demand(self.events_total < events_max, "events multiply")
        self.judge.at_the_end()
        return self.judge

    # --- what is planned -------------------------------------------------------------------------------

    def _plan(self) -> None:
        history = self.history
        for number, steps in history.prices.items():
            for when, percent in steps:
                self.at(when, lambda number=number, percent=percent: self._price(number, percent))  # type: ignore[misc]
        for when, scope, ceiling in history.changes:
            self.at(when, lambda scope=scope, ceiling=ceiling: self.set_ceiling(scope, ceiling))  # type: ignore[misc]
        for when, number, down in history.kills:
            self.at(when, self.nodes[number].kill)
            self.at(when + down, self.nodes[number].start)
        for when, number, ends, read_back in history.vanishes:
            self.at(when, self.nodes[number].vanish)
            self.at(ends, lambda number=number: self._billing_ends(number))  # type: ignore[misc]
            self.at(read_back, lambda number=number, ends=ends: self._sweep(number, ends))  # type: ignore[misc]
        self.at(OVER_NS, self._over)
        self.at(max(OVER_NS, history.healed_ns) + SETTLES_NS, self.judge.when_settled)
        for run in history.runs:
            self.at(run.starts, self.nodes[run.governor].wake)

    def _price(self, number: int, percent: int) -> None:
        for run in self.nodes[number].runs.values():
            run.set_rate(run.plan.usd_micros_per_hour * percent // 100, self.now)
        self.nodes[number].wake()

    def _over(self) -> None:
        """People end what still trains. Nothing may be left of it."""
        self.is_over = True
        for node in self.nodes:
            for run in node.runs.values():
                if not node.is_gone:
                    node.end(run)
            node.wake()

    # --- the store -------------------------------------------------------------------------------------

    def transact(self, transaction: Transaction) -> FleetReply:
        reply = self.store.transact(transaction)
        if reply.answer is Answer.APPLIED:
            self.judge.applied(transaction)
        return reply

    def set_ceiling(self, scope: str, ceiling: int) -> None:
        transaction = ceiling_change(self.store.read([scope_key(scope)]).rows[0], ceiling)
        assert transaction is not None
        assert self.store.transact(transaction).answer is Answer.APPLIED
        self.judge.set_ceiling(scope, ceiling)

    # --- a machine that has vanished -------------------------------------------------------------------

    def _billing_ends(self, number: int) -> None:
        node = self.nodes[number]
        for run in node.runs.values():
            if run.is_running:
                run.end(self.now)

    def _sweep(self, number: int, ended: int) -> None:
        """Somebody has read back when its billing ended, and settles what it held; again until nothing comes late."""
        for kept in self.store.range(grants_of(self.nodes[number].holder), 100).rows:
            self._settle(kept, ended)
        if self.now < SWEPT_NS:
            self.after(SWEEP_NS, lambda: self._sweep(number, ended))

    def _settle(self, kept: Kept, ended: int) -> None:
        row, names = grant_row(kept), names_in(kept.key)
        assert row is not None
        assert names is not None
        _, scope, name = names
        node = next(node for node in self.nodes if name in node.runs)
        dearest = max([100, *(percent for _, percent in self.history.prices.get(node.number, ()))])
        rate = -(-node.runs[name].plan.usd_micros_per_hour * dearest // 100)
        spent = may_have_spent(row, ended, rate)
        transaction = settlement(self.store.read([scope_key(scope)]).rows[0], kept, spent)
        assert transaction is not None
        self.judge.settles(scope, name, spent)
        assert self.transact(transaction).answer is Answer.APPLIED

    # --- what the judge is told ------------------------------------------------------------------------

    def halts(self, run: SimRun, standing: Standing, number: int) -> None:
        self.judge.halts(run, standing, number)

    def ended(self, node: SimNode, run: SimRun) -> None:
        self.judge.ended(node, run)


def play(history: History, store: FleetStore, kind: MakeGovernor = Reservations) -> Judge:
    return World(history, store, kind).play()


assert SWEPT_NS > OVER_NS + 120 * NS_PER_S
