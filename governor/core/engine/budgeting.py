"""Budgets at work: the standing of each, the runs that they cover, warnings, and what a person may set.

A group is halted member by member. Each live run's budget trigger sees the caps that cover the run (`Run.caps`). It
fires when what all members have spent, plus the price of halting all of them, reaches the ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from governor.core.base.policy import COMMAND_LINE, Policy, PolicySet
from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, MonoNs, UsdMicros, day_of, format_usd
from governor.core.engine.charging import checkpoint_reserve
from governor.core.engine.command import ceilings
from governor.core.engine.halt_plan import (
    FIXED_POINT_MAX,
    halt_times,
    lasts_ns,
    least_ceiling,
    reserve_growth,
    shortest_ns,
)
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, NodeFacts
from governor.core.engine.node_journal import persist
from governor.core.engine.spent.over_nodes import over_nodes
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.operators import OperatorBudget
from governor.core.halt import overrun
from governor.core.money.budgets import BUDGETS_MAX, BudgetReport, Cap, Scope, ScopedBudget, ScopeKind, scopes_of
from governor.core.money.ledger import reserve

# Unreadable live budgets that an alarm names: its text is bounded.
UNREAD_SHOWN: Final = 5
_WHOLE_NODE: Final = (ScopeKind.DAY, ScopeKind.NODE)


def apply(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick, set every run's caps, and warn. Every run's money is known, and no run is judged yet."""
    in_force = node.budgets.in_force()
    covered: dict[str, list[ManagedRun]] = {}  # By scope. Made once, because there may be many budgets.
    for managed in node.runs.values():
        managed.run.set_caps(())
        for text in scopes_of(managed.run.run, managed.run.stage, managed.run.labels) if in_force else ():
            covered.setdefault(text, []).append(managed)
    # The shortest of a run's ceilings decides how long its halt may take, so each run has all of them before one of
    # them is weighed. In the order in which they are in force, not in a set's order: a replay must name the same one.
    groups = node.budgets.of_groups()  # A run's own budget is in its policy.
    for budget in groups:
        outline = _outline(node, budget, covered.get(budget.scope.text, []))
        for managed in covered.get(budget.scope.text, ()):
            managed.run.set_caps((*managed.run.caps, outline))
    own = _of_command(node, at)
    for name, managed in node.runs.items():
        cap = over_nodes(node, managed, own.get(name), at)
        if cap is not None:
            managed.run.set_caps((cap, *managed.run.caps))
    caps: dict[str, Cap] = {}
    effects: list[Effect] = []
    for budget in in_force:
        cap = caps[budget.scope.text] = _standing(node, budget, covered.get(budget.scope.text, []), at)
        effects += _warned(node, budget, cap, at)
    weighed = {budget.scope.text: caps[budget.scope.text] for budget in groups}
    for managed in node.runs.values() if groups else ():
        managed.run.set_caps(tuple(weighed.get(cap.scope, cap) for cap in managed.run.caps))
    node.budgets.stand(caps.values())
    return effects


def standing(node: Node, budget: ScopedBudget, at: MonoNs) -> Cap:
    """What the scope has spent by this node's ledger, and what halting all its runs may cost now."""
    return _standing(node, budget, [one for one in node.runs.values() if ceilings.covers(budget.scope, one)], at)


