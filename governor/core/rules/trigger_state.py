"""The state of a trigger: one dataclass, written to JSON and read from it by its fields.

A field's name is its key in the journal. Plain values are written as they are, a collection as a list (a set as a
sorted one), a dict by numbers as a list of [key, value], and a number that is not finite as null. Reading fills a fresh
state, which has the sizes that the rule's keys set, and converts each value to its field's type. KeyError, TypeError
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
# The field is not stored: after a restore it has its fresh value.
UNKEPT: Final[Mapping[str, Any]] = MappingProxyType({"kept": False})
# Stored states without this field are accepted: it then has its fresh value.
ADDED: Final[Mapping[str, Any]] = MappingProxyType({"added": True})

_PLAIN: Final = (bool, int, str)


def to_json(state: Any) -> Any:
    """The stored fields by name. A dataclass with ROW (a value of a dict by numbers) is written without names."""
    saved = {one.name: _written(hint, getattr(state, one.name)) for one, hint in _kept(state.__class__)}
    return list(saved.values()) if is_row(type(state)) else saved


def read_json(state: Any, saved: Any) -> None:
    """Fill a fresh state. A method `restored`, if there is one, then derives what is not a field."""
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
    """The stored fields and their types."""
    hints = get_type_hints(kind)
    return tuple((one, hints[one.name]) for one in fields(kind) if one.metadata.get("kept", True))


def _written(hint: Any, value: Any) -> Any:
    if isinstance(value, float):  # Windows of them are most of a state.
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, _PLAIN):
        return value
    if is_dataclass(value):
        return to_json(value)
    if not isinstance(value, dict):
        item = _item(hint)
        if item is float and not isinstance(value, set):
            return [one if type(one) is not float or math.isfinite(one) else None for one in value]
        return [_written(item, one) for one in (sorted(value) if isinstance(value, set) else value)]
    by, item = get_args(hint)
    saved = {key: _written(item, one) for key, one in value.items()}
    if by is str:
        return saved
    return [[key, *one] if is_row(item) else [key, one] for key, one in saved.items()]


def _read(hint: Any, fresh: Any, saved: Any) -> Any:
    """Read the value of a field or of an item. `fresh` is the fresh state's value, which is filled in place."""
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
    if get_origin(hint) in (UnionType, Union):  # Union when one of them is a NewType.
        if saved is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple:
        return tuple(_plain(one, None, value) for one, value in zip(get_args(hint), saved, strict=True))
    if saved is None and isinstance(fresh, float) and not math.isfinite(fresh):
        return fresh
    return getattr(hint, "__supertype__", hint)(saved)


def _item(hint: Any) -> Any:
    """The type of a collection's items. Our classes state it in ITEM; others are windows of floats."""
    args = get_args(hint)
    return args[0] if args else getattr(hint, "ITEM", float)
