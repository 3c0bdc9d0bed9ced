"""Requests of the control socket about budgets: set one, clear one. Both are audited and outlive this governor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from governor.app.request_fields import Refused, is_whole, word
from governor.core.base.units import MICROS_PER_USD, UsdMicros, format_usd
from governor.core.engine import budgeting
from governor.core.engine.node import Node
from governor.core.events.operators import OperatorBudget
from governor.core.money.budgets import (
    GROUP_ALERT_AT,
    Cap,
    Scope,
    ScopedBudget,
    ScopeKind,
    checked_ceiling,
    checked_fractions,
    parse_scope,
)
from governor.core.money.group_totals import KEYS_MAX
from governor.daemon.loop import Daemon
from governor.ports import ControlRequest
from trainer_shim.wire import TEXT_CHARS_MAX

REASON_NEEDED: Final = f"a reason of 1 to {TEXT_CHARS_MAX} characters is needed: it is audited"
KNOWN_SHOWN: Final = 8  # Enough to see what was misspelt.

MayControl = Callable[[Daemon, ControlRequest, str], bool]


def set_budget(daemon: Daemon, request: ControlRequest, may_control: MayControl) -> dict[str, Any]:
    """Put a live ceiling in force. Raises Refused."""
    node, body = daemon.node, request.body
    scope, reason = _asked(daemon, request, may_control)
    _check_seen(node, scope)
    clock = daemon.performer.clock
    at, before = clock.mono(), _in_force(node, scope)
    known = node.budgets.of(scope)
    alert_at = body.get("alert_at")
    usual = GROUP_ALERT_AT if scope.kind is not ScopeKind.RUN else ()
    try:
        budget = ScopedBudget(
            scope,
            checked_ceiling(_whole(body.get("ceiling_usd_micros"), "ceiling_usd_micros")),
            f"set by uid {request.uid}",
            _fractions(alert_at) if alert_at is not None else known.alert_at if known is not None else usual,
            _tokens(body.get("tokens"), scope) or (known.tokens if known is not None else None),
            request.uid,
            reason,
            clock.wall(),
            node.policies.typed_ceiling_usd_micros,
        )
    except ValueError as error:
        raise Refused("bad_request", str(error)) from error
    refusal = budgeting.refusal(node, budget, at)
    if refusal is not None:
        raise Refused("refused", refusal)
    daemon.apply(OperatorBudget(at, scope, budget, reason, request.uid))
    return _reply(daemon, scope, before)


def clear_budget(daemon: Daemon, request: ControlRequest, may_control: MayControl) -> dict[str, Any]:
    """Remove a live ceiling. Raises Refused."""
    node = daemon.node
    scope, reason = _asked(daemon, request, may_control, is_known=True)
    before = node.budgets.live.get(scope.text)
    if before is None:
        elsewhere = " (one stands in costgov.toml: edit it there)" if scope.text in node.budgets.configured else ""
        raise Refused(
            "no_such_run", f"no budget of {scope.text} was set live here{elsewhere}; see `costgov budget list`"
        )
    at = daemon.performer.clock.mono()
    after = budgeting.after_clearing(node, scope)
    if after is not None:
        cap = budgeting.standing(node, after, at)
        if cap.room_usd_micros <= 0 and cap.rate_usd_micros_per_hour:
            raise Refused("refused", _would_halt(cap, after.source))
    done = budgeting.would_complete(node, scope, budgeting.tokens_after_clearing(node, scope))
    if done is not None:
        raise Refused("refused", done)
    daemon.apply(OperatorBudget(at, scope, None, reason, request.uid))
    return _reply(daemon, scope, before)


def _would_halt(cap: Cap, source: str) -> str:
    return (
        f"without it {format_usd(cap.ceiling_usd_micros)} counts ({source}), and {cap.scope} has spent "
        f"{format_usd(cap.spend_usd_micros)} with {format_usd(cap.reserve_usd_micros)} reserved for its halt: it would "
        "halt now; raise that one first, or say `costgov halt RUN --reason …`"
    )


def _asked(
    daemon: Daemon, request: ControlRequest, may_control: MayControl, *, is_known: bool = False
) -> tuple[Scope, str]:
    text = request.body.get("scope")
    try:
        scope = parse_scope(text) if isinstance(text, str) else None
    except ValueError as error:
        raise Refused("bad_request", str(error)) from error
    if scope is None:
        raise Refused("bad_request", "scope is missing")
    reason = word(request.body, "reason", TEXT_CHARS_MAX, REASON_NEEDED) or ""
    # An unknown run has no owner, so only users who may touch every run may touch it.
    of_run = scope.name if scope.kind is ScopeKind.RUN else ""
    if of_run and of_run not in daemon.node.runs and not is_known:
        known = ", ".join(list(daemon.node.runs)[:KNOWN_SHOWN]) or "none"
        raise Refused("no_such_run", f"no run {of_run[:60]!r} here; known: {known}")
    if not may_control(daemon, request, of_run):
        whom = f"owns run {of_run} nor" if of_run else "is root or the governor's user, nor"
        raise Refused("denied", f"uid {request.uid} neither {whom} may control this governor")
    return scope, reason


def _check_seen(node: Node, scope: Scope) -> None:
    """Refuse a stage or label that was never seen: a misspelt one would limit no run, and look as if it did."""
    if scope.kind not in (ScopeKind.STAGE, ScopeKind.LABEL) or node.budgets.of(scope) is not None:
        return
    seen = node.ledger.groups.keys()
    if scope.text in seen or any(scope.covers(t.run.run, t.run.stage, t.run.labels) for t in node.runs.values()):
        return
    alike = [key for key in reversed(seen) if key.startswith(f"{scope.kind.value}:")][:KNOWN_SHOWN]
    raise Refused(
        "no_such_run",
        f"no run of {scope.text} was ever seen here; known: {', '.join(alike) or 'none'}; to set it beforehand, write "
        "[[budget]] into costgov.toml",
    )


def _in_force(node: Node, scope: Scope) -> ScopedBudget | None:
    return node.budgets.of(scope) or budgeting.after_clearing(node, scope)


def _reply(daemon: Daemon, scope: Scope, before: ScopedBudget | None) -> dict[str, Any]:
    node = daemon.node
    after = _in_force(node, scope)
    at = daemon.performer.clock.mono()
    shown = after or ScopedBudget(scope, UsdMicros(0), "")
    cap = budgeting.standing(node, shown, at)
    dropped = node.ledger.groups.dropped_total
    note = f"more than {KEYS_MAX} stages and labels were seen here: what this one spent long ago may be missing"
    covered = [
        t.run.run for t in node.runs.values() if t.run.alive and scope.covers(t.run.run, t.run.stage, t.run.labels)
    ]
    return {
        "scope": scope.text,
        "before_usd": before.ceiling_usd_micros / MICROS_PER_USD if before is not None else None,
        "ceiling_usd": after.ceiling_usd_micros / MICROS_PER_USD if after is not None else None,
        "source": after.source if after is not None else None,
        "spend_usd": cap.spend_usd_micros / MICROS_PER_USD,
        "reserve_usd": cap.reserve_usd_micros / MICROS_PER_USD,
        "runs": covered,
        "observe": node.facts.observe,
        "notes": [note] if dropped and scope.kind in (ScopeKind.STAGE, ScopeKind.LABEL) else [],
    }


def _whole(value: object, name: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} is a whole number")
    return value


def _tokens(value: object, scope: Scope) -> int | None:
    if value is None:
        return None
    count = _whole(value, "tokens")
    if scope.kind is not ScopeKind.RUN or not is_whole(count, 1, 2**63 - 1):
        raise ValueError("tokens are a number above 0, of a run")
    return count


def _fractions(value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > 100 or not all(type(one) in (int, float) for one in value):
        raise ValueError("alert_at is a list of fractions")
    return checked_fractions(value)
