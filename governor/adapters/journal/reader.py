"""The charges of a journal, read beside a running governor. The journal's own reader keeps to halts and runs."""

from __future__ import annotations

import glob
import json
import os
import sqlite3
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from governor.adapters.journal.check import is_corruption
from governor.core.base.units import DurationNs, UsdMicros, utc_text
from governor.core.money.charges import Charge, charge_of
from governor.core.money.forecast import WindowRow, row_of
from governor.core.money.reports.cost import exact_usd
from governor.core.money.token_windows import TokenMeter, Window

JOURNAL_NAME: Final = "costgov.db"
JOURNALS_MAX: Final = 1_000  # One for each `costgov run` that ever had a name of its own; newest first.
# Each page is a transaction of its own: a reader that is slow to print must not keep the governor's WAL from shrinking.
PAGE_ROWS: Final = 5_000  # Half a year of one run.

_HAS_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'charges'"
# In the order of time. A charge that grows keeps its name and its beginning, so no page holds it twice.
_PAGE: Final = """
SELECT charge_id, from_wall_ns, rowid, data, usd_micros FROM charges
WHERE from_wall_ns < :until AND (to_wall_ns > :since OR from_wall_ns >= :since)
AND (from_wall_ns, charge_id) > (:after_wall, CAST(:after_id AS TEXT))
ORDER BY from_wall_ns, charge_id LIMIT :rows"""
_IDENTITY: Final = "SELECT charge_id, run, from_wall_ns, usd_micros FROM charges WHERE rowid = :rowid"
WHAT_CHARS_MAX: Final = 120  # Of an error's own words, which may quote the row.
_WALL_MIN: Final = -(2**63)
_WALL_MAX: Final = 2**63 - 1


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


def read_charges(
    path: str, since: int | None = None, until: int | None = None, unread: Unreadables = refuse
) -> Iterator[Charge]:
    """Yield the charges that touch [since, until) of wall time, uncut, in the order of their beginnings.

    None in a journal of a version without charges. `unread` is told of each row that is no charge. Raises
    `ChargesUnreadable` where the file itself cannot be read, on.
    """
    try:
        # A closing() at each level: a generator that is left early must not leave the file open.
        with closing(opened(path)) as connection:
            if has_charges(connection):
                for rowid, data, micros in _rows(connection, window_of(since, until)):
                    charge = charge_in(path, connection, rowid, data, micros, unread)
                    if charge is not None:
                        yield charge
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ChargesUnreadable.of(path, error) from error


def opened(path: str) -> sqlite3.Connection:
    """A connection that changes nothing. Raises sqlite3.Error."""
    uri = f"file:{urllib.parse.quote(path)}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)
    connection.text_factory = bytes  # Decoded where a row is read: what is no UTF-8 would be an error of the query.
    return connection


def has_charges(connection: sqlite3.Connection) -> bool:
    return connection.execute(_HAS_TABLE).fetchone() is not None


def window_of(since: int | None, until: int | None) -> dict[str, int]:
    """The bounds as parameters of a query; None is no bound."""
    return {"since": _WALL_MIN if since is None else since, "until": _WALL_MAX if until is None else until}


def _rows(connection: sqlite3.Connection, window: Mapping[str, int]) -> Iterator[tuple[int, bytes, int]]:
    after_wall, after_id = _WALL_MIN, b""
    while True:
        place = {"after_wall": after_wall, "after_id": after_id, "rows": PAGE_ROWS}
        page = connection.execute(_PAGE, {**window, **place}).fetchall()
        for _, _, rowid, data, micros in page:
            yield rowid, data, micros
        if len(page) < PAGE_ROWS:
            return
        after_id, after_wall = page[-1][:2]


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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        unread(unreadable(path, connection, rowid, error))
        return None


def unreadable(path: str, connection: sqlite3.Connection, rowid: int, error: Exception) -> Unreadable:
    """What the columns of a charge say of it, whose data says nothing."""
    found = connection.execute(_IDENTITY, {"rowid": rowid}).fetchone()
    # None: let go for its age since, or its number in the tree is damaged too.
    charge_id, run, begin, micros = found or (b"(not found again)", b"", None, None)
    return Unreadable(path, f"charge {shown(charge_id)}", shown(run), _number(begin), _number(micros), what_of(error))


