"""What `costgov policy check FILES` says: each policy in a few plain lines, or everything that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_HOUR, UsdMicros, format_duration, format_usd
from governor.core.engine.node import NodeFacts
from governor.policies.policy_doubts import doubts, planned_length_ns
from governor.policies.policy_layers import PolicyText
from governor.policies.policy_loading import ceiling_fault
from governor.policies.policy_shown import Shown, in_force
from governor.policies.policy_toml import load_policies, read_policies
from governor.policies.policy_words import describe


def check(texts: Sequence[PolicyText | tuple[str, str]], rate: UsdMicros | None = None) -> tuple[list[str], int]:
    """Check policies, as load_policies takes them. Returns the lines to print and the exit status: 0 valid, 1 not.

    `rate`: what the node costs an hour, where that is known: a ceiling below what the halt itself costs cannot hold.
    """
    policies, errors = load_policies(texts)
    if policies is None:
        return [*map(str, errors), f"{len(errors)} {'error' if len(errors) == 1 else 'errors'}"], 1
    fault = ceiling_fault(NodeFacts(node="", boot_id="", price_usd_micros_per_hour=rate), policies)
    if fault is not None:
        return [fault, "1 error"], 1
    lines = [str(doubt) for one, reader in read_policies(texts) if one is not None for doubt in doubts(one, reader)]
    lines += [said for policy in policies.policies if (said := _dear_plan(policy, rate)) is not None]
    if lines:
        return [*lines, f"{len(lines)} {'doubt' if len(lines) == 1 else 'doubts'}: it loads, and cannot mean that"], 1
    for policy in policies.policies:
        lines.extend(describe(policy))
    count = len(policies.policies)
    valid = "1 policy is valid" if count == 1 else f"{count} policies are valid"
    return [*lines, f"{valid} (digest {policies.digest[:12]})"], 0


def _dear_plan(policy: Policy, rate: UsdMicros | None) -> str | None:
    """What the plan costs at this node's price, where that is more than the ceiling."""
    planned_ns, ceiling = planned_length_ns(policy), policy.budget.ceiling_usd_micros
    if rate is None or planned_ns is None or ceiling is None or (dear := rate * planned_ns // NS_PER_HOUR) <= ceiling:
        return None
    return (
        f"{policy.source}: expected.tokens_per_s: the run takes {format_duration(planned_ns)} at that speed, which is "
        f"{format_usd(dear)} at this node's price: above budget.ceiling_usd ({format_usd(ceiling)})"
    )


def show(texts: Sequence[PolicyText | tuple[str, str]]) -> list[tuple[str, list[Shown]]]:
    """What is in force of each valid policy, by the policy's name."""
    return [(policy.name, in_force(reader)) for policy, reader in read_policies(texts) if policy is not None]


def shown_lines(name: str, shown: Sequence[Shown]) -> list[str]:
    """As columns: key, value, source."""
    keys = max((len(one.key) for one in shown), default=0)
    values = min(40, max((len(one.value) for one in shown), default=0))  # A longer one pushes its own source aside.
    lines = [f"  {one.key:<{keys}}  {one.value:<{values}}  {one.source or 'default'}" for one in shown]
    return [f'policy "{name}"', *lines]
