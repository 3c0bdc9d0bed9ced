"""JSON Schema of a policy file, for editors. It is generated from the reader's own keys, so both agree.

It describes the shape: tables, keys, types, units, choices. Only `costgov policy check` finds contradictions. The
dialect is 2020-12, restricted to words that draft 7 has too: TOML plug-ins of editors read no newer ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.policy import ALL, Mode
from governor.core.base.units import AMOUNT, COUNT
from governor.core.rules import expressions
from governor.core.rules.trigger import Key, Trigger
from governor.core.rules.triggers import load
from governor.policies.keys import (
    BUDGET_KEYS,
    CHECKPOINTS,
    EXPECTED_KEYS,
    HALT_KEYS,
    INCLUDE,
    NAME,
    NODE_KEYS,
    POLICY_KEYS,
    RULE_KEYS,
    RUN_KEYS,
    TABLES,
)
from governor.policies.parse import STOPS, WINDOW_TOKENS_MAX, WINDOW_TOKENS_MIN
from governor.policies.rules import MEMBERS_MAX, RESUME_WITH_MAX, RULES_MAX

Schema = dict[str, Any]

_SPAN: Final = r"([0-9]+(\.[0-9]+)?\s*(ms|s|min|m|h|d)\s*)+"
_TOKENS: Final = rf"{COUNT}\s*tokens?"
_DOLLARS: Final = rf"^\s*{AMOUNT}\s*$"


def schema(*, drop_in: bool = False) -> Schema:
    """The schema of a policy, or of a drop-in. A drop-in may change single keys of the policy beneath it."""
    tables = {
        "policy": _table("For which runs it is, and whether it acts.", POLICY_KEYS, _POLICY),
        "budget": _table("What the run may cost, and how long it is.", BUDGET_KEYS, _BUDGET),
        "expected": _table("What the plan says of price and speed.", EXPECTED_KEYS, _EXPECTED),
        "halt": _table("What a halt may take and do.", HALT_KEYS, _HALT),
        "run": _table("The run itself.", RUN_KEYS, _RUN),
        "node": _table("The node that it runs on.", NODE_KEYS, _NODE),
        "rule": {
            "type": "array",
            "maxItems": RULES_MAX,
            "items": _one_by_trigger("rule", _NO_CONDITION),
            "description": "Conditions, and what follows when one has lasted.",
        },
    }
    assert set(tables) == set(TABLES), "a table without a schema"
    drawn: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "costgov policy, a drop-in" if drop_in else "costgov policy",
        "type": "object",
        "properties": tables if drop_in else {INCLUDE: _INCLUDE, **tables},
        "additionalProperties": False,
        "$defs": {**_DEFS, **_of_triggers(), "rule_all": _composed(), "rule_changed": _CHANGE},
    }
    return drawn if drop_in else {**drawn, "if": {"required": [INCLUDE]}, "else": _ALONE}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}  # Without other keys: draft 7 ignores keys beside $ref.


def _table(says: str, known: tuple[str, ...], keys: Mapping[str, Schema]) -> Schema:
    assert set(keys) == set(known), f"keys without a schema, or unknown to the reader: {set(keys) ^ set(known)}"
    return {"type": "object", "description": says, "properties": dict(keys), "additionalProperties": False}


def _one_of(says: str, choices: tuple[str, ...], default: str | None = None) -> Schema:
    schema: Schema = {"enum": list(choices), "description": says}
    return schema if default is None else {**schema, "default": default}


def _text(says: str, pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^\\s*{pattern}\\s*$", "description": says}


def _span(says: str, default: str) -> Schema:
    return {**_text(says, _SPAN), "default": default}


def _count(says: str, least: int = 0, most: int | None = None) -> Schema:
    count: Schema = {"type": ["integer", "string"], "minimum": least, "pattern": f"^\\s*{COUNT}\\s*$"}
    if most is not None:
        count["maximum"] = most
    return {**count, "description": says}


def _usd(says: str) -> Schema:
    amount: Schema = {"type": ["number", "string"], "exclusiveMinimum": 0, "exclusiveMaximum": 1e12}
    return {**amount, "pattern": _DOLLARS, "description": says}


_POLICY: Final[Mapping[str, Schema]] = {
    "name": _ref("name"),
    "mode": _one_of(
        "enforce: act. observe: decide and record, touch nothing.", tuple(m.value for m in Mode), "enforce"
    ),
    "match": _ref("match"),
}
_BUDGET: Final[Mapping[str, Schema]] = {
    "ceiling_usd": _usd("Never exceeded, the price of the halt included."),
    "tokens": _count('The run is complete at the last one: 20000000000 or "20B".', 1),
    "alert_at": {
        "type": "array",
        "items": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "description": "Parts of the ceiling at which to warn: [0.5, 0.8, 0.95].",
    },
    "window": _count("Cost is reported per so many tokens.", WINDOW_TOKENS_MIN, WINDOW_TOKENS_MAX),
}
_EXPECTED: Final[Mapping[str, Schema]] = {
    "usd_per_mtok": _usd("Dollars for a million tokens while it trains, by the plan."),
    "usd_per_mtok_all_in": _usd("Dollars for a million tokens with starts, pauses and halts, by the plan."),
    "tokens_per_s": {"type": "number", "minimum": 1, "exclusiveMaximum": 1e18, "description": "Of the whole run."},
}
_HALT: Final[Mapping[str, Schema]] = {
    "checkpoint": _one_of("What to ask for before the run ends.", CHECKPOINTS, "good"),
    "grace": _span("How long saving may take.", "10m"),
    "term_grace": _span("From SIGTERM to SIGKILL.", "10s"),
    "kill_grace": _span("From SIGKILL to the end of the machine.", "10s"),
    "stop": _one_of("What ends after the processes.", STOPS, "auto"),
    "destroy": {"type": "boolean", "default": False, "description": "Destroy the instance when stopping it fails."},
    "per_day_max": _count("The breaker: a person looks before another one.", 1),
    "wrong_max": _count("So many halts of a rule marked false, and it only observes. 0: never. Default: 2.", 0, 1000),
}
_RUN: Final[Mapping[str, Schema]] = {
    "on_finish": _one_of("The node, when the run ends well.", ("keep", "stop"), "keep"),
}
_NODE: Final[Mapping[str, Schema]] = {
    "idle_stop": {
        "type": "string",
        "pattern": f"^(off|\\s*{_SPAN}\\s*)$",
        "description": 'Stop the node after so long with nobody there: "15m", or "off".',
    },
}
# Keys of every rule, without `trigger` and `all`.
_COMMON: Final[Mapping[str, Schema]] = {
    "name": _ref("name"),
    "match": _ref("match"),
    "warmup": _ref("warmup"),
    "for": _ref("for"),
    "cooldown": _span("No second verdict within it; not of a rule that halts.", "1h"),
    "response": _one_of("What follows.", tuple(response.value for response in Response)),
    "mode": _one_of("Of this rule alone.", tuple(mode.value for mode in Mode)),
    "checkpoint": _one_of("What to ask for: a good one, one set apart, none.", CHECKPOINTS),
    "resume_with": {
        "type": "string",
        "minLength": 1,
        "maxLength": RESUME_WITH_MAX,
        "description": "What to go on with after its halt: shown in the halt's text. For people: no program reads it.",
    },
}
assert {*_COMMON, "trigger", ALL} == set(RULE_KEYS), f"other keys than the reader's: {set(RULE_KEYS) ^ set(_COMMON)}"
_DEFS: Final[Mapping[str, Schema]] = {
    "name": {"type": "string", "pattern": f"^{NAME.pattern}$", "description": "Letters, digits, _ . - (at most 64)."},
    "match": {
        "type": "object",
        "description": 'Labels and their values: { stage = "s1", team = ["nlp", "vision"] }.',
        "additionalProperties": {"type": ["string", "array"], "minItems": 1, "items": {"type": "string"}},
    },
    "warmup": _text(
        'No verdict before it, in each attempt: "200 steps" of training, "10m", "5M tokens".',
        rf"([0-9]+\s+steps?|{_TOKENS}|{_SPAN})",
    ),
    "for": _text(
        'How long it must fire: "3 steps", "3 of 5 steps" (that are reported), "90s", "2M tokens".',
        rf"([0-9]+(\s+of\s+[0-9]+)?\s+steps?|{_TOKENS}|{_SPAN})",
    ),
    "for_time": _text('How long it must fire: "90s". It fires while no steps come.', _SPAN),
}
_INCLUDE: Final[Schema] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "description": "Policies that lie beneath this one: files beside or below it.",
}
# Required keys of a policy that includes no other file.
_ALONE: Final[Schema] = {
    "required": ["policy"],
    "properties": {
        "policy": {"required": ["name"]},
        "rule": {"items": {"if": {"required": [ALL]}, "else": {"required": ["trigger"]}}},
    },
}
_CHANGE: Final[Schema] = {
    "title": "changes",
    "description": "Changes the rule of this name: the keys given here, and no others.",
    "type": "object",
    "required": ["name"],
    "properties": dict(_COMMON),
}


# Other forms of a rule: one with several triggers, or one that changes a rule beneath it.
_NO_CONDITION: Final[Mapping[str, Schema]] = {
    "rule_all": {"required": [ALL], "not": {"required": ["trigger"]}},
    "rule_changed": {"not": {"anyOf": [{"required": ["trigger"]}, {"required": [ALL]}]}},
}


def _one_by_trigger(prefix: str, others: Mapping[str, Schema]) -> Schema:
    """A table that is validated by the definition of its own trigger, so that errors are about a key.

    For alternatives a validator only reports that none of them fits. Editors, however, complete from alternatives and
    do not read `then`. So the alternatives are here too, with one that accepts everything.
    """
    named = {
        f"{prefix}_{kind}": {"required": ["trigger"], "properties": {"trigger": {"const": kind}}} for kind in load()
    }
    return {
        "type": "object",
        "anyOf": [*map(_ref, (*named, *others)), {}],
        "allOf": [
            {"properties": {"trigger": {"enum": [*load()]}}},
            *({"if": said, "then": _ref(name)} for name, said in {**named, **others}.items()),
        ],
    }


def _of_triggers() -> dict[str, Schema]:
    """For each trigger: its keys, a rule with it, and it as a member of `all`."""
    drawn: dict[str, Schema] = {}
    for kind, trigger in load().items():
        held = _ref("for") if trigger.STEPPED else _ref("for_time")
        drawn[f"{kind}_keys"] = _keys(trigger)
        drawn[f"rule_{kind}"] = _condition(kind, trigger, {**_COMMON, "for": held}, ("name", "trigger", "response"))
        drawn[f"member_{kind}"] = _condition(kind, trigger, {}, ("trigger",))
    return drawn


def _composed() -> Schema:
    several = {
        "type": "array",
        "description": "The triggers that must fire together, each with its keys.",
        "minItems": 2,
        "maxItems": MEMBERS_MAX,
        "items": {**_one_by_trigger("member", {}), "required": ["trigger"]},
    }
    return {
        "title": ALL,
        "type": "object",
        "properties": {**_COMMON, ALL: several},
        "required": ["name", ALL, "response"],
        "additionalProperties": False,
    }


def _condition(kind: str, trigger: type[Trigger], others: Mapping[str, Schema], required: tuple[str, ...]) -> Schema:
    """A table that names this trigger, with its keys and others."""
    first = (sys.modules[trigger.__module__].__doc__ or "").splitlines()[0]
    keys = {key.name: {"$ref": f"#/$defs/{kind}_keys/properties/{key.name}"} for key in trigger.KEYS}
    return {
        "title": kind,
        "description": first,
        "type": "object",
        "properties": {**others, "trigger": {"const": kind, "description": first}, **keys},
        "required": [*required, *(key.name for key in trigger.KEYS if key.required)],
        "additionalProperties": False,
    }


def _keys(trigger: type[Trigger]) -> Schema:
    return {"properties": {key.name: _key(key) for key in trigger.KEYS}}


def _key(key: Key) -> Schema:
    said = {**_of_kind(key), "description": key.meaning}
    return said if key.required else {**said, "default": key.default}


def _of_kind(key: Key) -> Schema:
    """The values that Key.parse accepts."""
    least = key.parse(key.least) if key.least else 0
    match key.kind:
        case "duration":
            return _text("", _SPAN)
        case "count":
            return _count("", least)
        case "number":
            return {"type": "number", "minimum": least, "exclusiveMaximum": 1e18}
        case "frac":
            return {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        case "flag":
            return {"type": "boolean"}
        case "text":
            return {"type": "string"}
        case "expression":
            return {"type": "string", "minLength": 1, "maxLength": expressions.CHARS_MAX}
        case kind:
            raise AssertionError(f"{key.name}: keys of the kind {kind!r} have no schema")
