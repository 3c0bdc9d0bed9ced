"""Which of a log's own names may stand for which field: what a person would probably write into a map."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from governor.wire.records import is_aside

LONG_WORD: Final = 4
_WORD: Final = re.compile("[a-z]+")
_NUMBERS: Final = (int, float)
_SEPARATORS: Final = (";", "\t", "|")
# Field, words of a name that tell it, and the types of its values. The first name that fits is taken, once.
_TOLD_BY: Final[tuple[tuple[str, Collection[str], tuple[type, ...]], ...]] = (
    ("loss", ("loss", "ce", "nll", "xent", "entropy", "lm"), (*_NUMBERS, type(None))),
    ("grad_norm", ("grad", "gnorm", "gradnorm"), (*_NUMBERS, type(None))),
    ("tokens", ("tok", "toks", "token", "tokens", "ntokens"), (int,)),
    ("step", ("step", "steps", "iter", "iters", "it", "iteration", "update", "updates"), (int,)),
    ("step_s", ("dt", "duration", "took"), _NUMBERS),
    ("t", ("t", "time", "clock", "sec", "secs", "seconds", "elapsed", "wall", "when", "date"), (*_NUMBERS, str)),
)


def leaves(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys with their values, and those of objects within, as a map names them: "train.ce"."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in value.items())
        else:
            yield name, value


def likely(keys: Mapping[str, type], fields: Collection[str]) -> dict[str, str]:
    """For each of `fields` the name among `keys` (with the type of its values) that probably is it. Each name once."""
    found: dict[str, str] = {}
    for field, words, types in _TOLD_BY:
        if field not in fields:
            continue
        free = [name for name, kind in keys.items() if kind in types and name not in found.values()]
        free = [name for name in free if not is_aside(name)]
        name = next((name for name in free if _tells(name, words)), None)
        if name is None and field == "step":
            name = next((name for name in free if "epoch" not in name.lower()), None)
        if name is not None:
            found[field] = name
    return found


def separator(keys: Collection[str]) -> str | None:
    """What separates the columns of a table that has no commas: its only name holds all of them. None for another."""
    (only,) = keys if len(keys) == 1 else ("",)
    return next((mark for mark in _SEPARATORS if len(only.strip(mark).split(mark)) > 1), None)


def _tells(name: str, words: Collection[str]) -> bool:
    """Whether one of the words is a word of the name. A long one may also be a part of it, as in "myloss"."""
    low = name.lower()
    parts = _WORD.findall(low)
    return any(word in parts or (len(word) >= LONG_WORD and word in low) for word in words)
