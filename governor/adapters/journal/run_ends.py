"""How the runs of a journal ended: what its last rows say of each, and which halts there were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.adapters.journal.reader import (
    NOT_OURS,
    Unreadable,
    Unreadables,
    has_table,
    reading,
    refuse,
    shown,
    what_of,
)

_RUNS: Final = "SELECT run, snapshot FROM runs ORDER BY seq"
_INCIDENTS: Final = "SELECT incident_id, snapshot FROM incidents ORDER BY seq"
# Of each run the last attempt that began, and the last end that was no halt's. A completion is of kind "run" as well.
_LAST: Final = """
SELECT run, max(CASE WHEN kind = 'run' AND data ->> 'attempt' IS NOT NULL THEN wall_ns ELSE 0 END),
       max(CASE WHEN kind = 'ended' THEN wall_ns ELSE 0 END)
FROM journal WHERE kind IN ('run', 'ended') AND run IS NOT NULL AND json_valid(data) GROUP BY run"""


@dataclass(frozen=True, slots=True)
class RunRow:
    """The last words of a journal on a run. Times are wall time; 0: none is known."""

    run: str
    wall: int  # When it was persisted.
    is_alive: bool
    has_completed: bool
    exit_code: int | None
    cause: str | None
    began_wall: int = 0  # Its last attempt.
    ended_wall: int = 0  # Its last end that was no halt's.


@dataclass(frozen=True, slots=True)
class HaltRow:
    """`rule`: None of a halt by hand. `closed_wall`: None while it is under way."""

    incident_id: str
    run: str
    rule: str | None
    opened_wall: int
    closed_wall: int | None


@dataclass(slots=True)
class RunEnds:
    """Of several journals: of each run the latest row, and its halts in their order."""

    runs: dict[str, RunRow] = field(default_factory=dict)
    halts: dict[str, list[HaltRow]] = field(default_factory=dict)

    def read(self, path: str, unread: Unreadables = refuse) -> None:
        """Enter a journal. Calls `unread` for each row that cannot be read. Raises `ChargesUnreadable`."""
        with reading(path) as connection:
            if not has_table(connection, "incidents"):
                return
            last = {shown(run): (began, ended) for run, began, ended in connection.execute(_LAST)}
            for name, snapshot in connection.execute(_RUNS).fetchall():
                self._enter_run(path, shown(name), snapshot, last, unread)
            for name, snapshot in connection.execute(_INCIDENTS).fetchall():
                self._enter_halt(path, shown(name), snapshot, unread)

    def halts_of(self, run: str, since: int) -> list[HaltRow]:
        """The run's halts that were not over at this wall time, in their order."""
        found = [halt for halt in self.halts.get(run, ()) if (halt.closed_wall or since) >= since]
        return sorted(found, key=lambda halt: (halt.opened_wall, halt.incident_id))

    def _enter_run(
        self, path: str, run: str, snapshot: bytes, last: Mapping[str, tuple[int, int]], unread: Unreadables
    ) -> None:
        try:
            row = _run_row(run, json.loads(snapshot), *last.get(run, (0, 0)))
        except NOT_OURS as error:
            unread(Unreadable(path, "how it ended", run, None, None, what_of(error)))
            return
        known = self.runs.get(run)
        if known is None or known.wall <= row.wall:
            self.runs[run] = row

    def _enter_halt(self, path: str, incident_id: str, snapshot: bytes, unread: Unreadables) -> None:
        try:
            row = _halt_row(incident_id, json.loads(snapshot))
        except NOT_OURS as error:
            unread(Unreadable(path, f"incident {incident_id}", "", None, None, what_of(error)))
            return
        self.halts.setdefault(row.run, []).append(row)


def _run_row(run: str, snapshot: Mapping[str, Any], began: int, ended: int) -> RunRow:
    """An older journal, and one that was salvaged, lack some of it."""
    end = snapshot.get("end") or {}
    code, cause = end.get("exit_code"), end.get("cause")
    return RunRow(
        run,
        int(snapshot.get("wall_ns") or 0),
        bool(snapshot.get("alive")),
        bool(snapshot.get("completed")),
        None if code is None else int(code),
        None if cause is None else str(cause),
        began,
        ended,
    )


def _halt_row(incident_id: str, snapshot: Mapping[str, Any]) -> HaltRow:
    rule, closed = snapshot.get("rule"), snapshot["closed_wall_ns"]
    return HaltRow(
        incident_id,
        str(snapshot["run"]),
        None if rule is None else str(rule),
        int(snapshot["opened_wall_ns"]),
        None if closed is None else int(closed),
    )
