"""This governor's own rows in its fleet: built by the loop when they are due, written by the worker's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from governor import __version__
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.events.inputs import Event
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.presence import (
    LIVE_ROWS,
    NODE_ROWS,
    NodeRow,
    holder_in,
    live_key,
    node_key,
    node_row,
    row_text,
    run_key,
)
from governor.core.fleet.scopes import Holder, quoted
from governor.core.views.fleet import Signature, node_row_of, run_rows_of, signature
from governor.daemon.fleet.paging import every_row, forget_holder
from governor.remote_ports import FleetReply, FleetStore

LEASE_S: Final = 30
KEPT_EVERY_NS: Final = 10 * NS_PER_S
SAID_EVERY_NS: Final = 60 * NS_PER_S  # Three revisions a minute and node were measured (docs/why/scale.md).
SOONEST_NS: Final = NS_PER_S  # A launch that fails again and again changes its state at each tick.
AGAIN_NS: Final = 5 * NS_PER_S
OF_ONE_NODE_MAX: Final = 1_000
_PUTS_MAX: Final = 100  # etcd takes 128 operations in a transaction.

log = structlog.get_logger("costgov")
Rows = Mapping[str, str]


class FleetPresence:
    """An `Observer` for the loop, and a `Turn` for the worker. Between them is one reference to rows that are ready."""

    def __init__(
        self, holder: Callable[[], Holder], machine: tuple[str, str | None], troubles: Callable[[], tuple[str, ...]],
        post: Callable[[Event], None],
    ) -> None:  # fmt: skip
        """`machine`: our provider, and what it calls this machine."""
        self._holder, self._machine, self._troubles, self._post = holder, machine, troubles, post
        self._failing_since: MonoNs | None = None
        self._is_told = self._has_taken_over = False
        self._signature: Signature | None = None
        self._said_at: MonoNs | None = None
        self._ready: Rows | None = None  # Set by the loop, read by the worker.
        self._is_busy = False  # Whether a run of ours is alive: then our rows outlive us.
        self.lease = 0
        self._kept_at = MonoNs(0)
        self._next_at = MonoNs(0)
        self._written: dict[str, str] = {}

    # --- the loop --------------------------------------------------------------------------------------

    def tick(self, node: Any, at: MonoNs) -> None:
        now = signature(node)
        waited = at - self._said_at if self._said_at is not None else SAID_EVERY_NS
        if waited < SOONEST_NS or (waited < SAID_EVERY_NS and now == self._signature):
            return
        self._signature, self._said_at = now, at
        holder = self._holder()
        rows = {node_key(holder): row_text(node_row_of(node, at, __version__, self._troubles()))}
        for name, row in run_rows_of(node, at).items():
            rows[run_key(holder, name)] = row_text(row)
        self._is_busy = any(is_alive for _, is_alive, _ in now)
        self._ready = rows

    def incident(self, snapshot: Mapping[str, Any]) -> None: ...

    def alarm(self, name: str, run: str | None, text: str) -> None: ...

    # --- the worker's thread ---------------------------------------------------------------------------

    def turn(self, store: FleetStore, at: MonoNs) -> None:
        rows = self._ready
        if rows is None or at < self._next_at:
            return
        self._has_taken_over = self._keeps_lease(store, at) and (self._has_taken_over or self._takes_over(store))
        if self._has_taken_over and self._writes(store, rows):
            self._failing_since, self._is_told = None, False
            return
        self._next_at = MonoNs(at + AGAIN_NS)
        self._failing_since = at if self._failing_since is None else self._failing_since
        if not self._is_told and at - self._failing_since >= SAID_EVERY_NS:
            self._is_told = True
            text = "etcd does not take the rows of this governor: `costgov fleet` does not show it, or as silent"
            advice = "look at the rights of its user in etcd (docs/howto/fleet.md), and whether etcd answers"
            self._post(SourceTrouble(at, None, "fleet_unseen", f"{text}; {advice}"))

    def _keeps_lease(self, store: FleetStore, at: MonoNs) -> bool:
        if self.lease and at - self._kept_at < KEPT_EVERY_NS:
            return True
        if self.lease:
            kept = store.keep_alive(self.lease)
            if kept.answer is not Answer.APPLIED:
                return False
            if kept.lease:
                self._kept_at = at
                return True
            self.lease = 0
        granted = store.grant_lease(LEASE_S)
        if granted.answer is not Answer.APPLIED or not granted.lease:
            return False
        live = Transaction((), ((live_key(self._holder()), "{}"),), lease=granted.lease)
        if store.transact(live).answer is not Answer.APPLIED:
            return False
        # Somebody may have swept our rows while we were silent.
        self.lease, self._kept_at, self._written, self._has_taken_over = granted.lease, at, {}, False
        return True

    def _takes_over(self, store: FleetStore) -> bool:
        """Before a reboot, or a ledger that was lost, this machine had another holder: its rows would never end.

        And its machine is ours: nobody shall stop it for what that one had used up.
        """
        own = self._holder()
        nodes = every_row(store, f"{NODE_ROWS}{quoted(own.node)}~", OF_ONE_NODE_MAX)
        if isinstance(nodes, FleetReply):
            return False
        for kept in nodes:
            holder = holder_in(kept.key)
            row = node_row(kept)
            is_elder = holder.endswith(f"~{quoted(own.ledger)}") or (row is not None and self._is_ours(row))
            if holder == own.text or not is_elder:
                continue
            live = store.read([f"{LIVE_ROWS}{holder}"])
            if live.answer is Answer.READ and not live.rows[0].revision:  # Else a copy of our disk lives elsewhere.
                if forget_holder(store, holder).answer is not Answer.APPLIED:
                    return False
                log.warning("fleet_elder_forgotten", holder=holder, advice="its grants stay: see `costgov fleet list`")
        return True

    def _is_ours(self, row: NodeRow) -> bool:
        own = self._machine
        return own[1] is not None and (row.cloud, row.instance_id) == own

    def _writes(self, store: FleetStore, rows: Rows) -> bool:
        new = [(key, text) for key, text in rows.items() if self._written.get(key) != text]
        gone = tuple(key for key in self._written if key not in rows)
        for first in range(0, max(len(new), len(gone)), _PUTS_MAX // 2):
            part = slice(first, first + _PUTS_MAX // 2)
            change = Transaction((), tuple(new[part]), gone[part])
            if store.transact(change).answer is not Answer.APPLIED:
                return False
        self._written = dict(rows)
        return True

    def end(self, store: FleetStore) -> None:
        """Who ends with no run alive is gone on purpose. Else the rows stay, and say when they were written."""
        if self.lease and self._failing_since is None:  # Of one that does not answer nothing is waited for.
            if not self._is_busy and self._written:
                for first in range(0, len(keys := tuple(self._written)), _PUTS_MAX):
                    store.transact(Transaction((), (), keys[first : first + _PUTS_MAX]))
            store.revoke_lease(self.lease)
