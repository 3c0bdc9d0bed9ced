"""The charges of a journal, read beside a running governor. The journal's own reader keeps to halts and runs."""

from __future__ import annotations

import glob
import json
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from governor.adapters.sqlite_errors import is_corruption
from governor.core.charges import Charge, charge_of

JOURNAL_NAME: Final = "costgov.db"
JOURNALS_MAX: Final = 1_000  # One for each `costgov run` that ever had a name of its own; newest first.
# Each page is a transaction of its own: a reader that is slow to print must not keep the governor's WAL from shrinking.
PAGE_ROWS: Final = 5_000  # Half a year of one run.

_HAS_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'charges'"
# In the order of time. A charge that grows keeps its name and its beginning, so no page holds it twice.
_PAGE: Final = """
SELECT charge_id, from_wall_ns, data FROM charges
WHERE from_wall_ns < :until AND (to_wall_ns > :since OR from_wall_ns >= :since)
AND (from_wall_ns, charge_id) > (:after_wall, :after_id)
ORDER BY from_wall_ns, charge_id LIMIT :rows"""
_WALL_MIN: Final = -(2**63)
_WALL_MAX: Final = 2**63 - 1


class ChargesUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which file, what is wrong, what to do."""

    @classmethod
    def of(cls, path: str, error: sqlite3.Error) -> ChargesUnreadable:
        if is_corruption(error):
            what = "the governor keeps it aside at its next start and takes over what can still be read"
            return cls(f"{path}: corrupt ({error}); {what}")
        return cls(f"{path}: cannot be read: {error}; read it as the governor's user or root")

    @classmethod
    def of_charge(cls, path: str, error: Exception) -> ChargesUnreadable:
        what = f"{type(error).__name__}: {error}"
        return cls(f"{path}: a charge in it is not one of ours ({what}); a newer costgov wrote it?")


def journal_paths(state_dir: Path) -> list[str]:
    """The journals below a state directory, the one written last first."""
    beside = glob.glob(f"{glob.escape(str(state_dir))}/runs/*/{JOURNAL_NAME}")
    found: list[tuple[float, str]] = []
    for path in (str(state_dir / JOURNAL_NAME), *beside):
        try:
            found.append((os.stat(path).st_mtime, path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ChargesUnreadable(f"{path}: {error.strerror}; read it as the governor's user or root") from error
    return [path for _, path in sorted(found, reverse=True)[:JOURNALS_MAX]]


def read_charges(path: str, since: int | None = None, until: int | None = None) -> Iterator[Charge]:
    """Yield the charges that touch [since, until) of wall time, uncut, in the order of their beginnings.

    None in a journal of a version without charges. Raises `ChargesUnreadable`.
    """
    try:
        # A closing() at each level: a generator that is left early must not leave the file open.
        with closing(opened(path)) as connection:
            if has_charges(connection):
                for _, _, data in _rows(connection, window_of(since, until)):
                    yield charge_in(path, data)
    except sqlite3.Error as error:
        raise ChargesUnreadable.of(path, error) from error


def opened(path: str) -> sqlite3.Connection:
    """A connection that changes nothing. Raises sqlite3.Error."""
    uri = f"file:{urllib.parse.quote(path)}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)


def has_charges(connection: sqlite3.Connection) -> bool:
    return connection.execute(_HAS_TABLE).fetchone() is not None


def window_of(since: int | None, until: int | None) -> dict[str, int]:
    """The bounds as parameters of a query; None is no bound."""
    return {"since": _WALL_MIN if since is None else since, "until": _WALL_MAX if until is None else until}


def _rows(connection: sqlite3.Connection, window: Mapping[str, int]) -> Iterator[tuple[str, int, str]]:
    after_wall, after_id = _WALL_MIN, ""
    while True:
        place = {"after_wall": after_wall, "after_id": after_id, "rows": PAGE_ROWS}
        page = connection.execute(_PAGE, {**window, **place}).fetchall()
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after_id, after_wall = page[-1][0], page[-1][1]


def charge_in(path: str, data: str | bytes) -> Charge:
    """The charge of a row. Raises `ChargesUnreadable`."""
    try:
        return charge_of(json.loads(data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ChargesUnreadable.of_charge(path, error) from None