def what_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:WHAT_CHARS_MAX]


def text_in(cell: bytes) -> str:
    """A cell's text. UnicodeDecodeError, a ValueError; AttributeError where it holds none."""
    return cell.decode("utf-8", "surrogatepass")  # JSON may have half surrogates, and SQLite takes them as they are.


def shown(cell: object) -> str:
    """Whatever stands in a cell, for people."""
    return cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else str(cell)


def _number(cell: object) -> int | None:
    return cell if isinstance(cell, int) else None


# The windows of tokens in a journal, read beside a running governor as its charges are.


# Each page is a transaction of its own, as in charges_sums.
WINDOW_PAGE_ROWS: Final = 20_000
_HAS_WINDOWS: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'journal'"
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
_WINDOW: Final = """
FROM journal WHERE kind = 'window' AND seq > :after AND wall_ns >= :since AND wall_ns < :until
ORDER BY seq LIMIT :rows"""
_WINDOW_PAGE: Final = "SELECT seq, run, wall_ns, json_extract(data, {alike}), {figures}".format(
    alike=", ".join(f"'$.{name}'" for name in _ALIKE), figures=", ".join(f"data ->> '{name}'" for name in _FIGURES)
)
# Of a page with a row that is no JSON, which is an error of the whole query: each window by itself.
_EACH: Final = "SELECT seq, run, wall_ns, data"

_RUNS: Final = "SELECT run, snapshot FROM runs ORDER BY seq"


def read_windows(
    path: str, runs: Collection[str] = (), since: int | None = None, until: int | None = None,
    unread: Unreadables = refuse,
) -> Iterator[tuple[str, WindowRow]]:  # fmt: skip
    """Yield (run, window) of those that closed in [since, until) of wall time, in that order; no runs named: of all.

    `unread` is told of each row that is no window. Raises `ChargesUnreadable` where the file itself cannot be read, on.
    """
    known: dict[bytes, WindowRow] = {}
    bounds = {**window_of(since, until), "rows": WINDOW_PAGE_ROWS}
    try:
        with closing(opened(path)) as connection:
            if connection.execute(_HAS_WINDOWS).fetchone() is None:
                return
            for whose, wall, *cells in _window_rows(connection, bounds):
                run = shown(whose)
                if runs and run not in runs:
                    continue
                try:
                    if len(cells) == 1:
                        row = row_of(json.loads(cells[0]))
                    else:
                        like = known.get(cells[0]) or known.setdefault(cells[0], _like(cells[0]))
                        window = _window(cells[1:])
                        row = WindowRow(like.stage, like.attempt, window, like.plan, like.is_unpriced)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                    unread(Unreadable(path, "a window of tokens", run, wall, None, what_of(error)))
                    continue
                yield run, row
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ChargesUnreadable.of(path, error) from error


def read_open(
    path: str, runs: Collection[str] = (), since: int | None = None, unread: Unreadables = refuse
) -> Iterator[tuple[str, str | None, TokenMeter]]:
    """Yield (run, stage, meter) of each run as it was kept last, every ten seconds while it lived, if after `since`.

    `unread` is told of each whose state cannot be read. Raises `ChargesUnreadable`.
    """
    try:
        with closing(opened(path)) as connection:
            if connection.execute(_HAS_WINDOWS).fetchone() is None:
                return
            kept = connection.execute(_RUNS).fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ChargesUnreadable.of(path, error) from error
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
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            unread(Unreadable(path, "the state of its tokens", run, None, None, what_of(error)))
            continue
        yield run, found.get("stage"), meter


def _window_rows(connection: sqlite3.Connection, bounds: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    after = -1
    while True:
        place = {**bounds, "after": after}
        try:
            page = connection.execute(_WINDOW_PAGE + _WINDOW, place).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            page = connection.execute(_EACH + _WINDOW, place).fetchall()
        for row in page:
            yield row[1:]
        if len(page) < WINDOW_PAGE_ROWS:
            return
        after = page[-1][0]


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
