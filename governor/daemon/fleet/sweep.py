"""The worker's look at governors that are silent: who has the role tells it, and ends what has used up its grants.

A role is a row with its holder's lease, so one governor of a fleet does this, and another when that one is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros, WallNs, format_usd
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.events.inputs import BillingAnswer, Event, StopAnswer
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.presence import (
    LIVE_ROWS,
    NODE_ROWS,
    RUN_ROWS,
    NodeRow,
    holder_in,
    node_row,
    run_row,
)
from governor.core.fleet.scopes import (
    GRANT_ROWS,
    ROOT,
    Holder,
    grant_row,
    may_have_spent,
    names_in,
    quoted,
    scope_key,
    settlement,
)
from governor.core.fleet.sweeping import SILENT_NS, HeldGrant, Silent, Step, next_step, tells
from governor.daemon.calls import ENDING_STATES
from governor.remote_ports import Cloud, FleetStore

EVERY_NS: Final = 30 * NS_PER_S
NODES_MAX: Final = 10_000
OF_ONE_MAX: Final = 1_000  # Runs or grants of one holder. A governor has 64 runs and 256 grants.
SETTLE_TRIES: Final = 20
DELETES_MAX: Final = 100  # etcd takes 128 operations in a transaction.
ROLES: Final = f"{ROOT}role/"

log = structlog.get_logger("costgov")


@dataclass(frozen=True, slots=True)
class Sweeper:
    """What this governor may do to others' machines. `machine`: another one of the same provider and region."""

    cloud: str
    region: str | None
    machine: Callable[[str], Cloud | None]

    @property
    def role(self) -> str:
        return f"{ROLES}sweeper/{quoted(self.cloud)}/{quoted(self.region or '-')}"

    def reaches(self, node: NodeRow) -> bool:
        return (node.cloud, node.region) == (self.cloud, self.region) and node.instance_id is not None


