"""The windows of tokens in a journal, read beside a running governor as its charges are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any, Final

from governor.adapters.charges_db import ChargesUnreadable, opened, window_of
from governor.core.expected import WindowRow, row_of
from governor.core.token_windows import TokenMeter, Window
from governor.core.units import DurationNs, UsdMicros

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
_PAGE: Final = """
SELECT seq, run, json_extract(data, {paths}), data ->> 'from_tokens',
       data ->> 'to_tokens', data ->> 'duration_ns', data ->> 'usd_micros', data ->> 'wasted_tokens'
FROM journal WHERE kind = 'window' AND seq > :after AND wall_ns >= :since AND wall_ns < :until
ORDER BY seq LIMIT :rows""".format(paths=", ".join(f"'$.{name}'" for name in _ALIKE))

# One that was kept last before the asked time has ended before it.
_METERS: Final = """
SELECT run, snapshot ->> 'stage', snapshot ->> 'tokens' FROM runs
WHERE coalesce(snapshot ->> 'wall_ns', :since) >= :since ORDER BY seq"""


def read_windows(
    path: str, runs: Collection[str] = (), since: int | None = None, until: int | None = None
) -> Iterator[tuple[str, WindowRow]]:
    """Yield (run, window) of those that closed in [since, until) of wall time, in that order; no runs named: of all.

    Raises `ChargesUnreadable`.
    """
    known: dict[str, WindowRow] = {}
    bounds = {**window_of(since, until), "rows": PAGE_ROWS}
    try:
        with closing(opened(path)) as connection:
            if connection.execute(_HAS_TABLE).fetchone() is None:
                return
            for run, alike, *figures in _rows(connection, bounds):
                if runs and run not in runs:
                    continue
                try:
                    like = known.get(alike) or known.setdefault(alike, _like(alike))
                    yield run, WindowRow(like.stage, like.attempt, _window(figures), like.plan, like.is_unpriced)
                except (KeyError, TypeError, ValueError) as error:
                    raise _not_ours(path, error) from None
    except sqlite3.Error as error:
        raise ChargesUnreadable.of(path, error) from error


def read_open(
    path: str, runs: Collection[str] = (), since: int | None = None
) -> Iterator[tuple[str, str | None, TokenMeter]]:
    """Yield (run, stage, meter) of each run as it was kept last, every ten seconds while it lived, if after `since`.

    Raises `ChargesUnreadable`.
    """
    try:
        with closing(opened(path)) as connection:
            if connection.execute(_HAS_TABLE).fetchone() is None:
                return
            kept = connection.execute(_METERS, {"since": window_of(since, None)["since"]}).fetchall()
    except sqlite3.Error as error:
        raise ChargesUnreadable.of(path, error) from error
    for run, stage, tokens in kept:
        if tokens is None or (runs and run not in runs):
            continue  # It has shown no tokens.
        try:
            yield run, stage, TokenMeter.restored(json.loads(tokens), same_boot=False)
        except (KeyError, TypeError, ValueError) as error:
            raise _not_ours(path, error) from None


def _not_ours(path: str, error: Exception) -> ChargesUnreadable:
    what = f"{type(error).__name__}: {error}"
    return ChargesUnreadable(f"{path}: a window in it is not one of ours ({what}); a newer costgov wrote it?")


def _rows(connection: sqlite3.Connection, bounds: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    after = -1
    while True:
        page = connection.execute(_PAGE, {**bounds, "after": after}).fetchall()
        for row in page:
            yield row[1:]
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]


def _like(alike: str) -> WindowRow:
    """A row with the fields that windows share, and a window of no account."""
    fields = dict(zip(_ALIKE, json.loads(alike), strict=True))
    window = {"from_tokens": 0, "to_tokens": 1, "duration_ns": 0, "usd_micros": 0, "wasted_tokens": 0}
    return row_of(fields | window)


def _window(figures: list[Any]) -> Window:
    if any(type(figure) is not int for figure in figures):
        raise ValueError("a figure is no whole number")
    start, end, duration, usd_micros, wasted = figures
    if end <= start:
        raise ValueError("a window without tokens")
    return Window(start, end, DurationNs(duration), UsdMicros(usd_micros), wasted)
