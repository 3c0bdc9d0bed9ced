"""What a damaged journal still has, into a fresh one: no run gets its budget twice because a disk lost a page.

Charges are the record of what was spent and come over as they are. A run whose snapshot is lost goes on with the sum of
its charges; one whose snapshot is older than they are, too. What a run had spent and no charge says any more becomes a
reconstructed charge of its own: the charges of a run add up to its spend again.
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

RUNS_MAX: Final = 1_000  # As many budgets as a journal keeps; the newest.
# Half of what a journal keeps: with more, what has no charge may have grown old and been let go.
CHARGES_SURE_MAX: Final = 250_000
WALL_MAX: Final = 2**62  # The year 2116.
Kept = tuple[int, dict[str, Any]]  # The number of a run's row, and its snapshot.
_SUMS: Final = "SELECT run, sum(usd_micros), max(to_wall_ns), max(seq) FROM charges GROUP BY run ORDER BY max(seq) DESC"
_SPEND: Final = {True: "unallocated_usd_micros", False: "spend_usd_micros"}  # By whether it is the node's own.


@dataclass(frozen=True, slots=True)
class Taken:
    """What came over."""

    charges: int
    usd_micros: int
    runs: int
    missing_usd_micros: int  # Spent by the runs' own account, and in no charge that can be read.
    is_entered: bool  # As charges, which say that they are reconstructed.
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
        parts += [self.missing_text()] if self.missing_usd_micros else []
        parts += [] if self.has_node else ["the budgets that were set live are lost"]
        return "; ".join([*parts, "a daemon charges what passed since anew"])

    def missing_text(self) -> str:
        missing = f"${decimal_text(self.missing_usd_micros, MICROS_PER_USD, 2)} more that the runs had spent"
        if self.is_entered:
            return f"{missing} was in charges that cannot be read: a reconstructed charge for each run says so"
        return f"{missing} is in no charge that can be read"


def salvage(path: str, into: sqlite3.Connection, insert: Mapping[str, str], known: Sequence[Entry]) -> Taken:
    """Write what can be read of the file at `path`, and what is `known` beside it; see take_over()."""
    return take_over(chain(rows_of(path, COLUMNS), known), into, insert)


def take_over(entries: Iterable[Entry], into: sqlite3.Connection, insert: Mapping[str, str]) -> Taken:
    """Write these entries, and make every run's spend and charges agree, in one transaction.

    `insert`: a statement for each table, of which a newer row wins. Raises sqlite3.Error and OSError.
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


def _settle(into: sqlite3.Connection, insert: Mapping[str, str]) -> Taken:
    """Make snapshots and charges agree, as they did in every commit."""
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
    """Numbers that a charge can have; those of a torn file can be any."""
    wall = snapshot.get("wall_ns")
    return type(wall) is int and 0 <= wall < WALL_MAX and micros < CEILING_MAX_USD_MICROS


def _enter(into: sqlite3.Connection, insert: str, kept: Mapping[str, Kept], missing: Mapping[str, int]) -> None:
    """Say as a charge what each of these runs had spent and no other charge says: of one moment, without hours."""
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
    """Where the newest charge that can be read was made."""
    newest = into.execute("SELECT data FROM charges ORDER BY to_wall_ns DESC LIMIT 1").fetchone()
    try:
        return charge_of(json.loads(newest[0])).place
    except (KeyError, TypeError, ValueError, AttributeError):  # None, or another version's.
        return Place("(unknown)")


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
