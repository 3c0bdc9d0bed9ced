"""All rows below a prefix, page by page, as an answer of etcd has a size that it may not pass; and a holder's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.presence import NODE_ROWS, RUN_ROWS
from governor.remote_ports import FleetReply, FleetStore

PAGE_ROWS: Final = 2_000  # Of 4 KB at most each, in base64: below the 8 MiB of an answer for rows of usual size.
ROWS_MAX: Final = 50_000
ROWS_OF_HOLDER_MAX: Final = 1_000  # A governor has 64 runs.
DELETES_MAX: Final = 100  # etcd takes 128 operations in a transaction.


def whole(store: FleetStore, prefix: str, most: int, page_rows: int = PAGE_ROWS) -> FleetReply:
    """READ with all rows, or so many and `is_cut`; its revision is that of the first page. Else the failure.

    Anybody may have put rows there as long as etcd takes them: of a page that is too large less is asked.
    """
    found: list[Kept] = []
    limit, revision = min(page_rows, most), 0
    while True:
        page = store.range(prefix, limit, found[-1].key if found else "")
        if page.reason == "too_large" and limit > 1:
            limit = max(1, limit // 8)
            continue
        if page.answer is not Answer.READ:
            return page
        revision = revision or page.revision
        found += page.rows
        if not page.is_cut or not page.rows or len(found) >= most:
            return replace(page, rows=tuple(found[:most]), revision=revision, is_cut=page.is_cut or len(found) > most)
        limit = min(page_rows, limit * 2)


def every_row(store: FleetStore, prefix: str, most: int = ROWS_MAX) -> Sequence[Kept] | FleetReply:
    """A FleetReply: why there are none; with `is_cut` there are too many."""
    found = whole(store, prefix, most)
    return found if found.answer is not Answer.READ or found.is_cut else found.rows


def forget_holder(store: FleetStore, holder: str) -> FleetReply:
    """Take the rows away that a governor which is gone has said of itself and its runs. Its grants stay."""
    runs = every_row(store, f"{RUN_ROWS}{holder}/", ROWS_OF_HOLDER_MAX)
    if isinstance(runs, FleetReply):
        return runs
    keys = [*(kept.key for kept in runs), f"{NODE_ROWS}{holder}"]  # Its node's last: until then it can be told again.
    reply = FleetReply(Answer.APPLIED)
    for first in range(0, len(keys), DELETES_MAX):
        reply = store.transact(Transaction((), (), tuple(keys[first : first + DELETES_MAX])))
        if reply.answer is not Answer.APPLIED:
            return reply
    return reply
