"""The fields of a control request, each read by its type in one place. True is no number, and a list is no name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refused(Exception):  # noqa: N818 - the condition is the name.
    """One line for the client, and its code on the wire."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def whole(body: Mapping[str, Any], name: str, least: int, most: int, told: str, default: int | None = None) -> int:
    """The number in this field. Refused, with what is `told`, for anything else; `default` where the field is absent.

    A number that may be left out may be null, too.
    """
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not is_whole(value, least, most):
        raise Refused("bad_request", told)
    number: int = body[name]
    return number


def word(body: Mapping[str, Any], name: str, most: int, told: str, *, may_lack: bool = False) -> str | None:
    """The text in this field, of at most so many characters, not blank. None only where it may lack and does."""
    value = body.get(name)
    if value is None and may_lack:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        raise Refused("bad_request", told)
    return value