def _standing(node: Node, budget: ScopedBudget, covered: Iterable[ManagedRun], at: MonoNs) -> Cap:
    scope = budget.scope
    if scope.kind is ScopeKind.RUN:
        covered = {one.run.run: one for one in (*covered, *ceilings.others(node, scope.name))}.values()
    members = _members(node, covered)
    if node.ledger.usd_micros_per_hour is None:
        return Cap(scope.text, budget.ceiling_usd_micros, ceilings.spent(node, scope, at))
    rate = _rate(node, scope, members)
    # The whole machine is paid for until the last member is gone, however few ranks each has.
    lasts = lasts_ns(budget.ceiling_usd_micros, rate)
    bounds = [_bounds_ns(node, managed, lasts, at) for managed in members]
    longest = max(bounds, default=0)
    uploads = sum(checkpoint_reserve(node, managed) for managed in members)
    to_reset = float("inf")
    if scope.kind is ScopeKind.DAY:  # What a halt costs after midnight is the next day's.
        wall = node.wall(at)
        left = day_of(wall)[1] - wall
        longest = min(longest, left)
        to_reset = (left - longest) / NS_PER_HOUR
    held = UsdMicros(reserve(rate or 0, longest) + uploads)
    growths = tuple(
        replace(reserve_growth(managed, at, lasts), behind_ns=max(0, longest - bound_ns))
        for managed, bound_ns in zip(members, bounds, strict=True)
    )
    spend = ceilings.spent(node, scope, at)
    return Cap(scope.text, budget.ceiling_usd_micros, spend, held, UsdMicros(rate or 0), to_reset, growths)


def _outline(node: Node, budget: ScopedBudget, covered: Iterable[ManagedRun]) -> Cap:
    """A group's ceiling and the rate at which it is spent, as yet without what is spent and reserved."""
    rate = _rate(node, budget.scope, _members(node, covered))
    return Cap(budget.scope.text, budget.ceiling_usd_micros, UsdMicros(0), rate_usd_micros_per_hour=rate)


def _members(node: Node, covered: Iterable[ManagedRun]) -> list[ManagedRun]:
    return [managed for managed in covered if _spends(managed) and not node.pays_nothing(managed)]


def _rate(node: Node, scope: Scope, members: Iterable[ManagedRun]) -> UsdMicros | None:
    return node.ledger.usd_micros_per_hour if scope.kind in _WHOLE_NODE else _together(members)


def _of_command(node: Node, at: MonoNs) -> dict[str, Cap]:
    """By run of the command, the ceiling that counts more than the run itself costs: see `command.ceilings`.

    Other users' runs have that of the command's name together, whatever budgets they have themselves.
    """
    caps: dict[str, Cap] = {}
    made: dict[tuple[str, int], Cap] = {}  # A sandbox may have dozens of runs.
    for name, whose in ceilings.by_run(node).items():
        managed = node.runs[name]
        usd_micros = ceilings.ceiling_of(node, managed, whose)
        if usd_micros is None:
            continue
        if (whose, usd_micros) not in made:
            budget = ScopedBudget(Scope(ScopeKind.RUN, whose), usd_micros, COMMAND_LINE)
            made[whose, usd_micros] = _standing(node, budget, [managed] if name == whose else [], at)
        cap, own, rate = made[whose, usd_micros], managed.policy.budget, managed.run.spend_rate_usd_micros_per_hour
        alone = own.ceiling_usd_micros, ceilings.spend(node, managed), rate
        if alone != (usd_micros, cap.spend_usd_micros, cap.rate_usd_micros_per_hour):
            caps[name] = cap
    return caps


def _spends(managed: ManagedRun) -> bool:
    return managed.run.alive and not (managed.incident is not None and managed.incident.is_closed)


def _together(members: Iterable[ManagedRun]) -> UsdMicros:
    return UsdMicros(sum(managed.run.spend_rate_usd_micros_per_hour or 0 for managed in members))


def _bounds_ns(node: Node, managed: ManagedRun, lasts: int | None, at: MonoNs) -> int:
    return halt_times(node.facts, managed.policy, shortest_ns(managed, lasts), managed.run, at).whole_ns


# --- warnings -----------------------------------------------------------------------------------------------


