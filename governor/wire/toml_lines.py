"""Where a key stands in a TOML text: tomllib forgets positions, and an error without a line is a search."""

from __future__ import annotations

import re
from collections.abc import Iterator

Path = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, path: Path) -> int | None:
    """Return the 1-based line on which `path` is set, else that of its nearest table; None when neither is written.

    Integers in the path index arrays of tables. Keys inside inline tables answer with the line of the inline table.
    """
    best: tuple[int, int] | None = None
    for line, written in _written(text):
        depth = len(written)
        if depth and written == path[:depth] and (best is None or depth > best[0]):
            best = (depth, line)
    return best[1] if best else None


def _written(text: str) -> Iterator[tuple[int, Path]]:
    table: Path = ()
    counts: dict[Path, int] = {}
    for line, content in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(content)
        if header:
            table = _indexed(_parts(header.group(2)), counts, is_array=header.group(1) == "[[")
            yield line, table
            continue
        key = _KEY.match(content)
        if key:
            yield line, table + _parts(key.group(1))


def _indexed(parts: Path, counts: dict[Path, int], *, is_array: bool) -> Path:
    # A sub-table of an array of tables belongs to the array's newest element.
    resolved: Path = ()
    for part in parts[:-1]:
        resolved += (part,)
        if resolved in counts:
            resolved += (counts[resolved],)
    resolved += parts[-1:]
    if is_array:
        counts[resolved] = counts.get(resolved, -1) + 1
        return (*resolved, counts[resolved])
    return resolved


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
