"""Charges and token windows of a journal, read beside a running governor. The journal's own reader keeps to halts.

Every reader here opens the file, translates its errors and goes through its rows in the same way: `reading`, `paged`.
"""

from __future__ import annotations

import glob
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from governor.adapters.journal.check import is_corruption, open_read_only
from governor.core.base.units import DurationNs, UsdMicros, utc_text
from governor.core.money.charges import Charge, charge_of
from governor.core.money.forecast import WindowRow, row_of
from governor.core.money.reports.cost import exact_usd
from governor.core.money.token_windows import TokenMeter, Window

JOURNAL_NAME: Final = "costgov.db"
JOURNALS_MAX: Final = 1_000  # One for each `costgov run` that ever had a name of its own; newest first.
# Each page is a transaction of its own: a reader that is slow to print must not keep the governor's WAL from shrinking.
PAGE_ROWS: Final = 5_000  # Half a year of one run.
LONG_PAGE_ROWS: Final = 20_000  # For who does nothing else between two pages: 20 ms.

WHAT_CHARS_MAX: Final = 120  # Of an error's own words, which may quote the row.
NUMBER_MIN: Final = -(2**63)  # Of a row, and of wall time.
NUMBER_MAX: Final = 2**63 - 1
# What decoding a row raises where the row is none of ours. AttributeError: of a cell that holds no text.
NOT_OURS: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)

_HAS_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table"


class ChargesUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which file, what is wrong, what to do."""

    @classmethod
    def of(cls, path: str, error: sqlite3.Error | UnicodeDecodeError) -> ChargesUnreadable:
        # The latter is of what SQLite says of a damaged schema, names included.
        if isinstance(error, UnicodeDecodeError) or is_corruption(error):
            what = "the governor keeps it aside at its next start and takes over what can still be read"
            return cls(f"{path}: corrupt ({error}); {what}")
        return cls(f"{path}: cannot be read: {error}; read it as the governor's user or root")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row whose data cannot be read, and what its columns say of it; None where not even they are what they were."""

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


Unreadables = Callable[[Unreadable], None]  # Who is told of them.


def refuse(row: Unreadable) -> None:
    """For who has no use for less than all. Raises `ChargesUnreadable`."""
    raise ChargesUnreadable(f"{row.text()}; did a newer costgov write it?")


def journal_paths(state_dir: Path) -> list[str]:
    """The journals below a state directory, the one written last first."""
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
    """An open journal, closed at the end also of a generator that is left early. Raises `ChargesUnreadable`."""
    try:
        with closing(open_read_only(path)) as connection:
            # Decoded where a row is read: what is no UTF-8 would be an error of the query.
            connection.text_factory = bytes
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ChargesUnreadable.of(path, error) from error


def has_table(connection: sqlite3.Connection, table: str) -> bool:
    """False in a journal of a version that had none of these."""
    return connection.execute(_HAS_TABLE, {"table": table}).fetchone() is not None


def window_of(since: int | None, until: int | None) -> dict[str, int]:
    """The bounds of wall time as parameters of a query; None is no bound."""
    return {"since": NUMBER_MIN if since is None else since, "until": NUMBER_MAX if until is None else until}


