"""What a person sees and changes of a fleet's shared budgets, by [fleet] of costgov.toml: no governor is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from governor.adapters.etcd.opening import FleetUnavailable, open_store
from governor.core.base.units import MICROS_PER_USD, price_text
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.presence import LIVE_ROWS, node_name
from governor.core.fleet.scopes import (
    GRANT_ROWS,
    SCOPE_ROWS,
    GrantRow,
    ScopeRow,
    ceiling_change,
    compares,
    correction,
    grant_row,
    names_in,
    scope_key,
    scope_row,
    settlement,
    short_id,
    text_of,
    unquoted,
)
from governor.core.money.budgets import checked_ceiling
from governor.remote_ports import FleetReply, FleetStore
from governor.settings.fleet import Fleet

SHOWN_MAX: Final = 10_000
# A governor changes a scope's row some times a second at most. Each time this one reads again.
TRIES: Final = 20
# A run that nobody halted may have spent more than its grant. Much more is a typo.
SPENT_TIMES_MAX: Final = 3
NAMED_MAX: Final = 20


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


def set_ceiling(store: FleetStore, scope: str, usd_micros: int, *, is_new: bool = False) -> Mapping[str, Any] | Failure:
    """A person's ceiling. Grants above it stay, and their holders give back. `is_new`: make a row that nobody knows."""
    try:
        key = scope_key(scope)
    except ValueError as error:
        return Failure(str(error))
    found = store.read([key])
    if found.answer is not Answer.READ:
        return failure_of(found)
    if scope_row(found.rows[0]) is None:
        return _made_anew(store, found.rows[0], scope, usd_micros, is_new=is_new)
    return _changed(store, scope, (key,), lambda rows: ceiling_change(rows[0], usd_micros))


def _made_anew(
    store: FleetStore, lost: Kept, scope: str, usd_micros: int, *, is_new: bool
) -> Mapping[str, Any] | Failure:
    """There is no row, or none that can be read. What is held is known by the grants, or it would be granted twice."""
    found = store.range(GRANT_ROWS, SHOWN_MAX)
    if found.answer is not Answer.READ:
        return failure_of(found)
    if found.is_cut:
        return Failure(f"{scope}: there are more than {SHOWN_MAX} grants; settle some first")
    held = [kept for kept in found.rows if (names := names_in(kept.key)) is not None and names[1] == scope]
    is_unknown = not lost.revision and not held
    if is_unknown and not is_new:
        return _no_row(store, scope, "; --new makes it")
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
    return {**_scope(Kept(lost.key, text_of(row), reply.revision)), "made": is_unknown}


def _no_row(store: FleetStore, scope: str, advice: str = "") -> Failure:
    found = store.range(SCOPE_ROWS, NAMED_MAX)
    if found.answer is not Answer.READ:
        return failure_of(found)
    names = ", ".join(unquoted(kept.key.removeprefix(SCOPE_ROWS)) for kept in found.rows) or "none"
    more = " and more" if found.is_cut else ""
    return Failure(f"{scope} has no row; those that have one: {names}{more}{advice}", is_absent=True)


def correct_settled(store: FleetStore, scope: str, settled_usd_micros: int) -> Mapping[str, Any] | Failure:
    """A person's word of what was spent by runs that gave their grants back."""
    try:
        key = scope_key(scope)
    except ValueError as error:
        return Failure(str(error))

    def change(rows: Sequence[Kept]) -> Transaction | Failure | None:
        return correction(rows[0], settled_usd_micros) if rows[0].revision else _no_row(store, scope)

    return _changed(store, scope, (key,), change)


def settle_by_id(
    store: FleetStore, grant_id: str, spent_usd_micros: int | None, *, is_forced: bool = False
) -> Mapping[str, Any] | Failure:
    """End the grant of a holder that is gone, at what it has spent. None: all that it was granted.

    `grant_id`: its ID, or node, scope and run where no other grant has these. `is_forced`: also where the amount is
    far above the grant, and where the holder speaks.
    """
    key = _key_named(store, grant_id)
    if isinstance(key, Failure):
        return key
    names = names_in(key)
    assert names is not None, "_key_named has looked"
    holder, scope, _ = names

    def change(rows: Sequence[Kept]) -> Transaction | Failure | None:
        of_scope, grant, live = rows
        row = grant_row(grant)
        if not grant.revision:
            return _no_grant(grant_id)
        if row is None:
            return None
        spent = max(row.granted_usd_micros, row.spent_usd_micros) if spent_usd_micros is None else spent_usd_micros
        if (why := _unfit(row, spent, is_forced=is_forced)) is not None:
            return Failure(why)
        if live.revision and not is_forced:
            return Failure(f"the governor of {node_name(holder)} speaks, and books this itself; --force halts its run")
        made = settlement(of_scope, grant, spent)
        # One that begins to speak meanwhile is seen by the next try.
        return made if made is None or is_forced else replace(made, compares=(*made.compares, *compares(live)))

    return _changed(store, scope, (scope_key(scope), key, LIVE_ROWS + holder), change)


