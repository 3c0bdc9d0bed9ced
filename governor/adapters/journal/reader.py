"""Charges and token windows of a journal, read beside a running governor. `db.JournalReader` reads the halts.

`reading` opens the file and translates errors for every reader here; `paged` goes through the rows.
"""

from __future__ import annotations

import glob
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from governor.adapters.journal.check import is_corruption, open_read_only
from governor.core.base.units import DurationNs, UsdMicros, utc_text
from governor.core.money.charges import UNALLOCATED, UNALLOCATED_PAYER, Charge, Payer, charge_of
from governor.core.money.expected import ExpectedCost, WindowRow, has_trained, plan_of_row, row_of
from governor.core.money.reports.cost import exact_usd
from governor.core.money.token_windows import TokenMeter, Window
from governor.core.money.waste import SpendSplit

JOURNAL_NAME: Final = "costgov.db"
# One for each `costgov run` that ever had its own name. The newest come first.
JOURNALS_MAX: Final = 1_000
# Each page is its own transaction: a reader that is slow to print must not keep the governor's WAL from shrinking.
PAGE_ROWS: Final = 5_000  # Half a year of one run.
# For readers that do nothing between two pages: 20 ms each.
LONG_PAGE_ROWS: Final = 20_000

# An error's own words may quote the row.
WHAT_CHARS_MAX: Final = 120
NUMBER_MIN: Final = -(2**63)  # The bounds of a row number and of wall time.
NUMBER_MAX: Final = 2**63 - 1
# Decoding raises these for a row that we did not write. AttributeError: a cell that holds no text.
NOT_OURS: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)

_HAS_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table"


class ChargesUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which file, what is wrong, what to do."""

    @classmethod
    def of(cls, path: str, error: sqlite3.Error | UnicodeDecodeError) -> ChargesUnreadable:
        # SQLite's message about a damaged schema may hold names that are not UTF-8, hence UnicodeDecodeError.
        if isinstance(error, UnicodeDecodeError) or is_corruption(error):
            what = "the governor keeps it aside at its next start and takes over what can still be read"
            return cls(f"{path}: corrupt ({error}); {what}")
        return cls(f"{path}: cannot be read: {error}; read it as the governor's user or root")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row whose data cannot be read, with what its columns say. A column that cannot be read either is None."""

    path: str
    name: str
    run: str
    at: int | None  # Wall time.
    usd_micros: int | None
    what: str

    def text(self) -> str:
        whose = f" of run {self.run}" if self.run else ""
        when = f", {utc_text(self.at)}" if self.at is not None else ""
        usd = f", ${exact_usd(self.usd_micros)}" if self.usd_micros is not None else ""
        return f"{self.path}: {self.name}{whose}{when}{usd}: cannot be read ({self.what})"


Unreadables = Callable[[Unreadable], None]


def refuse(row: Unreadable) -> None:
    """The handler of callers that need every row. Raises `ChargesUnreadable`."""
    raise ChargesUnreadable(f"{row.text()}; did a newer costgov write it?")


