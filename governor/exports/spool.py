"""The items of an export on disk, for forms whose tool is slow. The same items as last time are then no work."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from typing import IO, Final

from governor.exports.series import Causes, Gpu, Happened, Item, Phase, Point

_KINDS: Final = {kind.__name__: kind for kind in (Causes, Gpu, Happened, Phase, Point)}


class Spool:
    """Written in one go, then read as often as one likes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.count = 0
        self._file = file
        self._hash = hashlib.sha256()

    def put(self, item: Item) -> None:
        line = json.dumps([type(item).__name__, *astuple(item)], separators=(",", ":")).encode() + b"\n"
        self._hash.update(line)
        self._file.write(line)
        self.count += 1

    def digest(self) -> str:
        return self._hash.hexdigest()

    def items(self) -> Iterator[Item]:
        self._file.seek(0)
        for line in self._file:
            kind, *fields = json.loads(line)
            yield _KINDS[kind](*fields)


@contextmanager
def spool() -> Iterator[Spool]:
    with tempfile.TemporaryFile(prefix="costgov-export-") as file:
        yield Spool(file)