class FleetSweep:
    """A `Turn`. `sweeper` None: it tells, and touches nothing."""

    def __init__(
        self, holder: Callable[[], Holder], lease: Callable[[], int], wall: Callable[[], WallNs],
        post: Callable[[Event], None], sweeper: Sweeper | None,
    ) -> None:  # fmt: skip
        self._holder, self._lease, self._wall, self._post, self._sweeper = holder, lease, wall, post, sweeper
        self._next_at = MonoNs(0)
        self._since: dict[str, MonoNs] = {}  # Silent holders: since when, as we have seen it.
        self._told: set[str] = set()

    def turn(self, store: FleetStore, at: MonoNs) -> None:
        if at < self._next_at or not self._lease():
            return
        self._next_at = MonoNs(at + EVERY_NS)
        tells_them = self._has(store, f"{ROLES}teller")
        sweeps = self._sweeper is not None and self._has(store, self._sweeper.role)
        if not tells_them and not sweeps:
            self._since, self._told = {}, set()
            return
        for kept, silent in self._silent(store, at):
            is_over = sweeps and self._swept(store, kept, silent)
            if tells_them and not is_over and silent.alive and not silent.is_ending and silent.holder not in self._told:
                self._told.add(silent.holder)
                self._post(SourceTrouble(at, None, "fleet_node_silent", tells(silent)))

    def end(self, store: FleetStore) -> None:
        """Our roles go with our lease."""

    def _has(self, store: FleetStore, role: str) -> bool:
        own = self._holder().text
        reply = store.transact(Transaction(((role, 0),), ((role, own),), lease=self._lease()))
        if reply.answer is Answer.CONFLICT:
            return bool(reply.rows) and reply.rows[0].value == own
        return reply.answer is Answer.APPLIED

    # --- who is silent ---------------------------------------------------------------------------------

    def _silent(self, store: FleetStore, at: MonoNs) -> Iterator[tuple[Kept, Silent]]:
        live, nodes = store.range(LIVE_ROWS, NODES_MAX), store.range(NODE_ROWS, NODES_MAX)
        if live.answer is not Answer.READ or nodes.answer is not Answer.READ or live.is_cut:
            return
        speaking = {holder_in(kept.key) for kept in live.rows}
        known = ((holder_in(kept.key), node_row(kept)) for kept in nodes.rows)
        used = {_machine(row) for holder, row in known if holder in speaking and row is not None}
        quiet = {holder_in(kept.key): kept for kept in nodes.rows if holder_in(kept.key) not in speaking}
        self._since = {holder: self._since.get(holder, at) for holder in quiet}
        self._told &= quiet.keys()
        for holder, kept in quiet.items():
            node, for_ns = node_row(kept), at - self._since[holder]
            if node is None or for_ns < SILENT_NS:
                continue
            runs = store.range(f"{RUN_ROWS}{holder}/", OF_ONE_MAX)
            grants = store.range(f"{GRANT_ROWS}{holder}/", OF_ONE_MAX)
            if runs.answer is Answer.READ and grants.answer is Answer.READ:
                rows = [row for one in runs.rows if (row := run_row(one)) is not None]
                shares = node.instance_id is not None and _machine(node) in used
                yield kept, Silent(holder, for_ns, node, rows, _held(grants.rows), shares)

    # --- what is done ----------------------------------------------------------------------------------

    def _swept(self, store: FleetStore, kept: Kept, silent: Silent) -> bool:
        """Whether its billing has ended, so that nobody need be told."""
        sweeper, node = self._sweeper, silent.node
        if sweeper is None or not sweeper.reaches(node) or silent.shares_machine:
            return False
        machine = sweeper.machine(node.instance_id or "")
        if machine is None:
            return False
        billing = machine.billing()
        step = next_step(silent, billing.answer)
        if step is Step.STOP and billing.provider_state not in ENDING_STATES:
            reply = machine.stop(f"sweep.{silent.holder}"[:64], 0)
            accepted = "is being stopped" if reply.answer is StopAnswer.ACCEPTED else f"is not stopped ({reply.reason})"
            self._say("fleet_swept", f"{_what(node)} {accepted}: its governor is silent, and its runs' grants are used")
        if step is Step.SETTLE:
            self._settle(store, kept, silent)
        return billing.answer is BillingAnswer.ENDED

    def _settle(self, store: FleetStore, kept: Kept, silent: Silent) -> None:
        wall, node = self._wall(), silent.node
        total = 0
        for grant in silent.grants:
            # Its clock may be behind ours, or ahead. It was silent for as long as we have seen at least.
            ended = max(wall, grant.row.seen_wall_ns + silent.for_ns)
            spent = may_have_spent(grant.row, ended, node.rate_usd_micros_per_hour or 0)
            if not _settled(store, grant, spent):
                return  # The next turn goes on.
            total += spent
        rows = [kept.key, *(one.key for one in store.range(f"{RUN_ROWS}{silent.holder}/", OF_ONE_MAX).rows)]
        # A governor that came back has written its row anew.
        store.transact(Transaction(((kept.key, kept.revision),), (), tuple(rows[:DELETES_MAX])))
        grants = f"{len(silent.grants)} grants settled at {format_usd(UsdMicros(total))} at most"
        self._say("fleet_swept", f"{_what(node)} is billed no more, and its governor is silent: {grants}")

    def _say(self, name: str, text: str) -> None:
        log.warning(name, text=text)
        self._post(SourceTrouble(MonoNs(self._next_at - EVERY_NS), None, name, text))


def _machine(node: NodeRow) -> tuple[str, str | None]:
    return node.cloud, node.instance_id


def _what(node: NodeRow) -> str:
    return f"{node.cloud} {node.instance_id} of node {node.node}"


def _held(rows: Sequence[Kept]) -> list[HeldGrant]:
    found = ((kept, names_in(kept.key), grant_row(kept)) for kept in rows)
    return [HeldGrant(kept.key, names[1], names[2], row) for kept, names, row in found if names and row]


def _settled(store: FleetStore, grant: HeldGrant, spent: int) -> bool:
    """Whether it is settled now, by us or by another."""
    try:
        keys = (scope_key(grant.scope), grant.key)
    except ValueError:
        return False
    for _ in range(SETTLE_TRIES):
        found = store.read(keys)
        if found.answer is not Answer.READ:
            return False
        if not found.rows[1].revision:
            return True
        change = settlement(found.rows[0], found.rows[1], spent)
        if change is None:
            return False
        reply = store.transact(change)
        if reply.answer is not Answer.CONFLICT:
            return reply.answer is Answer.APPLIED
    return False
