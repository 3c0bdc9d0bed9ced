"""Reads the policies, combines them with the command line, and refuses those that cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from governor.core.base.policy import PolicySet, WarmUp
from governor.core.base.units import UsdMicros, format_usd
from governor.core.engine.budgeting import fault as budget_fault
from governor.core.engine.halt_plan import least_ceiling
from governor.core.engine.node import NodeFacts
from governor.core.money.budgets import ScopedBudget
from governor.policies import files
from governor.policies.files import PolicyUnreadable
from governor.policies.parse import load_policies


def policy_loader(
    paths: Callable[[], Sequence[Path]], ceiling: UsdMicros | None, priced: Callable[[], bool],
    facts: NodeFacts | None = None, budgets: Sequence[ScopedBudget] = (), gate: WarmUp | None = None,
) -> Callable[[], tuple[PolicySet | None, list[str]]]:  # fmt: skip
    """Return the function that reads the policies, now and at each SIGHUP.

    It returns the set, or None and the problems, one line each. `budgets` are those of costgov.toml: they must be
    possible under the graces of these policies.
    """

    def load() -> tuple[PolicySet | None, list[str]]:
        try:
            texts = files.policy_texts(paths())
        except PolicyUnreadable as error:
            return None, [*error.problems]
        policies, problems = load_policies(texts)
        if policies is None:
            return None, [str(problem) for problem in problems]
        if ceiling is not None:
            policies = policies.with_ceiling(ceiling)
        if gate is not None:
            policies = policies.with_gate(gate)
        unpriced = [p.name for p in policies.policies if p.budget.ceiling_usd_micros is not None]
        if unpriced and not priced() and ceiling is not None:
            return None, [
                f"--ceiling {format_usd(ceiling)} needs a price, and that of this node is unknown: "
                "pass --price USD_PER_HOUR, or set node.price_usd_per_hour in costgov.toml"
            ]
        if unpriced and not priced():
            return None, [
                f"policy {unpriced[0]} has a ceiling, but the price of this node is unknown: "
                "set node.price_usd_per_hour in costgov.toml, or pass --price USD_PER_HOUR"
            ]
        if budgets and not priced():
            return None, [
                f"costgov.toml has a budget for {budgets[0].scope.text}, but the price of this node is unknown: "
                "set node.price_usd_per_hour there, or pass --price USD_PER_HOUR"
            ]
        fault = ceiling_fault(facts, policies) or budget_fault(facts, policies, budgets) if facts is not None else None
        return (policies, []) if fault is None else (None, [fault])

    return load


def ceiling_fault(facts: NodeFacts, policies: PolicySet) -> str | None:
    """The error for a ceiling below the price of the halt itself, which would end every run at its first step.

    A reload refuses it too.
    """
    rate = facts.usd_micros_per_hour
    for policy in policies.policies:
        ceiling = policy.budget.ceiling_usd_micros
        if ceiling is None or rate is None:
            continue
        needed = least_ceiling(facts, policy, ceiling)
        if ceiling <= needed:
            return (
                f"policy {policy.name}: the ceiling {format_usd(ceiling)} is below {format_usd(needed)}, which a halt "
                "itself may cost here (ending processes, and the provider's bound to stop): raise the ceiling, or "
                "lower halt.term_grace, halt.kill_grace or the provider's stop_bound_s"
            )
    return None
