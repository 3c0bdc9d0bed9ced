"""What the journal retains: how much history, what goes first, and that no halt takes the row of another."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.adapters.journal.runtime_files import Entry
from governor.core.base.shares import NOBODY, Claim, beyond, fair_shares, halt_claim
from governor.core.money.charges import UNALLOCATED

# Rows by who holds them, and those of some holders from the oldest on.
_HELD = "SELECT {holder}, count(*) FROM journal WHERE {which} GROUP BY 1"
_PRUNE_HELD = """
DELETE FROM journal WHERE seq IN (SELECT seq FROM journal WHERE {which} AND coalesce({holder}, '') IN
(SELECT value FROM json_each(:holders)) ORDER BY seq LIMIT :excess)"""
_COUNT = "SELECT count(*) FROM journal WHERE {which}"
_RUNS = "SELECT run, snapshot FROM runs"
_INCIDENTS = "SELECT incident_id, snapshot FROM incidents"
_OF_KIND = "kind = :kind"
_OTHERS = "incident_id IS NULL AND kind NOT IN (SELECT value FROM json_each(:kinds))"
_OF_INCIDENTS = "incident_id IS NOT NULL"
_DROP_INCIDENT = "DELETE FROM incidents WHERE incident_id = ?"
_DROP_RUN = "DELETE FROM runs WHERE run = ?"
_PRUNE_CHARGES = """
DELETE FROM charges WHERE from_wall_ns <=
(SELECT from_wall_ns FROM charges ORDER BY from_wall_ns DESC LIMIT 1 OFFSET :limit)"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much history is retained. The oldest of the uid that holds most goes first."""

    rows: int = 200_000  # About 100 MB: months of verdicts and transitions of a busy node.
    # Windows need about 120 MB (400 bytes each, measured): the 240B tokens of the longest stage in windows of 1M, plus
    # a quarter. A stage's cost per token is computed from them.
    rows_of_kind: Mapping[str, int] = field(default_factory=lambda: {"window": 300_000})
    incident_rows: int = 100_000  # Evidence outlives other rows: about 1,000 halts.
    incidents: int = 1_000  # Closed ones: about a year of a handful a day, which the breaker allows.
    # About 350 MB. A charge covers one run, one line and one hour: three years of eight runs with two lines each.
    charges: int = 500_000
    # About 6 MB, read in half a second at a start. Of a run that is forgotten the charges stay.
    runs: int = 2_000


def prune(connection: sqlite3.Connection, limits: Limits) -> None:
    """Delete what is beyond the limits, in one transaction. Raises sqlite3.Error."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        _prune_rows(connection, limits)
        connection.executemany(_DROP_INCIDENT, [(name,) for name in _incidents_beyond(connection, limits.incidents)])
        connection.executemany(_DROP_RUN, [(run,) for run in _runs_beyond(connection, limits.runs)])
        connection.execute(_PRUNE_CHARGES, {"limit": limits.charges})


def _prune_rows(connection: sqlite3.Connection, limits: Limits) -> None:
    """Delete the oldest rows of whoever holds more than a fair share, so that nobody forgets another user's halts."""
    kinds = json.dumps([*limits.rows_of_kind])
    for holder, which, limit, bound in (
        *(("run", _OF_KIND, limit, {"kind": kind}) for kind, limit in limits.rows_of_kind.items()),
        ("run", _OTHERS, limits.rows, {"kinds": kinds}),
        ("incident_id", _OF_INCIDENTS, limits.incident_rows, {}),
    ):
        total = connection.execute(_COUNT.format(which=which), bound).fetchone()[0]
        if total <= limit:
            continue
        owners = _owners(connection, _RUNS if holder == "run" else _INCIDENTS)
        held: Counter[int] = Counter()
        names: dict[int, list[str]] = {}
        for name, count in connection.execute(_HELD.format(holder=holder, which=which), bound):
            owner = owners.get(name or "", NOBODY)
            held[owner] += count
            names.setdefault(owner, []).append(name or "")
        for owner, share in fair_shares(held, limit).items():
            excess = {"holders": json.dumps(names[owner]), "excess": held[owner] - share}
            if held[owner] > share:
                connection.execute(_PRUNE_HELD.format(holder=holder, which=which), {**bound, **excess})


