"""The schema says of a policy's shape what its reader says: what an editor takes, the governor takes, and back."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from governor.core.rules.triggers import load
from governor.policies.parse import load_policies
from governor.policies.schema import schema
from tests.paths import ROOT
from tests.sweeps import share_of

POLICIES = sorted((ROOT / "policies").glob("*.toml"))
WHOLE = Draft202012Validator(schema())
OVER = Draft202012Validator(schema(drop_in=True))
DRAFT_7 = Draft7Validator(WHOLE.schema)


def shortest_first(validator: Any, alternatives: list[Any], found: Any, here: Any) -> Iterator[ValidationError]:
    """The keyword `anyOf`, whose order decides nothing. Our longest ends with `{}`, which accepts everything."""
    yield from Draft202012Validator.VALIDATORS["anyOf"](validator, sorted(alternatives, key=len), found, here)


VALID: dict[tuple[int, str], bool] = {}


def each_once(validator: Any, each: Any, found: Any, here: Any) -> Iterator[ValidationError]:
    """The keyword `items` without a tuple. It looks once at what is alike: one line is wrong, so one rule is new."""
    for item in found if isinstance(found, list) else ():
        seen = (id(each), repr(item))
        if seen not in VALID:
            VALID[seen] = validator.evolve(schema=each).is_valid(item)
        if not VALID[seen]:
            yield ValidationError(f"{item!r} is not valid")


QUICK = extend(Draft202012Validator, {"anyOf": shortest_first, "items": each_once})(WHOLE.schema)
SEED = 20_261
WRONG_PER_POLICY = share_of(60)
LINE = re.compile(r"(\w+)(\s*=\s*)([^#\n]+?)(\s*(?:#.*)?)")
# None of them is fit for every key, some are for a few: reader and schema have to agree about each.
VALUES = (
    "true",
    "-1",
    "[]",
    "{}",
    '"90"',
    '"5 stepz"',
    '"2 steps"',
    '"90s"',
    '"3k tokens"',
    "1.5",
    "0",
    "[1]",
    '"x y"',
)


def literal(value: str | float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)


def every_key(kind: str) -> str:
    """A policy with a rule, which has each key of its trigger at its default."""
    keys = "".join(f"{key.name} = {literal(key.default)}\n" for key in load()[kind].KEYS)
    rule = f'[[rule]]\nname = "{kind}"\ntrigger = "{kind}"\nresponse = "warn"\nmode = "observe"\n{keys}'
    return f'[policy]\nname = "p"\n{rule}' + (WATCHED if kind != "budget" else "")


WATCHED = '[[rule]]\nname = "watched"\ntrigger = "budget"\nresponse = "halt"\nfor = "90s"\n'
TEXTS = {
    **{path.name: path.read_text() for path in POLICIES},
    # Without those that have a key of the user's own words: whether these are right is no matter of shape.
    **{
        f"every key of {kind}": every_key(kind)
        for kind, trigger in load().items()
        if not any(key.required for key in trigger.KEYS)
    },
}


def is_read(text: str) -> bool:
    return load_policies([("p.toml", text)])[0] is not None


def is_taken(text: str) -> bool:
    return QUICK.is_valid(tomllib.loads(text))


def wrong(text: str, rng: random.Random) -> str:
    """One line of a policy renamed, emptied of its meaning, or taken away."""
    lines = text.splitlines()
    # A plan's price is compared with the ceiling: a contradiction, which is no matter of shape.
    fit = [number for number, line in enumerate(lines) if LINE.fullmatch(line) and "usd_per_mtok" not in line]
    at = rng.choice(fit)
    found = LINE.fullmatch(lines[at])
    assert found is not None
    key, equals, _, end = found.groups()
    match rng.randrange(6):
        case 0:
            lines[at] = f"{key}x{equals}{found.group(3)}{end}"
        case 1 if key in ("name", "trigger", "response"):
            del lines[at]
        case _:
            lines[at] = f"{key}{equals}{rng.choice(VALUES)}{end}"
    return "\n".join(lines)


def test_it_is_a_schema_also_for_the_editors_that_know_draft_7() -> None:
    for drawn in (schema(), schema(drop_in=True)):
        Draft202012Validator.check_schema(drawn)
        Draft7Validator.check_schema(drawn)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_shipped_is_valid_and_so_is_every_key_of_every_trigger(name: str) -> None:
    assert is_read(TEXTS[name]), load_policies([(name, TEXTS[name])])[1]
    for validator in (WHOLE, OVER, DRAFT_7):
        assert not [error.message for error in validator.iter_errors(tomllib.loads(TEXTS[name]))]


@pytest.mark.parametrize("name", TEXTS)
def test_schema_and_reader_agree_on_seeded_wrong_policies(name: str) -> None:
    rng = random.Random(SEED)
    refused = 0
    for _ in range(WRONG_PER_POLICY):
        text = wrong(TEXTS[name], rng)
        read = is_read(text)
        refused += not read
        assert is_taken(text) == read, f"seed {SEED}: {load_policies([('p.toml', text)])[1]}\n{text}"
    assert refused > WRONG_PER_POLICY // 2, "most of them are wrong"


RULE = '[policy]\nname = "p"\n[[rule]]\nname = "r"\nresponse = "warn"\n'


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('all = [{ trigger = "nonfinite" }, { trigger = "data_starvation", share_frac = 0.7 }]', True),
        ('all = [{ trigger = "nonfinite" }]', False),
        ('all = [{ trigger = "nonfinite" }, { trigger = "data_starvation", floor_frac = 0.7 }]', False),
        ('trigger = "nonfinite"\nwarmup = "200 steps"\ncooldown = "1h"\nmatch = { team = ["a", "b"] }', True),
        ('trigger = "nonfinite"\nfor = "3 of 5 steps"', True),
        ('trigger = "hang"\nfor = "3 of 5 steps"', False),
        ('trigger = "nonfinite"\nmatch = { team = [] }', False),
        ('trigger = "nonfinite"\nfor = "2M tokens"', True),
        ('trigger = "nonfinite"\nvanished_after = "1.5k"', True),
        ('trigger = "nonfinite"\nvanished_after = 2e3', True),
        ('trigger = "nonfinite"\nvanished_after = 0', False),
    ],
)
def test_schema_and_reader_agree_on_conditions(text: str, taken: bool) -> None:
    assert is_read(RULE + text) is taken, load_policies([("p.toml", RULE + text)])[1]
    assert is_taken(RULE + text) is taken


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('trigger = "hng"', "rule 0 trigger", "'hng' is not one of ['budget', "),
        ('trigger = "hang"\nlimt = 3', "rule 0", "Additional properties are not allowed ('limt' was unexpected)"),
        ('trigger = "hang"\nfor = "90"', "rule 0 for", "'90' does not match"),
        ('trigger = "hang"\nfor = 90', "rule 0 for", "90 is not of type 'string'"),
        ('trigger = "hang"\nmode = "dry"', "rule 0 mode", "'dry' is not one of ['enforce', 'observe']"),
        ('trigger = "nonfinite"\nskipped_streak = 0', "rule 0 skipped_streak", "0 is less than the minimum of 1"),
        ("", "rule 0", "'trigger' is a required property"),
        ('all = [{ trigger = "hang" }, { trigger = "nan" }]', "rule 0 all 1 trigger", "'nan' is not one of ["),
        ('all = [{ trigger = "hang" }, { for = "3s" }]', "rule 0 all 1", "'trigger' is a required property"),
    ],
)
def test_what_an_editor_says_is_of_the_key_that_is_wrong(text: str, place: str, said: str) -> None:
    for validator in (WHOLE, DRAFT_7):
        (error,) = validator.iter_errors(tomllib.loads(RULE + text))
        assert " ".join(map(str, error.absolute_path)) == place
        assert error.message.startswith(said)


def test_an_editor_that_completes_from_alternatives_finds_every_trigger_with_its_keys() -> None:
    drawn = schema()
    offered = [
        drawn["$defs"][one["$ref"].removeprefix("#/$defs/")]
        for one in drawn["properties"]["rule"]["items"]["anyOf"][:-1]
    ]
    keys = {one["title"]: {*one["properties"]} for one in offered}
    for kind, trigger in load().items():
        assert keys[kind] > {key.name for key in trigger.KEYS}


def test_a_key_that_a_trigger_cannot_do_without_is_required() -> None:
    document: dict[str, Any] = tomllib.loads(RULE + 'trigger = "expression"')
    assert not WHOLE.is_valid(document)
    document["rule"][0]["when"] = "loss > 5.0"
    assert WHOLE.is_valid(document)
    document["rule"][0]["when"] = ""
    assert not WHOLE.is_valid(document)


def test_a_drop_in_may_change_one_key_of_a_rule_and_a_policy_may_not() -> None:
    change: dict[str, Any] = tomllib.loads('[[rule]]\nname = "nonfinite"\nmode = "observe"\nskipped_streak = 9\n')
    assert OVER.is_valid(change)
    assert not WHOLE.is_valid(change)
    assert not WHOLE.is_valid({"policy": {"name": "p"}, **change})
    assert WHOLE.is_valid({"include": ["base.toml"], **change}), "what it includes may have the rest"
    assert not WHOLE.is_valid({"include": "base.toml", **change})
