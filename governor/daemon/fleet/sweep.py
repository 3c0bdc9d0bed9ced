"""A look at governors that are silent: who has the role tells it, and has what has used up its grants ended.

A role is a row with its holder's lease, so one governor of a fleet does this, and another when that one is gone. The
provider is asked on a thread of its own: a provider that does not answer keeps no grant waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros, WallNs, format_usd
from governor.core.events.fleet_orders import Act, Order, SilentUsedUp
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.events.inputs import BillingAnswer, Event
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.orders import ORDER_ROWS, ORDERS_MAX, covers, order_of
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
    names_in,
    quoted,
    scope_key,
    settlement,
)
from governor.core.fleet.sweeping import SILENT_NS, HeldGrant, Silent, Step, next_step, settles_at, tells
from governor.daemon.fleet.paging import every_row, forget_holder, whole
from governor.remote_ports import Cloud, FleetReply, FleetStore

EVERY_NS: Final = 30 * NS_PER_S
ASKED_EVERY_NS: Final = 300 * NS_PER_S  # EC2 takes half a minute to stop a machine.
OF_ONE_MAX: Final = 1_000  # Runs or grants of one holder. A governor has 64 runs and 256 grants.
SETTLE_TRIES: Final = 20
ROLES: Final = f"{ROOT}role/"


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
        # Silent holders by the revision of their last word: since when, as we have seen it.
        self._since: dict[tuple[str, int], MonoNs] = {}
        self._told: set[str] = set()
        self._asked: dict[str, MonoNs] = {}  # When the loop was last asked to stop a machine.

    def turn(self, store: FleetStore, at: MonoNs) -> None:
        if at < self._next_at or not self._lease():
            return
        self._next_at = MonoNs(at + EVERY_NS)
        tells_them = self._has(store, f"{ROLES}teller")
        sweeps = self._sweeper is not None and self._has(store, self._sweeper.role)
        if not tells_them and not sweeps:
            return
        for kept, silent in self._silent(store, at):
            is_over = sweeps and self._swept(store, kept, silent, at)
            if tells_them and not is_over and not silent.is_ending and silent.holder not in self._told:
                self._told.add(silent.holder)
                self._post(SourceTrouble(at, None, "fleet_node_silent", tells(silent)))

    def end(self, store: FleetStore) -> None:
        """Our roles go with our lease."""

    def _has(self, store: FleetStore, role: str) -> bool:
        """Whether it is ours. What we know of who is silent outlives a role that is lost, or an answer."""
        own = self._holder().text
        reply = store.transact(Transaction(((role, 0),), ((role, own),), lease=self._lease()))
        if reply.answer is Answer.CONFLICT:
            return bool(reply.rows) and reply.rows[0].value == own
        return reply.answer is Answer.APPLIED

    # --- who is silent ---------------------------------------------------------------------------------

    def _silent(self, store: FleetStore, at: MonoNs) -> Iterator[tuple[Kept, Silent]]:
        live, nodes = every_row(store, LIVE_ROWS), every_row(store, NODE_ROWS)
        if isinstance(live, FleetReply) or isinstance(nodes, FleetReply):
            return
        speaking = {holder_in(kept.key) for kept in live}
        known = {holder_in(kept.key): node_row(kept) for kept in nodes}
        used = {_machine(row) for holder, row in known.items() if holder in speaking and row is not None}
        # Of one that speaks, and whose row cannot be read or is not there, nobody knows which machine is its own.
        unknown = any(known.get(holder) is None for holder in speaking)
        quiet = {holder_in(kept.key): kept for kept in nodes if holder_in(kept.key) not in speaking}
        # Who came back meanwhile has written its row anew.
        said = {(holder, kept.revision) for holder, kept in quiet.items()}
        self._since = {name: self._since.get(name, at) for name in said}
        self._told &= quiet.keys()
        self._asked = {holder: asked for holder, asked in self._asked.items() if holder in quiet}
        for holder, kept in quiet.items():
            node, for_ns = node_row(kept), at - self._since[holder, kept.revision]
            if node is None or for_ns < SILENT_NS:
                continue
            runs = every_row(store, f"{RUN_ROWS}{holder}/", OF_ONE_MAX)
            grants = every_row(store, f"{GRANT_ROWS}{holder}/", OF_ONE_MAX)
            if isinstance(runs, FleetReply) or isinstance(grants, FleetReply):
                continue  # The next look reads them, or somebody has filled them: a person sees them in the list.
            rows = [row for one in runs if (row := run_row(one)) is not None]
            held = _held(grants)
            is_whole = (len(rows), len(held)) == (len(runs), len(grants))
            shares = unknown or (node.instance_id is not None and _machine(node) in used)
            yield kept, Silent(holder, for_ns, node, rows, held, is_whole=is_whole, shares_machine=shares)

    # --- what is done ----------------------------------------------------------------------------------

    def _swept(self, store: FleetStore, kept: Kept, silent: Silent, at: MonoNs) -> bool:
        """Whether its billing has ended, so that nobody need be told."""
        sweeper, node = self._sweeper, silent.node
        if sweeper is None or not sweeper.reaches(node) or silent.shares_machine:
            return False
        machine = sweeper.machine(node.instance_id or "")
        if machine is None:
            return False
        billing = machine.billing()
        step = next_step(silent, billing.answer)
        if step is Step.STOP and at - self._asked.get(silent.holder, MonoNs(-ASKED_EVERY_NS)) >= ASKED_EVERY_NS:
            self._ask(store, silent, at)
        if step is Step.SETTLE:
            self._settle(store, kept, silent, at)
        return billing.answer is BillingAnswer.ENDED

    def _ask(self, store: FleetStore, silent: Silent, at: MonoNs) -> None:
        """Have the loop note it and stop the machine. The provider took its time: its governor may be back."""
        live = store.read([f"{LIVE_ROWS}{silent.holder}"])
        orders = whole(store, ORDER_ROWS, ORDERS_MAX)
        if live.answer is not Answer.READ or live.rows[0].revision or orders.answer is not Answer.READ:
            return
        if any(self._holds(order_of(kept), silent) for kept in orders.rows):
            return
        self._asked[silent.holder] = at
        node, minutes = silent.node, silent.for_ns // (60 * NS_PER_S)
        why = f"its governor is silent for {minutes} minutes, and its runs' grants are used up"
        self._post(SilentUsedUp(at, silent.holder, node.node, node.cloud, node.instance_id or "", why))

    def _holds(self, order: Order | None, silent: Silent) -> bool:
        """Whether the order keeps rules from halting one of its runs. It may have been given since its last word."""
        if order is None or order.act is not Act.HOLD or not order.stands(self._wall()):
            return False
        rows, node = silent.alive, silent.node.node
        return any(covers(order, node, row.run, row.uid, row.stage, row.labels) for row in rows)

    def _settle(self, store: FleetStore, kept: Kept, silent: Silent, at: MonoNs) -> None:
        wall, total, unsettled = self._wall(), 0, 0
        for grant in silent.grants:
            spent = settles_at(grant, silent, wall)
            if spent is None:
                unsettled += 1
            elif not _settled(store, grant, spent):
                return  # The next turn goes on.
            else:
                total += spent
        now = store.read([kept.key])
        if now.answer is not Answer.READ or now.rows[0].revision != kept.revision:
            return  # Its governor came back.
        forget_holder(store, silent.holder)
        text = f"{_what(silent.node)} is billed no more, and its governor is silent: grants settled at "
        text += f"{format_usd(UsdMicros(total))} at most"
        if unsettled:
            text += f"; {unsettled} are left to a person: `costgov fleet list`, and `costgov fleet settle ID --spent`"
        self._post(SourceTrouble(at, None, "fleet_swept", text))


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
