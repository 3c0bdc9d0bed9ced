"""A simulated journal: rows on a disk that is sometimes full, beside the fallback file in the runtime directory."""

from __future__ import annotations

from dataclasses import dataclass, field

Row = tuple[int, object]  # Numbered, so that a restart can tell which of the two is newer.


@dataclass(slots=True)
class Disk:
    """Both outlive the governor. The fallback holds one row only: the newest that the disk would not take."""

    rows: list[Row] = field(default_factory=list)
    fallback: Row | None = None
    _numbered: int = 0

    def append(self, kept: object, *, full: bool) -> None:
        self._numbered += 1
        if full:
            self.fallback = (self._numbered, kept)
        else:
            self.rows.append((self._numbered, kept))

    def newest(self) -> object | None:
        """What a restart takes up; None when nothing was ever written."""
        found = [*self.rows[-1:], *([self.fallback] if self.fallback is not None else [])]
        return max(found, key=lambda row: row[0])[1] if found else None
