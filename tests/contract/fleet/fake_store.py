"""The fleet's store in memory, with a clock that only `advance` moves. It passes the suite that real etcd passes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.remote_ports import FleetReply


class FakeFleetStore:
    bound_s = 1.0

    def __init__(self) -> None:
        self.rows: dict[str, Kept] = {}
        self.revision = 1
        self.now_s = 0.0
        self._leases: dict[int, tuple[int, float]] = {}  # TTL, and when it ends.
        self._of_lease: dict[str, int] = {}
        self._last_lease = 0
        self._changes: dict[str, int] = {}  # When a row last changed, also where it is gone.
        self._changed = threading.Condition()

    def advance(self, by_s: float) -> None:
        self.now_s += by_s
        for lease in [lease for lease, (_, ends_s) in self._leases.items() if ends_s <= self.now_s]:
            self.revoke_lease(lease)

    def transact(self, transaction: Transaction) -> FleetReply:
        if transaction.lease and transaction.lease not in self._leases:
            return FleetReply(Answer.REFUSED, reason="not_found")
        if any(self._row(key).revision != revision for key, revision in transaction.compares):
            return FleetReply(Answer.CONFLICT, tuple(self._row(key) for key, _ in transaction.compares))
        gone = [key for key in transaction.deletes if key in self.rows]
        if transaction.puts or gone:
            self.revision += 1
        for key, value in transaction.puts:
            self.rows[key] = Kept(key, value, self.revision)
            self._note(key)
            self._of_lease.pop(key, None)
            if transaction.lease:
                self._of_lease[key] = transaction.lease
        for key in gone:
            self._delete(key)
        return FleetReply(Answer.APPLIED, revision=self.revision)

    def read(self, keys: Sequence[str]) -> FleetReply:
        return FleetReply(Answer.READ, tuple(self._row(key) for key in keys))

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        found = [self.rows[key] for key in sorted(self.rows) if key.startswith(prefix) and key > after]
        return FleetReply(Answer.READ, tuple(found[:limit]), self.revision, is_cut=len(found) > limit)

    def wait(self, prefix: str, after: int, wait_s: float) -> FleetReply:
        with self._changed:
            self._changed.wait_for(lambda: self._changed_at(prefix) > after, wait_s)
            at = self._changed_at(prefix)
            rows = tuple(
                self._row(key) for key, when in self._changes.items() if key.startswith(prefix) and when > after
            )
            return FleetReply(Answer.READ, rows, max(after, at))

    def _changed_at(self, prefix: str) -> int:
        return max((at for key, at in self._changes.items() if key.startswith(prefix)), default=0)

    def _note(self, key: str) -> None:
        with self._changed:
            self._changes[key] = self.revision
            self._changed.notify_all()

    def grant_lease(self, ttl_s: int) -> FleetReply:
        self._last_lease += 1
        self._leases[self._last_lease] = ttl_s, self.now_s + ttl_s
        return FleetReply(Answer.APPLIED, lease=self._last_lease)

    def keep_alive(self, lease: int) -> FleetReply:
        if lease not in self._leases:
            return FleetReply(Answer.APPLIED)
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = ttl_s, self.now_s + ttl_s
        return FleetReply(Answer.APPLIED, lease=lease)

    def revoke_lease(self, lease: int) -> FleetReply:
        if self._leases.pop(lease, None) is not None:
            gone = [key for key, its in self._of_lease.items() if its == lease]
            self.revision += bool(gone)
            for key in gone:
                self._delete(key)
        return FleetReply(Answer.APPLIED)

    def close(self) -> None: ...

    def _row(self, key: str) -> Kept:
        return self.rows.get(key) or Kept(key)

    def _delete(self, key: str) -> None:
        del self.rows[key]
        self._note(key)
        self._of_lease.pop(key, None)
