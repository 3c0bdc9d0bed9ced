"""Which values of a policy are in force, key by key, and where each one is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from governor.core.base.findings import Response
from governor.core.base.policy import ALL, AT_ONCE, Member, Mode, Persistence, PersistenceKind, Policy, Rule
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, UsdMicros, format_duration, format_usd
from governor.core.engine.node import NodeFacts
from governor.core.rules.expressions import Token, never_true, tokens_of
from governor.core.rules.trigger import Key
from governor.core.rules.triggers import load
from governor.policies.keys import PolicyError
from governor.policies.loading import ceiling_fault
from governor.policies.parse import policy_set, read_policies
from governor.policies.reader import PolicyText, Reader
from governor.policies.words import describe
from governor.wire.toml_file import KeyPath

# The defaults as a policy would write them, for the tables whose defaults act on a run.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "policy": {"mode": "enforce"},
    "budget": {},
    "expected": {},
    "halt": {
        "checkpoint": "good", "grace": "10m", "term_grace": "10s", "kill_grace": "10s", "stop": "auto",
        "destroy": False, "per_day_max": 3, "wrong_max": 2,
    },
    "run": {"on_finish": "keep"},
    "node": {"idle_stop": "off"},
}  # fmt: skip


class Shown(NamedTuple):
    """`source`: "file:line"; None for a default."""

    key: str
    value: str  # As written in TOML.
    source: str | None


def in_force(reader: Reader) -> list[Shown]:
    """Every key of a valid policy; rules by name."""
    shown: list[Shown] = []
    for name, defaults in _DEFAULTS.items():
        table = reader.doc.get(name, {})
        shown.extend(Shown(f"{name}.{key}", _toml(table[key]), reader.source((name, key))) for key in table)
        shown.extend(Shown(f"{name}.{key}", _toml(value), None) for key, value in defaults.items() if key not in table)
    for index, rule in enumerate(reader.doc.get("rule", [])):
        shown.extend(_rule(reader, index, rule))
    return shown


def _rule(reader: Reader, index: int, rule: Mapping[str, Any]) -> Iterator[Shown]:
    name = f"rule.{rule['name']}"
    for key, value in rule.items():
        if key not in ("name", ALL):
            yield Shown(f"{name}.{key}", _toml(value), reader.source(("rule", index, key)))
    if ALL not in rule:
        yield from _defaults(name, rule)
    for number, member in enumerate(rule.get(ALL, [])):
        own = f"{name}.all[{number + 1}]"
        source = reader.source(("rule", index, ALL, number))
        yield from (Shown(f"{own}.{key}", _toml(value), source) for key, value in member.items())
        yield from _defaults(own, member)


def _defaults(name: str, table: Mapping[str, Any]) -> Iterator[Shown]:
    keys: tuple[Key, ...] = load()[table["trigger"]].KEYS
    yield from (Shown(f"{name}.{key.name}", _toml(key.default), None) for key in keys if key.name not in table)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else f"{value}"


# Doubts: rules that are valid and cannot mean what they say. `costgov policy check` reports them; a start of the
# governor ignores them, because the policy may have been in force for months.


class Doubt(NamedTuple):
    path: KeyPath
    message: str


_Places = list[tuple[KeyPath, Member]]  # Each condition of a rule, with its key path in the file.


def doubts(policy: Policy, reader: Reader) -> list[PolicyError]:
    """The doubts about a valid policy, one error each, in the order of the files."""
    rules = policy.rules[: len(reader.doc.get("rule", []))]  # Without the rules that the reader made from `alert_at`.
    places = [_places(index, rule) for index, rule in enumerate(rules)]
    for doubt in (
        *_repeated(rules),
        *_never_sooner(rules),
        *_never(policy, rules, places),
        *_outlived(policy, rules),
        *_conditions(places),
    ):
        reader.fail(doubt.path, doubt.message)
    return reader.sorted_errors


def _repeated(rules: Sequence[Rule]) -> Iterator[Doubt]:
    for index, rule in enumerate(rules):
        for other in rules[:index]:
            same = _asks_same(rule, other) and (rule.persistence, rule.response) == (other.persistence, other.response)
            if same and rule.warmup == other.warmup:
                yield Doubt(("rule", index, "name"), f'says the same as rule "{other.name}": one of them is enough')
                break


def _never_sooner(rules: Sequence[Rule]) -> Iterator[Doubt]:
    """A rule that fires only after another rule has halted the run."""
    for index, rule in enumerate(rules):
        for place, other in enumerate(rules):
            if other.mode is not Mode.ENFORCE or other.response is not Response.HALT or other is rule:
                continue
            if rule.response is Response.HALT and (rule.mode is Mode.OBSERVE or _says_same(rule, other)):
                continue  # It shows what another limit would do, or _repeated() reports it.
            if rule.resume_with and index < place and rule.persistence == other.persistence:
                # Of two halts at the same moment the first counts, and its message says how to resume.
                continue
            if not _covers(other, rule) or other.warmup not in (None, rule.warmup):
                continue
            key = _later_key(rule, other)
            if key is not None and _is_held_as_long(rule.persistence, other.persistence):
                halts = f'comes no sooner than the halt of rule "{other.name}"'
                yield Doubt(("rule", index, key), f"{halts}: {_LATER.get(key, 'its limit is no stricter')}")
                break


_LATER: Final = {"for": "its `for` is no longer", "at_frac": "that is at a smaller part"}


def _says_same(rule: Rule, other: Rule) -> bool:
    return _asks_same(rule, other) and (rule.persistence, rule.warmup) == (other.persistence, other.warmup)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Whether `wide` applies to every run that `narrow` applies to."""
    return all(label in narrow.match and {*narrow.match[label]} <= {*values} for label, values in wide.match.items())


