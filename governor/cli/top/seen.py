"""What `costgov top` knows of one moment and over many, and which run is selected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Snapshot = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One run, and the governor that watches it: what acts on the run is sent there and nowhere else."""

    path: str
    governor: Snapshot
    run: Snapshot

    @property
    def name(self) -> str:
        return str(self.run["run"])

    @property
    def key(self) -> tuple[str, str]:
        """The same run in a later answer. Two governors may each have one of this name."""
        return (self.path, self.name)


@dataclass(frozen=True, slots=True)
class Seen:
    """One reading. Without governors `problem` says why, and `code` is the answer's."""

    governors: tuple[Snapshot, ...] = ()
    rows: tuple[Row, ...] = ()
    problem: str = ""
    code: str = ""
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class Watched:
    """What is shown over many readings: the last answered one, since when nobody answers, and the selected run."""

    seen: Seen = field(default_factory=Seen)
    silent_since_s: float | None = None
    selected: tuple[str, str] | None = None

    def take(self, seen: Seen, now_s: float) -> None:
        """The figures of before stay where nobody answers: they are told as that."""
        if not seen.governors:
            self.silent_since_s = self.silent_since_s if self.silent_since_s is not None else now_s
            return
        self.seen, self.silent_since_s = seen, None
        if self.row is None:
            self.selected = seen.rows[0].key if seen.rows else None

    @property
    def place(self) -> int:
        return next((place for place, row in enumerate(self.seen.rows) if row.key == self.selected), 0)

    @property
    def row(self) -> Row | None:
        return next((row for row in self.seen.rows if row.key == self.selected), None)

    def move(self, by: int) -> None:
        rows = self.seen.rows
        if rows:
            self.selected = rows[min(max(self.place + by, 0), len(rows) - 1)].key
