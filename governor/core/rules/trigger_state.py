"""The state of a trigger: one dataclass, written to JSON and read from it by its fields.

The name of a field is its key in the journal. Plain values stand as they are, a collection is a list (a set a sorted
one), and a dict by numbers a list of [key, value]. A number that is not finite is null. Reading fills a fresh state,
which has the sizes that the rule's keys ask for, and converts each value to the type of its field: KeyError, TypeError
and ValueError mean that another version wrote it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

# Metadata of a field.
UNKEPT: Final[Mapping[str, Any]] = MappingProxyType({"kept": False})  # Never written: after reading it is fresh.
ADDED: Final[Mapping[str, Any]] = MappingProxyType({"added": True})  # States that lack it are read: then it is fresh.


def to_json(state: Any) -> Any:
    """The kept fields by name; of a dataclass with ROW, which is a value of a dict by numbers, without their names."""
    saved = {one.name: _written(hint, getattr(state, one.name)) for one, hint in _kept(state.__class__)}
    return list(saved.values()) if is_row(type(state)) else saved


def read_json(state: Any, saved: Any) -> None:
    """Fill a fresh state. What follows from its fields without being one of them is its method `restored`'s."""
    kept = _kept(state.__class__)
    if is_row(type(state)):
        saved = {one.name: value for (one, _), value in zip(kept, saved, strict=True)}
    for one, hint in kept:
        if one.name in saved or not one.metadata.get("added"):
            setattr(state, one.name, _read(hint, getattr(state, one.name), saved[one.name]))
    if hasattr(state, "restored"):
        state.restored()


def is_row(kind: type) -> bool:
    return getattr(kind, "ROW", False)


@cache
def _kept(kind: type) -> tuple[tuple[Field[Any], Any], ...]:
    """The kept fields and their types."""
    hints = get_type_hints(kind)
    return tuple((one, hints[one.name]) for one in fields(kind) if one.metadata.get("kept", True))


def _written(hint: Any, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return to_json(value)
    if not isinstance(value, dict):
        item = _item(hint)
        return [_written(item, one) for one in (sorted(value) if isinstance(value, set) else value)]
    by, item = get_args(hint)
    saved = {key: _written(item, one) for key, one in value.items()}
    if by is str:
        return saved
    return [[key, *one] if is_row(item) else [key, one] for key, one in saved.items()]


def _read(hint: Any, fresh: Any, saved: Any) -> Any:
    """The value of a field, or of an item of it; `fresh` is what a fresh state has there, and is filled."""
    if is_dataclass(fresh):
        read_json(fresh, saved)
    elif isinstance(fresh, defaultdict):
        by, item = get_args(hint)
        for entry in dict(saved).items() if by is str else saved:
            key, value = (entry[0], entry[1:]) if is_row(item) and by is not str else entry
            fresh[by(key)] = _read(item, fresh[by(key)], value)
    elif hasattr(fresh, "clear"):
        fresh.clear()
        put = fresh.append if hasattr(fresh, "append") else fresh.add
        for one in saved:
            put(_read(_item(hint), None, one))
    else:
        return _plain(hint, fresh, saved)
    return fresh


def _plain(hint: Any, fresh: Any, saved: Any) -> Any:
    if get_origin(hint) in (UnionType, Union):  # The latter where one of them is a NewType.
        if saved is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple:
        return tuple(_plain(one, None, value) for one, value in zip(get_args(hint), saved, strict=True))
    if saved is None and isinstance(fresh, float) and not math.isfinite(fresh):
        return fresh
    return getattr(hint, "__supertype__", hint)(saved)


def _item(hint: Any) -> Any:
    """Of what a collection consists. A class of ours says it in ITEM; else they are windows of numbers."""
    args = get_args(hint)
    return args[0] if args else getattr(hint, "ITEM", float)
