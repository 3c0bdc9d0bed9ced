"""The windows of tokens in a journal, read beside a running governor as its charges are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any, Final

from governor.adapters.journal.charges_db import (
    ChargesUnreadable,
    Unreadable,
    Unreadables,
    opened,
    refuse,
    shown,
    text_in,
    what_of,
    window_of,
)
from governor.core.base.units import DurationNs, UsdMicros
from governor.core.money.expected import WindowRow, row_of
from governor.core.money.token_windows import TokenMeter, Window

# Each page is a transaction of its own, as in charges_sums.
PAGE_ROWS: Final = 20_000
_HAS_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'journal'"
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
_PAGE: Final = "SELECT seq, run, wall_ns, json_extract(data, {alike}), {figures}".format(
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
    bounds = {**window_of(since, until), "rows": PAGE_ROWS}
    try:
        with closing(opened(path)) as connection:
            if connection.execute(_HAS_TABLE).fetchone() is None:
                return
            for whose, wall, *cells in _rows(connection, bounds):
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
            if connection.execute(_HAS_TABLE).fetchone() is None:
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


def _rows(connection: sqlite3.Connection, bounds: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    after = -1
    while True:
        place = {**bounds, "after": after}
        try:
            page = connection.execute(_PAGE + _WINDOW, place).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            page = connection.execute(_EACH + _WINDOW, place).fetchall()
        for row in page:
            yield row[1:]
        if len(page) < PAGE_ROWS:
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