def paged(
    connection: sqlite3.Connection, query: str, bounds: Mapping[str, int], place: Mapping[str, object], rows: int,
    each: str | None = None,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield the rows of a query, page by page. `place` names its first columns, and says where to begin behind.

    `each`: the query for a page with a row that is no JSON, which is an error of the whole of it.
    """
    while True:
        values = {**bounds, **place, "rows": rows}
        try:
            page = connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if each is None or error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            page = connection.execute(each, values).fetchall()
        yield from page
        if len(page) < rows:
            return
        place = dict(zip(place, page[-1], strict=False))


def what_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:WHAT_CHARS_MAX]


def text_in(cell: bytes) -> str:
    """A cell's text. UnicodeDecodeError, a ValueError; AttributeError where it holds none."""
    return cell.decode("utf-8", "surrogatepass")  # JSON may have half surrogates, and SQLite takes them as they are.


def shown(cell: object) -> str:
    """Whatever stands in a cell, for people."""
    return cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else str(cell)


# --- charges, one by one -----------------------------------------------------------------------------------

# In the order of time. A charge that grows keeps its name and its beginning, so no page holds it twice.
_CHARGES: Final = """
SELECT from_wall_ns, charge_id, rowid, data, usd_micros FROM charges
WHERE from_wall_ns < :until AND (to_wall_ns > :since OR from_wall_ns >= :since)
AND (from_wall_ns, charge_id) > (:after_wall, CAST(:after_id AS TEXT))
ORDER BY from_wall_ns, charge_id LIMIT :rows"""
_IDENTITY: Final = "SELECT charge_id, run, from_wall_ns, usd_micros FROM charges WHERE rowid = :rowid"


def read_charges(
    path: str, since: int | None = None, until: int | None = None, unread: Unreadables = refuse
) -> Iterator[Charge]:
    """Yield the charges that touch [since, until) of wall time, uncut, in the order of their beginnings.

    None in a journal of a version without charges. `unread` is told of each row that is no charge. Raises
    `ChargesUnreadable` where the file itself cannot be read, on.
    """
    with reading(path) as connection:
        if not has_table(connection, "charges"):
            return
        begin = {"after_wall": NUMBER_MIN, "after_id": b""}
        for _, _, rowid, data, micros in paged(connection, _CHARGES, window_of(since, until), begin, PAGE_ROWS):
            charge = charge_in(path, connection, rowid, data, micros, unread)
            if charge is not None:
                yield charge


def charge_in(
    path: str, connection: sqlite3.Connection, rowid: int, data: bytes, micros: int, unread: Unreadables
) -> Charge | None:
    """The charge of a row; None of one that is none, of which `unread` is told.

    `micros`: its amount as the column has it. A row says it twice, and SQLite has no sums of what stands in a page.
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
    """What the columns of a charge say of it, whose data says nothing."""
    found = connection.execute(_IDENTITY, {"rowid": rowid}).fetchone()
    # None: let go for its age since, or its number in the tree is damaged too.
    charge_id, run, begin, micros = found or (b"(not found again)", b"", None, None)
    return Unreadable(path, f"charge {shown(charge_id)}", shown(run), _number(begin), _number(micros), what_of(error))


def _number(cell: object) -> int | None:
    return cell if isinstance(cell, int) else None


# --- windows of tokens -------------------------------------------------------------------------------------

# What thousands of windows have in common is decoded once.
_ALIKE: Final = (
    "stage",
    "attempt",
    "expected_usd_micros_per_mtok",
    "expected_tokens_per_s",
    "ceiling_usd_micros",
    "tokens_goal",
    "began_tokens",
    "unpriced",
)
_FIGURES: Final = ("from_tokens", "to_tokens", "duration_ns", "usd_micros", "wasted_tokens")
_CLOSED: Final = """
FROM journal WHERE kind = 'window' AND seq > :after AND wall_ns >= :since AND wall_ns < :until
ORDER BY seq LIMIT :rows"""
_WINDOWS: Final = "SELECT seq, run, wall_ns, json_extract(data, {alike}), {figures}".format(
    alike=", ".join(f"'$.{name}'" for name in _ALIKE), figures=", ".join(f"data ->> '{name}'" for name in _FIGURES)
)
_EACH_WINDOW: Final = "SELECT seq, run, wall_ns, data"

_RUNS: Final = "SELECT run, snapshot FROM runs ORDER BY seq"


def read_windows(
    path: str, runs: Collection[str] = (), since: int | None = None, until: int | None = None,
    unread: Unreadables = refuse,
) -> Iterator[tuple[str, WindowRow]]:  # fmt: skip
    """Yield (run, window) of those that closed in [since, until) of wall time, in that order; no runs named: of all.

    `unread` is told of each row that is no window. Raises `ChargesUnreadable` where the file itself cannot be read, on.
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
    return WindowRow(like.stage, like.attempt, _window(cells[1:]), like.plan, like.is_unpriced)


def _like(alike: bytes) -> WindowRow:
    """A row with the fields that windows share, and a window of no account."""
    fields = dict(zip(_ALIKE, json.loads(text_in(alike)), strict=True))
    window = {"from_tokens": 0, "to_tokens": 1, "duration_ns": 0, "usd_micros": 0, "wasted_tokens": 0}
    return row_of(fields | window)


def _window(figures: list[Any]) -> Window:
    if any(type(figure) is not int for figure in figures):
        raise ValueError("a figure is no whole number")
    start, end, duration, usd_micros, wasted = figures
    if end <= start:
        raise ValueError("a window without tokens")
    return Window(start, end, DurationNs(duration), UsdMicros(usd_micros), wasted)


def read_open(
    path: str, runs: Collection[str] = (), since: int | None = None, unread: Unreadables = refuse
) -> Iterator[tuple[str, str | None, TokenMeter]]:
    """Yield (run, stage, meter) of each run as it was kept last, every ten seconds while it lived, if after `since`.

    `unread` is told of each whose state cannot be read. Raises `ChargesUnreadable`.
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
            # None: it has shown no tokens. One that was kept last before the asked time has ended before it.
            if tokens is None or (since is not None and wall is not None and wall < since):
                continue
            meter = TokenMeter.restored(tokens, same_boot=False)
        except NOT_OURS as error:
            unread(Unreadable(path, "the state of its tokens", run, None, None, what_of(error)))
            continue
        yield run, found.get("stage"), meter