def _key_named(store: FleetStore, grant_id: str) -> str | Failure:
    names = names_in(GRANT_ROWS + grant_id)
    try:
        node = names[0] if names is not None and scope_key(names[1]) else ""
    except ValueError:
        node = ""
    if not node:
        return _no_grant(grant_id)
    if "~" in node:
        return GRANT_ROWS + grant_id
    found = store.range(f"{GRANT_ROWS}{node}~", SHOWN_MAX)
    if found.answer is not Answer.READ:
        return failure_of(found)
    keys = [kept.key for kept in found.rows if short_id(kept.key.removeprefix(GRANT_ROWS)) == grant_id]
    if len(keys) > 1:
        return Failure(f"{len(keys)} grants are called {grant_id[:160]}: give the whole ID of `costgov fleet list`")
    return keys[0] if keys else _no_grant(grant_id)


def _no_grant(grant_id: str) -> Failure:
    return Failure(f'there is no grant "{grant_id[:160]}": see `costgov fleet list`', is_absent=True)


def _unfit(row: GrantRow, spent_usd_micros: int, *, is_forced: bool) -> str | None:
    """Why this cannot be what the run has spent."""
    told, granted, said = (
        price_text(amount) for amount in (spent_usd_micros, row.granted_usd_micros, row.spent_usd_micros)
    )
    if spent_usd_micros < row.spent_usd_micros:
        return f"{told} is less than its governor had counted: {said}"
    if spent_usd_micros > SPENT_TIMES_MAX * max(row.granted_usd_micros, row.spent_usd_micros) and not is_forced:
        return f"{told} is more than {SPENT_TIMES_MAX} times its grant ({granted}) and its spend ({said}): --force it"
    return None


def _changed(store: FleetStore, scope: str, keys: tuple[str, ...], change: Any) -> Mapping[str, Any] | Failure:
    for _ in range(TRIES):
        found = store.read(keys)
        if found.answer is not Answer.READ:
            return failure_of(found)
        by_key = {kept.key: kept for kept in found.rows}
        transaction = change([by_key[key] for key in keys])
        if isinstance(transaction, Failure):
            return transaction
        if transaction is None:
            return Failure(f"{scope}: its row, or the grant's, is not there or cannot be read")
        reply = store.transact(transaction)
        if reply.answer is Answer.APPLIED:
            now = store.read(keys[:1])
            return _scope(now.rows[0]) if now.answer is Answer.READ and now.rows else {"scope": scope}
        if reply.answer is not Answer.CONFLICT:
            return failure_of(reply)
    return Failure(f"{scope}: governors changed its row {TRIES} times meanwhile; try again")


# By the reason of a failed call: what to look at. The endpoints are numbered as [fleet] etcd lists them.
_ADVICE: Final = {
    "connect_failed": "nobody takes a connection there: does etcd run, and is [fleet] etcd its address?",
    "timeout": "it took the connection and said nothing: is it etcd's client port, and does etcd have a leader?",
    "broken_off": "it ended the connection, as an etcd with TLS does to http://, or without cert_file and key_file",
    "tls_untrusted": "its certificate is of another authority than ca_file, of another name, or over",
    "tls_failed": "it speaks no TLS, or wants cert_file and key_file: an etcd without TLS is http://",
    "not_etcd": "what answers there is not etcd's client port",
    "no_token": "what answers there is not etcd's client port",
    "http_404": "what answers there is not etcd's client port",
    "authentication_failed": "there is no such user, or password_file has another password",
    "authentication_off": "etcd has no users yet: `etcdctl auth enable`, or leave user and password_file out",
    "user_missing": "this etcd has users: set [fleet] user and password_file",
    "permission_denied": "the user's role has no right to these rows: `etcdctl role get`, and docs/howto/fleet.md",
    "exhausted": "etcd has no room left, or too many requests: `etcdctl endpoint status`, `etcdctl alarm list`",
}


def failure_of(reply: FleetReply, see: str = "see `costgov fleet list`") -> Failure:
    where, advice = reply.where or reply.reason, _ADVICE.get(reply.reason)
    told = f": {advice}" if advice is not None else ""
    if reply.answer is Answer.UNKNOWN:
        return Failure(f"etcd did not say whether it was done ({where}){told}; {see}", True)
    if reply.reason == "too_large":
        return Failure("there are rows that are too large to be read: no governor writes such; remove them by etcdctl")
    what = "etcd refuses it" if reply.answer is Answer.REFUSED else "etcd does not answer"
    return Failure(f"{what} ({where}){told}")


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
        "node": node_name(holder),
        "scope": scope,
        "run": run,
        "granted_usd": row.granted_usd_micros / MICROS_PER_USD,
        "spent_usd": row.spent_usd_micros / MICROS_PER_USD,
        "rate_usd_per_hour": row.rate_usd_micros_per_hour / MICROS_PER_USD,
        "seen_s": row.seen_wall_ns / 1e9,
    }