def _warned(node: Node, budget: ScopedBudget, cap: Cap, at: MonoNs) -> list[Effect]:
    """Give one alarm for each crossed part of the ceiling, and for the whole: once, also over restarts.

    With another ceiling or on another day, a part that is no longer crossed can be crossed again.
    """
    report = node.budgets.reports.get(cap.scope)
    day = node.wall(at) // NS_PER_DAY if budget.scope.kind is ScopeKind.DAY else None
    used = cap.spend_usd_micros + cap.reserve_usd_micros
    # A run's halt reports that its own whole ceiling is used.
    parts = budget.alert_at if budget.scope.kind is ScopeKind.RUN else (*budget.alert_at, 1.0)
    crossed = [frac for frac in parts if used >= cap.ceiling_usd_micros * frac]
    before = report.frac if report is not None and report.day == day else 0.0
    if report is not None and report.ceiling_usd_micros != cap.ceiling_usd_micros:
        before = max((frac for frac in crossed if frac <= before), default=0.0)
    now = max(crossed, default=0.0)
    fresh = BudgetReport(max(before, now), cap.ceiling_usd_micros, day)
    if fresh == report or (report is None and now == 0.0):
        return []
    node.budgets.set_report(cap.scope, fresh)
    node.request_persist()  # A restarted governor must not give the alarm again.
    return [_alarm(budget, cap, now)] if now > before else []


def _alarm(budget: ScopedBudget, cap: Cap, frac: float) -> Alarm:
    run = budget.scope.name if budget.scope.kind is ScopeKind.RUN else None
    part = "the whole" if frac >= 1 else f"{frac:.0%}"
    text = (
        f"{cap.scope} has used {part} of its ceiling {format_usd(cap.ceiling_usd_micros)}: spent "
        f"{format_usd(cap.spend_usd_micros)}, {format_usd(cap.reserve_usd_micros)} reserved for its halt "
        f"({budget.source})"
    )
    return Alarm(f"budget_{cap.scope}", run, text)