def _owners(connection: sqlite3.Connection, query: str) -> dict[str, int]:
    return {name: _claim_of(snapshot).uid for name, snapshot in connection.execute(query)}


def _incidents_beyond(connection: sqlite3.Connection, limit: int) -> list[str]:
    """The closed incidents that go, by fair shares of the uids. One after which something stays billed goes last."""
    if connection.execute("SELECT count(*) FROM incidents WHERE NOT open").fetchone()[0] <= limit:
        return []
    rows = connection.execute("SELECT incident_id, snapshot FROM incidents WHERE NOT open ORDER BY seq")
    return beyond({name: _claim_of_halt(snapshot) for name, snapshot in rows}, limit)


def _claim_of_halt(snapshot: str) -> Claim:
    try:
        told = json.loads(snapshot)
        return halt_claim(told)
    except (AttributeError, TypeError, ValueError):
        return Claim(NOBODY, 1)


def _runs_beyond(connection: sqlite3.Connection, limit: int) -> list[str]:
    """The runs whose rows go, by fair shares of the uids. The node's own row stays."""
    if connection.execute("SELECT count(*) FROM runs").fetchone()[0] <= limit:
        return []
    rows = connection.execute("SELECT run, snapshot FROM runs WHERE run != ? ORDER BY seq", (UNALLOCATED,))
    return beyond({run: _claim_of(snapshot) for run, snapshot in rows}, limit)


def _claim_of(snapshot: str) -> Claim:
    """A row of an older governor has no worth, and a salvaged one no owner: each may be worth something."""
    try:
        told = json.loads(snapshot)
        return Claim(int(told.get("uid", NOBODY)), int(told.get("worth", 1)))
    except (AttributeError, TypeError, ValueError):
        return Claim()


# --- rows of incidents --------------------------------------------------------------------------------------
#
# Ids are unique while the governor knows which were given (core/engine/node.py). A journal that was put back from a
# copy may know less. Then both halts stay.


# Incidents that are written again and again: those under way, and some that have just closed.
KNOWN_MAX: Final = 256
_STORED: Final = "SELECT snapshot FROM incidents WHERE incident_id = :incident_id"


class IncidentRows:
    """Remembers when the halt of each row began, so that a row is read back once."""

    def __init__(self) -> None:
        self._opened: dict[str, int | None] = {}  # By the row's name.

    def placed(self, connection: sqlite3.Connection, entry: Entry) -> Entry:
        """The entry, under a name of its own if its row is another halt's. Any other entry unchanged."""
        if entry["table"] != "incidents":
            return entry
        opened, name = opened_of(entry["snapshot"]), entry["incident_id"]
        if name not in self._opened:
            found = connection.execute(_STORED, entry).fetchone()
            self._remember(name, opened if found is None else opened_of(found[0]))
        held = self._opened[name]
        if held == opened or opened is None or held is None:
            return entry
        return {**entry, "incident_id": f"{name}~{opened}"}

    def _remember(self, name: str, opened: int | None) -> None:
        self._opened[name] = opened
        if len(self._opened) > KNOWN_MAX:
            del self._opened[next(iter(self._opened))]


def halt_of(name: str) -> str:
    """The incident's id of a row's name. A row of another halt has "~" and that halt's beginning behind it."""
    return name.partition("~")[0]


def opened_of(snapshot: str) -> int | None:
    """When the halt began. None: the snapshot does not say."""
    try:
        found: Any = json.loads(snapshot)
        opened = found["opened_wall_ns"]
    except (KeyError, TypeError, ValueError):
        return None
    return opened if type(opened) is int else None