def journal_paths(state_dir: Path) -> list[str]:
    """The journals below a state directory, the last written first."""
    beside = glob.glob(f"{glob.escape(str(state_dir))}/runs/*/{JOURNAL_NAME}")
    found: list[tuple[float, str]] = []
    for path in (str(state_dir / JOURNAL_NAME), *beside):
        try:
            found.append((os.stat(path).st_mtime, path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ChargesUnreadable(f"{path}: {error.strerror}; read it as the governor's user or root") from error
    return [path for _, path in sorted(found, reverse=True)[:JOURNALS_MAX]]


# --- any reader of the file ------------------------------------------------------------------------------


@contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    """An open journal. It is also closed if a generator is left early. Raises `ChargesUnreadable`."""
    try:
        with closing(open_read_only(path)) as connection:
            # We decode cells row by row. SQLite's own decoding would fail the whole query for one cell that is not
            # UTF-8.
            connection.text_factory = bytes
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ChargesUnreadable.of(path, error) from error


def has_table(connection: sqlite3.Connection, table: str) -> bool:
    """False in a journal from a version without this table."""
    return connection.execute(_HAS_TABLE, {"table": table}).fetchone() is not None


def window_of(since: int | None, until: int | None) -> dict[str, int]:
    """The bounds of wall time as parameters of a query. None: no bound. What lies beyond all of it bounds nothing."""
    bounds = {"since": NUMBER_MIN if since is None else since, "until": NUMBER_MAX if until is None else until}
    return {name: min(max(at, NUMBER_MIN), NUMBER_MAX) for name, at in bounds.items()}


def paged(
    connection: sqlite3.Connection, query: str, bounds: Mapping[str, int | str], place: Mapping[str, object], rows: int,
    each: str | None = None,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """The rows of a query, read page by page.

    `place` names the query's first columns and the values after which to begin. `each` is a slower query, used for a
    page in which a row is not JSON, because that fails the whole page.
    """
    # Chained here: a year has 160,000 rows, and a generator that is resumed for each of them takes time.
    return chain.from_iterable(_pages(connection, query, bounds, place, rows, each))


def _pages(
    connection: sqlite3.Connection, query: str, bounds: Mapping[str, int | str], place: Mapping[str, object], rows: int,
    each: str | None,
) -> Iterator[list[tuple[Any, ...]]]:  # fmt: skip
    while True:
        values = {**bounds, **place, "rows": rows}
        try:
            page = connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if each is None or error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            page = connection.execute(each, values).fetchall()
        yield page
        if len(page) < rows:
            return
        place = dict(zip(place, page[-1], strict=False))


def what_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:WHAT_CHARS_MAX]


def shown(cell: object) -> str:
    """Any cell, as text for people."""
    return cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else str(cell)


# --- charges, one by one -----------------------------------------------------------------------------------

# In order of time. A growing charge retains its name and its beginning, so no two pages hold it.
_CHARGES: Final = """
SELECT from_wall_ns, charge_id, rowid, data, usd_micros FROM charges
WHERE from_wall_ns < :until AND (to_wall_ns > :since OR from_wall_ns >= :since)
AND (from_wall_ns, charge_id) > (:after_wall, CAST(:after_id AS TEXT))
ORDER BY from_wall_ns, charge_id LIMIT :rows"""
_IDENTITY: Final = "SELECT charge_id, run, from_wall_ns, usd_micros FROM charges WHERE rowid = :rowid"


_NODE: Final = "SELECT snapshot FROM runs WHERE run = :node ORDER BY seq DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Charges of a command for which no rank has reported yet: they are the command's here, as in `costgov status`."""

    payer: Payer = UNALLOCATED_PAYER
    charge_ids: frozenset[str] = frozenset()

    def of(self, charge: Charge) -> Charge:
        its = charge.payer.run == UNALLOCATED and charge.charge_id in self.charge_ids
        return replace(charge, payer=self.payer) if its else charge


def waiting_in(connection: sqlite3.Connection) -> Waiting:
    """By the node's snapshot, which is written together with its charges. None wait where it cannot be read."""
    try:
        found = connection.execute(_NODE, {"node": UNALLOCATED}).fetchone() if has_table(connection, "runs") else None
        launched = json.loads(found[0]).get("launched") if found is not None else None
        if not launched or not launched.get("unattached"):
            return Waiting()
        name = launched["account"] if launched["account"] is not None else launched["run"]
        return Waiting(Payer(str(name)), frozenset(str(row["charge_id"]) for row in launched["nobodys"]))
    except (sqlite3.Error, *NOT_OURS):
        return Waiting()  # What else of the file cannot be read, its reader meets.


def read_charges(
    path: str, since: int | None = None, until: int | None = None, unread: Unreadables = refuse
) -> Iterator[Charge]:
    """Yield the charges that touch [since, until) of wall time, uncut, in the order of their beginnings.

    Yields none for a journal from a version without charges. Calls `unread` for each row that is not a charge. Raises
    `ChargesUnreadable` if the file itself cannot be read; the error may come between two rows.
    """
    with reading(path) as connection:
        if not has_table(connection, "charges"):
            return
        waiting = waiting_in(connection)
        begin = {"after_wall": NUMBER_MIN, "after_id": b""}
        for _, _, rowid, data, micros in paged(connection, _CHARGES, window_of(since, until), begin, PAGE_ROWS):
            charge = charge_in(path, connection, rowid, data, micros, unread)
            if charge is not None:
                yield waiting.of(charge)


def charge_in(
    path: str, connection: sqlite3.Connection, rowid: int, data: bytes, micros: int, unread: Unreadables
) -> Charge | None:
    """The charge of a row. None, after a call to `unread`, if the row is not a charge.

    `micros` is the amount in the row's column. It must equal the amount in the row's JSON: SQLite has no checksums of a
    page's contents.
    """
    try:
        charge = charge_of(json.loads(data))
        if charge.usd_micros != micros:
            raise ValueError(f"it says ${exact_usd(charge.usd_micros)} as well")
        return charge
    except NOT_OURS as error:
        unread(unreadable(path, connection, rowid, error))
        return None


def unreadable(path: str, connection: sqlite3.Connection, rowid: int, error: Exception) -> Unreadable:
    """Describe a charge by its columns, because its data cannot be read."""
    found = connection.execute(_IDENTITY, {"rowid": rowid}).fetchone()
    # None: retention has deleted it meanwhile, or its number in the tree is damaged too.
    charge_id, run, begin, micros = found or (b"(not found again)", b"", None, None)
    return Unreadable(path, f"charge {shown(charge_id)}", shown(run), _number(begin), _number(micros), what_of(error))


def _number(cell: object) -> int | None:
    return cell if isinstance(cell, int) else None


# --- windows of tokens -------------------------------------------------------------------------------------

# Thousands of windows share these fields, so they are decoded once.
_ALIKE: Final = (
    "stage",
    "attempt",
    "expected_usd_micros_per_mtok",
    "expected_usd_micros_per_mtok_all_in",
    "expected_tokens_per_s",
    "ceiling_usd_micros",
    "tokens_goal",
    "began_tokens",
    "lent_of_goal",
    "unpriced",
)
_FIGURES: Final = ("from_tokens", "to_tokens", "duration_ns", "usd_micros", "wasted_tokens")
# Most windows have none of them.
_START: Final = ("start_ns", "start_tokens", "start_usd_micros", "lent_tokens", "wasted_to")
_CLOSED: Final = """
FROM journal WHERE kind = 'window' AND seq > :after AND wall_ns >= :since AND wall_ns < :until
ORDER BY seq LIMIT :rows"""
_WINDOWS: Final = "SELECT seq, run, wall_ns, json_extract(data, {alike}), {figures}".format(
    alike=", ".join(f"'$.{name}'" for name in _ALIKE),
    figures=", ".join(
        [*(f"data ->> '{name}'" for name in _FIGURES), *(f"ifnull(data ->> '{name}', 0)" for name in _START)]
    ),
)
_EACH_WINDOW: Final = "SELECT seq, run, wall_ns, data"

_RUNS: Final = "SELECT run, snapshot FROM runs ORDER BY seq"


def read_windows(
    path: str, runs: Collection[str] = (), since: int | None = None, until: int | None = None,
    unread: Unreadables = refuse,
) -> Iterator[tuple[str, WindowRow]]:  # fmt: skip
    """Yield (run, window) of the windows that closed in [since, until) of wall time, in order. No runs named: all runs.

    Calls `unread` for each row that is not a window. Raises `ChargesUnreadable` if the file itself cannot be read.
    """
    known: dict[bytes, WindowRow] = {}
    bounds = window_of(since, until)
    with reading(path) as connection:
        if not has_table(connection, "journal"):
            return
        found = paged(
            connection, _WINDOWS + _CLOSED, bounds, {"after": -1}, LONG_PAGE_ROWS, each=_EACH_WINDOW + _CLOSED
        )  # fmt: skip
        for _, whose, wall, *cells in found:
            run = shown(whose)
            if runs and run not in runs:
                continue
            try:
                row = row_of(json.loads(cells[0])) if len(cells) == 1 else _row(cells, known)
            except NOT_OURS as error:
                unread(Unreadable(path, "a window of tokens", run, wall, None, what_of(error)))
                continue
            yield run, row


def _row(cells: list[Any], known: dict[bytes, WindowRow]) -> WindowRow:
    like = known.get(cells[0]) or known.setdefault(cells[0], _like(cells[0]))
    window, wasted_to = _window(cells[1:], is_unpriced=like.window.is_unpriced)
    return WindowRow(like.stage, like.attempt, window, like.plan, wasted_to)


def _like(alike: bytes) -> WindowRow:
    """A row with the shared fields and a placeholder window."""
    fields = dict(zip(_ALIKE, json.loads(alike), strict=True))
    window = {"from_tokens": 0, "to_tokens": 1, "duration_ns": 0, "usd_micros": 0, "wasted_tokens": 0}
    return row_of(fields | window)


def _window(figures: list[Any], *, is_unpriced: bool) -> tuple[Window, int]:
    if any(type(figure) is not int for figure in figures):
        raise ValueError("a figure is no whole number")
    begin, end, duration, usd_micros, wasted, start_ns, start_tokens, start_usd_micros, lent, wasted_to = figures
    start = DurationNs(start_ns), start_tokens, UsdMicros(start_usd_micros)
    window = Window(begin, end, DurationNs(duration), UsdMicros(usd_micros), wasted, *start, is_unpriced, lent)
    if not has_trained(window):
        raise ValueError("a window without tokens")
    return window, wasted_to


@dataclass(frozen=True, slots=True)
class Open:
    """A run's meters and its plan as they were persisted last."""

    run: str
    stage: str | None
    meter: TokenMeter | None  # None: the run has reported no tokens.
    split: SpendSplit | None  # None: nobody counted what its money has bought.
    plan: ExpectedCost | None = None  # None: the journal is an older one.
    is_given_back: bool = False  # What it had been charged became another run's: its meter began anew then.
    usd_micros: int = 0  # What it has spent.


def read_open(
    path: str, runs: Collection[str] = (), since: int | None = None, unread: Unreadables = refuse
) -> Iterator[Open]:
    """Yield what each run's last snapshot knows, if it is later than `since`.

    A run is persisted every ten seconds while it lives. Calls `unread` for each state that cannot be read. Raises
    `ChargesUnreadable`.
    """
    with reading(path) as connection:
        kept = connection.execute(_RUNS).fetchall() if has_table(connection, "journal") else []
    for whose, snapshot in kept:
        run = shown(whose)
        if runs and run not in runs:
            continue
        try:
            found = json.loads(snapshot)
            wall, tokens = found.get("wall_ns"), found.get("tokens")
            # A run last persisted before `since` ended before it.
            if since is not None and wall is not None and wall < since:
                continue
            meter = TokenMeter.restored(tokens, same_boot=False) if tokens is not None else None
            row = found.get("spend_split")  # An older journal has none.
            split = SpendSplit.restored(row) if row is not None else None
            planned = found.get("plan")
            plan = plan_of_row(planned) if planned is not None else None
            usd_micros = int(found.get("spend_usd_micros") or 0)
        except NOT_OURS as error:
            unread(Unreadable(path, "the state of its tokens", run, None, None, what_of(error)))
            continue
        yield Open(run, found.get("stage"), meter, split, plan, bool(found.get("given_back")), usd_micros)
