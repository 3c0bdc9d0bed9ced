"""Reading a file that a person named: what is no file is refused, instead of being waited for or read without end."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Return at most `bytes_max + 1` bytes, so that the caller sees what is larger. Raises OSError.

    A FIFO without a writer would hold up its reader for ever, and a device has no end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # Not to wait for a FIFO's writer.
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(bytes_max + 1)


# Where each key of a TOML text stands: tomllib keeps no line numbers, and an error without one is half an error.


KeyPath = tuple[str | int, ...]  # ("rule", 1, "for"): tables by name, elements of [[arrays]] by index.

_HEADER = re.compile(r"\s*(\[\[|\[)\s*(.+?)\s*(\]\]|\])\s*(?:#.*)?")
_KEY_PART = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|$|=)")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the 1-based line of every table header and every `key =` of a *valid* TOML text.

    Keys inside inline tables are not listed: their line is that of the table's own key. The inline tables of an array
    are, by their index: they often stand on lines of their own.
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
            table = _enter(_parts(header.group(2)), header.group(1) == "[[", arrays)
            lines.setdefault(table, number)
            continue
        path = table
        for part in _parts(line):
            path = (*path, part)
            lines.setdefault(path, number)
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a key, else of the nearest thing around it, else 1."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def show(path: KeyPath) -> str:
    """Write a key path for a person: rule[1].for (counted from 1, as people count)."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _enter(parts: list[str], is_array: bool, arrays: dict[KeyPath, int]) -> KeyPath:
    """Resolve a header against the newest elements of the arrays on its way."""
    path: KeyPath = ()
    for depth, part in enumerate(parts):
        path = (*path, part)
        if is_array and depth == len(parts) - 1:
            arrays[path] = arrays.get(path, 0) + 1
        if path in arrays:
            path = (*path, arrays[path] - 1)
    return path


def _parts(text: str) -> list[str]:
    """Split a dotted key; reading ends at "="."""
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
    """Yield (line, text, None) of headers and assignments, leaving out comments and what continues a value.

    After an assignment, (line, "", index) of each inline table in its value.
    """
    depth = 0  # Open brackets of a value.
    tables = 0  # Inline tables seen in it.
    quote = ""  # The multi-line quote we are inside of.
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
    """Follow brackets and quotes through one line of an assignment; count the tables that open inside one bracket."""
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
    # A one-line quote cannot be open here in valid TOML.
    return depth, quote if len(quote) == 3 else "", opened
