"""Opening the journal's file for reading, telling damage from other errors, and checking the whole file.

The check is SQLite's own, plus what a start reads of the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import urllib.parse
from contextlib import closing
from typing import Final

SCHEMA_VERSION: Final = 2
_NOT_REGULAR: Final = "not a regular file"
_BESIDE: Final = ("-wal", "-shm", "-journal")  # What SQLite opens of its own accord beside the file.
# SQLite's check does not notice a renamed column.
_SHAPE: Final = (
    "SELECT seq, kind, run, incident_id, mono_ns, wall_ns, boot_id, data FROM journal LIMIT 0",
    "SELECT incident_id, seq, first_seq, open, snapshot FROM incidents LIMIT 0",
    "SELECT run, seq, snapshot FROM runs LIMIT 0",
    "SELECT charge_id, seq, run, from_wall_ns, to_wall_ns, usd_micros, data FROM charges LIMIT 0",
)
# As bytes: text that is not UTF-8 would fail the query.
_RESUMED: Final = """
SELECT CAST(run AS BLOB), CAST(snapshot AS BLOB) FROM runs
UNION ALL SELECT CAST(incident_id AS BLOB), CAST(snapshot AS BLOB) FROM incidents WHERE open"""


def open_read_only(path: str) -> sqlite3.Connection:
    """A connection that changes nothing. Each query is its own transaction. Raises sqlite3.Error."""
    name = irregular(path)
    if name is not None:
        raise sqlite3.OperationalError(f"{name} beside it: {_NOT_REGULAR}" if name else _NOT_REGULAR)
    uri = f"file:{urllib.parse.quote(path)}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)


def irregular(path: str) -> str | None:
    """What SQLite would wait for, as it opens the file: "" for that itself, or the end of the name of one beside it.

    It looks beside the file that a link leads to. What it says of by itself, as a directory, is none of these.
    """
    whole = os.path.realpath(path)
    for name in ("", *_BESIDE):
        with contextlib.suppress(OSError):
            mode = os.stat(whole + name).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # To open a FIFO waits for its writer.
                return name
    return None


def is_corruption(error: sqlite3.Error) -> bool:
    """True if the file is damaged or no database; False if it is merely full, locked or forbidden."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_whole(path: str) -> bool:
    """Whether the file passes the check read-only. False also if that cannot be decided without writing.

    A writer moves the WAL into the file when it closes, even into a damaged file whose WAL is the better half. Raises
    sqlite3.Error for a damaged file.
    """
    try:
        with closing(open_read_only(path)) as connection:
            check(connection)
    except sqlite3.Error as error:
        if is_corruption(error):
            raise
        return False
    return True


def check(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error for what is damaged."""
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    # SQLite's message would hold the damaged names.
    except UnicodeDecodeError:
        raise corrupt("its schema cannot be read") from None
    if verdict != "ok":
        raise corrupt(str(verdict))
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 0 < version <= SCHEMA_VERSION:
        return
    for query in _SHAPE if version == SCHEMA_VERSION else ():
        connection.execute(query)
    # SQLite has no checksums of a page's contents. One wrong byte here would stop every start, or a halt's resumption.
    for name, snapshot in connection.execute(_RESUMED):
        try:
            name.decode()
            is_read = isinstance(json.loads(snapshot), dict)
        except ValueError:
            is_read = False
        if not is_read:
            raise corrupt(f"what it has of {name.decode(errors='replace')!r} cannot be read")


def corrupt(verdict: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(verdict)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
