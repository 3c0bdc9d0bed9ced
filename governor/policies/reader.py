"""One policy out of several files: what it includes lies beneath it, its drop-ins lie over it.

Tables win key by key. A rule is known by its name: one that names its own condition (`trigger` or `all`) stands in the
place of the one beneath it; any other changes the keys that it gives and leaves the rest. Each value keeps the place
that it came from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from governor.core.base.policy import ALL
from governor.core.rules.triggers.base import Key
from governor.policies.keys import INCLUDE, NAME, PolicyError, hint
from governor.wire.toml_file import KeyPath, key_lines, line_of, show

DOTS_MAX: Final = 100  # In a line. Nobody writes an expression with more.
DIGITS_MAX: Final = 300  # Of a number: as many as the largest double has.

_LONG_NUMBER: Final = re.compile(rf"0x[0-9A-Fa-f_]{{{DIGITS_MAX},}}|[0-9][0-9_]{{{DIGITS_MAX},}}")
_TOML_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class PolicyText(NamedTuple):
    """The texts of one policy. `file` is its own: what it is known by."""

    file: str
    layers: tuple[tuple[str, str], ...]  # (file, text), the lowest first.
    followed: bool = True  # Whether what they include is among them.


def alone(file: str, text: str) -> PolicyText:
    """A text that came from nowhere: it can include nothing."""
    return PolicyText(file, ((file, text),), followed=False)


class Place(NamedTuple):
    file: str
    line: int
    key: str  # As it is written there: rule[2] of one file may be the first rule of the policy.


class Layered:
    """The document that the layers make together, where each key of it stands, and what is no TOML."""

    def __init__(self, policy: PolicyText) -> None:
        self.doc: dict[str, Any] = {}
        self.errors: list[PolicyError] = []
        self._file = policy.file
        # By the first two parts of a path, so that what is overlaid is let go of at once.
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
        """Where a key stands, else the nearest thing around it, else the begin of the policy's own file."""
        for length in range(len(path), 0, -1):
            found = self._places.get(path[: min(length, 2)], {}).get(path[:length])
            if found is not None:
                file, line, own = found
                return Place(file, line, show((*own, *path[length:])))
        return Place(self._file, 1, show(path))

    def stands(self, path: KeyPath) -> bool:
        """Whether this very key is written somewhere; the keys of an inline table are found at the table."""
        return path in self._places.get(path[:2], {})


class _Layer:
    """One file, as it is laid over what is there."""

    def __init__(self, doc: dict[str, Any], places: dict[KeyPath, Any], file: str, text: str) -> None:
        self._doc = doc
        self._places = places
        self._file = file
        self._own: dict[KeyPath, dict[KeyPath, int]] = {}  # This file's lines, by the first two parts.
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
                if (name, 0) in self._own:  # [[name]] has no line of its own: it stands where its first one does.
                    self._places[name,] = {(name,): (self._file, self._own[name, 0][name, 0], (name,))}

    def _rules(self, tables: list[dict[str, Any]]) -> None:
        rules: list[dict[str, Any]] = self._doc.setdefault("rule", [])
        # Two of one name in one file are a mistake, which stays one: only the first finds what lies beneath.
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
        """Everything at and below `own` in this file now stands at `path`; what stood there is gone."""
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
    """Read a text as TOML; what is wrong with it has its line."""
    for at, written in enumerate(text.splitlines(), 1):
        # A key of a hundred thousand parts, in 256 KB, takes tomllib gigabytes.
        if written.count(".") > DOTS_MAX:
            said = f"more than {DOTS_MAX} dots in a line: no policy is nested so deep"
            return {}, PolicyError(file, at, "", said)
        if _LONG_NUMBER.search(written):  # Of more than 4,300 Python neither reads nor writes an integer.
            said = f"a number of more than {DIGITS_MAX} digits: no limit is so far off"
            return {}, PolicyError(file, at, "", said)
    try:
        return tomllib.loads(text), None
    except tomllib.TOMLDecodeError as error:
        found = _TOML_LINE.search(str(error))
        line = int(found.group(1)) if found is not None and found.group(1) else max(1, len(text.splitlines()))
        return {}, PolicyError(file, line, "", f"not TOML: {_TOML_LINE.sub('', str(error))}")
    except RecursionError:
        return {}, PolicyError(file, 1, "", "brackets in brackets in brackets: no policy is nested so deep")


def includes(file: str, text: str) -> tuple[tuple[str, ...], int, PolicyError | None]:
    """The names in a file's `include`, the line that they stand in, and what is wrong with them.

    A text that is no TOML includes nothing: reading the policy says what is wrong with it.
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


# One policy while it is read: its document, where each key stands, and everything that is wrong with it.


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
