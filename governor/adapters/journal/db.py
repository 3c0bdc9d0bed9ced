"""The journal's SQLite file: schema, migration, replacement of a damaged file, retention.

One thread at a time uses it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from typing import Any

from governor.adapters.journal.check import (
    SCHEMA_VERSION,
    check,
    corrupt,
    irregular,
    is_corruption,
    is_whole,
    open_read_only,
)
from governor.adapters.journal.file_set import (
    SUFFIXES,
    WAL_BYTES_MAX,
    lay_out_wal,
    put_aside,
    put_in_place,
    remove,
    room_lacking,
    seen,
    why_cut,
    why_lost,
)
from governor.adapters.journal.lock import JournalLock, JournalUnavailable
from governor.adapters.journal.retention import IncidentRows, Limits, prune
from governor.adapters.journal.runtime_files import Entry
from governor.adapters.journal.salvage import Taken, salvage, take_over

FILE_MODE = 0o640  # The group costgov reads history without the daemon; other users may not.

_MIGRATIONS = {
    0: """
    CREATE TABLE journal (
      seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, run TEXT, incident_id TEXT,
      mono_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL, boot_id TEXT NOT NULL, data TEXT NOT NULL
    );
    CREATE INDEX journal_by_incident ON journal (incident_id, seq) WHERE incident_id IS NOT NULL;
    CREATE INDEX journal_by_kind ON journal (kind, seq);
    CREATE TABLE incidents (
      incident_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, first_seq INTEGER NOT NULL, open INTEGER NOT NULL,
      snapshot TEXT NOT NULL
    );
    CREATE TABLE runs (run TEXT PRIMARY KEY, seq INTEGER NOT NULL, snapshot TEXT NOT NULL);
    """,
    1: """
    CREATE TABLE charges (
      charge_id TEXT PRIMARY KEY, seq INTEGER NOT NULL, run TEXT NOT NULL, from_wall_ns INTEGER NOT NULL,
      to_wall_ns INTEGER NOT NULL, usd_micros INTEGER NOT NULL, data TEXT NOT NULL
    );
    CREATE INDEX charges_by_time ON charges (from_wall_ns);
    """,
}
# A row is identified by its seq, a snapshot by its name and seq. Writing either twice changes nothing.
_INSERT = {
    "journal": """
    INSERT INTO journal (seq, kind, run, incident_id, mono_ns, wall_ns, boot_id, data)
    VALUES (:seq, :kind, :run, :incident_id, :mono_ns, :wall_ns, :boot_id, :data) ON CONFLICT DO NOTHING""",
    "incidents": """
    INSERT INTO incidents (incident_id, seq, first_seq, open, snapshot)
    VALUES (:incident_id, :seq, :seq, :open, :snapshot)
    ON CONFLICT (incident_id) DO UPDATE SET seq = :seq, open = :open, snapshot = :snapshot WHERE :seq > seq""",
    "runs": """
    INSERT INTO runs (run, seq, snapshot) VALUES (:run, :seq, :snapshot)
    ON CONFLICT (run) DO UPDATE SET seq = :seq, snapshot = :snapshot WHERE :seq > seq""",
    "charges": """
    INSERT INTO charges (charge_id, seq, run, from_wall_ns, to_wall_ns, usd_micros, data)
    VALUES (:charge_id, :seq, :run, :from_wall_ns, :to_wall_ns, :usd_micros, :data)
    ON CONFLICT (charge_id) DO UPDATE SET seq = :seq, run = :run, to_wall_ns = :to_wall_ns, usd_micros = :usd_micros,
      data = :data WHERE :seq > seq""",
}

# In the form of a salvaged run: see core/engine/resume.py. Nothing if there is no charge.
_RUN_OF_CHARGES = """
SELECT run, max(seq) AS seq, json_object('run', run, 'salvaged', json('true'), 'spend_usd_micros', sum(usd_micros))
  AS snapshot FROM charges WHERE run = :run GROUP BY run"""
# Not part of the schema: an older costgov opens the file too. It covers the sum of one run's charges.
_INDEX = "CREATE INDEX IF NOT EXISTS charges_by_run ON charges (run, usd_micros, seq)"
_SEQ_OF = {
    "runs": "SELECT seq FROM runs WHERE run = :run",
    "incidents": "SELECT seq FROM incidents WHERE incident_id = :incident_id",
}
_LAST_SEQ = """
SELECT max(coalesce((SELECT max(seq) FROM journal), 0), coalesce((SELECT max(seq) FROM incidents), 0),
           coalesce((SELECT max(seq) FROM runs), 0))"""  # Charges are numbered before the runs of their commit.


class JournalReader:
    """Reads a journal file, also beside a running governor. Raises sqlite3.Error."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection = self._open()

    def rows(self, incident_id: str | None, kind: str | None, last: int) -> list[Entry]:
        return self._select(
            "SELECT * FROM (SELECT * FROM journal WHERE (:i IS NULL OR incident_id = :i) AND (:k IS NULL OR kind = :k)"
            " ORDER BY seq DESC LIMIT :n) ORDER BY seq",
            {"i": incident_id, "k": kind, "n": last},
        )

    def rows_of(self, run: str, kind: str, last: int) -> list[Entry]:
        """The last rows of one kind that a run has, in their order."""
        return self._select(
            "SELECT * FROM (SELECT * FROM journal WHERE run = :run AND kind = :kind ORDER BY seq DESC LIMIT :n)"
            " ORDER BY seq",
            {"run": run, "kind": kind, "n": last},
        )

    def incidents(self, last: int, *, only_open: bool) -> list[Entry]:
        return self._select(
            "SELECT * FROM (SELECT * FROM incidents WHERE open OR NOT :o ORDER BY first_seq DESC LIMIT :n)"
            " ORDER BY first_seq",
            {"o": only_open, "n": last},
        )

    def runs(self) -> list[Entry]:
        return self._select("SELECT * FROM runs ORDER BY seq", {})

    def incident_ids(self) -> list[Entry]:
        return self._select("SELECT incident_id FROM incidents", {})

    def run(self, name: str) -> list[Entry]:
        """What there is of one run: its row, or what its charges add up to if retention has taken the row."""
        found = self._select("SELECT * FROM runs WHERE run = :run", {"run": name})
        return found or self._select(_RUN_OF_CHARGES, {"run": name})

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _select(self, query: str, parameters: dict[str, Any]) -> list[Entry]:
        return [dict(row) for row in self._connection.execute(query, parameters)]

    def _open(self) -> sqlite3.Connection:
        connection = open_read_only(self.path)
        connection.row_factory = sqlite3.Row
        return connection


