"""A policy in plain words. All sentences about policies are in this file."""

from __future__ import annotations

import string
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Budget, Mode, Persistence, PersistenceKind, Policy, Rule, WarmUp
from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_MINUTE, NS_PER_MS, NS_PER_S, format_usd
from governor.core.money.reports.cost import exact_usd
from governor.core.rules.trigger import Key, Trigger, defaults
from governor.core.rules.triggers import load


def describe(policy: Policy) -> list[str]:
    """What a policy would do, one line for each rule."""
    width = max((len(rule.name) for rule in policy.rules), default=0)
    return [*head(policy), *(_rule(rule, width) for rule in policy.rules), *tail(policy)]


def head(policy: Policy) -> list[str]:
    """The lines above the rules: the runs it applies to, its money, its plan."""
    lines = [f'{policy.source}: policy "{policy.name}" ({policy.mode.value}) for {_match(policy)}', _budget(policy)]
    return [*lines, *_expected(policy)]


def tail(policy: Policy) -> list[str]:
    """The lines below the rules: what a halt does, and when the node is stopped."""
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
        parts.append(f"reported per {budget.window_tokens:,} tokens")
    return f"  budget: {'; '.join(parts) or 'none'}"


def _expected(policy: Policy) -> list[str]:
    price, speed, tokens = policy.expected.usd_micros_per_mtok, policy.expected.tokens_per_s, policy.budget.tokens
    parts = []
    if price is not None:
        whole = "" if tokens is None else f", {format_usd(price * tokens // MTOK)} in all"
        parts.append(f"${exact_usd(price)} per 1M tokens{whole}")
    if policy.expected.usd_micros_per_mtok_all_in is not None:
        parts.append(f"${exact_usd(policy.expected.usd_micros_per_mtok_all_in)} per 1M tokens all-in")
    if speed is not None:
        parts.append(f"{speed:,.0f} tokens/s")
    return [f"  expected: {'; '.join(parts)}"] if parts else []


def _rule(rule: Rule, width: int) -> str:
    acts = rule.response.value
    if rule.mode is Mode.OBSERVE and rule.response is not Response.WATCH:
        acts = f"observe only (would {acts})"
    if rule.response in (Response.HALT, Response.CHECKPOINT):
        acts += {"good": ", saving", "suspect": ", saving as suspect", "none": ", saving nothing"}[rule.checkpoint]
    held = "" if rule.persistence == AT_ONCE else f" for {format_for(rule.persistence)}"
    asked = " and ".join(member.trigger for member in rule.conditions)
    return f"  {rule.name:<{width}}  {asked}{held}: {acts}{_when(rule)}{_changed(rule)}"


def _when(rule: Rule) -> str:
    """What restricts the rule besides its condition."""
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
        if key.name in member.params and member.params[key.name] != key.parsed_default
    ]
    return f" [{', '.join(changed)}]" if changed else ""


def format_warmup(warmup: WarmUp) -> str:
    if warmup.kind is PersistenceKind.DURATION:
        return format_span(warmup.need)
    return f"{warmup.need:,} {warmup.kind.value}"


def format_match(match: Mapping[str, tuple[str, ...]]) -> str:
    return "runs with " + ", ".join(f"{label} = {' or '.join(values)}" for label, values in match.items())


def format_for(hold: Persistence) -> str:
    match hold.kind:
        case PersistenceKind.STEPS if hold.need == hold.of:
            return f"{hold.need} step{'s' if hold.need > 1 else ''}"
        case PersistenceKind.STEPS:
            return f"{hold.need} of {hold.of} steps"
        case PersistenceKind.TOKENS:
            return f"{hold.need:,} tokens"
        case PersistenceKind.DURATION:
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
        "auto": "end the scheduler's job, else stop the instance if this run has it to itself and its disk survives",
        "processes": "leave the machine running",
        "job": "end the scheduler's job (without one, the processes alone), leave the machine to the scheduler",
        "instance": "stop the instance",
    }[halt.stop]
    last = ", destroying it if stopping fails" if halt.destroy else ""
    return (
        f"  on halt: ask for a checkpoint (up to {format_span(halt.grace_ns)}), SIGTERM "
        f"({format_span(halt.term_grace_ns)}), SIGKILL ({format_span(halt.kill_grace_ns)}), {stop}{last}; "
        f"at most {policy.halts_per_day_max} a day{_falls_back(policy)}"
    )


def _falls_back(policy: Policy) -> str:
    if not any(map(policy.may_fall_back, policy.rules)):
        return ""
    return f"; a rule only observes after {policy.wrong_max} of its halts that people mark false"


# What `costgov policy explain FILES` prints: each rule of a policy in whole sentences, from its trigger's own words.


_VERBS: Final = {
    Response.WATCH: ("Notes it when", "Notes it when"),
    Response.WARN: ("Warns when", "Would warn when"),
    Response.CHECKPOINT: ("Saves a checkpoint when", "Would save a checkpoint when"),
    Response.HALT: ("Halts when", "Would halt when"),
}
assert set(_VERBS) == set(Response), "a response without a verb"


@dataclass(frozen=True, slots=True)
class Explained:
    """One rule in words. `says` is when it does what; `more` has the other facts."""

    rule: str
    source: str
    trigger: str
    enforced: bool
    response: str
    says: str
    more: tuple[str, ...]


