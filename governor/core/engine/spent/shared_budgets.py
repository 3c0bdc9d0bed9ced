"""Budgets that a fleet shares, at work on this node: what each run needs, what it was granted, and when it is halted.

What a run was granted is a cap of the run (`Run.caps`), so that the budget's own trigger halts it. The store is asked
by effects, and nothing here waits for it.
"""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, DurationNs, MonoNs, UsdMicros, format_duration, format_usd
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.events.effects import Alarm, Effect
from governor.core.events.fleet_store import StoreAnswered
from governor.core.fleet.grant import LEAD_NS, Grant, Use, Why
from governor.core.fleet.scopes import scope_row
from governor.core.fleet.shared import Name, Shared, SharedBudget
from governor.core.money.budgets import SHARED, Cap
from governor.core.money.ledger import reserve

# So long a run without a first grant lives while the store does not answer. An election of etcd takes 7 s, a call 8 s.
ADMIT_NS: Final = 30 * NS_PER_S
# A grant is held back for: a governor that a service manager starts again, and two ticks.
ALLOWANCE_NS: Final = 15 * NS_PER_S
SILENT_NS: Final = 10 * NS_PER_S  # Of the store, before it is told.
UNRETURNED: Final = "shared_unreturned"
_DENIED: Final = (Why.NOTHING_LEFT, Why.LOWERED, Why.REFUSED)
_WORDS: Final = {
    Why.NOTHING_LEFT: "all of its ceiling is granted",
    Why.NO_CEILING: "it has no ceiling in etcd that can be read",
    Why.LOWERED: "its ceiling is below what is granted",
    Why.SILENT: "etcd does not answer",
    Why.REFUSED: "etcd refuses: look at its user's role, and at the grant's row",
    Why.GONE: "somebody has settled the grant: this machine counted as ended",
    Why.SUPERSEDED: "a later governor of this ledger has the grant",
}


