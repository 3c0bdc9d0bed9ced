"""What must hold in every history. It keeps its own accounts, from the rows that are put, and knows the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE
from governor.core.events.fleet_store import Kept, Transaction
from governor.core.fleet.grant import Why
from governor.core.fleet.reservations import Standing
from governor.core.fleet.scopes import GRANT_ROWS, SCOPE_ROWS, grant_key, grant_row, names_in, scope_key, scope_row
from tests.sim.fleet.asks import Asks

if TYPE_CHECKING:
    from tests.sim.fleet.node import SimNode, SimRun
    from tests.sim.fleet.world import World


class BrokenError(Exception):
    """An invariant does not hold."""


class Judge:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ceilings: dict[str, int] = {}
        self.grants: dict[str, dict[str, int]] = {}  # By scope: the amount of each grant's row.
        self.settled: dict[str, int] = {}
        self.over: dict[str, int] = {}
        self.top: dict[str, int] = {}  # The most that a scope may come to: its ceilings, as long as they held.
        self.transactions = self.halted = self.denied = self.alone = 0
        self.spreads_ns: list[int] = []
        self.asks = Asks(self)

    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            minute = self.world.now / NS_PER_MINUTE
            raise BrokenError(f"seed {self.world.history.seed}, minute {minute:.2f}: {what}")

    # --- the store -------------------------------------------------------------------------------------

    def set_ceiling(self, scope: str, ceiling: int) -> None:
        self.ceilings[scope] = ceiling
        self.grants.setdefault(scope, {})
        for counts in (self.settled, self.over, self.top):
            counts.setdefault(scope, 0)

    def total(self, scope: str) -> int:
        """All that is granted, and all that was spent within grants that are settled."""
        return sum(self.grants[scope].values()) + self.settled[scope] - self.over[scope]

    def applied(self, transaction: Transaction) -> None:
        self.transactions += 1
        for key, value in transaction.puts:
            if key.startswith(SCOPE_ROWS):
                self._scope_put(key, value, transaction)

    def _scope_put(self, key: str, value: str, transaction: Transaction) -> None:
        scope = next(scope for scope in self.grants if scope_key(scope) == key)
        before, row = self.total(scope), scope_row(Kept(key, value, 1))
        assert row is not None
        for changed, text in transaction.puts:
            if changed.startswith(GRANT_ROWS):
                self._grant_put(scope, changed, text)
        for gone in transaction.deletes:
            self._grant_gone(scope, gone, row.settled_usd_micros)
        self.over[scope] = row.over_usd_micros
        after, held = self.total(scope), sum(self.grants[scope].values())
        told = f"{scope}: {after:,} of {self.ceilings[scope]:,}"
        self.demand(after <= max(self.ceilings[scope], before), f"more is granted than the ceiling, {told}")
        self.demand(row.held_usd_micros == held, f"the scope's row has lost count of its grants, {told}")
        self.demand(row.settled_usd_micros == self.settled[scope], f"the row has lost what was spent, {told}")
        self.demand(row.holders == len(self.grants[scope]), f"the row has lost count of its holders, {told}")
        self.top[scope] = max(self.top[scope], after)

    def _grant_put(self, scope: str, key: str, text: str) -> None:
        row = grant_row(Kept(key, text, 1))
        assert row is not None
        if (run := self._run(key)) is not None and run.is_running and key in self.grants[scope]:
            self._within(run, scope, self.grants[scope][key])
        self.grants[scope][key] = row.granted_usd_micros

    def _grant_gone(self, scope: str, key: str, settled: int) -> None:
        self.demand(key in self.grants[scope], f"a grant of {scope} was given back twice")
        spent, run = settled - self.settled[scope], self._run(key)
        assert run is not None
        true = run.spent(self.world.now)
        self.demand(spent >= true, f"{run.plan.name} was settled at {spent:,}, and has spent {true:,}")
        self.demand(spent == true or self._is_gone(run), f"{run.plan.name} was settled above what it has spent")
        self.settled[scope] = settled
        del self.grants[scope][key]

    def settles(self, scope: str, name: str, spent: int) -> None:
        run = self._named(name)
        self.demand(not run.is_running, f"{name} was settled while it spends")

    # --- runs ------------------------------------------------------------------------------------------

    def _within(self, run: SimRun, scope: str, granted: int) -> None:
        spent = run.spent(self.world.now)
        if not self._is_gone(run):
            self.demand(
                spent <= granted, f"{run.plan.name} has spent {spent:,}, and was granted {granted:,} in {scope}"
            )

    def ended(self, node: SimNode, run: SimRun) -> None:
        for scope in run.plan.scopes:
            self._within(run, scope, self.grants[scope].get(grant_key(node.holder, scope, run.plan.name), 0))

    def halts(self, run: SimRun, standing: Standing, number: int) -> None:
        self.halted += 1
        if self.world.history.faults == frozenset():
            governor = self.world.nodes[number].governor
            assert governor is not None
            grant = governor.grants[standing.scope, run.plan.name]
            asks = grant.sent is not None or grant.failures > 0  # Others were first, again and again.
            self.demand(asks or standing.why is not None, f"{run.plan.name} was halted, and never denied")
        if standing.why is not Why.NOTHING_LEFT or self.world.network.is_cut(number):
            self.alone += standing.why is Why.SILENT
            return
        self.denied += 1
        for node in self.world.nodes:
            if node.governor is None or self.world.network.is_cut(node.number):
                continue
            for grant in node.governor.grants.values():
                other = node.runs[grant.run]
                if grant.scope == standing.scope and other.is_running and other.halt_began is None and other.rate:
                    self.spreads_ns.append(max(0, grant.headroom_usd_micros) * NS_PER_HOUR // other.rate)

    # --- the end ---------------------------------------------------------------------------------------

    def when_settled(self) -> None:
        """All runs have ended, and nothing has hindered anybody for long: no governor may have anything left to do."""
        for node in self.world.nodes:
            held = sorted(node.governor.grants) if node.governor is not None else []
            self.demand(not held, f"the history does not come to an end: node-{node.number} still asks for {held[:3]}")

    def at_the_end(self) -> None:
        for scope, grants in self.grants.items():
            self.demand(not grants, f"{scope}: still held after everybody has ended: {sorted(grants)[:3]}")
            runs = [run for node in self.world.nodes for run in node.runs.values() if scope in run.plan.scopes]
            true = sum(run.spent(self.world.now) for run in runs)
            gone = any(self._is_gone(run) for run in runs)  # Settled at what it may have spent.
            self.demand(true <= self.settled[scope], f"{scope}: spent {true:,}, settled {self.settled[scope]:,}")
            self.demand(gone or true == self.settled[scope], f"{scope}: {self.settled[scope] - true:,} are stranded")
            most = max(self.top[scope], 0) + self.over[scope]
            self.demand(true <= most, f"{scope}: spent {true:,}, of at most {most:,}")
            rows = self.world.store.read([scope_key(scope)]).rows
            row = scope_row(rows[0])
            self.demand(row is not None and row.held_usd_micros == 0, f"{scope}: the row still holds something")

    def _run(self, key: str) -> SimRun | None:
        names = names_in(key)
        return None if names is None else self._named(names[2])

    def _named(self, name: str) -> SimRun:
        return next(node.runs[name] for node in self.world.nodes if name in node.runs)

    def _is_gone(self, run: SimRun) -> bool:
        return self.world.nodes[run.plan.governor].is_gone
