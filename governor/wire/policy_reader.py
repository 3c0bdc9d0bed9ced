"""One policy file while it is read: its document, its lines, and everything that is wrong with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from governor.core.triggers.base import Key
from governor.wire.policy_values import NAME, PolicyError, did_you_mean
from governor.wire.toml_lines import KeyPath, key_lines, line_of, show

_TOML_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Reader:
    """Reads one file, collecting errors instead of stopping at the first."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.errors: list[PolicyError] = []
        self._lines: dict[KeyPath, int] = {}
        self.doc: dict[str, Any] = {}
        try:
            self.doc = tomllib.loads(text)
            self._lines = key_lines(text)
        except tomllib.TOMLDecodeError as error:
            found = _TOML_LINE.search(str(error))
            line = int(found.group(1)) if found is not None and found.group(1) else max(1, len(text.splitlines()))
            self.errors.append(PolicyError(file, line, "", f"not TOML: {_TOML_LINE.sub('', str(error))}"))

    def fail(self, path: KeyPath, message: str) -> None:
        self.errors.append(PolicyError(self.file, line_of(self._lines, path), show(path), message))

    def table(self, name: str, known: Sequence[str]) -> dict[str, Any]:
        """The table of that name, empty where it is absent or none; a key that is not known is an error."""
        table = self.doc.get(name, {})
        if not isinstance(table, dict):
            self.fail((name,), f"is not a table; write [{name}]")
            return {}
        for key in table:
            if key not in known:
                self.fail((name, key), f"unknown key{did_you_mean(key, known)}")
        return table

    def source(self, path: KeyPath) -> str:
        return f"{self.file}:{self.line(path)}"

    def line(self, path: KeyPath) -> int:
        return line_of(self._lines, path)

    def name(self, path: KeyPath, table: Mapping[str, Any]) -> str:
        name = table.get("name")
        if name is None:
            self.fail((*path, "name"), "is missing")
        elif not isinstance(name, str) or NAME.fullmatch(name) is None:
            self.fail((*path, "name"), f"{name!r} is not a name: letters, digits, _ . - (at most 64)")
        else:
            return name
        return ""

    def choice(self, path: KeyPath, value: object, known: Sequence[str]) -> str:
        if isinstance(value, str) and value in known:
            return value
        self.fail(path, f"{value!r} is not one of {', '.join(known)}")
        return known[0]

    def value(self, path: KeyPath, key: Key, value: object) -> Any:
        try:
            return key.parse(value)
        except ValueError as error:
            self.fail(path, str(error))
            return key.parse(key.default)

    def labels(self, path: KeyPath, match: object) -> dict[str, tuple[str, ...]]:
        """A table of labels, each with the value or the values that are accepted."""
        if not isinstance(match, dict):
            self.fail(path, 'is not a table of labels; write { stage = "stage1" }')
            return {}
        accepted: dict[str, tuple[str, ...]] = {}
        for label, value in match.items():
            values = value if isinstance(value, list) else [value]
            if not values or not all(isinstance(item, str) for item in values):
                self.fail((*path, label), "is not text or a list of texts")
            else:
                accepted[label] = tuple(values)
        return accepted
