"""A fleet's costs between a journal, the fleet's store and whoever looks: what a node writes, and all that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from governor.adapters.journal.reader import JOURNAL_NAME, ChargesUnreadable, Unreadable
from governor.adapters.journal.sums import read_holder, read_sums, read_uids, read_unpriced
from governor.core.base.units import NS_PER_DAY
from governor.core.events.fleet_store import Answer, Kept
from governor.core.fleet.cost_rows import COST_ROWS, LedgerDay, rows_of_day
from governor.core.fleet.scopes import Holder
from governor.core.money.charges import UNALLOCATED
from governor.core.money.reports.cost import PAYER_AND_NODE
from governor.remote_ports import FleetReply, FleetStore

PAGE_ROWS: Final = 5_000
# 1,000 nodes with ten runs a day, for two months.
ROWS_MAX: Final = 1_000_000


def ledger_days(state_dir: Path) -> Callable[[int, bool], LedgerDay | str]:
    """Reads a day of this governor's own journal. A text: why it cannot be read."""
    path = str(state_dir / JOURNAL_NAME)

    def read(day: int, with_unpriced: bool) -> LedgerDay | str:
        since, until = day * NS_PER_DAY, (day + 1) * NS_PER_DAY
        unread: list[Unreadable] = []
        try:
            holder = read_holder(path)  # First: it is no younger than the charges.
            sums = tuple(read_sums(path, PAYER_AND_NODE, (), since, until, unread.append))
            runs = {one.charge.payer.run for one in sums} - {UNALLOCATED}
            unpriced = read_unpriced(path, since, until) if with_unpriced else {}
            uids = read_uids(path, runs)
        except ChargesUnreadable as error:
            return str(error)
        known = Holder(*holder) if holder is not None and len(holder) == 3 else None
        return LedgerDay(sums, unpriced, uids, len(unread), known)

    return read


class RowsMissing(Exception):  # noqa: N818 - the condition is the name.
    """The store did not give all rows. `reply`: its answer; None: there are more than anybody reads."""

    def __init__(self, reply: FleetReply | None) -> None:
        super().__init__()
        self.reply = reply


def cost_rows(
    store: FleetStore, first_day: int | None, last_day: int | None, page_rows: int = PAGE_ROWS
) -> Iterator[Kept]:
    """The rows of these days, both included, in the order of their keys. Raises RowsMissing.

    Somebody may have put rows there that are as long as etcd takes them: a page that is too large is asked for again
    with fewer rows.
    """
    after = rows_of_day(first_day) if first_day is not None else ""
    end = rows_of_day(last_day + 1) if last_day is not None else None
    limit, count = page_rows, 0
    while True:
        page = store.range(COST_ROWS, limit, after)
        if page.reason == "too_large" and limit > 1:
            limit //= 8 if limit > 8 else limit
            continue
        if page.answer is not Answer.READ:
            raise RowsMissing(page)
        for kept in page.rows:
            if end is not None and kept.key >= end:
                return
            yield kept
        count += len(page.rows)
        if not page.is_cut or not page.rows:
            return
        if count >= ROWS_MAX:
            raise RowsMissing(None)
        after, limit = page.rows[-1].key, min(page_rows, limit * 2)
