"""Rules that are valid and cannot mean what they say: what `costgov policy check` finds, and a start lets pass.

A start of the governor is no place for a new opinion on a policy that has been in force for months.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from governor.core.expression_reach import never_true
from governor.core.findings import Response
from governor.core.policy import HoldKind, Mode, Policy, Rule
from governor.core.triggers import load
from governor.core.units import NS_PER_S, format_duration
from governor.wire.policy_reader import Reader
from governor.wire.policy_values import PolicyError
from governor.wire.toml_lines import KeyPath

_HARDER: Final = {response: rank for rank, response in enumerate(Response)}


class Doubt(NamedTuple):
    path: KeyPath
    message: str


def doubts(policy: Policy, reader: Reader) -> list[PolicyError]:
    """What is doubtful in a valid policy, a line each, in the order of the files."""
    rules = policy.rules[: len(reader.doc.get("rule", []))]  # Not those which the reader made itself, of `alert_at`.
    for doubt in (*_repeated(rules), *_never_sooner(rules), *_outlived(policy, rules), *_conditions(rules)):
        reader.fail(doubt.path, doubt.message)
    return reader.sorted_errors


def _repeated(rules: Sequence[Rule]) -> Iterator[Doubt]:
    for index, rule in enumerate(rules):
        for other in rules[:index]:
            same = _asks_same(rule, other) and (rule.hold, rule.response) == (other.hold, other.response)
            if same and rule.warmup == other.warmup:
                yield Doubt(("rule", index, "name"), f'says the same as rule "{other.name}": one of them is enough')
                break


def _never_sooner(rules: Sequence[Rule]) -> Iterator[Doubt]:
    """A warning that comes when the halt does."""
    for index, rule in enumerate(rules):
        for other in rules:
            if other.mode is not Mode.ENFORCE or other.response is not Response.HALT or rule.response is Response.HALT:
                continue
            if not _asks_same(rule, other):
                if _is_later_part(rule, other):
                    yield Doubt(("rule", index, "at_frac"), f"{_none_before(other)}: that is at a smaller part")
                continue
            alike = (rule.hold.kind, rule.warmup) == (other.hold.kind, other.warmup)
            if alike and rule.hold.need >= other.hold.need and rule.hold.of >= other.hold.of:
                yield Doubt(("rule", index, "for"), f"{_none_before(other)}: its `for` is no longer")


def _none_before(other: Rule) -> str:
    return f'comes no sooner than the halt of rule "{other.name}"'


def _is_later_part(rule: Rule, other: Rule) -> bool:
    both = rule.trigger == other.trigger == "budget" and rule.match == other.match
    return both and rule.params["at_frac"] > other.params["at_frac"]


def _asks_same(rule: Rule, other: Rule) -> bool:
    same = sorted(map(repr, rule.conditions)) == sorted(map(repr, other.conditions))  # Their order says nothing.
    return same and rule.match == other.match


def _outlived(policy: Policy, rules: Sequence[Rule]) -> Iterator[Doubt]:
    """Warm-ups and holds that are longer than the run may be."""
    ends = [*_ends_of_plan(policy), *_ends_by_rule(rules)]
    tokens = policy.budget.tokens
    for index, rule in enumerate(rules):
        lasts: list[tuple[str, HoldKind, int]] = [("for", rule.hold.kind, rule.hold.need)]
        if rule.warmup is not None:
            lasts.append(("warmup", rule.warmup.kind, rule.warmup.need))
        for key, kind, need in lasts:
            for end, why, by in ends:
                if kind is HoldKind.DURATION and need >= end and rule.name != by:
                    yield Doubt(("rule", index, key), f"is never over: {why}")
            if kind is HoldKind.TOKENS and tokens and need >= tokens:
                yield Doubt(("rule", index, key), f"is never over: the run is complete at {tokens:,} tokens")


def _ends_of_plan(policy: Policy) -> Iterator[tuple[int, str, str]]:
    tokens, speed = policy.budget.tokens, policy.expected.tokens_per_s
    if tokens and speed:
        planned_ns = int(tokens / speed * NS_PER_S)
        yield planned_ns, f"as [budget] and [expected] have it the run takes {format_duration(planned_ns)}", ""


def _ends_by_rule(rules: Sequence[Rule]) -> Iterator[tuple[int, str, str]]:
    for rule in rules:
        if rule.trigger != "runtime" or rule.response is not Response.HALT or rule.mode is not Mode.ENFORCE:
            continue
        for limit, said in (("run", "a run"), ("attempt", "an attempt")):
            if limit_ns := rule.params.get(limit, 0):
                why = f'rule "{rule.name}" halts {said} that is {format_duration(limit_ns)} old'
                yield limit_ns + rule.hold.need, why, rule.name


def _conditions(rules: Sequence[Rule]) -> Iterator[Doubt]:
    for index, rule in enumerate(rules):
        places: list[KeyPath] = [("rule", index, *(("all", number) if rule.members else ()))
                                 for number in range(len(rule.conditions))]  # fmt: skip
        for path, member in zip(places, rule.conditions, strict=True):
            for key in load()[member.trigger].KEYS:
                above = member.params.get(key.not_above)
                if above is not None and member.params[key.name] > above:
                    yield Doubt((*path, key.name), f"is above {key.not_above}, which then says nothing")
        written = [(path, member.params["when"]) for path, member in zip(places, rule.conditions, strict=True)
                   if member.trigger == "expression"]  # fmt: skip
        alone = [path for path, when in written if never_true([when])]
        for path in alone:
            yield Doubt((*path, "when"), "is never true, whatever the run does")
        if len(written) > 1 and not alone and never_true([when for _, when in written]):
            yield Doubt(("rule", index, "all"), "is never true: its expressions exclude each other")
