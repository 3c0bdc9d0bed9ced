"""What an error of SQLite's says about the file."""

from __future__ import annotations

import sqlite3


def is_corruption(error: sqlite3.Error) -> bool:
    """The file is damaged, or no database at all; not merely full, locked or forbidden."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