def explain(policy: Policy) -> list[str]:
    """A policy in lines, each as long as its text."""
    lines = head(policy)
    for explained in explain_rules(policy):
        lines.append(f"  {explained.rule}  ({explained.source})")
        lines.append("    " + " ".join((explained.says, *explained.more)))
    return [*lines, *tail(policy)]


def explain_rules(policy: Policy) -> list[Explained]:
    return [_explained(policy, rule) for rule in policy.rules]


def _explained(policy: Policy, rule: Rule) -> Explained:
    said = [condition_of(member.trigger, member.params, policy.budget) for member in rule.conditions]
    condition = ", and at the same time ".join(first for first, *_ in said)
    more = [text for _, *texts in said for text in texts]
    enforced = rule.mode is Mode.ENFORCE
    verb = _VERBS[rule.response][not enforced]
    return Explained(
        rule=rule.name,
        source=rule.source,
        trigger=rule.trigger,
        enforced=enforced,
        response=rule.response.value,
        says=f"{verb} {condition}{_persistence_text(rule)}.",
        more=(*more, *_when_sentence(rule), *_saving(policy, rule), *_resuming(rule), *_observing(rule)),
    )


def condition_of(kind: str, params: Mapping[str, Any], budget: Budget) -> tuple[str, ...]:
    """A trigger's condition with its values: the words after "when", then its further sentences."""
    trigger = load()[kind]
    values = {**defaults(trigger.KEYS), **params}
    words = {key.name: value_text(key, values[key.name]) for key in trigger.KEYS}
    ceiling, tokens = budget.ceiling_usd_micros, budget.tokens
    words["ceiling"] = "none is set" if ceiling is None else format_usd(ceiling)
    words["tokens"] = "no number is set" if tokens is None else f"{tokens:,}"
    return tuple(text.format_map(words) for text in meanings(trigger))


def meanings(trigger: type[Trigger]) -> tuple[str, ...]:
    """A trigger's own sentences, else the first line of its file and its keys."""
    own: tuple[str, ...] | None = vars(trigger).get("MEANING")
    if own is not None:
        return own
    first = (sys.modules[trigger.__module__].__doc__ or trigger.KIND).splitlines()[0].rstrip(".")
    keys = ", ".join(f"{key.name} = {{{key.name}}}" for key in trigger.KEYS)
    return (first[:1].lower() + first[1:], *([f"Its limits: {keys}."] if keys else []))


def placeholders_in(texts: tuple[str, ...]) -> set[str]:
    """The placeholders in these texts."""
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def value_text(key: Key, value: Any) -> str:
    """A value in prose: "30%", "1,000,000", "1m30s"."""
    match key.kind:
        case "frac":
            return f"{value * 100:g}%"
        case "count":
            return f"{value:,}"
        case "text":
            return f"\u201c{value}\u201d"
        case _:
            return format_value(key, value)


def _persistence_text(rule: Rule) -> str:
    if rule.persistence == AT_ONCE:
        return ""
    match rule.persistence.kind:
        case PersistenceKind.STEPS if rule.persistence.need == rule.persistence.of == 1:
            return "; one step is enough"
        case PersistenceKind.STEPS if rule.persistence.need == rule.persistence.of:
            return f", in {rule.persistence.need} reported steps in a row"
        case PersistenceKind.STEPS:
            return f", in {rule.persistence.need} of {rule.persistence.of} reported steps"
        case PersistenceKind.TOKENS:
            return f", while {format_for(rule.persistence)} are trained on end"
        case PersistenceKind.DURATION:
            return f", for {format_for(rule.persistence)} on end"


def _when_sentence(rule: Rule) -> list[str]:
    """What restricts the rule besides its condition."""
    said = []
    if rule.match:
        said.append(f"It is only for {format_match(rule.match)}.")
    if rule.warmup is not None:
        said.append(f"It decides nothing in the first {format_warmup(rule.warmup)} of an attempt.")
    if rule.cooldown_ns:
        said.append(f"Once it has, it does not again for {format_span(rule.cooldown_ns)}.")
    return said


def _saving(policy: Policy, rule: Rule) -> list[str]:
    """What is saved, and how long the trainer has for it."""
    if rule.response not in (Response.CHECKPOINT, Response.HALT):
        return []
    would = "" if rule.mode is Mode.ENFORCE else "would be "
    if rule.checkpoint == "none":
        return [f"Nothing {would or 'is '}saved."]
    kept = {
        "good": "A checkpoint",
        "suspect": "A suspect checkpoint (kept beside the good ones, never their latest)",
    }[rule.checkpoint]
    first = " first" if rule.response is Response.HALT else ""
    grace = format_span(policy.halt.grace_ns)
    return [f"{kept} {would or 'is '}asked for{first}, for up to {grace}."]


def _resuming(rule: Rule) -> list[str]:
    return [f"Its text says to resume with {rule.resume_with}."] if rule.resume_with else []


def _observing(rule: Rule) -> list[str]:
    if rule.mode is Mode.ENFORCE or rule.response is Response.WATCH:
        return []
    return ["It only observes: an alarm says so, and nothing is touched."]
