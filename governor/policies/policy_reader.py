"""One policy while it is read: its document, where each key stands, and everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from governor.core.rules.triggers.base import Key
from governor.policies.policy_keys import hint
from governor.policies.policy_layers import Layered, PolicyText
from governor.policies.policy_values import NAME, PolicyError
from governor.wire.toml_lines import KeyPath


class Reader:
    """Reads one policy, collecting errors instead of stopping at the first."""

    def __init__(self, policy: PolicyText) -> None:
        self.file = policy.file
        self.is_layered = len(policy.layers) > 1
        self._layered = Layered(policy)
        self._order = {file: index for index, (file, _) in enumerate(policy.layers)}
        self.doc = self._layered.doc
        self.errors = self._layered.errors

    def fail(self, path: KeyPath, message: str) -> None:
        file, line, key = self._layered.place(path)
        self.errors.append(PolicyError(file, line, key, message))

    @property
    def sorted_errors(self) -> list[PolicyError]:
        """As a person would meet them: file by file, the lowest first, each from top to bottom."""
        return sorted(self.errors, key=lambda error: (self._order.get(error.file, 0), error.line))

    def table(self, name: str, known: Sequence[str]) -> dict[str, Any]:
        """The table of that name, empty where it is absent or none; a key that is not known is an error."""
        table = self.doc.get(name, {})
        if not isinstance(table, dict):
            self.fail((name,), f"is not a table; write [{name}]")
            return {}
        for key in table:
            if key not in known:
                self.fail((name, key), f"unknown key{hint(key, known)}")
        return table

    def source(self, path: KeyPath) -> str:
        """ "file:line" of a key, or of the nearest thing around it."""
        place = self._layered.place(path)
        return f"{place.file}:{place.line}"

    def line(self, path: KeyPath) -> int:
        return self._layered.place(path).line

    def stands(self, path: KeyPath) -> bool:
        """Whether somebody wrote this key."""
        return self._layered.stands(path)

    def name(self, path: KeyPath, table: Mapping[str, Any]) -> str:
        name = table.get("name")
        if name is None:
            self.fail((*path, "name"), "is missing")
        elif not isinstance(name, str) or NAME.fullmatch(name) is None:
            self.fail((*path, "name"), f"{name!r:.80} is not a name: letters, digits, _ . - (at most 64)")
        else:
            return name
        return ""

    def choice(self, path: KeyPath, value: object, known: Sequence[str]) -> str:
        if isinstance(value, str) and value in known:
            return value
        self.fail(path, f"{value!r:.40} is not one of {', '.join(known)}")
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
