"""Reads a file that a person named, as bytes and as TOML, and finds the line of each key in it."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Return at most `bytes_max + 1` bytes, so that the caller recognises a larger file. Raises OSError.

    Refuses what is not a regular file: a FIFO without a writer would block for ever, and a device has no end.
    """
    # O_NONBLOCK: opening must not wait for a FIFO's writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(bytes_max + 1)


DOTS_MAX: Final = 100  # In one line. No file of settings is nested so deep.
DIGITS_MAX: Final = 300  # The largest double has as many.

_LONG_NUMBER: Final = re.compile(rf"0x[0-9A-Fa-f_]{{{DIGITS_MAX},}}|[0-9][0-9_]{{{DIGITS_MAX},}}")
_TOML_LINE: Final = re.compile(r" \(at (?:line ([0-9]+), column [0-9]+|end of document)\)$")


class NotTomlError(ValueError):
    """The text is no TOML, or such as nobody writes. The message is one line without the place, which is `line`."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def parse(text: str) -> dict[str, Any]:
    """The document. Raises NotTomlError and nothing else, whatever the text is."""
    for at, written in enumerate(text.splitlines(), 1):
        # tomllib needs gigabytes for a key of a hundred thousand parts, which fits into 256 KB.
        if written.count(".") > DOTS_MAX:
            raise NotTomlError(at, f"more than {DOTS_MAX} dots in a line: no key is nested so deep")
        if _LONG_NUMBER.search(written):  # Python refuses integers of more than 4,300 digits.
            raise NotTomlError(at, f"a number of more than {DIGITS_MAX} digits: no limit is so far off")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _TOML_LINE.search(str(error))
        line = int(found.group(1)) if found is not None and found.group(1) else max(1, len(text.splitlines()))
        said = " ".join(_TOML_LINE.sub("", str(error)).split())
        raise NotTomlError(line, f"not TOML: {said}") from None
    except RecursionError:
        raise NotTomlError(1, "brackets in brackets in brackets: no file of settings is nested so deep") from None


# --- the line of each key: tomllib retains no line numbers ----------------------------------------------


KeyPath = tuple[str | int, ...]  # ("rule", 1, "for"): tables by name, elements of [[arrays]] by index.

_HEADER = re.compile(r"\s*(\[\[|\[)\s*(.+?)\s*(\]\]|\])\s*(?:#.*)?")
_KEY_PART = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|$|=)")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the 1-based line of every table header and every `key =` of a *valid* TOML text.

    Keys inside inline tables are not listed: they have the line of the table's own key. Inline tables in an array are
    listed by index, because they often stand on separate lines.
    """
    lines: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}  # Elements seen of each [[array]].
    table: KeyPath = ()
    path: KeyPath = ()
    for number, line, index in _statements(text):
        if index is not None:
            lines.setdefault((*path, index), number)
            continue
        header = _HEADER.fullmatch(line)
        if header is not None:
            is_array = header.group(1) == "[["
            table = _enter(_parts(header.group(2)), is_array, arrays)
            lines.setdefault(table, number)
            if is_array:  # What is wrong with all of its tables is told at the first.
                lines.setdefault(table[:-1], number)
            continue
        path = table
        for part in _parts(line):
            path = (*path, part)
            lines.setdefault(path, number)
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a key, else of its nearest enclosing key, else 1."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def show(path: KeyPath) -> str:
    """Write a key path for a person, counted from 1: rule[1].for."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _enter(parts: list[str], is_array: bool, arrays: dict[KeyPath, int]) -> KeyPath:
    """Resolve a header against the newest elements of the arrays in its path."""
    path: KeyPath = ()
    for depth, part in enumerate(parts):
        path = (*path, part)
        if is_array and depth == len(parts) - 1:
            arrays[path] = arrays.get(path, 0) + 1
        if path in arrays:
            path = (*path, arrays[path] - 1)
    return path


def _parts(text: str) -> list[str]:
    """Split a dotted key. Reading ends at "="."""
    parts = []
    position = 0
    while position < len(text):
        match = _KEY_PART.match(text, position)
        if match is None:
            break
        parts.append(next(group for group in match.groups()[:3] if group is not None))
        position = match.end()
        if match.group(4) != ".":
            break
    return parts


def _statements(text: str) -> Iterator[tuple[int, str, int | None]]:
    """Yield (line, text, None) for headers and assignments, without comments and continued values.

    After an assignment, yield (line, "", index) for each inline table in its value.
    """
    depth = 0  # Open brackets of a value.
    tables = 0  # Inline tables seen in the value.
    quote = ""  # The multi-line quote that is open.
    for number, line in enumerate(text.splitlines(), start=1):
        starts = depth == 0 and not quote
        stripped = line.strip()
        if starts and (not stripped or stripped.startswith("#")):
            continue
        if starts:
            tables = 0
            yield number, line, None
            if stripped.startswith("["):
                continue
        depth, quote, opened = _scan(line, depth, quote)
        for index in range(tables, tables + opened):
            yield number, "", index
        tables += opened


def _scan(line: str, depth: int, quote: str) -> tuple[int, str, int]:
    """Follow brackets and quotes through one line of an assignment. Counts tables that open inside one bracket."""
    position = opened = 0
    while position < len(line):
        if quote:
            if quote[0] == '"' and line[position] == "\\":
                position += 2
            elif line.startswith(quote, position):
                position += len(quote)
                quote = ""
            else:
                position += 1
            continue
        character = line[position]
        if character == "#":
            break
        if character in "\"'":
            quote = character * 3 if line.startswith(character * 3, position) else character
            position += len(quote)
            continue
        opened += character == "{" and depth == 1
        depth += (character in "[{") - (character in "]}")
        position += 1
    # Valid TOML cannot leave a one-line quote open here.
    return depth, quote if len(quote) == 3 else "", opened