def apply(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick: tell the use of every grant, set the caps, end what has ended, warn, and ask the store."""
    shared = node.shared
    if shared is None:
        return []
    effects: list[Effect] = [*_reboot(shared), *_given_back(shared)]
    covered: set[Name] = set()
    for managed in node.runs.values():
        if node.pays_nothing(managed) or _has_ended(managed):
            continue
        use = _use(managed)
        for budget in shared.budgets:
            if budget.covers(managed.run.stage, managed.run.labels):
                effects += _covered(node, shared, budget, managed, use, at, covered)
    for name, grant in shared.reservations.grants.items():
        if name not in covered:
            shared.reservations.end(*name, max(node.ledger.spend(grant.run), grant.use.spent_usd_micros))
            effects += _unreturned(shared, grant, at)
    return [*effects, *_asks(node, shared, at)]


def on_answer(node: Node, event: StoreAnswered) -> list[Effect]:
    if node.shared is None:
        return []
    node.shared.answered(event)
    return _asks(node, node.shared, event.at)


def _asks(node: Node, shared: Shared, at: MonoNs) -> list[Effect]:
    """What to send, behind the commit that a start after us must know of."""
    asks = shared.asks(at, node.wall(at))
    if not asks or (shared.is_stored and not any(ask.lowers for ask in asks)):
        return list(asks)
    shared.note_stored()
    return [persist(node, at, durable=True), *asks]


def _covered(
    node: Node, shared: Shared, budget: SharedBudget, managed: ManagedRun, use: Use, at: MonoNs, covered: set[Name]
) -> list[Effect]:  # fmt: skip
    effects: list[Effect] = []
    held, run = shared.reservations, managed.run
    for place, scope in enumerate(budget.rows_at(node.wall(at))):
        name = (scope, run.run)
        covered.add(name)
        has_place = held.cover(scope, run.run, use)
        if place:
            continue  # Of tomorrow nothing is spent.
        cap = _cap(shared, budget, name, use, at) if has_place else _no_place(budget, scope)
        if cap is not None:
            run.set_caps((*run.caps, cap))
        if has_place and not use.is_ending:
            effects += _told(shared, held.grants[name], cap, at)
    return effects


def _use(managed: ManagedRun) -> Use:
    run = managed.run
    rate = run.spend_rate_usd_micros_per_hour or 0
    held = (run.reserve_usd_micros or 0) + reserve(rate, DurationNs(ALLOWANCE_NS))
    is_ending = managed.incident is not None and not managed.incident.is_closed
    return Use(run.spend_usd_micros, rate, held, is_ending)


def _has_ended(managed: ManagedRun) -> bool:
    """Whether the run costs no more. While a halt is open, its machine is billed."""
    incident = managed.incident
    return (not managed.run.alive and incident is None) or (incident is not None and incident.is_closed)


def _cap(shared: Shared, budget: SharedBudget, name: Name, use: Use, at: MonoNs) -> Cap | None:
    """What the run may spend as a ceiling of it. None: it waits for its first grant, or another governor has it."""
    grant = shared.reservations.grants[name]
    if grant.why is Why.SUPERSEDED:
        return None
    if grant.final_usd_micros is not None or (not grant.was_opened and not grant.sure_usd_micros):
        is_denied = grant.final_usd_micros is None and grant.why in _DENIED
        if shared.waits(name, at) < ADMIT_NS and not is_denied:
            return None
    else:
        shared.has_not_to_wait(name)
    row = scope_row(grant.of_scope)
    whole = UsdMicros(row.ceiling_usd_micros) if row is not None else budget.ceiling_usd_micros
    return Cap(
        SHARED + grant.scope,
        UsdMicros(grant.sure_usd_micros),
        UsdMicros(grant.used_usd_micros),
        UsdMicros(use.reserve_usd_micros),
        UsdMicros(use.rate_usd_micros_per_hour),
        whole_usd_micros=whole,
    )


def _no_place(budget: SharedBudget, scope: str) -> Cap:
    """There are more grants than a governor holds: this run gets none."""
    return Cap(SHARED + scope, UsdMicros(0), UsdMicros(0), whole_usd_micros=budget.ceiling_usd_micros)


def reaches_end_ns(node: Node, managed: ManagedRun, at: MonoNs) -> DurationNs | None:
    """Until its shared budgets halt it, at its rate: its grants, and an equal share of what nobody holds.

    None: no shared budget covers it, or it spends nothing. Others of the scope may take more or less than their share.
    """
    shared, rate = node.shared, managed.run.spend_rate_usd_micros_per_hour
    if shared is None or not rate or not managed.run.alive:
        return None
    ends: list[int] = []
    for budget in shared.budgets:
        grant = shared.reservations.grants.get((budget.rows_at(node.wall(at))[0], managed.run.run))
        row = scope_row(grant.of_scope) if grant is not None else None
        if grant is not None and row is not None:
            share = max(0, row.room_usd_micros) // max(1, row.holders)
            ends.append(max(0, grant.headroom_usd_micros + share) * NS_PER_HOUR // rate)
    return DurationNs(min(ends)) if ends else None


# --- what people are told -----------------------------------------------------------------------------------


def _told(shared: Shared, grant: Grant, cap: Cap | None, at: MonoNs) -> list[Effect]:
    name, whose = (grant.scope, grant.run), f"run {grant.run} in {grant.scope}"
    what, text = _state(shared, grant, cap, at)
    if not shared.note_told(name, what):
        return []
    return [Alarm(what or "shared_again", grant.run, f"{whose}: {text}")]


def _state(shared: Shared, grant: Grant, cap: Cap | None, at: MonoNs) -> tuple[str, str]:
    """The alarm that stands, and its text."""
    why = _WORDS[grant.why] if grant.why is not None else "etcd has not answered"
    is_new = grant.final_usd_micros is not None or (not grant.was_opened and not grant.sure_usd_micros)
    if is_new and cap is None and grant.why is not Why.SUPERSEDED:
        waits = shared.waits((grant.scope, grant.run), at)
        if waits < SILENT_NS // 2:
            return shared.told.get((grant.scope, grant.run), ""), ""
        ends = format_duration(DurationNs(ADMIT_NS))
        return "shared_silent", f"no first grant: {why}; without one it is halted {ends} after it began"
    if cap is not None and cap.room_usd_micros <= 0:
        return "shared_denied", (
            f"it is halted: {format_usd(UsdMicros(grant.sure_usd_micros))} granted, "
            f"{format_usd(UsdMicros(grant.used_usd_micros))} used; {why}"
        )
    lasts = _lasts(grant)
    is_silent = grant.silent_since is not None and at - grant.silent_since >= SILENT_NS
    if is_silent or (grant.why is not None and grant.why is not Why.SILENT and (lasts is None or lasts < LEAD_NS)):
        kind = "shared_silent" if is_silent else "shared_low"
        left = f"what is granted lasts {format_duration(lasts)}" if lasts is not None else "nothing is spent now"
        return kind, f"{why}; {left}, then it is halted"
    return "", f"etcd grants again: {format_usd(UsdMicros(grant.sure_usd_micros))}"


def _unreturned(shared: Shared, grant: Grant, at: MonoNs) -> list[Effect]:
    """Said once of a run that has ended: nobody else may spend what it held."""
    is_silent = grant.silent_since is not None and at - grant.silent_since >= SILENT_NS
    if not is_silent or not shared.note_told((grant.scope, grant.run), UNRETURNED):
        return []
    held = format_usd(UsdMicros(grant.held_usd_micros))
    text = (
        f"run {grant.run} in {grant.scope}: it has ended, and its {held} cannot be given back: "
        f"{_WORDS[grant.why or Why.SILENT]}; it is asked again and again"
    )
    return [Alarm(UNRETURNED, grant.run, text)]


def _given_back(shared: Shared) -> list[Effect]:
    """Forget the grants that are settled. Whoever was told that etcd is silent is told that it is not."""
    over = shared.reservations.forget_over()
    told = [name for name in over if shared.told.get(name) in (UNRETURNED, "shared_silent")]
    shared.forget(over)
    return [Alarm("shared_again", run, f"run {run} in {scope}: what it held is given back") for scope, run in told]


def _lasts(grant: Grant) -> DurationNs | None:
    rate = grant.use.rate_usd_micros_per_hour
    return DurationNs(max(0, grant.headroom_usd_micros) * 3600 * NS_PER_S // rate) if rate else None


def _reboot(shared: Shared) -> list[Effect]:
    before = shared.take_left_behind()
    if before is None:
        return []
    text = (
        f"this machine was started anew, or its disk is another's copy: what {before} was granted stays taken until "
        "somebody settles it (`costgov fleet settle`)"
    )
    return [Alarm("shared_left_behind", None, text)]
