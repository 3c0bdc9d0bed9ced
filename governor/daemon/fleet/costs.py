"""What this node's ledger has charged, as rows of the fleet's store: a turn of the fleet's thread, once a minute.

It reads the journal beside the loop, as `costgov cost` does, and writes the rows that differ from what the store has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog

from governor.core.base.units import NS_PER_DAY, NS_PER_S, MonoNs, WallNs
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.fleet.cost_rows import (
    CostRow,
    LedgerDay,
    Share,
    cost_key,
    found_in,
    names_in_key,
    rows_from,
    rows_of_holder,
    rows_of_node,
    text_of,
)
from governor.core.fleet.scopes import Holder
from governor.core.money.reports.cost import Group
from governor.remote_ports import FleetStore

# Charges of the time before the start are in the journal by then: it commits every ten seconds.
FIRST_NS: Final = 30 * NS_PER_S
EVERY_NS: Final = 60 * NS_PER_S
AGAIN_NS: Final = 20 * NS_PER_S  # After an answer that was none: grants are asked for on the same thread.
DAYS_KEPT: Final = 62
# How many days before those are looked through for rows of ours: longer than a machine is usually away.
DAYS_FORGOTTEN: Final = 31
PUTS_MAX: Final = 64  # Of a transaction. etcd takes 128 operations.
KNOWN_MAX: Final = 1_500  # Rows of a day that are read back: more than a ledger has of one.
_UNREADABLE: Final = Share("", None, (), Group(""))  # Of a row whose key is ours and whose text is nobody's.

# A day of the ledger, with what is known of runs without a price where that is wanted. A text: why it cannot be read.
ReadDay = Callable[[int, bool], LedgerDay | str]

_Item = TypeVar("_Item")

log = structlog.get_logger("costgov")


@dataclass(frozen=True, slots=True)
class _Known:
    """A row as the store has it. `revision` 0: it is of an earlier boot, under another key."""

    row: CostRow
    revision: int


class FleetCosts:
    """A `worker.Turn`.

    At the start, each of the last days is compared with the store, one a second: a governor that was away has charged
    for the time since. Then today and yesterday are, once a minute. Yesterday changes only where charges moved.
    """

    def __init__(self, holder: Callable[[], Holder], read: ReadDay, wall: Callable[[], WallNs]) -> None:
        self._holder, self._read, self._wall = holder, read, wall
        self._began = wall()
        self._known: dict[int, dict[str, _Known]] = {}
        self._days: deque[int] = deque()  # Still to be looked at, once each.
        self._today: int | None = None  # None: nothing was looked at yet.
        self._next_at: MonoNs | None = None  # Of the next round.
        self._not_before = MonoNs(0)
        self._is_unread_told = False

    def turn(self, store: FleetStore, at: MonoNs) -> None:
        if self._next_at is None:
            self._next_at = self._not_before = MonoNs(at + FIRST_NS)
        if at < self._not_before:
            return
        is_done = True
        if at >= self._next_at:
            is_done = self._round(store)
            self._next_at = MonoNs(at + (EVERY_NS if is_done else AGAIN_NS))
        elif self._days:
            day = self._days.popleft()
            is_kept = self._wall() // NS_PER_DAY - day < DAYS_KEPT
            is_done = self._synced(store, day) if is_kept else self._forgotten(store, day)
            if not is_done:
                self._days.append(day)  # None of the others waits for it.
        if not is_done:
            self._not_before = MonoNs(at + AGAIN_NS)

    def end(self, store: FleetStore) -> None:
        """Today's rows once more, as the last ones."""
        today = self._wall() // NS_PER_DAY
        if self._synced(store, today, is_end=True):
            self._synced(store, today - 1)

    def _round(self, store: FleetStore) -> bool:
        today = self._wall() // NS_PER_DAY
        if not (self._synced(store, today) and self._synced(store, today - 1)):
            return False
        if self._today is None:
            self._days.extend(today - ago for ago in range(2, DAYS_KEPT + DAYS_FORGOTTEN))
        elif self._today != today:
            self._days.append(today - DAYS_KEPT)
        self._today = today
        self._known = {day: rows for day, rows in self._known.items() if day in (today, today - 1)}
        return True

    # --- one day -----------------------------------------------------------------------------------------

    def _synced(self, store: FleetStore, day: int, *, is_end: bool = False) -> bool:
        """Whether the store has this day as the ledger has it. Nothing is written while the ledger is nobody's."""
        read, holder, wall = self._read(day, day >= self._wall() // NS_PER_DAY - 1), self._holder(), self._wall()
        if isinstance(read, str):
            self._tell_unread(read)
            return False
        if read.holder != holder:  # A start after us would write the same charges under another name.
            return False
        known = self._known.get(day)
        if known is None and (known := self._read_back(store, day, holder)) is None:
            return False
        self._known[day] = known
        is_today = day == wall // NS_PER_DAY
        rows = {row.run: row for row in rows_from(read)}
        if not read.unread:  # Else nobody knows whether they are gone.
            rows |= {run: CostRow(run) for run, its in known.items() if its.row.shares and run not in rows}
        changed = [
            replace(row, as_of_wall_ns=wall, began_wall_ns=self._began, has_ended=is_end)
            for run, row in rows.items()
            if is_end or run not in known or not _is_same(row, known[run].row, is_today)
        ]
        return all(self._put(store, day, holder, known, batch) for batch in _batches(changed))

    def _put(
        self, store: FleetStore, day: int, holder: Holder, known: dict[str, _Known], rows: Sequence[CostRow]
    ) -> bool:
        """Compared with what was there, so that what arrives late changes nothing."""
        keys = {row.run: cost_key(day, holder, row.run) for row in rows}
        before = tuple((key, known[run].revision if run in known else 0) for run, key in keys.items())
        reply = store.transact(Transaction(before, tuple((keys[row.run], text_of(row)) for row in rows)))
        if reply.answer is Answer.APPLIED:
            known |= {row.run: _Known(row, reply.revision) for row in rows}
            return True
        self._known.pop(day, None)  # Somebody knows better: read again.
        return False

    def _read_back(self, store: FleetStore, day: int, holder: Holder) -> dict[str, _Known] | None:
        """What the store has of this ledger, by run. None: that is not known."""
        found = store.range(rows_of_holder(day, holder), KNOWN_MAX)
        if found.answer is not Answer.READ:
            return None
        known: dict[str, _Known] = {}
        for kept in found.rows:
            names, its = names_in_key(kept.key), found_in(kept)
            if names is not None:
                known[names[2]] = _Known(
                    its.row if its is not None else CostRow(names[2], (_UNREADABLE,)), kept.revision
                )
        return known or self._of_earlier_boots(store, day, holder)

    def _of_earlier_boots(self, store: FleetStore, day: int, holder: Holder) -> dict[str, _Known] | None:
        """Rows of an earlier day are not written once more because the machine was started anew."""
        if day >= self._wall() // NS_PER_DAY - 1:
            return {}
        found = store.range(rows_of_node(day, holder.node), KNOWN_MAX)
        if found.answer is not Answer.READ:
            return None
        rows = (
            its.row for kept in found.rows if (its := found_in(kept)) is not None and its.holder.ledger == holder.ledger
        )
        return {row.run: _Known(row, 0) for row in sorted(rows, key=lambda row: row.as_of_wall_ns)}

    def _forgotten(self, store: FleetStore, day: int) -> bool:
        """Delete this ledger's rows of a day that is too long ago."""
        holder = self._holder()
        found = store.range(rows_of_node(day, holder.node), KNOWN_MAX)
        if found.answer is Answer.READ and found.is_cut:  # By many ledgers of this node: each deletes its own.
            found = store.range(rows_of_holder(day, holder), KNOWN_MAX)
        if found.answer is not Answer.READ:
            return False
        names = ((kept.key, names_in_key(kept.key)) for kept in found.rows)
        own = [key for key, its in names if its is not None and its[1].ledger == holder.ledger]
        return all(
            store.transact(Transaction((), (), tuple(keys))).answer is Answer.APPLIED for keys in _batches(own)
        )  # fmt: skip

    def _tell_unread(self, why: str) -> None:
        if not self._is_unread_told:
            log.warning("fleet_costs_unread", why=why, advice="the fleet's costs lack this node until it can be read")
        self._is_unread_told = True


def _is_same(row: CostRow, before: CostRow, is_today: bool) -> bool:
    return row == before and not (is_today and row.unpriced_ns != before.unpriced_ns)


def _batches(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[start : start + PUTS_MAX] for start in range(0, len(items), PUTS_MAX))
