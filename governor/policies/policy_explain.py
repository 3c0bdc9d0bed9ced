"""What `costgov policy explain FILES` says: each rule of a policy in whole sentences, from its trigger's own words."""

from __future__ import annotations

import string
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Budget, HoldKind, Mode, Policy, Rule
from governor.core.base.units import format_usd
from governor.core.rules.triggers import load
from governor.core.rules.triggers.base import Key, Trigger, defaults
from governor.policies.policy_words import (
    format_hold,
    format_match,
    format_span,
    format_value,
    format_warmup,
    head,
    tail,
)

WIDTH: Final = 100

_VERBS: Final = {
    Response.WATCH: ("Notes it when", "Notes it when"),
    Response.WARN: ("Warns when", "Would warn when"),
    Response.CHECKPOINT: ("Saves a checkpoint when", "Would save a checkpoint when"),
    Response.HALT: ("Halts when", "Would halt when"),
}
assert set(_VERBS) == set(Response), "a response without a verb"


@dataclass(frozen=True, slots=True)
class Explained:
    """One rule in words: the sentence that says when it does what, then what else there is to know of it."""

    rule: str
    source: str
    trigger: str
    enforced: bool
    response: str
    says: str
    more: tuple[str, ...]


def explain(policy: Policy) -> list[str]:
    """Say a policy in lines for a terminal."""
    lines = head(policy)
    for said in explain_rules(policy):
        lines.append(f"  {said.rule}  ({said.source})")
        text = " ".join((said.says, *said.more))
        lines.extend(textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    "))
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
        says=f"{verb} {condition}{_held(rule)}.",
        more=(*more, *_when(rule), *_saving(policy, rule), *_resuming(rule), *_observing(rule)),
    )


def condition_of(kind: str, params: Mapping[str, Any], budget: Budget) -> tuple[str, ...]:
    """A trigger's condition with its values: what follows "when", and the sentences that belong to it."""
    trigger = load()[kind]
    values = {**defaults(trigger.KEYS), **params}
    words = {key.name: say(key, values[key.name]) for key in trigger.KEYS}
    ceiling, tokens = budget.ceiling_usd_micros, budget.tokens
    words["ceiling"] = "none is set" if ceiling is None else format_usd(ceiling)
    words["tokens"] = "no number is set" if tokens is None else f"{tokens:,}"
    return tuple(text.format_map(words) for text in sayings(trigger))


def sayings(trigger: type[Trigger]) -> tuple[str, ...]:
    """What a trigger says of itself, else the first line of its file and its keys."""
    own: tuple[str, ...] | None = vars(trigger).get("SAYS")
    if own is not None:
        return own
    first = (sys.modules[trigger.__module__].__doc__ or trigger.KIND).splitlines()[0].rstrip(".")
    keys = ", ".join(f"{key.name} = {{{key.name}}}" for key in trigger.KEYS)
    return (first[:1].lower() + first[1:], *([f"Its limits: {keys}."] if keys else []))


def named_in(texts: tuple[str, ...]) -> set[str]:
    """The placeholders of these texts."""
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def say(key: Key, value: Any) -> str:
    """A value for a reader of prose: "30%", "1,000,000", "1m30s"."""
    match key.kind:
        case "frac":
            return f"{value * 100:g}%"
        case "count":
            return f"{value:,}"
        case "text":
            return f"\u201c{value}\u201d"
        case _:
            return format_value(key, value)


def _held(rule: Rule) -> str:
    if rule.hold == AT_ONCE:
        return ""
    match rule.hold.kind:
        case HoldKind.STEPS if rule.hold.need == rule.hold.of == 1:
            return "; one step is enough"
        case HoldKind.STEPS if rule.hold.need == rule.hold.of:
            return f", in {format_hold(rule.hold)} in a row"
        case HoldKind.STEPS:
            return f", in {format_hold(rule.hold)}"
        case HoldKind.TOKENS:
            return f", while {format_hold(rule.hold)} are trained on end"
        case HoldKind.DURATION:
            return f", for {format_hold(rule.hold)} on end"


def _when(rule: Rule) -> list[str]:
    """What keeps the rule from speaking, beside its condition."""
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
    return [f"Its words say to resume with {rule.resume_with}."] if rule.resume_with else []


def _observing(rule: Rule) -> list[str]:
    if rule.mode is Mode.ENFORCE or rule.response is Response.WATCH:
        return []
    return ["It only observes: an alarm says so, and nothing is touched."]
