"""What a rule asks: `trigger = "x"` with the keys of that trigger, or `all = [{trigger = "x", …}, …]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from governor.core.base.policy import ALL, Member
from governor.core.rules.triggers import load
from governor.core.rules.triggers.base import Trigger, defaults
from governor.policies.policy_keys import RULE_KEYS, hint
from governor.policies.policy_reader import Reader
from governor.policies.policy_values import did_you_mean
from governor.wire.toml_lines import KeyPath

MEMBERS_MAX: Final = 8  # Each costs as much as a rule; nobody reads a condition of more.
RULE_DEPTH: Final = 2  # Of a rule's own path: ("rule", 3). Members of `all` stand deeper.


def read_condition(reader: Reader, path: KeyPath, table: Mapping[str, Any], rule_keys: Iterable[str]) -> list[Member]:
    """The triggers of a rule, one or those that must fire together; empty with an error where there is none."""
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
    """A trigger and its limits; `others`: keys of the table that are not the trigger's."""
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
    """Which of a table's keys belong to its trigger nobody can say; one that was meant to name it can be told."""
    meant = [name for name in table if name not in others and (name == "any" or get_close_matches(name, ("trigger",)))]
    for name in meant:
        reader.fail((*path, name), f"unknown key{hint(name, ('trigger',))}")
    if meant:
        return
    own_name = table.get("name")
    rules = [str(rule.get("name")) for rule in reader.doc["rule"] if "trigger" in rule or ALL in rule]
    if reader.is_layered and len(path) == RULE_DEPTH and isinstance(own_name, str) and own_name not in rules:
        meant_rule = did_you_mean(own_name, rules)  # To change: one that is new names its trigger.
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
            if name in RULE_KEYS:  # Of the rule around it.
                reader.fail((*path, name), f"{said}; it is a key of the rule: write it beside `{ALL}`")
            else:
                reader.fail((*path, name), f"{said}{hint(name, [*others, *keys])}")
    return params