class Database(JournalReader):
    """An open journal file. Raises `JournalUnavailable` if the file cannot be opened, sqlite3.Error afterwards."""

    def __init__(
        self, path: str, limits: Limits | None = None, known: Callable[[], Sequence[Entry]] = lambda: ()
    ) -> None:
        """`known` returns what other sources have of the journal; it is used only if the file is damaged."""
        self._limits = limits or Limits()
        self._known = known
        self._incident_rows = IncidentRows()
        self.notice: str | None = None  # One line if a corrupt file was replaced by a fresh one.
        self._found: os.stat_result | None = None
        self._wal: os.stat_result | None = None
        self.lock = JournalLock(path)
        self.is_new = not os.path.lexists(path)  # Never written, or removed.
        try:
            super().__init__(path)
        except BaseException:
            self.lock.close()
            raise
        self._note_files()

    def keep_in_place(self) -> str | None:
        """Write the file anew if it or its WAL was removed or replaced. Returns what was found and done; None: nothing.

        SQLite goes on writing to a file without a name, which is gone when the governor ends. If no other can be
        written, that file stays in use.
        """
        lost = why_lost(self.path, self._found) if self._found is not None else None
        if lost is None and self._wal is not None:
            lost = why_lost(self.path + "-wal", self._wal)
        if lost is None:
            cut, self._found = why_cut(self.path, self._found)
            return cut or self.lock.keep()
        try:
            self.notice = f"{lost}; it is written anew from the open file, complete{self._renew()}"
        except (JournalUnavailable, sqlite3.Error, OSError) as error:
            self.notice = f"{lost}, and cannot be written anew: {error}; tried again until the governor ends"
        return self.notice

    def _renew(self) -> str:
        """Copy the open file to its path and go on there. Returns where a file that had its place is kept now."""
        self.lock.keep_with_directory()
        fresh = self.path + ".new"
        remove(fresh)
        aside = ""
        try:
            _make(fresh)
            with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as copy:
                self._connection.backup(copy)
            found = seen(self.path)
            if found is not None and not (self._found is not None and os.path.samestat(found, self._found)):
                wal = seen(self.path + "-wal")
                own_wal = wal is not None and self._wal is not None and os.path.samestat(wal, self._wal)
                aside = put_aside(self.path, "replaced", SUFFIXES[-1:] if own_wal else SUFFIXES)
            put_in_place(self.path, fresh)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(fresh)
            raise
        renewed = _connect(self.path)
        self._connection.close()  # SQLite removes the WAL by name only if the file still has its own.
        self._connection = renewed
        self._note_files()
        return f"; what had its place is kept as {aside}" if aside else ""

    def _note_files(self) -> None:
        self._found, self._wal = seen(self.path), seen(self.path + "-wal")

    def write(self, entries: Sequence[Entry], *, full: bool) -> None:
        """Commit the entries in one transaction; `full`: they are on disk on return. Known entries change nothing."""
        connection = self._connection
        connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for entry in entries:
                connection.execute(_INSERT[entry["table"]], self._incident_rows.placed(connection, entry))
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def take_over(self, entries: Sequence[Entry]) -> Taken:
        """Commit the entries to a file that lost its last commits. Charges that are missing are reconstructed."""
        return take_over(entries, self._connection, _INSERT)

    def checkpoint(self) -> None:
        """Copy the WAL's pages into the file and restart the WAL.

        It is slow, so it must not fall to the commit that fills the WAL, which may be a halt's. The first write into a
        restarted WAL syncs its header. Setting `user_version` to its present value is that write.
        """
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def prune(self) -> None:
        """Delete what is beyond the limits."""
        prune(self._connection, self._limits)

    def last_seq(self) -> int:
        """Return the highest number in use. Rows written later must sort after it."""
        return int(self._connection.execute(_LAST_SEQ).fetchone()[0])

    def lacks(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries (runs and incidents) that are newer than the file's own."""
        return [entry for entry in entries if entry["seq"] > self._seq_of(entry)]

    def _seq_of(self, entry: Entry) -> int:
        found = self._connection.execute(_SEQ_OF[entry["table"]], entry).fetchone()
        return 0 if found is None else int(found[0])

    def close(self) -> None:
        super().close()
        self.lock.close()

    def _open(self) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except sqlite3.Error as error:
            # Only opening has happened so far, so SQLITE_ERROR is also about the file's contents.
            if not is_corruption(error) and getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_ERROR:
                return self._open_alone(error)
        try:
            self.notice = _begin_anew(self.path, self._known())
            return _connect(self.path)
        except sqlite3.Error as error:
            raise JournalUnavailable(f"{self.path}: {error}") from error
        except OSError as error:
            raise JournalUnavailable(
                f"{self.path}: corrupt, and no fresh one can be begun: {error.strerror}"
            ) from error

    def _open_alone(self, reason: sqlite3.Error) -> sqlite3.Connection:
        # A full disk has no room for the 32 KiB index that readers share, but it still has our history. An exclusive
        # connection needs no such index, and the lock above shows that we are alone.
        try:
            return _connect(self.path, exclusive=True)
        except sqlite3.Error:
            raise JournalUnavailable(f"{self.path}: {reason}; free the disk or make it writable for us") from reason


def _connect(path: str, *, exclusive: bool = False) -> sqlite3.Connection:
    _make(path)
    beside = irregular(path)
    if beside is not None:  # SQLite would wait there for ever, and this thread with it.
        raise JournalUnavailable(f"{path}{beside}: is no file; move it away")
    is_checked = not exclusive and is_whole(path)
    # One worker thread uses it at a time. The thread that opens it is not always the one that closes it.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    try:
        connection.row_factory = sqlite3.Row
        if exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        if not is_checked:
            check(connection)
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    if not exclusive:
        lay_out_wal(path + "-wal")
    return connection


def _make(path: str) -> None:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with contextlib.suppress(FileExistsError):
            # The file holds paths and command lines. SQLite gives its WAL and index the mode of this file.
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE))
            return
        fd = os.open(path, flags)
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
    except IsADirectoryError as error:
        raise JournalUnavailable(f"{path}: is no file; move it away") from error
    except OSError as error:
        raise JournalUnavailable(f"{path}: {error.strerror}; make it writable for us") from error
    if not stat.S_ISREG(found.st_mode):
        raise JournalUnavailable(f"{path}: is no file; move it away")
    # SQLite would treat an empty file as a new one. We write the header when we create it, so something has emptied it.
    if found.st_size == 0:
        raise corrupt("the file is empty")


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > SCHEMA_VERSION:
        text = f"written by a newer costgov (schema {found}, we know {SCHEMA_VERSION})"
        raise JournalUnavailable(f"{path}: {text}; install that one, or move the file away")
    for version in range(found, SCHEMA_VERSION):
        connection.executescript(f"BEGIN; {_MIGRATIONS[version]} PRAGMA user_version = {version + 1}; COMMIT;")
    with contextlib.suppress(sqlite3.OperationalError):  # A full disk has no room for it. Without it, sums are slower.
        connection.execute(_INDEX)
    tables = {name for (name, *_) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables >= _INSERT.keys():
        raise corrupt("its tables are gone")


def _begin_anew(path: str, known: Sequence[Entry]) -> str:
    """Replace the damaged file by a fresh one with what can still be read. Returns the notice.

    The damaged file is retained under another name. It stays in place until the fresh one is whole, so an interrupted
    attempt starts over. Raises `JournalUnavailable`, sqlite3.Error and OSError.
    """
    fresh = path + ".new"
    remove(fresh)  # An interrupted attempt may have left it, and it takes room.
    needed = room_lacking(path)
    if needed:
        text = f"corrupt, and no room for what can still be read of it: free {needed / 1e6:.0f} MB"
        raise JournalUnavailable(f"{path}: {text}")
    try:
        with contextlib.closing(_connect(fresh)) as connection:  # Closing removes the WAL.
            taken = salvage(path, connection, _INSERT, known)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except BaseException:
        remove(fresh)
        raise
    aside = put_aside(path, "corrupt")
    put_in_place(path, fresh)
    return f"{path}: corrupt; kept as {aside}, a fresh journal is begun: {taken.text()}"
