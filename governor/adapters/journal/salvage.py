"""Copies what a damaged journal still has into a fresh one: a lost page must not give a run its budget twice.

Charges record what was spent and are copied unchanged. A run whose snapshot is lost, or older than its charges,
continues with the sum of its charges. Spend that no charge covers any more becomes a reconstructed charge. So a run's
charges add up to its spend again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from governor.adapters.journal.pages import rows_of
from governor.adapters.journal.runtime_files import COLUMNS, Entry
from governor.core.base.units import MICROS_PER_USD, UsdMicros, WallNs, date_text, utc_text
from governor.core.money.budgets import CEILING_MAX_USD_MICROS
from governor.core.money.charges import (
    LOST,
    UNALLOCATED,
    Charge,
    Line,
    LineKind,
    Payer,
    Place,
    Unit,
    charge_of,
    charge_row,
    labels_of,
)
from governor.core.money.reports.cost import decimal_text

RUNS_MAX: Final = 1_000  # As many runs as a journal retains; the newest.
# Half of what a journal retains. With more charges, retention may have deleted the missing ones.
CHARGES_SURE_MAX: Final = 250_000
WALL_MAX: Final = 2**62  # The year 2116.
Kept = tuple[int, dict[str, Any]]  # A run's row number and snapshot.
_SUMS: Final = "SELECT run, sum(usd_micros), max(to_wall_ns), max(seq) FROM charges GROUP BY run ORDER BY max(seq) DESC"
_SPEND: Final = {
    True: "unallocated_usd_micros",
    False: "spend_usd_micros",
}  # The snapshot's key: True for the node itself.


@dataclass(frozen=True, slots=True)
class Taken:
    """What was copied."""

    charges: int
    usd_micros: int
    runs: int
    # What runs report as spent and no readable charge covers.
    missing_usd_micros: int
    # Whether the missing spend was entered as reconstructed charges.
    is_entered: bool
    has_node: bool
    # Wall time up to which the node's time is charged.
    until: int | None

    def text(self) -> str:
        """The end of a sentence that has named the file."""
        if self.until is None:
            return "nothing of what was spent could be read; a daemon charges what passed since the boot anew"
        usd = decimal_text(self.usd_micros, MICROS_PER_USD, 2)
        parts = [
            f"{self.charges:,} charges (${usd}) and {self.runs:,} runs were taken over, up to {utc_text(self.until)}"
        ]
        parts += [self.missing_text()] if self.missing_usd_micros else []
        parts += [] if self.has_node else ["the budgets that were set live are lost"]
        return "; ".join([*parts, "a daemon charges what passed since anew"])

    def missing_text(self) -> str:
        missing = f"${decimal_text(self.missing_usd_micros, MICROS_PER_USD, 2)} more that the runs had spent"
        if self.is_entered:
            return f"{missing} was in charges that cannot be read: a reconstructed charge for each run says so"
        return f"{missing} is in no charge that can be read"


def salvage(path: str, into: sqlite3.Connection, insert: Mapping[str, str], known: Sequence[Entry]) -> Taken:
    """Write what can be read of the file at `path`, and the `known` entries beside it. See take_over()."""
    return take_over(chain(rows_of(path, COLUMNS), known), into, insert)


def take_over(entries: Iterable[Entry], into: sqlite3.Connection, insert: Mapping[str, str]) -> Taken:
    """Write these entries, and make each run's spend and charges agree, in one transaction.

    `insert` holds one statement per table; a newer row replaces an older one. Raises sqlite3.Error and OSError.
    """
    into.execute("BEGIN IMMEDIATE")
    try:
        for entry in entries:
            into.execute(insert[entry["table"]], entry)
        taken = _settle(into, insert)
        into.execute("COMMIT")
    finally:
        if into.in_transaction:
            into.execute("ROLLBACK")
    return taken


def newest_snapshots(path: str) -> list[Entry]:
    """Runs and incidents of a file that cannot be opened now, oldest first. Empty if it cannot be read at all."""
    newest: dict[tuple[str, str], Entry] = {}
    try:
        for entry in rows_of(path, ("runs", "incidents")):
            key = entry["table"], entry["run"] if entry["table"] == "runs" else entry["incident_id"]
            if key not in newest or newest[key]["seq"] < entry["seq"]:
                newest[key] = entry
    except OSError:
        return []
    return sorted(newest.values(), key=lambda entry: int(entry["seq"]))


def _settle(into: sqlite3.Connection, insert: Mapping[str, str]) -> Taken:
    """Make snapshots and charges agree, as in every normal commit."""
    kept: dict[str, Kept] = {}
    for run, seq, snapshot in into.execute("SELECT run, seq, snapshot FROM runs").fetchall():
        kept[run] = int(seq), json.loads(snapshot)
    sums = {run: (int(usd), int(until), int(seq)) for run, usd, until, seq in into.execute(_SUMS).fetchall()}
    has_node = UNALLOCATED in kept
    charges = int(into.execute("SELECT count(*) FROM charges").fetchone()[0])
    missing: dict[str, int] = {}
    for run, (seq, snapshot) in kept.items():
        name = _SPEND[run == UNALLOCATED]
        told, found = snapshot.get(name), sums.get(run, (0, 0, 0))[0]
        if isinstance(told, int) and told > found:
            missing[run] = told - found
        elif isinstance(told, int) and found > told:
            _put(into, insert["runs"], run, seq + 1, {**snapshot, name: found})
            snapshot[name] = found
    is_entered = charges <= CHARGES_SURE_MAX and all(_is_sound(kept[run][1], missing[run]) for run in missing)
    if is_entered:
        _enter(into, insert["charges"], kept, missing)
    lost = [run for run in sums if run not in kept and run != UNALLOCATED][: max(0, RUNS_MAX - len(kept))]
    for run in lost:
        usd, _, seq = sums[run]
        _put(into, insert["runs"], run, seq, {"run": run, "salvaged": True, "spend_usd_micros": usd})
    last = max((until for _, until, _ in sums.values()), default=None)
    usd = sum(usd for usd, _, _ in sums.values())
    walls = [last, *(snapshot.get("wall_ns") for _, snapshot in kept.values())]
    until = max((wall for wall in walls if isinstance(wall, int)), default=None)
    own = sums.get(UNALLOCATED, (0, 0, 0))
    _settle_node(into, insert["runs"], kept.get(UNALLOCATED), own, last if has_node else until)
    return Taken(charges, usd, len(kept) + len(lost) - has_node, sum(missing.values()), is_entered, has_node, until)


def _is_sound(snapshot: Mapping[str, Any], micros: int) -> bool:
    """Whether the numbers are ones that a charge can have. A torn file may hold any."""
    wall = snapshot.get("wall_ns")
    return type(wall) is int and 0 <= wall < WALL_MAX and micros < CEILING_MAX_USD_MICROS


def _enter(into: sqlite3.Connection, insert: str, kept: Mapping[str, Kept], missing: Mapping[str, int]) -> None:
    """Enter each run's uncovered spend as a charge of one moment, without hours."""
    place = _place(into)
    for run, micros in missing.items():
        seq, snapshot = kept[run]
        at, stage, labels = WallNs(snapshot["wall_ns"]), snapshot.get("stage"), snapshot.get("labels") or {}
        payer = Payer(
            run=run,
            attempt=str(snapshot.get("attempt", "")),
            stage=stage if isinstance(stage, str) else None,
            labels=labels_of(labels) if isinstance(labels, dict) else (),
        )
        line = Line(LineKind.COMPUTE, LOST, Unit.PIECE, UsdMicros(micros), "the run's own account", date_text(at))
        name = f"{place.node}/lost-{seq:x}/{run}"
        row = charge_row(Charge(name, place, payer, line, at, at, 1, UsdMicros(micros), reconstructed=True))
        columns = {key: row[key] for key in ("charge_id", "run", "from_wall_ns", "to_wall_ns", "usd_micros")}
        into.execute(insert, {"seq": seq, **columns, "data": json.dumps(row, separators=(",", ":"))})


def _place(into: sqlite3.Connection) -> Place:
    """The place of the newest readable charge."""
    newest = into.execute("SELECT data FROM charges ORDER BY to_wall_ns DESC LIMIT 1").fetchone()
    try:
        return charge_of(json.loads(newest[0])).place
    # There is no charge, or another version wrote it.
    except (KeyError, TypeError, ValueError, AttributeError):
        return Place("(unknown)")


def _settle_node(
    into: sqlite3.Connection, insert: str, kept: tuple[int, dict[str, Any]] | None, own: tuple[int, int, int],
    last: int | None,
) -> None:  # fmt: skip
    """Set the time up to which the node is charged, so that a resumed governor charges none of it twice."""
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
