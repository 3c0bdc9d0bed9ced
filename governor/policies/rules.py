"""A rule's condition: `trigger = "x"` with the keys of that trigger, or `all = [{trigger = "x", …}, …]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.policy import (
    ALL,
    AT_ONCE,
    Budget,
    HaltSettings,
    Member,
    Mode,
    Persistence,
    PersistenceKind,
    Rule,
    WarmUp,
)
from governor.core.base.units import DurationNs
from governor.core.rules.trigger import Trigger, defaults
from governor.core.rules.triggers import load
from governor.policies.keys import (
    CHECKPOINTS,
    DURATION,
    MODES,
    RESPONSES,
    RULE_KEYS,
    did_you_mean,
    hint,
    parse_for,
    parse_warmup,
)
from governor.policies.reader import Reader
from governor.wire.toml_file import KeyPath

MEMBERS_MAX: Final = 8  # Each costs as much as a rule. Longer conditions are unreadable.
# The length of a rule's own path: ("rule", 3). Members of `all` are deeper.
RULE_DEPTH: Final = 2


def read_condition(reader: Reader, path: KeyPath, table: Mapping[str, Any], rule_keys: Iterable[str]) -> list[Member]:
    """The triggers of a rule: one, or several that must fire together. Empty, with an error, when there is none."""
    if ALL not in table:
        member = _member(reader, path, table, tuple(rule_keys))
        return [member] if member is not None else []
    if "trigger" in table:
        reader.fail((*path, "trigger"), "stands beside `all`: a rule has one trigger, or several in `all`")
    for name in table:
        if name not in rule_keys:
            reader.fail((*path, name), "belongs to one trigger: write it inside `all`, beside that trigger")
    return _members(reader, (*path, ALL), table[ALL])


def _members(reader: Reader, path: KeyPath, tables: object) -> list[Member]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        reader.fail(path, 'is not a list of triggers; write all = [{ trigger = "…" }, { trigger = "…" }]')
        return []
    if not 2 <= len(tables) <= MEMBERS_MAX:
        said = "one trigger needs no `all`" if len(tables) == 1 else f"takes 2 to {MEMBERS_MAX} triggers"
        reader.fail(path, f"has {len(tables)}: {said}")
        return []
    members: list[Member] = []
    for index, table in enumerate(tables):
        member = _member(reader, (*path, index), table, ("trigger",))
        if member is not None and member in members:
            reader.fail((*path, index), f'says the same as all[{members.index(member) + 1}]: "{member.trigger}"')
        elif member is not None:
            members.append(member)
    return members


def _member(reader: Reader, path: KeyPath, table: Mapping[str, Any], others: tuple[str, ...]) -> Member | None:
    """A trigger and its limits. `others`: keys of the table that do not belong to the trigger."""
    kinds = load()
    kind = table.get("trigger")
    if kind is None:
        _no_trigger(reader, path, table, others)
        return None
    if isinstance(kind, list):
        said = 'is a list: several that must fire together are all = [{ trigger = "…" }, …]; else write a rule for each'
        reader.fail((*path, "trigger"), said)
        return None
    if not isinstance(kind, str) or kind not in kinds:
        reader.fail((*path, "trigger"), f"{kind!r:.40} is not a trigger{did_you_mean(str(kind), [*kinds])}")
        return None
    return Member(kind, _params(reader, path, table, kinds[kind], others))


def _no_trigger(reader: Reader, path: KeyPath, table: Mapping[str, Any], others: tuple[str, ...]) -> None:
    """Report a table without a trigger: a key that may stand for `trigger`, else a rule name that is unknown."""
    meant = [name for name in table if name not in others and (name == "any" or get_close_matches(name, ("trigger",)))]
    for name in meant:
        reader.fail((*path, name), f"unknown key{hint(name, ('trigger',))}")
    if meant:
        return
    own_name = table.get("name")
    rules = [str(rule.get("name")) for rule in reader.doc["rule"] if "trigger" in rule or ALL in rule]
    if reader.is_layered and len(path) == RULE_DEPTH and isinstance(own_name, str) and own_name not in rules:
        meant_rule = did_you_mean(own_name, rules)  # The rule to change. A new rule names its trigger.
        reader.fail(
            (*path, "name"), f'"{own_name:.64}" has no trigger, and is no rule of the files beneath{meant_rule}'
        )
        return
    reader.fail((*path, "trigger"), f"is missing; known: {', '.join(load())}")


def _params(
    reader: Reader, path: KeyPath, table: Mapping[str, Any], trigger: type[Trigger], others: tuple[str, ...]
) -> dict[str, Any]:
    keys = {key.name: key for key in trigger.KEYS}
    params = defaults(trigger.KEYS)
    for key in trigger.KEYS:
        if key.required and table.get(key.name, key.default) == key.default:
            reader.fail((*path, key.name), f'is missing: trigger "{trigger.KIND}" judges by it')
    for name, value in table.items():
        if name in keys:
            params[name] = reader.value((*path, name), keys[name], value)
        elif name not in others:
            said = f'unknown key for trigger "{trigger.KIND}"'
            if name in RULE_KEYS:  # It belongs to the enclosing rule.
                reader.fail((*path, name), f"{said}; it is a key of the rule: write it beside `{ALL}`")
            else:
                reader.fail((*path, name), f"{said}{hint(name, [*others, *keys])}")
    return params


# The rules of a policy: [[rule]], each with its condition and the times at which it may fire.


# It is part of alarms. Receivers cut their texts, and the condition has to fit too.
RESUME_WITH_MAX: Final = 200
# Every rule is judged at every frame. A file with more was generated by mistake.
RULES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class _Given:
    """A rule's response and mode, which are read before its trigger's keys."""

    response: Response
    mode: Mode
    checkpoint: str


def read_rules(reader: Reader, mode: Mode, halt: HaltSettings) -> list[Rule]:
    tables = reader.doc.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        reader.fail(("rule",), "is not a list of rules; write [[rule]]")
        return []
    if len(tables) > RULES_MAX:
        reader.fail(("rule", RULES_MAX), f"is one more than the {RULES_MAX} rules that a policy may have")
        return []
    rules: list[Rule] = []
    names: dict[str, int] = {}
    for index, table in enumerate(tables):
        path: KeyPath = ("rule", index)
        rule = _rule(reader, path, table, mode, halt)
        name = table.get("name")
        if isinstance(name, str) and name in names:
            reader.fail((*path, "name"), f'"{name}" is the name of rule[{names[name] + 1}] too')
        elif isinstance(name, str):
            names[name] = index
        if rule is not None:
            rules.append(rule)
    return rules


def _rule(reader: Reader, path: KeyPath, table: Mapping[str, Any], mode: Mode, halt: HaltSettings) -> Rule | None:
    name = reader.name(path, table)
    given = _given(reader, path, table, mode, halt)
    members = read_condition(reader, path, table, RULE_KEYS)
    if not members:
        return None
    one = members[0] if ALL not in table else Member(ALL, {})
    return Rule(
        name=name,
        trigger=one.trigger,
        params=one.params,
        persistence=_hold(reader, path, table, members),
        response=given.response,
        mode=given.mode,
        checkpoint=given.checkpoint,
        source=reader.source(path),
        members=tuple(members) if ALL in table else (),
        match=reader.labels((*path, "match"), table["match"]) if "match" in table else {},
        warmup=_warmup(reader, path, table, members),
        cooldown_ns=_cooldown(reader, path, table, given.response),
        resume_with=_resume_with(reader, path, table, given.response),
    )


def _given(reader: Reader, path: KeyPath, table: Mapping[str, Any], mode: Mode, halt: HaltSettings) -> _Given:
    if "response" not in table:
        reader.fail((*path, "response"), "is missing: watch, warn, checkpoint or halt")
    response = Response(reader.choice((*path, "response"), table.get("response", "watch"), RESPONSES))
    own = Mode(reader.choice((*path, "mode"), table.get("mode", mode.value), MODES))
    if own is Mode.ENFORCE and mode is Mode.OBSERVE:
        reader.fail((*path, "mode"), 'cannot enforce: [policy] has mode = "observe"')
    checkpoint = reader.choice((*path, "checkpoint"), table.get("checkpoint", halt.checkpoint), CHECKPOINTS)
    if "checkpoint" in table and "response" in table and response in (Response.WATCH, Response.WARN):
        reader.fail((*path, "checkpoint"), f'has no effect: response = "{response.value}" saves nothing')
    if response is Response.CHECKPOINT and checkpoint == "none":
        if "checkpoint" in table:
            reader.fail((*path, "checkpoint"), 'contradicts response = "checkpoint"')
        else:
            said = 'saves nothing: [halt] has checkpoint = "none"; give the rule one of its own, checkpoint = "good"'
            reader.fail((*path, "response"), said)
    if response is Response.HALT and checkpoint != "none" and halt.grace_ns == 0 and "checkpoint" in table:
        reader.fail((*path, "checkpoint"), "has no time: [halt] has grace = 0")
    return _Given(response, own, checkpoint)


def _hold(reader: Reader, path: KeyPath, table: Mapping[str, Any], members: Sequence[Member]) -> Persistence:
    if "for" not in table:
        return AT_ONCE
    try:
        hold = parse_for(table["for"])
    except ValueError as error:
        reader.fail((*path, "for"), str(error))
        return AT_ONCE
    stands = next((member.trigger for member in members if not load()[member.trigger].STEPPED), None)
    if hold.kind is not PersistenceKind.DURATION and stands is not None:
        reader.fail(
            (*path, "for"),
            f'"{table["for"]}" can never be reached: "{stands}" fires while no steps come; give a time',
        )
    return hold


def _warmup(reader: Reader, path: KeyPath, table: Mapping[str, Any], members: Sequence[Member]) -> WarmUp | None:
    if "warmup" not in table:
        return None
    if any(member.trigger == "budget" for member in members):
        reader.fail((*path, "warmup"), "is nothing for a budget: what is spent before its end is spent too")
    try:
        return parse_warmup(table["warmup"])
    except ValueError as error:
        reader.fail((*path, "warmup"), str(error))
        return None


def _cooldown(reader: Reader, path: KeyPath, table: Mapping[str, Any], response: Response) -> DurationNs:
    if "cooldown" not in table:
        return DurationNs(0)
    where: KeyPath = (*path, "cooldown")
    cooldown = DurationNs(reader.value(where, DURATION, table["cooldown"]))
    if cooldown == 0:
        reader.fail(where, "is no time; leave it out")
    if response is Response.HALT:
        reader.fail(where, 'has no place in a rule that halts; [halt] has "per_day_max" for that')
    return cooldown


def _resume_with(reader: Reader, path: KeyPath, table: Mapping[str, Any], response: Response) -> str:
    if "resume_with" not in table:
        return ""
    where: KeyPath = (*path, "resume_with")
    text = table["resume_with"]
    if not isinstance(text, str) or not text.strip() or len(text) > RESUME_WITH_MAX or not text.isprintable():
        reader.fail(where, f"is not one line of 1 to {RESUME_WITH_MAX} characters, such as a path")
        return ""
    if response is not Response.HALT:
        reader.fail(where, f'has no effect: response = "{response.value}" halts nothing')
    return text.strip()


def check_reached(reader: Reader, match: Mapping[str, tuple[str, ...]], budget: Budget, rules: Sequence[Rule]) -> None:
    """Report rules that this policy itself keeps from ever deciding."""
    if reader.errors:
        return  # After an error some rules may not have been read.
    for index, rule in enumerate(rules):
        path: KeyPath = ("rule", index)
        for label, values in rule.match.items():
            taken = match.get(label, values)
            if not set(taken) & set(values):
                text = f"never holds: the policy takes only runs with {label} = {' or '.join(taken)}"
                reader.fail((*path, "match"), text)
        warmup = rule.warmup
        if (
            warmup is not None
            and warmup.kind is PersistenceKind.TOKENS
            and budget.tokens
            and warmup.need >= budget.tokens
        ):
            reader.fail((*path, "warmup"), f"is never over: the run is complete at {budget.tokens:,} tokens")
