"""Lines on their way to a recording, between the loop that hears them and the thread that writes them; bounded."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs
from governor.wire.recording import Heard

# Not yet taken to be written, of one run and of all. Above it lines are dropped. What is being written comes on top, at
# most as much again: the daemon as a whole is to stay below 64 MiB.
RUN_BYTES_MAX: Final = 2 * 1024 * 1024
ALL_BYTES_MAX: Final = 3 * 1024 * 1024


@dataclass(slots=True)
class Batch:
    """Of one run."""

    lines: list[Heard | bytes] = field(default_factory=list)
    hellos: dict[ConnectionId, Heard] = field(default_factory=dict)  # Of who is connected now.
    bytes_held: int = 0
    dropped: int = 0  # Behind `lines`.
    dropped_at: MonoNs = MonoNs(0)
    begun_at: MonoNs = MonoNs(0)
    is_urgent: bool = False
    has_ended: bool = False


class Pending:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # Held for a few assignments: the loop waits for no disk here.
        self._batches: dict[str, Batch] = {}
        self._bytes_held = 0

    def hello(self, run: str, line: Heard) -> None:
        with self._lock:
            batch = self._batch(run)
            batch.hellos[line.connection] = line
            batch.has_ended = False

    def lost(self, connection: ConnectionId) -> None:
        with self._lock:
            for batch in self._batches.values():
                batch.hellos.pop(connection, None)

    def hellos(self, run: str) -> list[Heard]:
        with self._lock:
            return list(self._batch(run).hellos.values())

    def hold(self, run: str, line: Heard | bytes, at: MonoNs, size: int) -> bool:
        """Whether a run has so much that it should be written soon. Once one was dropped, so is all until it is."""
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
        """Everything that is held, by run. Who is connected stays known, but of runs that have ended."""
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
