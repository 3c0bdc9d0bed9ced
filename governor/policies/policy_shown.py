"""What of a policy is in force, key by key, and where each value was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from governor.core.base.policy import ALL
from governor.core.rules.triggers import load
from governor.core.rules.triggers.base import Key
from governor.policies.policy_reader import Reader

# What counts where nobody wrote it, as one would write it: of the tables whose defaults act on a run.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "policy": {"mode": "enforce"},
    "budget": {},
    "expected": {},
    "halt": {
        "checkpoint": "good", "grace": "10m", "term_grace": "10s", "kill_grace": "10s", "stop": "auto",
        "destroy": False, "per_day_max": 3,
    },
    "run": {"on_finish": "keep"},
    "node": {"idle_stop": "off"},
}  # fmt: skip


class Shown(NamedTuple):
    """`source`: "file:line", None for a default."""

    key: str
    value: str  # As in TOML.
    source: str | None


def in_force(reader: Reader) -> list[Shown]:
    """Every key of a valid policy, rules by name."""
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
