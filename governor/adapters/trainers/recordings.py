"""Records what runs send. The loop puts lines on a bounded queue, and a thread writes them to disk.

The loop never waits for a disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from governor.adapters.trainers.segments import Limits, RunSegments, sweep
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.wire.recording import ReceivedFrame

# The most that waits to be written, of one run and of all; beyond it, lines are dropped. What is being written comes on
# top and is at most as much again, so that the daemon as a whole stays below 64 MiB.
RUN_BYTES_MAX: Final = 2 * 1024 * 1024
ALL_BYTES_MAX: Final = 3 * 1024 * 1024


@dataclass(slots=True)
class Batch:
    """The lines of one run."""

    lines: list[ReceivedFrame | bytes] = field(default_factory=list)
    hellos: dict[ConnectionId, ReceivedFrame] = field(default_factory=dict)  # One for each present connection.
    bytes_held: int = 0
    dropped: int = 0  # Lines dropped after `lines`.
    dropped_at: MonoNs = MonoNs(0)
    begun_at: MonoNs = MonoNs(0)
    is_urgent: bool = False
    has_ended: bool = False


class Pending:
    def __init__(self) -> None:
        # Held for a few assignments, so the loop waits for no disk.
        self._lock = threading.Lock()
        self._batches: dict[str, Batch] = {}
        self._bytes_held = 0

    def hello(self, run: str, line: ReceivedFrame) -> None:
        with self._lock:
            batch = self._batch(run)
            batch.hellos[line.connection] = line
            batch.has_ended = False

    def lost(self, connection: ConnectionId) -> None:
        with self._lock:
            for batch in self._batches.values():
                batch.hellos.pop(connection, None)

    def hellos(self, run: str) -> list[ReceivedFrame]:
        with self._lock:
            return list(self._batch(run).hellos.values())

    def hold(self, run: str, line: ReceivedFrame | bytes, at: MonoNs, size: int) -> bool:
        """Take the line. Returns whether the run's lines should be written soon.

        After a dropped line, every further line is dropped until the batch is written.
        """
        with self._lock:
            batch = self._batch(run)
            is_full = batch.bytes_held + size > RUN_BYTES_MAX or self._bytes_held + size > ALL_BYTES_MAX
            if batch.dropped or is_full:
                if not batch.dropped:
                    batch.dropped_at = at
                batch.dropped += 1
                return True
            if not batch.lines:
                batch.begun_at = at
            batch.lines.append(line)
            batch.bytes_held += size
            self._bytes_held += size
            return batch.bytes_held > RUN_BYTES_MAX // 2

    def hasten(self, run: str) -> None:
        with self._lock:
            self._batch(run).is_urgent = True

    def end(self, run: str) -> None:
        with self._lock:
            self._batch(run).has_ended = True

    def take(self) -> dict[str, Batch]:
        """Take everything held, by run. Hellos of present connections stay, except those of ended runs."""
        with self._lock:
            taken, self._bytes_held = self._batches, 0
            going_on = {run: batch for run, batch in taken.items() if not batch.has_ended}
            self._batches = {run: Batch(hellos=dict(batch.hellos)) for run, batch in going_on.items()}
            return taken

    def _batch(self, run: str) -> Batch:
        batch = self._batches.get(run)
        if batch is None:
            batch = self._batches[run] = Batch()
        return batch


# --- the thread that writes ------------------------------------------------------------------------------

# A kill of the governor may lose this much. A halt is written at once.
FLUSH_PERIOD_S: Final = 5.0
# A batch takes milliseconds. Three flush periods are more than a slow disk.
STUCK_AFTER_NS: Final = 15 * NS_PER_S
# Ages are days. Growth is swept whenever a segment begins.
SWEEP_PERIOD_S: Final = 600.0
CLOSE_BOUND_S: Final = 2.0  # As the journal's: a stuck disk must not hold up our own exit.


class RecordingFiles:
    """`recorder.Recordings` below a directory, one for each run. Disk faults cost lines, which are counted."""

    def __init__(self, root: Path, limits: Limits, facts: Mapping[str, Any]) -> None:
        self.root = root
        self.lost_total = 0  # Lines.
        self.bytes_kept = 0  # Bytes of all recordings, as of the last sweep.
        self._limits = limits
        self._facts = facts
        self._pending = Pending()
        self._runs: dict[str, RunSegments] = {}  # Only the thread uses it.
        self._fault: str | None = None
        self._busy_since_ns: int | None = None
        self._swept_s = -SWEEP_PERIOD_S
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    # --- called by the loop's thread -------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """One line while lines are not written."""
        since_ns = self._busy_since_ns
        if since_ns is not None and time.monotonic_ns() - since_ns > STUCK_AFTER_NS:
            return f"{self.root}: no answer from the disk"
        return self._fault

    def document(self) -> dict[str, Any]:
        """The part of the `status` document."""
        return {
            "directory": str(self.root),
            "bytes": self.bytes_kept,
            "lost_total": self.lost_total,
            "problem": self.problem,
        }

    def hello(self, run: str, line: ReceivedFrame) -> None:
        self._pending.hello(run, line)

    def put(self, run: str, line: ReceivedFrame) -> None:
        self._hold(run, line, line.at, len(line.data))

    def note(self, run: str, at: MonoNs, line: bytes) -> None:
        self._hold(run, line, at, len(line))

    def lost(self, connection: ConnectionId) -> None:
        self._pending.lost(connection)

    def again(self, run: str, at: MonoNs) -> None:
        for hello in self._pending.hellos(run):
            self.put(run, hello._replace(at=at, is_again=True))

    def flush(self, run: str) -> None:
        self._pending.hasten(run)
        self._wake.set()

    def end(self, run: str) -> None:
        self._pending.end(run)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_BOUND_S)

    def _hold(self, run: str, line: ReceivedFrame | bytes, at: MonoNs, size: int) -> None:
        if self._pending.hold(run, line, at, size):
            self._wake.set()
        if self._thread is None:
            self.begin()

    def begin(self) -> None:
        """Start the thread at once, so that old recordings are removed even while no run trains."""
        thread = threading.Thread(target=self._work, name="recordings", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The next line tries again.
            self._fault = f"{self.root}: there is no thread to be had to write it"
            return
        self._thread = thread

    # --- called by the writing thread -----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                self._wake.wait(FLUSH_PERIOD_S)
                self._wake.clear()
                is_last = self._closing
                self._busy_since_ns = time.monotonic_ns()
                self._write_all()
                self._busy_since_ns = None
                if is_last:
                    return
        except BaseException:
            self._fault = f"{self.root}: the thread that writes it has failed"
            raise

    def _write_all(self) -> None:
        taken = self._pending.take()
        fault = None
        for run, batch in taken.items():
            try:
                self._write(run, batch)
            except OSError as error:
                fault = fault or f"{self.root}: {error.strerror or error}"
            if batch.has_ended:
                self._runs.pop(run, None)
        if any(batch.lines for batch in taken.values()):
            self._fault = fault  # Only an attempted write changes the fault.
        if time.monotonic() - self._swept_s >= SWEEP_PERIOD_S:
            self._sweep()

    def _write(self, run: str, batch: Batch) -> None:
        segments = self._runs.get(run)
        if segments is None:
            if not batch.lines:
                return
            segments = self._runs[run] = RunSegments(self.root, run, self._limits, self._facts)
        before = segments.path
        try:
            if batch.lines:
                hellos = list(batch.hellos.values())
                segments.write(batch.lines, hellos, batch.begun_at, durably=batch.is_urgent)
        except OSError:
            self.lost_total += len(batch.lines)
            raise
        finally:
            if batch.dropped:
                self.lost_total += batch.dropped
                segments.lose(batch.dropped, batch.dropped_at)
        if segments.path != before:
            segments.forget_oldest()
            self._sweep()

    def _sweep(self) -> None:
        self._swept_s = time.monotonic()
        live = [segments.path for segments in self._runs.values() if segments.path is not None]
        self.bytes_kept = sweep(self.root, self._limits, live, time.time())
