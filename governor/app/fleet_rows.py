"""What a person sees and changes of a fleet's shared budgets, by [fleet] of costgov.toml: no governor is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.adapters.etcd.opening import FleetUnavailable, open_store
from governor.core.base.units import MICROS_PER_USD
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.scopes import (
    GRANT_ROWS,
    SCOPE_ROWS,
    ScopeRow,
    ceiling_change,
    compares,
    grant_row,
    names_in,
    scope_key,
    scope_row,
    settlement,
    text_of,
    unquoted,
)
from governor.core.money.budgets import checked_ceiling
from governor.remote_ports import FleetReply, FleetStore
from governor.settings.fleet import Fleet

SHOWN_MAX: Final = 10_000
# A governor changes a scope's row some times a second at most. Each time this one reads again.
TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing was shown or changed, in one line. `is_unknown`: it may have been applied."""

    text: str
    is_unknown: bool = False
    is_absent: bool = False  # There is no such thing.


def opened(settings: Fleet) -> FleetStore | Failure:
    if not settings.is_enabled:
        return Failure("this costgov.toml names no etcd: set [fleet] etcd, see docs/howto/fleet.md")
    try:
        return open_store(settings)
    except FleetUnavailable as unavailable:
        return Failure(f"fleet: {unavailable}")


def budgets(store: FleetStore) -> dict[str, Any] | Failure:
    """Every scope with what is granted and spent, and every grant that is held."""
    scopes, grants = store.range(SCOPE_ROWS, SHOWN_MAX), store.range(GRANT_ROWS, SHOWN_MAX)
    for reply in (scopes, grants):
        if reply.answer is not Answer.READ:
            return failure_of(reply)
    return {
        "scopes": [_scope(kept) for kept in scopes.rows],
        "grants": [row for kept in grants.rows if (row := _grant(kept)) is not None],
        "is_cut": scopes.is_cut or grants.is_cut,
    }


def set_ceiling(store: FleetStore, scope: str, usd_micros: int) -> Mapping[str, Any] | Failure:
    """A person's ceiling. Grants above it stay, and their holders give back."""
    try:
        key = scope_key(scope)
    except ValueError as error:
        return Failure(str(error))
    found = store.read([key])
    if found.answer is not Answer.READ:
        return failure_of(found)
    if scope_row(found.rows[0]) is None:
        return _made_anew(store, found.rows[0], scope, usd_micros)
    return _changed(store, scope, (key,), lambda rows: ceiling_change(rows[0], usd_micros))


def _made_anew(store: FleetStore, lost: Kept, scope: str, usd_micros: int) -> Mapping[str, Any] | Failure:
    """There is no row, or none that can be read. What is held is known by the grants, or it would be granted twice."""
    found = store.range(GRANT_ROWS, SHOWN_MAX)
    if found.answer is not Answer.READ:
        return failure_of(found)
    if found.is_cut:
        return Failure(f"{scope}: there are more than {SHOWN_MAX} grants; settle some first")
    held = [kept for kept in found.rows if (names := names_in(kept.key)) is not None and names[1] == scope]
    rows = [grant_row(kept) for kept in held]
    amounts = [row.granted_usd_micros for row in rows if row is not None]
    if len(amounts) < len(rows):
        return Failure(f"{scope}: a grant of it cannot be read; see `costgov fleet list`")
    row = ScopeRow(int(checked_ceiling(usd_micros)), held_usd_micros=sum(amounts), holders=len(amounts))
    reply = store.transact(Transaction(compares(lost, *held), ((lost.key, text_of(row)),)))
    if reply.answer is Answer.CONFLICT:
        return Failure(f"{scope}: governors changed its grants meanwhile; try again")
    if reply.answer is not Answer.APPLIED:
        return failure_of(reply)
    return _scope(Kept(lost.key, text_of(row), reply.revision))


def settle_by_id(store: FleetStore, grant_id: str, spent_usd_micros: int | None) -> Mapping[str, Any] | Failure:
    """End the grant of a holder that is gone, at what it has spent. None: all that it was granted."""
    key = GRANT_ROWS + grant_id
    names = names_in(key)
    if names is None:
        return Failure(f'"{grant_id[:80]}" is no ID of a grant: see `costgov fleet list`')
    scope = names[1]

    def change(rows: Sequence[Kept]) -> Transaction | None:
        row = grant_row(rows[1])
        spent = spent_usd_micros if spent_usd_micros is not None or row is None else row.granted_usd_micros
        return settlement(rows[0], rows[1], spent or 0)

    return _changed(store, scope, (scope_key(scope), key), change)


def _changed(store: FleetStore, scope: str, keys: tuple[str, ...], change: Any) -> Mapping[str, Any] | Failure:
    for _ in range(TRIES):
        found = store.read(keys)
        if found.answer is not Answer.READ:
            return failure_of(found)
        by_key = {kept.key: kept for kept in found.rows}
        transaction = change([by_key[key] for key in keys])
        if transaction is None:
            return Failure(f"{scope}: its row, or the grant's, is not there or cannot be read")
        reply = store.transact(transaction)
        if reply.answer is Answer.APPLIED:
            now = store.read(keys[:1])
            return _scope(now.rows[0]) if now.answer is Answer.READ and now.rows else {"scope": scope}
        if reply.answer is not Answer.CONFLICT:
            return failure_of(reply)
    return Failure(f"{scope}: governors changed its row {TRIES} times meanwhile; try again")


def failure_of(reply: FleetReply, see: str = "see `costgov fleet list`") -> Failure:
    if reply.answer is Answer.UNKNOWN:
        return Failure(f"etcd did not say whether it was done ({reply.reason}): {see}", True)
    if reply.reason == "too_large":
        return Failure("there are rows that are too large to be read: no governor writes such; remove them by etcdctl")
    what = "etcd refuses it" if reply.answer is Answer.REFUSED else "etcd does not answer"
    return Failure(f"{what} ({reply.reason})")


def _scope(kept: Kept) -> dict[str, Any]:
    name = unquoted(kept.key.removeprefix(SCOPE_ROWS))
    row = scope_row(kept)
    if row is None:
        return {"scope": name, "problem": "its row cannot be read: nothing is granted"}
    return {
        "scope": name,
        "ceiling_usd": row.ceiling_usd_micros / MICROS_PER_USD,
        "held_usd": row.held_usd_micros / MICROS_PER_USD,
        "settled_usd": row.settled_usd_micros / MICROS_PER_USD,
        "over_usd": row.over_usd_micros / MICROS_PER_USD,
        "room_usd": row.room_usd_micros / MICROS_PER_USD,
        "holders": row.holders,
    }


def _grant(kept: Kept) -> dict[str, Any] | None:
    names, row = names_in(kept.key), grant_row(kept)
    if names is None or row is None:
        return None
    holder, scope, run = names
    return {
        "id": kept.key.removeprefix(GRANT_ROWS),
        "node": holder.split("~")[0],
        "scope": scope,
        "run": run,
        "granted_usd": row.granted_usd_micros / MICROS_PER_USD,
        "spent_usd": row.spent_usd_micros / MICROS_PER_USD,
        "rate_usd_per_hour": row.rate_usd_micros_per_hour / MICROS_PER_USD,
        "seen_s": row.seen_wall_ns / 1e9,
    }