def _later_key(rule: Rule, other: Rule) -> str | None:
    """The key by which `rule` asks the same as `other` or for more of it. None when it asks something else."""
    if rule.trigger != other.trigger:
        return None
    # The order of conditions does not matter.
    if sorted(map(repr, rule.conditions)) == sorted(map(repr, other.conditions)):
        return "for"
    if rule.members:
        return None
    trigger = load()[rule.trigger]
    # For counts and durations, a larger value is later. For fractions only the trigger knows the direction.
    rising = {key.name for key in trigger.KEYS if key.kind in ("count", "duration")} & {*getattr(trigger, "LIMITS", ())}
    rising |= {"at_frac"} if rule.trigger == "budget" else set()
    apart = [name for name, value in rule.params.items() if value != other.params[name]]
    if all(name in rising and rule.params[name] > other.params[name] for name in apart):
        return apart[0]
    return None


def _is_held_as_long(hold: Persistence, other: Persistence) -> bool:
    """Whether every condition that has fired for `hold` has by then fired for `other`."""
    if other == AT_ONCE:
        return True
    if hold.kind is not other.kind:
        return False
    if hold.kind is not PersistenceKind.STEPS:
        return hold.need >= other.need
    # Split the longer window into shorter ones. At least one of them has its share of the firing steps.
    windows = -(-hold.of // other.of)
    return -(-hold.need // windows) >= other.need


def _asks_same(rule: Rule, other: Rule) -> bool:
    return _later_key(rule, other) == "for" and rule.match == other.match


def _never(policy: Policy, rules: Sequence[Rule], places: Sequence[_Places]) -> Iterator[Doubt]:
    """Rules that can never fire, and a rule that fires on plan."""
    planned = next(_ends_of_plan(policy), None)
    for index, rule in enumerate(rules):
        for path, member in places[index]:
            match member.trigger:
                case "runtime" if not member.params["run"] and not member.params["attempt"]:
                    yield Doubt((*path, "trigger"), "never fires: neither `run` nor `attempt` has a limit")
                case "runtime" if planned is not None and 0 < member.params["run"] < planned[0] and not rule.members:
                    if rule.response is Response.HALT:
                        yield Doubt((*path, "run"), f"halts a run that keeps to its plan: {planned[1]}")
                case "usd_per_mtok" if not policy.expected.has_price:
                    yield Doubt((*path, "trigger"), "never fires: [expected] has no usd_per_mtok to compare with")
                case "restart_loop" if rule.warmup is not None and rule.warmup.kind is not PersistenceKind.DURATION:
                    text = "is never over in what it is about: attempts that do not get so far; give a time"
                    yield Doubt(("rule", index, "warmup"), text)


def _outlived(policy: Policy, rules: Sequence[Rule]) -> Iterator[Doubt]:
    """Warm-ups and persistence times that are longer than the run may be."""
    ends = [*_ends_of_plan(policy), *_ends_by_rule(rules)]
    tokens = policy.budget.tokens
    for index, rule in enumerate(rules):
        lasts: list[tuple[str, PersistenceKind, int]] = [("for", rule.persistence.kind, rule.persistence.need)]
        if rule.warmup is not None:
            lasts.append(("warmup", rule.warmup.kind, rule.warmup.need))
        for key, kind, need in lasts:
            for end, why, by in ends:
                if kind is PersistenceKind.DURATION and need >= end and rule.name != by:
                    yield Doubt(("rule", index, key), f"is never over: {why}")
            if kind is PersistenceKind.TOKENS and tokens and need >= tokens:
                yield Doubt(("rule", index, key), f"is never over: the run is complete at {tokens:,} tokens")


def planned_length_ns(policy: Policy) -> int | None:
    """The run's planned length, from [budget] and [expected]. None without both."""
    tokens, speed = policy.budget.tokens, policy.expected.tokens_per_s
    return int(tokens / speed * NS_PER_S) if tokens and speed else None


def _ends_of_plan(policy: Policy) -> Iterator[tuple[int, str, str]]:
    planned_ns = planned_length_ns(policy)
    if planned_ns is not None:
        yield planned_ns, f"as [budget] and [expected] have it the run takes {format_duration(planned_ns)}", ""


def _ends_by_rule(rules: Sequence[Rule]) -> Iterator[tuple[int, str, str]]:
    for rule in rules:
        if rule.trigger != "runtime" or rule.response is not Response.HALT or rule.mode is not Mode.ENFORCE:
            continue
        for limit, said in (("run", "a run"), ("attempt", "an attempt")):
            if limit_ns := rule.params.get(limit, 0):
                why = f'rule "{rule.name}" halts {said} that is {format_duration(limit_ns)} old'
                yield limit_ns + rule.persistence.need, why, rule.name


def _conditions(places: Sequence[_Places]) -> Iterator[Doubt]:
    for index, of_rule in enumerate(places):
        for path, member in of_rule:
            for key in load()[member.trigger].KEYS:
                above = member.params.get(key.not_above)
                if above is not None and member.params[key.name] > above:
                    yield Doubt((*path, key.name), f"is above {key.not_above}, which then says nothing")
        written = [(path, member.params["when"]) for path, member in of_rule if member.trigger == "expression"]
        for path, when in written:
            for doubt in _no_phases(when):
                yield Doubt((*path, "when"), doubt)
        alone = [path for path, when in written if never_true([when])]
        for path in alone:
            yield Doubt((*path, "when"), "is never true, whatever the run does")
        if len(written) > 1 and not alone and never_true([when for _, when in written]):
            yield Doubt(("rule", index, "all"), "is never true: its expressions exclude each other")


def _places(index: int, rule: Rule) -> _Places:
    return [
        (("rule", index, *(("all", number) if rule.members else ())), member)
        for number, member in enumerate(rule.conditions)
    ]


def _no_phases(when: str) -> list[str]:
    """One message for each word that a checked expression compares with `phase` and that is no phase."""
    tokens = tokens_of(when)
    compared: list[Token] = []
    for index, operator in enumerate(tokens[1:-1], start=1):
        left, right = tokens[index - 1], tokens[index + 1]
        if operator.text in ("==", "!=") and "phase" in (left.text, right.text):
            compared += (left, right)
        elif operator.text == "in" and left.text == "phase":
            compared += takewhile(lambda token: token.text != "]", tokens[index + 1 :])
    words = [token.text[1:-1] for token in compared if token.kind == "string"]
    if not words:
        return []
    from trainer_shim.wire import PHASES  # Imported here: it loads the whole trainer side.

    return [f'"{word}" is no phase; known: {", ".join(PHASES)}' for word in words if word not in PHASES]


# What `costgov policy check FILES` prints: each policy in a few plain lines, or all of its errors.


def check(texts: Sequence[PolicyText | tuple[str, str]], rate: UsdMicros | None = None) -> tuple[list[str], int]:
    """Check policies, as load_policies takes them. Returns the lines to print and the exit status: 0 valid, 1 not.

    `rate`: the node's price per hour, None if unknown. A ceiling below the cost of the halt cannot hold.
    """
    read = read_policies(texts)
    policies, errors = policy_set(texts, read)
    if policies is None:
        return [*map(str, errors), f"{len(errors)} {'error' if len(errors) == 1 else 'errors'}"], 1
    fault = ceiling_fault(NodeFacts(node="", boot_id="", price_usd_micros_per_hour=rate), policies)
    if fault is not None:
        return [fault, "1 error"], 1
    lines = [str(doubt) for one, reader in read if one is not None for doubt in doubts(one, reader)]
    lines += [said for policy in policies.policies if (said := _dear_plan(policy, rate)) is not None]
    if lines:
        return [*lines, f"{len(lines)} {'doubt' if len(lines) == 1 else 'doubts'}: it loads, and cannot mean that"], 1
    for policy in policies.policies:
        lines.extend(describe(policy))
    count = len(policies.policies)
    valid = "1 policy is valid" if count == 1 else f"{count} policies are valid"
    return [*lines, f"{valid} (digest {policies.digest[:12]})"], 0


def _dear_plan(policy: Policy, rate: UsdMicros | None) -> str | None:
    """The cost of the plan at this node's price, when it exceeds the ceiling."""
    planned_ns, ceiling = planned_length_ns(policy), policy.budget.ceiling_usd_micros
    if rate is None or planned_ns is None or ceiling is None or (dear := rate * planned_ns // NS_PER_HOUR) <= ceiling:
        return None
    return (
        f"{policy.source}: expected.tokens_per_s: the run takes {format_duration(planned_ns)} at that speed, which is "
        f"{format_usd(dear)} at this node's price: above budget.ceiling_usd ({format_usd(ceiling)})"
    )


def show(texts: Sequence[PolicyText | tuple[str, str]]) -> list[tuple[str, list[Shown]]]:
    """The values in force of each valid policy, with the policy's name."""
    return [(policy.name, in_force(reader)) for policy, reader in read_policies(texts) if policy is not None]


def shown_lines(name: str, shown: Sequence[Shown]) -> list[str]:
    """In columns: key, value, source."""
    keys = max((len(one.key) for one in shown), default=0)
    # A longer value moves only its own source to the right.
    values = min(40, max((len(one.value) for one in shown), default=0))
    lines = [f"  {one.key:<{keys}}  {one.value:<{values}}  {one.source or 'default'}" for one in shown]
    return [f'policy "{name}"', *lines]