def note_overrun(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Note what passed its ceiling in the run's incident, which ends now: the run, and the group whose budget ended it.

    A day's spend is that of the moment: zero at 00:00.
    """
    incident, ceiling = managed.incident, managed.policy.budget.ceiling_usd_micros
    assert incident is not None, "the caller has just closed one"
    own, rate = f"run:{incident.run}", managed.run.spend_rate_usd_micros_per_hour
    caps = []
    if ceiling is not None:
        caps.append(Cap(own, ceiling, node.ledger.spend(incident.run), rate_usd_micros_per_hour=rate))
    group = incident.evidence.get("scope", own) if incident.trigger == "budget" else own
    budget = next((budget for budget in node.budgets.of_groups() if budget.scope.text == group), None)
    if budget is not None:
        spend = ceilings.spent(node, budget.scope, at)
        caps.append(Cap(group, budget.ceiling_usd_micros, spend, rate_usd_micros_per_hour=rate))
    for cap in (cap for cap in managed.run.caps if cap.scope.startswith("run:")):  # The launched command's.
        caps.append(replace(cap, spend_usd_micros=ceilings.counted(node, cap.scope.removeprefix("run:"))))
    for cap in {cap.scope: cap for cap in caps}.values():
        bound_ns, rise = node.facts.stop_bound_ns, node.price_rise
        overrun.note_overrun(incident, cap, at, node.wall(at), stop_bound_ns=bound_ns, rise=rise)


# --- what a person may set ----------------------------------------------------------------------------------


def refusal(node: Node, budget: ScopedBudget, at: MonoNs) -> str | None:
    """Why this ceiling cannot be set now, with the numbers; None: it can."""
    scope, ceiling = budget.scope, budget.ceiling_usd_micros
    price = node.ledger.price_usd_micros_per_hour
    if price is None:
        return (
            "the price of this node is unknown, so no ceiling can be held: set node.price_usd_per_hour, or pass --price"
        )
    if len(node.budgets.live) >= BUDGETS_MAX and scope.text not in node.budgets.live:
        return f"{BUDGETS_MAX} budgets are set live already: clear one, or write [[budget]] into costgov.toml"
    cap = standing(node, budget, at)
    held = cap.reserve_usd_micros
    # Near midnight, little of a halt's cost is today's. Tomorrow all of it is that day's.
    if scope.kind is ScopeKind.DAY:
        held = standing(node, replace(budget, scope=Scope(ScopeKind.NODE)), at).reserve_usd_micros
    if ceiling <= held:
        return fault(node.facts, node.policies, [budget]) or _too_small(scope, ceiling, held)
    done = would_complete(node, scope, budget.tokens)
    if done is not None:
        return done
    if cap.room_usd_micros <= 0:
        enough = cap.spend_usd_micros + cap.reserve_usd_micros
        for _ in range(FIXED_POINT_MAX):  # A larger ceiling gives its halt more time.
            cap = standing(node, replace(budget, ceiling_usd_micros=UsdMicros(enough)), at)
            enough = cap.spend_usd_micros + cap.reserve_usd_micros
        return (
            f"{scope.text} has spent {format_usd(cap.spend_usd_micros)} and its halt is reserved "
            f"{format_usd(cap.reserve_usd_micros)}: a ceiling of {format_usd(ceiling)} would halt it now; set more "
            f"than {format_usd(enough)}, or say `costgov halt RUN --reason …`"
        )
    return fault(node.facts, node.policies, [budget]) if not held else None


def would_complete(node: Node, scope: Scope, tokens: int | None) -> str | None:
    """Why a run cannot be given so few tokens: it has trained them already, and its next step would halt it."""
    managed = node.runs.get(scope.name) if scope.kind is ScopeKind.RUN else None
    if managed is None or tokens is None or tokens == managed.policy.budget.tokens:
        return None  # This budget is in force already, so it changes nothing.
    trained = managed.run.tokens_total or 0
    if trained < tokens:
        return None
    return (
        f"{scope.text} has trained {trained:,} tokens: with a budget of {tokens:,} it would be complete, and halted "
        "now; set more tokens, or say `costgov halt RUN --reason …`"
    )


def fault(facts: NodeFacts, policies: PolicySet, budgets: Iterable[ScopedBudget]) -> str | None:
    """Why a ceiling cannot be held: it is not above what a halt of one run here may cost. None: all can be held."""
    known = policies.policies or (Policy("none"),)
    for budget in budgets:
        needed = max(least_ceiling(facts, policy, budget.ceiling_usd_micros) for policy in known)
        if budget.ceiling_usd_micros <= needed:
            return _too_small(budget.scope, budget.ceiling_usd_micros, needed)
    return None


def _too_small(scope: Scope, ceiling: UsdMicros, needed: UsdMicros) -> str:
    return (
        f"budget {scope.text}: the ceiling {format_usd(ceiling)} is not above {format_usd(needed)}, which its halt may "
        "itself cost here (saving, ending processes, and the provider's bound to stop): raise it, or lower halt.grace, "
        "halt.term_grace, halt.kill_grace or the provider's stop_bound_s"
    )


def after_clearing(node: Node, scope: Scope) -> ScopedBudget | None:
    """The scope's budget without its live one: the configured one, else a run's policy's. None: there is none."""
    configured = node.budgets.configured.get(scope.text)
    if configured is not None or scope.kind is not ScopeKind.RUN or scope.name not in node.runs:
        return configured
    run = node.runs[scope.name].run
    policy = node.policies.for_run(run.labels, run.stage)
    ceiling = policy.budget.ceiling_usd_micros
    source = COMMAND_LINE if policy.ceiling_is_typed else f"policy {policy.name}"
    return ScopedBudget(scope, ceiling, source) if ceiling is not None else None


def tokens_after_clearing(node: Node, scope: Scope) -> int | None:
    """The token budget of this run without its live budget; None: it has none, or there is no such run."""
    managed = node.runs.get(scope.name) if scope.kind is ScopeKind.RUN else None
    if managed is None:
        return None
    configured = node.budgets.configured.get(scope.text)
    if configured is not None and configured.tokens is not None:
        return configured.tokens
    return node.policies.for_run(managed.run.labels, managed.run.stage).budget.tokens


def on_operator_budget(node: Node, event: OperatorBudget) -> list[Effect]:
    """Put a live budget in force or remove it, for every run that it covers, from the next tick on."""
    scope, budgets = event.scope, node.budgets
    before = budgets.of(scope) or after_clearing(node, scope)
    budgets.set_live(scope, event.budget)
    pin(node)
    for managed in node.runs.values():
        refit(node, managed)
    after = budgets.of(scope) or after_clearing(node, scope)
    data = {
        "act": "budget_clear" if event.budget is None else "budget_set",
        "scope": scope.text,
        "uid": event.uid,
        "reason": event.reason,
        "before_usd_micros": before.ceiling_usd_micros if before is not None else None,
        "after_usd_micros": after.ceiling_usd_micros if after is not None else None,
        "tokens": after.tokens if after is not None else None,
    }
    record = Record("operator", scope.name if scope.kind is ScopeKind.RUN else None, None, data, durable=True)
    return [persist(node, event.at, durable=True), record]  # In this order, as for an operator's hold.


def pin(node: Node) -> None:
    node.ledger.groups.pin(node.budgets.scopes())


def refit(node: Node, managed: ManagedRun) -> None:
    """Judge the run by the budgets that cover it now. Rules whose meaning is unchanged keep their counts."""
    run = managed.run
    policy = node.policy_for(run.run, run.stage, run.labels, run.uid)
    managed.judge_by(policy)


# --- over a restart -----------------------------------------------------------------------------------------


def restore_counters(node: Node, kept: Mapping[str, Any]) -> bool:
    """Restore what groups have spent from the node's snapshot. False: an older snapshot has no counters.

    KeyError, TypeError, ValueError or AttributeError when they are not ours. Live budgets are restored separately:
    restored counters count even if the live budgets are unreadable.
    """
    if "groups" not in kept:
        return False
    node.ledger.groups.restore(kept["groups"])
    return True


def restore_live(node: Node, kept: Mapping[str, Any]) -> list[Effect]:
    """Restore live budgets and their given warnings. Each readable one holds. Raises as restore_counters() does."""
    if "budgets" not in kept:
        return []
    problems = node.budgets.restore(kept["budgets"])
    pin(node)
    if not problems:
        return []
    rest = f"; and {len(problems) - UNREAD_SHOWN} more" if len(problems) > UNREAD_SHOWN else ""
    which = "; ".join(problems[:UNREAD_SHOWN]) + rest
    count, what = len(problems), "live budget" if len(problems) == 1 else "live budgets"
    text = f"{count} {what} of the journal cannot be taken up and hold nothing, set them again: {which}"
    return [Alarm("budgets_unreadable", None, text)]


def typed_anew(node: Node) -> list[Effect]:
    """Drop live budgets of a run that are older than a typed ceiling: the typed one is a person's newer decision.

    The same command line again (a scheduler that requeues) is no new decision.
    """
    typed = node.policies.typed_ceiling_usd_micros
    if typed is None:
        return []
    over = node.budgets.drop_older_than(typed)
    pin(node)
    return [Alarm("budget_over", budget.scope.name, _over(budget, typed)) for budget in over]


def _over(budget: ScopedBudget, typed: UsdMicros) -> str:
    return (
        f"{budget.scope.text}: --ceiling {format_usd(typed)} counts from now on, and not the "
        f"{format_usd(budget.ceiling_usd_micros)} {budget.source}: {budget.reason}"
    )


def count_before(node: Node, known: Iterable[Mapping[str, Any]]) -> None:
    """Count an older journal's spend to the groups of its runs, by their last stage and labels: it has no counters.

    The days of that spend are unknown, so the day's counter begins now. `known`: snapshots that could be restored.
    """
    groups = node.ledger.groups
    groups.begin_at(node.ledger.total())
    for row in known:
        groups.allot(row["stage"], row["labels"].items(), int(row["spend_usd_micros"]))
