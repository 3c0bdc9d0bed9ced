"""The journal: one SQLite file, written by one worker thread, so that no disk can hold up a halt.

Everything written in this session also stays in memory (bounded), so reads work while the disk does not answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from governor.adapters.journal.check import is_corruption
from governor.adapters.journal.db import Database
from governor.adapters.journal.lock import JournalLocked, JournalUnavailable
from governor.adapters.journal.memory import SNAPSHOTS_IN_MEMORY_MAX, Memory
from governor.adapters.journal.retention import halt_of
from governor.adapters.journal.runtime_files import (
    Entry,
    Fallback,
    Mirror,
    charge_entry,
    incident_entry,
    row_entry,
    row_of,
    run_entry,
    snapshot_of,
)
from governor.adapters.journal.salvage import newest_snapshots
from governor.ports import Row

__all__ = ["JournalLocked", "JournalUnavailable", "SqliteJournal", "open_journal"]

COMMIT_BOUND_S = 0.25  # A halt waits no longer. A healthy FULL commit takes under a millisecond.
OPEN_BOUND_S = 10.0  # A cold disk and a check of 100 MB. Then the daemon starts without the file.
SALVAGE_BOUND_S = 60.0  # While rows are read from a damaged file: 350 MB take 15 s.
READ_BOUND_S = 2.0  # Then reports and status use the rows in memory.
LOOK_PERIOD_S = 2.0  # How soon a file that was removed under us is noticed.
RETRY_PERIOD_S = 5.0  # How soon fallback rows move to a disk that has room again.
CHECKPOINT_PERIOD_S = 60.0  # A minute's rows are a tenth of SQLite's own limit of the WAL.
PRUNE_PERIOD_ROWS = 1_000  # Holds the limits within a percent without slowing the writer.
JOBS_QUEUED_MAX = 1_000  # Only behind a stalled disk. Further rows go to the fallback file.
READ_ROWS_MAX = 10_000  # The most that one question returns. A report of one incident has hundreds.


@dataclass(eq=False, slots=True)
class _Job:
    """One job of the worker. `settled` is set once the job is known to have worked or failed."""

    entries: list[Entry]
    full: bool
    read: Callable[[Database], list[Entry]] | None = None
    tell: Callable[[list[Entry]], None] | None = None  # Called by the worker with what was read: nobody waits.
    settled: threading.Event = field(default_factory=threading.Event)
    committed: bool = False
    found: list[Entry] | None = None


def open_journal(path: str, runtime_dir: str) -> tuple[SqliteJournal, str | None]:
    """Return the journal and, if its file has a problem, one line that says what is wrong and what to do.

    With a problem it works on runtime directory and memory, and retries. `JournalLocked`: another governor holds it.
    """
    journal = SqliteJournal(path, runtime_dir)
    if not journal.opened.wait(OPEN_BOUND_S) and not (
        journal.is_salvaging and journal.opened.wait(SALVAGE_BOUND_S - OPEN_BOUND_S)
    ):
        journal.recall()
        return journal, f"{path}: no answer from the disk within {OPEN_BOUND_S:.0f} s; going on without it"
    if journal.locked_by_other is not None:
        journal.close()
        raise journal.locked_by_other
    return journal, journal.problem


class SqliteJournal:
    """`ports.Journal`. Only `open_journal` constructs it."""

    def __init__(self, path: str, runtime_dir: str) -> None:
        self.problem: str | None = None
        self.locked_by_other: JournalLocked | None = None
        self.opened = threading.Event()  # Set when the first attempt to open the file has ended.
        self.is_salvaging = False  # True while rows are read from a damaged file.
        self._path = path
        self._fallback = Fallback(runtime_dir)
        self._mirror = Mirror(runtime_dir, os.path.abspath(path))
        self._errors_total = 0
        self._memory = Memory()
        self._file_seq = 0  # The highest number in the file. The worker sets it.
        self._stalled = False  # A commit missed its bound, and none has succeeded since.
        self._closing = False
        self._metered: Mapping[str, Any] | None = None  # Not written yet.
        self._metered_before: Mapping[str, Any] | None = None  # The last governor's.
        self._loss: str | None = None  # What the worker found of the file, until it is told.
        self._wake = threading.Condition()
        self._jobs: deque[_Job] = deque()
        left_over, _ = self._fallback.read()  # A session left them whose disk did not recover.
        for entry in left_over:
            self._memory.keep(entry)
        self._worker = threading.Thread(target=self._work, name="journal", daemon=True)
        self._worker.start()

    @property
    def errors_total(self) -> int:
        return self._errors_total

    def append(self, rows: Iterable[Row], *, full: bool) -> bool:
        return self._commit([row_entry(self._next_seq(), row) for row in rows], full=full)

    def rows(self, *, incident_id: str | None = None, kind: str | None = None, last: int | None = None) -> list[Row]:
        limit = last if last is not None else READ_ROWS_MAX
        found = self._read(lambda db: db.rows(incident_id, kind, limit))
        return [row_of(entry) for entry in self._memory.rows_over(found, incident_id, kind)[-limit:]] if limit else []

    def save_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        return self._commit_incident(incident_id, snapshot, rows, is_open=True)

    def close_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        return self._commit_incident(incident_id, snapshot, rows, is_open=False)

    def open_incidents(self) -> list[Mapping[str, Any]]:
        merged = self._merged("incidents", lambda db: db.incidents(SNAPSHOTS_IN_MEMORY_MAX, only_open=True))
        return [json.loads(entry["snapshot"]) for entry in merged if entry["open"]]

    def incidents(self, last: int = 100) -> list[Mapping[str, Any]]:
        merged = self._merged("incidents", lambda db: db.incidents(last, only_open=False))
        return [json.loads(entry["snapshot"]) for entry in merged[-last:]] if last else []

    def save_runs(
        self, runs: Mapping[str, Mapping[str, Any]], charges: Sequence[Mapping[str, Any]] = (),
        rows: Iterable[Row] = (), *, full: bool = False,
    ) -> bool:  # fmt: skip
        entries = [row_entry(self._next_seq(), row) for row in rows]
        entries += [charge_entry(self._next_seq(), charge) for charge in charges]
        entries += [run_entry(self._next_seq(), run, snapshot) for run, snapshot in runs.items()]
        return self._commit(entries, full=full)

    def runs(self) -> Mapping[str, Mapping[str, Any]]:
        return {entry["run"]: json.loads(entry["snapshot"]) for entry in self._merged("runs", lambda db: db.runs())}

    def note_metered(self, row: Mapping[str, Any]) -> None:
        with self._wake:  # Behind the commits that it goes on from.
            self._metered = row
            self._wake.notify()

    def metered(self) -> Mapping[str, Any] | None:
        return self._metered_before

    def find_run(self, run: str, tell: Callable[[Mapping[str, Any] | None], None]) -> bool:
        if (known := self._memory.snapshot("runs", run)) is not None:
            tell(snapshot_of([known]))
            return True
        job = _Job([], False, lambda db: db.run(run), lambda found: tell(snapshot_of(found)))
        return not self._stalled and self._enqueue(job)

    def incident_ids(self) -> set[str]:
        kept = [*self._read(lambda db: db.incident_ids()), *self._memory.snapshots("incidents")]
        return {halt_of(str(entry["incident_id"])) for entry in kept}

    def take_loss(self) -> str | None:
        """What was found, and done, when the file had been removed or replaced under us; once. Never waits."""
        loss, self._loss = self._loss, None
        return loss

    def recall(self) -> None:
        """Load runs and halts from the runtime directory, because the file has none."""
        self._memory.keep_newer(self._mirror.read())

    def close(self) -> None:
        """Write what is queued, within the bounds of a commit, and release the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._worker.join(READ_BOUND_S)
        for job in list(self._jobs):
            self._fall_back(job)  # The disk is stuck.
        self._fallback.write_held()

    # --- the caller's side -------------------------------------------------------------------------------

    def _commit_incident(
        self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row], *, is_open: bool
    ) -> bool:
        entries = [row_entry(self._next_seq(), row) for row in rows]
        entries.append(incident_entry(self._next_seq(), incident_id, snapshot, is_open=is_open))
        return self._commit(entries, full=True)

    def _commit(self, entries: list[Entry], *, full: bool) -> bool:
        if not entries:
            return True
        for entry in entries:
            self._memory.keep(entry)
        job = _Job(entries, full)
        # Waiting for a stalled disk would cost the bound for every row of a halt.
        if self._stalled or not self._enqueue(job):
            self._fall_back(job)
            return False
        if not full:
            return True
        if not job.settled.wait(COMMIT_BOUND_S):
            self._stalled = True
            # Include the jobs before this one: a hold is persisted first, and a later row's commit confirms it.
            with self._wake:
                waiting = [one for one in self._jobs if not one.committed]
            for one in waiting:
                self._fall_back(one)  # It may still commit. A second write changes nothing.
        return job.committed

    def _enqueue(self, job: _Job) -> bool:
        with self._wake:
            if self._closing or len(self._jobs) >= JOBS_QUEUED_MAX:
                return False
            self._jobs.append(job)
            self._wake.notify()
        return True

    def _read(self, read: Callable[[Database], list[Entry]]) -> list[Entry]:
        job = _Job([], full=False, read=read)
        if self._stalled or not self._enqueue(job) or not job.settled.wait(READ_BOUND_S):
            return []
        return job.found or []

    def _merged(self, table: str, read: Callable[[Database], list[Entry]]) -> list[Entry]:
        return self._memory.snapshots_over(table, self._read(read))

    def _fall_back(self, job: _Job) -> None:
        if job.entries:
            self._errors_total += 1
            self._fallback.append(job.entries, full=job.full)

    def _next_seq(self) -> int:
        return self._memory.next_seq(self._file_seq)

    # --- the worker's side -------------------------------------------------------------------------------

    def _work(self) -> None:
        database = self._try_open()
        self.opened.set()
        tried_at = time.monotonic()
        unpruned = PRUNE_PERIOD_ROWS  # The first pass prunes: an upgrade may have lowered the limits.
        looked_at = tried_at
        checkpoint_at = tried_at  # And checkpoints: a dead governor may have left a long WAL.
        while True:
            with self._wake:
                if not self._jobs and not self._closing and self._metered is None:
                    self._wake.wait(LOOK_PERIOD_S)
                batch = list(self._jobs)
                metered, self._metered = self._metered, None
                if self._closing and not batch and metered is None:
                    break
            if database is None and time.monotonic() - tried_at >= RETRY_PERIOD_S:
                database = self._try_open()
                tried_at = time.monotonic()
            if database is not None and time.monotonic() - looked_at >= LOOK_PERIOD_S:
                self._loss = database.keep_in_place() or self._loss
                looked_at = time.monotonic()
            database = self._serve(database, batch)
            if database is not None and metered is not None:
                database.lock.note_metered(metered)
            unpruned += sum(len(job.entries) for job in batch)
            if database is not None and unpruned >= PRUNE_PERIOD_ROWS:
                with contextlib.suppress(sqlite3.Error):  # A full disk cannot delete either: later rows try again.
                    database.prune()
                unpruned = 0
            if database is not None and not batch and time.monotonic() >= checkpoint_at:
                with contextlib.suppress(sqlite3.Error):  # SQLite's own checkpoint within a commit replaces it.
                    database.checkpoint()
                checkpoint_at = time.monotonic() + CHECKPOINT_PERIOD_S
        if database is not None:
            database.close()

    def _serve(self, database: Database | None, batch: list[_Job]) -> Database | None:
        """Write the batch in one transaction and answer its reads. Returns the database, or None if it is lost."""
        if database is not None:
            try:
                self._write(database, batch)
                self._move_home(database)
                self.problem = database.notice
            except sqlite3.Error as error:
                self.problem = f"{self._path}: {error}"
                if is_corruption(error):
                    database.close()
                    database = None
        for job in batch:
            if not job.committed:
                self._fall_back(job)
            job.settled.set()
            if job.tell is not None and job.found is not None:
                job.tell(job.found)
        self._mirror.keep(entry for job in batch for entry in job.entries)
        with self._wake:
            for _ in batch:
                self._jobs.popleft()
        return database

    def _write(self, database: Database, batch: list[_Job]) -> None:
        entries = [entry for job in batch for entry in job.entries]
        try:
            if entries:
                # Held charges go into the same commit: a run's spend is the sum of its charges.
                held = self._fallback.held()
                database.write([*held, *entries], full=any(job.full for job in batch))
                self._fallback.let_go(held)
            for job in batch:
                job.committed = True
                if job.read is None:
                    job.settled.set()  # Callers wait only for their own rows.
            self._stalled = False
        finally:
            for job in batch:
                if job.read is not None:  # A disk that takes no writes can still be read.
                    job.found = job.read(database)
                    job.settled.set()

    def _move_home(self, database: Database) -> None:
        """Move the fallback file's rows into the database. Their numbers make a second move harmless."""
        if not self._fallback.is_empty:
            entries, size = self._fallback.read()
            database.write(entries, full=True)
            self._fallback.forget(size)

    def _try_open(self) -> Database | None:
        try:
            database = Database(self._path, known=self._known)
            self._file_seq = database.last_seq()
            self._metered_before = database.lock.metered() or self._metered_before
            kept = [*database.runs()[-SNAPSHOTS_IN_MEMORY_MAX:], *database.incidents(READ_ROWS_MAX, only_open=True)]
        except JournalLocked as error:
            self.problem, self.locked_by_other = str(error), error
            return None
        except (JournalUnavailable, sqlite3.Error, OSError) as error:
            self.problem = str(error)
            # Startup still waits for us. Budgets and halts resume from what can be read.
            if not self.opened.is_set():
                self._memory.keep_newer([*newest_snapshots(self._path), *self._known()])
            return None
        kept = [{"table": "incidents" if "incident_id" in entry else "runs", **entry} for entry in kept]
        if not self.opened.is_set():
            if database.is_new:
                self._mirror.forget()
            kept += self._catch_up(database)
        self._mirror.keep(kept)
        self.problem = database.notice
        return database

    def _catch_up(self, database: Database) -> list[Entry]:
        """Bring a file that lacks its last commits up to the mirror; return the newer entries.

        SQLite finds such a file whole. A torn WAL, or yesterday's copy put in place, causes it.
        """
        newer = database.lacks(self._mirror.read())
        if newer:
            said = (
                f"{self._path}: its last commits are lost; runs and halts go on from the copy in the runtime directory"
            )
            with contextlib.suppress(sqlite3.Error):  # On failure only memory has them.
                taken = database.take_over(newer)
                said += f"; {taken.missing_text()}" if taken.missing_usd_micros else ""
            self._memory.keep_newer(newer)
            database.notice = database.notice or said
        return newer

    def _known(self) -> Sequence[Entry]:
        self.is_salvaging = True
        return self._mirror.read()
