"""What every form of an export has, and what becomes of an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from governor.exports.series import Item


class ExportRefused(Exception):  # noqa: N818 - the condition is the name.
    """Nothing was changed. The message is one line: what is in the way, and what to do."""


@dataclass(frozen=True, slots=True)
class Of:
    """The run that is exported."""

    run: str
    progress: Callable[[int, int], None]  # Called now and then in `finish`: how many items are written, of how many.


@dataclass(frozen=True, slots=True)
class Written:
    """`is_unchanged`: an earlier export of the same contents was left as it is."""

    paths: tuple[str, ...]
    is_unchanged: bool


class Form(Protocol):
    """Takes the items in their order. Nothing is to be seen of them before `finish`."""

    def put(self, item: Item) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> Written:
        """Put what was made in the place of an earlier export of this run."""
