"""One policy out of several files: its includes are the lower layers, its drop-ins the upper ones.

Tables merge key by key. Rules merge by name. A rule that names its own condition (`trigger` or `all`) replaces the rule
beneath it. Any other rule changes only the keys that it gives. Each value keeps the place where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from governor.core.base.policy import ALL
from governor.core.rules.trigger import Key
from governor.policies.keys import INCLUDE, NAME, PolicyError, hint
from governor.wire.toml_file import KeyPath, NotTomlError, key_lines, line_of, show
from governor.wire.toml_file import parse as parse_toml


class PolicyText(NamedTuple):
    """The texts of one policy. `file` is its own file, which identifies it."""

    file: str
    layers: tuple[tuple[str, str], ...]  # (file, text), lowest first.
    followed: bool = True  # Whether the layers contain the includes.


def alone(file: str, text: str) -> PolicyText:
    """A text without a directory. It can include nothing."""
    return PolicyText(file, ((file, text),), followed=False)


class Place(NamedTuple):
    file: str
    line: int
    # In that file. Its rule[2] may be the first rule of the policy.
    path: KeyPath


class Layered:
    """The merged document of all layers, the place of each key, and the TOML errors."""

    def __init__(self, policy: PolicyText) -> None:
        self.doc: dict[str, Any] = {}
        self.errors: list[PolicyError] = []
        self._file = policy.file
        # Grouped by the first two parts of a path, so that a replaced entry is dropped as a whole.
        self._places: dict[KeyPath, dict[KeyPath, tuple[str, int, KeyPath]]] = {}
        for file, text in policy.layers:
            parsed, error = parse(file, text)
            if error is not None:
                self.errors.append(error)
                continue
            if not policy.followed and INCLUDE in parsed:
                line = line_of(key_lines(text), (INCLUDE,))
                self.errors.append(PolicyError(file, line, INCLUDE, "cannot be followed: this text has no directory"))
            _Layer(self.doc, self._places, file, text).lay(parsed)

    def place(self, path: KeyPath) -> Place:
        """The place of a key, else of its nearest parent, else the start of the policy's own file."""
        for length in range(len(path), 0, -1):
            found = self._places.get(path[: min(length, 2)], {}).get(path[:length])
            if found is not None:
                file, line, own = found
                return Place(file, line, (*own, *path[length:]))
        return Place(self._file, 1, path)

    def stands(self, path: KeyPath) -> bool:
        """Whether this exact key is written. Keys of an inline table count at the table."""
        return path in self._places.get(path[:2], {})


class _Layer:
    """One file while it is merged into the layers beneath it."""

    def __init__(self, doc: dict[str, Any], places: dict[KeyPath, Any], file: str, text: str) -> None:
        self._doc = doc
        self._places = places
        self._file = file
        self._own: dict[KeyPath, dict[KeyPath, int]] = {}  # This file's lines, by the first two parts of the path.
        for path, line in key_lines(text).items():
            self._own.setdefault(path[:2], {})[path] = line
        self._groups: dict[str, list[KeyPath]] = {}
        for own in self._own:
            self._groups.setdefault(str(own[0]), []).append(own)

    def lay(self, parsed: Mapping[str, Any]) -> None:
        for name, value in parsed.items():
            beneath = self._doc.get(name)
            if name == "rule" and _are_tables(value) and (beneath is None or _are_tables(beneath)):
                self._put((name,), (name,))
                self._rules(value)
            elif isinstance(value, dict) and (beneath is None or isinstance(beneath, dict)):
                self._put((name,), (name,))
                self._doc.setdefault(name, {}).update(value)
                for key in value:
                    self._put((name, key), (name, key))
            elif name != INCLUDE:
                self._doc[name] = value
                for own in self._groups.get(name, ()):
                    self._put(own, own)
                # [[name]] has no line of its own. It gets the line of its first table.
                if (name, 0) in self._own:
                    self._places[name,] = {(name,): (self._file, self._own[name, 0][name, 0], (name,))}

    def _rules(self, tables: list[dict[str, Any]]) -> None:
        rules: list[dict[str, Any]] = self._doc.setdefault("rule", [])
        # Two rules of one name in one file are an error. Only the first merges with the rule beneath.
        known = {rule["name"]: index for index, rule in enumerate(rules) if isinstance(rule.get("name"), str)}
        for index, table in enumerate(tables):
            name = table.get("name")
            under = known.pop(name, None) if isinstance(name, str) else None
            own: KeyPath = ("rule", index)
            if under is None:
                rules.append(table)
                self._put(own, ("rule", len(rules) - 1))
            elif "trigger" in table or ALL in table:
                rules[under] = table
                self._put(own, ("rule", under))
            else:
                rules[under] = {**rules[under], **table}
                self._put_keys(own, ("rule", under), table)

    def _put(self, own: KeyPath, path: KeyPath) -> None:
        """Everything at and below `own` in this file now has the place `path`. The previous places are dropped."""
        depth = len(own)
        lines = self._own.get(own, {})
        self._places[path] = {
            (*path, *inner[depth:]): (self._file, line, inner) for inner, line in lines.items()
        }  # fmt: skip

    def _put_keys(self, own: KeyPath, path: KeyPath, keys: Mapping[str, Any]) -> None:
        depth = len(own)
        kept = {at: place for at, place in self._places[path].items() if len(at) == depth or at[depth] not in keys}
        for inner, line in self._own.get(own, {}).items():
            if len(inner) > depth:
                kept[*path, *inner[depth:]] = (self._file, line, inner)
        self._places[path] = kept


def parse(file: str, text: str) -> tuple[dict[str, Any], PolicyError | None]:
    """Parse a text as TOML. An error has its line."""
    try:
        return parse_toml(text), None
    except NotTomlError as error:
        return {}, PolicyError(file, error.line, "", str(error))


def includes(file: str, text: str) -> tuple[tuple[str, ...], int, PolicyError | None]:
    """The names in a file's `include`, their line, and the error in them.

    A text that is not TOML includes nothing. Reading the policy reports its error.
    """
    parsed, _ = parse(file, text)
    if INCLUDE not in parsed:
        return (), 1, None
    names = parsed[INCLUDE]
    line = line_of(key_lines(text), (INCLUDE,))
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        return (), line, PolicyError(file, line, INCLUDE, 'is not a list of files; write include = ["base/llm.toml"]')
    return tuple(names), line, None


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


# One policy while it is read: its document, the place of each key, and its errors.


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
        file, line, own = self._layered.place(path)
        self.errors.append(PolicyError(file, line, show(own), message))

    @property
    def sorted_errors(self) -> list[PolicyError]:
        """File by file, the lowest layer first, each from top to bottom."""
        return sorted(self.errors, key=lambda error: (self._order.get(error.file, 0), error.line))

    def table(self, name: str, known: Sequence[str]) -> dict[str, Any]:
        """The table of that name, empty when it is absent or not a table. An unknown key is an error."""
        table = self.doc.get(name, {})
        if not isinstance(table, dict):
            self.fail((name,), f"is not a table; write [{name}]")
            return {}
        for key in table:
            if key not in known:
                self.fail((name, key), f"unknown key{hint(key, known)}")
        return table

    def source(self, path: KeyPath) -> str:
        """ "file:line" of a key, or of its nearest parent."""
        place = self._layered.place(path)
        return f"{place.file}:{place.line}"

    def line(self, path: KeyPath) -> int:
        return self._layered.place(path).line

    def stands(self, path: KeyPath) -> bool:
        """Whether this key is written in some file."""
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
        """A table of labels, each with its accepted values."""
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
