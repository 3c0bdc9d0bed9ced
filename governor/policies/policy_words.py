"""A policy in plain words, for people who have not read its file: the one place that has the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Hold, HoldKind, Mode, Policy, Rule, WarmUp
from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_MINUTE, NS_PER_MS, NS_PER_S, format_usd
from governor.core.money.reports.cost import exact_usd
from governor.core.rules.triggers import load
from governor.core.rules.triggers.base import Key


def describe(policy: Policy) -> list[str]:
    """Say what a policy would do, a line each rule."""
    width = max((len(rule.name) for rule in policy.rules), default=0)
    return [*head(policy), *(_rule(rule, width) for rule in policy.rules), *tail(policy)]


def head(policy: Policy) -> list[str]:
    """What stands above the rules: for which runs it is, its money, its plan."""
    lines = [f'{policy.source}: policy "{policy.name}" ({policy.mode.value}) for {_match(policy)}', _budget(policy)]
    return [*lines, *_expected(policy)]


def tail(policy: Policy) -> list[str]:
    """What stands below them: what a halt does, and when the node is stopped."""
    lines = []
    if not policy.rules:
        lines.append("  no rules: the run is metered and never judged")
    if any(rule.response is Response.HALT and rule.mode is Mode.ENFORCE for rule in policy.rules):
        lines.append(_halt(policy))
    else:
        lines.append("  on halt: never halts")
    if policy.run_on_finish == "stop":
        lines.append("  60s after a run ended well (a command: with 0), with nobody else there, the node is stopped")
    if policy.node_idle_stop_ns is not None:
        after = format_span(policy.node_idle_stop_ns)
        lines.append(
            f"  after {after} with nobody there (no run, no GPU process) the node is stopped; costgov.toml comes first"
        )
    return lines


def _match(policy: Policy) -> str:
    if not policy.match:
        return "every run that no other policy matches"
    return format_match(policy.match)


def _budget(policy: Policy) -> str:
    budget = policy.budget
    parts = []
    if budget.ceiling_usd_micros is not None:
        parts.append(f"ceiling {format_usd(budget.ceiling_usd_micros)}, the price of the halt included")
    if budget.tokens is not None:
        parts.append(f"{budget.tokens:,} tokens")
    if budget.window_tokens != MTOK:
        parts.append(f"told per {budget.window_tokens:,} tokens")
    return f"  budget: {'; '.join(parts) or 'none'}"


def _expected(policy: Policy) -> list[str]:
    price, speed, tokens = policy.expected.usd_micros_per_mtok, policy.expected.tokens_per_s, policy.budget.tokens
    parts = []
    if price is not None:
        whole = "" if tokens is None else f", {format_usd(price * tokens // MTOK)} in all"
        parts.append(f"${exact_usd(price)} per 1M tokens{whole}")
    if speed is not None:
        parts.append(f"{speed:,.0f} tokens/s")
    return [f"  expected: {'; '.join(parts)}"] if parts else []


def _rule(rule: Rule, width: int) -> str:
    acts = rule.response.value
    if rule.mode is Mode.OBSERVE and rule.response is not Response.WATCH:
        acts = f"observe only (would {acts})"
    if rule.response in (Response.HALT, Response.CHECKPOINT):
        acts += {"good": ", saving", "suspect": ", saving as suspect", "none": ", saving nothing"}[rule.checkpoint]
    held = "" if rule.hold == AT_ONCE else f" for {format_hold(rule.hold)}"
    asked = " and ".join(member.trigger for member in rule.conditions)
    return f"  {rule.name:<{width}}  {asked}{held}: {acts}{_when(rule)}{_changed(rule)}"


def _when(rule: Rule) -> str:
    """What keeps the rule from speaking, beside its condition."""
    parts = []
    if rule.match:
        parts.append(f"only for {format_match(rule.match)}")
    if rule.warmup is not None:
        parts.append(f"after {format_warmup(rule.warmup)} of an attempt")
    if rule.cooldown_ns:
        parts.append(f"at most once in {format_span(rule.cooldown_ns)}")
    return f"; {', '.join(parts)}" if parts else ""


def _changed(rule: Rule) -> str:
    """The limits that differ from the triggers' defaults."""
    changed = [
        f"{f'{member.trigger} ' if rule.members else ''}{key.name} {format_value(key, member.params[key.name])}"
        for member in rule.conditions
        for key in load()[member.trigger].KEYS
        if key.name in member.params and member.params[key.name] != key.parse(key.default)
    ]
    return f" [{', '.join(changed)}]" if changed else ""


def format_warmup(warmup: WarmUp) -> str:
    if warmup.kind is HoldKind.DURATION:
        return format_span(warmup.need)
    return f"{warmup.need:,} {warmup.kind.value}"


def format_match(match: Mapping[str, tuple[str, ...]]) -> str:
    return "runs with " + ", ".join(f"{label} = {' or '.join(values)}" for label, values in match.items())


def format_hold(hold: Hold) -> str:
    match hold.kind:
        case HoldKind.STEPS if hold.need == hold.of:
            return f"{hold.need} step{'s' if hold.need > 1 else ''}"
        case HoldKind.STEPS:
            return f"{hold.need} of {hold.of} steps"
        case HoldKind.TOKENS:
            return f"{hold.need:,} tokens"
        case HoldKind.DURATION:
            return format_span(hold.need)


def format_span(duration_ns: int) -> str:
    """Write a limit as one would in a policy, exactly: "1m30s", "250ms"."""
    text = ""
    for unit, unit_ns in (("h", NS_PER_HOUR), ("m", NS_PER_MINUTE), ("s", NS_PER_S), ("ms", NS_PER_MS)):
        count, duration_ns = divmod(duration_ns, unit_ns)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def format_value(key: Key, value: Any) -> str:
    return format_span(value) if key.kind == "duration" else f"{value:g}" if isinstance(value, float) else str(value)


def _halt(policy: Policy) -> str:
    halt = policy.halt
    stop = {
        "auto": "stop the instance if this run has it to itself and its disk survives",
        "processes": "leave the machine running",
        "job": "leave the machine to the scheduler, whose job ends with its processes",
        "instance": "stop the instance",
    }[halt.stop]
    last = ", destroying it if stopping fails" if halt.destroy else ""
    return (
        f"  on halt: ask for a checkpoint (up to {format_span(halt.grace_ns)}), SIGTERM "
        f"({format_span(halt.term_grace_ns)}), SIGKILL ({format_span(halt.kill_grace_ns)}), {stop}{last}; "
        f"at most {policy.halts_per_day_max} a day"
    )
