"""What a damaged journal still has, into a fresh one: no run gets its budget twice because a disk lost a page.

Charges are the record of what was spent and come over as they are. A run whose snapshot is lost goes on with the sum of
its charges; one whose snapshot is older than they are, too. What runs had spent and no charge says is told.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.adapters.journal_fallback import COLUMNS, Entry
from governor.adapters.journal_pages import rows_of
from governor.core.charges import UNALLOCATED
from governor.core.cost import decimal_text
from governor.core.units import MICROS_PER_USD
from governor.core.utc import utc_text

RUNS_MAX: Final = 1_000  # As many budgets as a journal keeps; the newest.
_SUMS: Final = "SELECT run, sum(usd_micros), max(to_wall_ns), max(seq) FROM charges GROUP BY run ORDER BY max(seq) DESC"
_SPEND: Final = {True: "unallocated_usd_micros", False: "spend_usd_micros"}  # By whether it is the node's own.


@dataclass(frozen=True, slots=True)
class Taken:
    """What came over."""

    charges: int
    usd_micros: int
    runs: int
    missing_usd_micros: int  # Spent by the runs' own account, and in no charge that can be read.
    has_node: bool
    until: int | None  # Wall time: up to here the node's time is charged.

    def text(self) -> str:
        """The end of a sentence that has named the file."""
        if self.until is None:
            return "nothing of what was spent could be read; a daemon charges what passed since the boot anew"
        usd = decimal_text(self.usd_micros, MICROS_PER_USD, 2)
        parts = [
            f"{self.charges:,} charges (${usd}) and {self.runs:,} runs were taken over, up to {utc_text(self.until)}"
        ]
        if self.missing_usd_micros:
            missing = decimal_text(self.missing_usd_micros, MICROS_PER_USD, 2)
            parts.append(
                f"${missing} more that the runs had spent is in their budgets and in no charge that can be read"
            )
        parts += [] if self.has_node else ["the budgets that were set live are lost"]
        return "; ".join([*parts, "a daemon charges what passed since anew"])


def salvage(path: str, into: sqlite3.Connection, insert: Mapping[str, str], known: Sequence[Entry]) -> Taken:
    """Write what can be read of the file at `path`, and what is `known` beside it, in one transaction.

    `insert`: a statement for each table, of which a newer row wins. Raises sqlite3.Error and OSError for the new file.
    """
    into.execute("BEGIN IMMEDIATE")
    try:
        for entry in rows_of(path, COLUMNS):
            into.execute(insert[entry["table"]], entry)
        for entry in known:
            into.execute(insert[entry["table"]], entry)
        taken = _settle(into, insert["runs"])
        into.execute("COMMIT")
    finally:
        if into.in_transaction:
            into.execute("ROLLBACK")
    return taken


def newest_snapshots(path: str) -> list[Entry]:
    """Runs and incidents of a file that cannot be opened now, oldest first; none where it cannot even be read."""
    newest: dict[tuple[str, str], Entry] = {}
    try:
        for entry in rows_of(path, ("runs", "incidents")):
            key = entry["table"], entry["run"] if entry["table"] == "runs" else entry["incident_id"]
            if key not in newest or newest[key]["seq"] < entry["seq"]:
                newest[key] = entry
    except OSError:
        return []
    return sorted(newest.values(), key=lambda entry: int(entry["seq"]))


def _settle(into: sqlite3.Connection, insert: str) -> Taken:
    """Make snapshots and charges agree, as they did in every commit."""
    kept: dict[str, tuple[int, dict[str, Any]]] = {}
    for run, seq, snapshot in into.execute("SELECT run, seq, snapshot FROM runs").fetchall():
        kept[run] = int(seq), json.loads(snapshot)
    sums = {run: (int(usd), int(until), int(seq)) for run, usd, until, seq in into.execute(_SUMS).fetchall()}
    has_node = UNALLOCATED in kept
    missing = 0
    for run, (seq, snapshot) in kept.items():
        name = _SPEND[run == UNALLOCATED]
        told, found = snapshot.get(name), sums.get(run, (0, 0, 0))[0]
        if isinstance(told, int):
            missing += max(0, told - found)
            if found > told:
                _put(into, insert, run, seq + 1, {**snapshot, name: found})
                snapshot[name] = found
    lost = [run for run in sums if run not in kept and run != UNALLOCATED][: max(0, RUNS_MAX - len(kept))]
    for run in lost:
        usd, _, seq = sums[run]
        _put(into, insert, run, seq, {"run": run, "salvaged": True, "spend_usd_micros": usd})
    last = max((until for _, until, _ in sums.values()), default=None)
    charges = into.execute("SELECT count(*) FROM charges").fetchone()[0]
    usd = sum(usd for usd, _, _ in sums.values())
    walls = [last, *(snapshot.get("wall_ns") for _, snapshot in kept.values())]
    until = max((wall for wall in walls if isinstance(wall, int)), default=None)
    own = sums.get(UNALLOCATED, (0, 0, 0))
    _settle_node(into, insert, kept.get(UNALLOCATED), own, last if has_node else until)
    return Taken(charges, usd, len(kept) + len(lost) - has_node, missing, has_node, until)


def _settle_node(
    into: sqlite3.Connection, insert: str, kept: tuple[int, dict[str, Any]] | None, own: tuple[int, int, int],
    last: int | None,
) -> None:  # fmt: skip
    """Up to where the node's time is charged: a governor that goes on from there charges none of it twice."""
    if kept is None:
        node = {
            "run": UNALLOCATED, "salvaged": True, "boot_id": "", "boot_ns": 0, "wall_ns": last, "carry": 0,
            "unallocated_usd_micros": own[0], "unpriced_ns": 0,
        }  # fmt: skip
        _put(into, insert, UNALLOCATED, own[2], node)
        return
    seq, node = kept
    wall, boot = node.get("wall_ns"), node.get("boot_ns")
    if last is not None and isinstance(wall, int) and isinstance(boot, int) and last > wall:
        moved = {"salvaged": True, "wall_ns": last, "boot_ns": boot + last - wall}
        _put(into, insert, UNALLOCATED, seq + 2, {**node, **moved})


def _put(into: sqlite3.Connection, insert: str, run: str, seq: int, snapshot: Mapping[str, Any]) -> None:
    text = json.dumps(dict(snapshot), separators=(",", ":"))
    into.execute(insert, {"run": run, "seq": seq, "snapshot": text})
