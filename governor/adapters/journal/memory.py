"""What this session has written, in memory and bounded: reads work while the disk does not answer."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable

from governor.adapters.journal.runtime_files import Entry, first_seq_of, name_of, seq_of

ROWS_IN_MEMORY_MAX = 4_096  # Some tens of incidents, about 3 MB.
SNAPSHOTS_IN_MEMORY_MAX = 256  # Incidents and runs of this session.


class Memory:
    """Rows, and the newest snapshot of each run and incident. It gives them their numbers."""

    def __init__(self) -> None:
        self._last_seq = 0
        self._rows: deque[Entry] = deque(maxlen=ROWS_IN_MEMORY_MAX)
        self._snapshots: dict[str, OrderedDict[str, Entry]] = {"incidents": OrderedDict(), "runs": OrderedDict()}

    def next_seq(self, file_seq: int) -> int:
        """The next entry's number. `file_seq`: the highest in the file."""
        # Wall time preserves the order across sessions, even if the last session's file cannot be read.
        self._last_seq = max(self._last_seq + 1, file_seq + 1, time.time_ns())
        return self._last_seq

    def keep(self, entry: Entry) -> None:
        self._last_seq = max(self._last_seq, entry["seq"])
        if entry["table"] == "charges":
            return  # The governor never reads charges back.
        if entry["table"] == "journal":
            self._rows.append(entry)
            return
        snapshots = self._snapshots[entry["table"]]
        name = name_of(entry["table"], entry)
        if name in snapshots:
            entry["first_seq"] = first_seq_of(snapshots[name])
        snapshots[name] = entry
        if len(snapshots) > SNAPSHOTS_IN_MEMORY_MAX:
            # A restart resumes open incidents, so only closed ones and runs make room.
            oldest = next((n for n, e in snapshots.items() if not e.get("open") and n != name), None)
            if oldest is not None:
                del snapshots[oldest]

    def keep_newer(self, entries: Iterable[Entry]) -> None:
        """Take only snapshots newer than the known ones: the fallback file may be newer than the journal."""
        for entry in sorted(entries, key=seq_of):
            known = self.snapshot(entry["table"], name_of(entry["table"], entry))
            if known is None or known["seq"] < entry["seq"]:
                self.keep(entry)

    def snapshot(self, table: str, name: str) -> Entry | None:
        return self._snapshots[table].get(name)

    def snapshots(self, table: str) -> list[Entry]:
        return list(self._snapshots[table].values())  # A copy: a reader may run on another thread.

    def rows_over(self, found: Iterable[Entry], incident_id: str | None, kind: str | None) -> list[Entry]:
        """The rows from disk and this session's, oldest first."""
        rows = {entry["seq"]: entry for entry in found}
        for entry in self._rows:
            if incident_id in (None, entry["incident_id"]) and kind in (None, entry["kind"]):
                rows.setdefault(entry["seq"], entry)
        return sorted(rows.values(), key=seq_of)

    def snapshots_over(self, table: str, found: Iterable[Entry]) -> list[Entry]:
        """Snapshots from disk, overlaid by this session's, in the order in which each name first appeared."""
        merged = {name_of(table, entry): entry for entry in found}
        for entry in self.snapshots(table):
            name = name_of(table, entry)
            known = merged.get(name)
            if known is None:
                merged[name] = entry
            elif entry["seq"] > known["seq"]:
                merged[name] = {**entry, "first_seq": first_seq_of(known)}
        return sorted(merged.values(), key=first_seq_of)
