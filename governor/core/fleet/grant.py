"""One grant: what a governor may spend for one run in one scope, what it asks next, and when the run is halted.

At most one transaction is under way. While its answer is lost it is sent again, word for word. The rows that it
compares have changed if it was applied, so it is applied once, and what it then finds tells whether it was. Until that
is known, the smaller of both amounts counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_MS, NS_PER_S, MonoNs, WallNs
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.scopes import (
    GrantRow,
    ScopeRow,
    compares,
    grant_row,
    granted,
    scope_row,
    settled,
    settlement,
    text_of,
)

CHUNK_NS: Final = 300 * NS_PER_S  # What a grant has left after it was raised, at the present rate.
LEAD_NS: Final = 120 * NS_PER_S  # Less than this left: it is raised. A leader's election takes 10 s.
FLOOR_NS: Final = 15 * NS_PER_S  # Less than this is worth no transaction, unless it is the last.
# So many parts of a scope's room for each holder. One that takes half of its share leaves the other half for the rest.
PARTS: Final = 2
SPARE: Final = 4  # A reserve may jump by this part of it (a price that rises) before its next grant has come.
HOARD: Final = 3  # With more than so many chunks left, the rest is given back.
BACK_OFF_NS: Final = 20 * NS_PER_MS
BACK_OFF_MAX_NS: Final = NS_PER_S
SILENT_BACK_OFF_NS: Final = NS_PER_S
SILENT_BACK_OFF_MAX_NS: Final = 10 * NS_PER_S
_SPREAD: Final = 617  # Two names that differ by one character are far apart.


class Why(Enum):
    """Why a grant is not raised."""

    NOTHING_LEFT = "nothing_left"  # All of the ceiling is granted.
    NO_CEILING = "no_ceiling"  # Nobody has set one for this scope, or its row cannot be read.
    LOWERED = "lowered"  # More is granted than the ceiling allows: every holder gives back.
    SILENT = "silent"  # The store does not answer.
    REFUSED = "refused"
    GONE = "gone"  # Somebody has settled it: this machine counted as ended.
    SUPERSEDED = "superseded"  # A later governor of this holder has the grant.


@dataclass(frozen=True, slots=True)
class Use:
    """What the ledger says of a run in a scope now. The reserve is what its halt may cost, with a price that rises."""

    spent_usd_micros: int
    rate_usd_micros_per_hour: int
    reserve_usd_micros: int
    is_ending: bool = False  # It is being halted: it needs no more than it has.


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction whose end is not known. `after` None: it settles."""

    request: str
    transaction: Transaction
    after: GrantRow | None
    scope_after: ScopeRow


@dataclass(slots=True)
class Grant:
    """`sure` is the amount that is certainly ours, whatever became of a transaction. Nothing beyond it is spent."""

    scope: str
    run: str
    key: str
    base_usd_micros: int
    instance: str
    number: int = 0  # Of the grants of this start: its requests have ids that no other grant's have.
    sure_usd_micros: int = 0
    row: GrantRow | None = None
    own: Kept = Kept("")
    of_scope: Kept = Kept("")
    read_at: MonoNs | None = None  # When the scope's row was last read, or written by us.
    sent: Sent | None = None
    is_waiting: bool = False  # For an answer. Every request gets one.
    not_before: MonoNs = MonoNs(0)
    failures: int = 0
    why: Why | None = None
    silent_since: MonoNs | None = None
    final_usd_micros: int | None = None  # The run has ended, and has spent this.
    is_over: bool = False  # Nothing is held any more, and nothing can come late.
    use: Use = Use(0, 0, 0)
    raised_by: int = 0  # The last raise: the next one is due when half of it is used up.
    lowered_at: MonoNs | None = None
    serial: int = 0
    # An earlier start of this governor had it: of what that start has sent, something may still come late.
    is_restored: bool = False
    was_opened: bool = False  # It has had a row, so that what it spent is booked once.

    @property
    def used_usd_micros(self) -> int:
        spent = self.use.spent_usd_micros if self.final_usd_micros is None else self.final_usd_micros
        return max(0, spent - self.base_usd_micros)

    @property
    def headroom_usd_micros(self) -> int:
        """What the run may still spend before its halt has to begin."""
        return self.sure_usd_micros - self.used_usd_micros - self.use.reserve_usd_micros

    @property
    def held_usd_micros(self) -> int:
        """What nobody else can be granted: of a run that has ended, until the store says that it was given back."""
        if self.final_usd_micros is None or self.row is None:
            return self.sure_usd_micros
        return self.row.granted_usd_micros

    @property
    def must_halt(self) -> bool:
        return self.final_usd_micros is None and self.why is not Why.SUPERSEDED and self.headroom_usd_micros <= 0

    @property
    def asks_below(self) -> int:
        """With less left than this, the grant is raised."""
        use = self.use
        lead = max(_for(use, FLOOR_NS), min(_for(use, LEAD_NS), self.raised_by // 2))
        return lead + use.reserve_usd_micros // SPARE

    # --- what to ask -----------------------------------------------------------------------------------

    def next(self, at: MonoNs, wall: WallNs) -> Sent | None:
        """The transaction to send now. None: none. The caller reads the rows when `wants_read` says so."""
        if self.is_waiting or self.is_over or at < self.not_before or self.why is Why.SUPERSEDED:
            return None
        if self.sent is None and self.read_at is not None:
            self.sent = self._decided(at, wall)
        if self.sent is not None:
            self.is_waiting = True
        return self.sent

    def wants_read(self, at: MonoNs) -> bool:
        """Whether nothing can be decided without the rows."""
        return self.read_at is None and not self.is_waiting and not self.is_over and at >= self.not_before

    def _decided(self, at: MonoNs, wall: WallNs) -> Sent | None:
        scope = scope_row(self.of_scope)
        if self.row is not None and self.row.instance != self.instance:
            return self._adopted(wall)
        if self.final_usd_micros is not None:
            return self._given_back(wall)
        if scope is None:
            self.why = Why.NO_CEILING
            return None
        if self.own.revision and self.row is None:
            self.why = Why.REFUSED  # Its own row is damaged: a person has to look.
            return None
        if self.why is Why.GONE:
            return None
        target = self._target(scope, at)
        return None if target is None else self._to(scope, target, wall)

    def _target(self, scope: ScopeRow, at: MonoNs) -> int | None:
        """The amount that the grant should have; None: as it is."""
        use, room = self.use, scope.room_usd_micros
        floor, chunk = _for(use, FLOOR_NS), _for(use, CHUNK_NS)
        needed, left = self.used_usd_micros + use.reserve_usd_micros, self.headroom_usd_micros
        spare = use.reserve_usd_micros // SPARE
        if self.row is None:
            least, share = needed + spare + floor, max(0, room) // (PARTS * (scope.holders + 1))
            self.why = Why.NOTHING_LEFT if room < least else None
            return None if self.why else min(room, max(least, min(needed + spare + chunk, share)))
        if room < 0:
            self.why = Why.LOWERED
            return self._lowered(-room, needed, floor, at)
        if left > HOARD * chunk + spare:
            return needed + spare + chunk
        if left >= self.asks_below or use.is_ending:
            self.why = None
            return None
        if room == 0:
            self.why = Why.NOTHING_LEFT
            return None
        self.why = None
        share = max(floor, room // (PARTS * max(1, scope.holders)))
        return self.sure_usd_micros + min(room, max(1, min(needed + spare + chunk - self.sure_usd_micros, share)))

    def _lowered(self, excess: int, needed: int, floor: int, at: MonoNs) -> int | None:
        """Half of what is left, until the others' halves are enough too; then all of it, and the run ends."""
        left = self.headroom_usd_micros
        if left <= 0 or (self.lowered_at is not None and at - self.lowered_at < LEAD_NS // 8):
            return None
        self.lowered_at = at
        kept = left // 2 if left > floor else 0
        return max(needed + kept, self.sure_usd_micros - excess)

    def _to(self, scope: ScopeRow, amount: int, wall: WallNs) -> Sent:
        after = self._row(amount, wall)
        return self._put(granted(scope, self.row, after), after)

    def _row(self, amount: int, wall: WallNs) -> GrantRow:
        self.serial += 1
        return GrantRow(
            amount,
            self.base_usd_micros,
            self.used_usd_micros,
            self.use.rate_usd_micros_per_hour,
            max(0, wall),
            self.instance,
            self._id,
        )

    def _put(self, scope: ScopeRow, after: GrantRow) -> Sent:
        puts = ((self.of_scope.key, text_of(scope)), (self.own.key, text_of(after)))
        self.sure_usd_micros = min(self.sure_usd_micros, after.granted_usd_micros)
        return Sent(after.request, Transaction(compares(self.of_scope, self.own), puts), after, scope)

    def _adopted(self, wall: WallNs) -> Sent | None:
        """Write the row of an earlier start anew. After this no transaction of that start can be applied any more."""
        scope, row = scope_row(self.of_scope), self.row
        if scope is None or row is None:
            return None
        self.base_usd_micros = row.base_usd_micros
        return self._put(scope, self._row(row.granted_usd_micros, wall))

    def _given_back(self, wall: WallNs) -> Sent | None:
        scope = scope_row(self.of_scope)
        if self.row is None:
            if self._is_unbooked and scope is not None and not self.own.revision:
                return self._to(scope, 0, wall)
            if self.own.revision or scope is None or not self.is_restored:
                self.is_over = not self.own.revision and not self._is_unbooked
                return None
            # The scope's row is written as it is: whatever an earlier start has sent compares an older revision now.
            self.serial += 1
            puts = ((self.of_scope.key, self.of_scope.value),)
            return Sent(self._id, Transaction(compares(self.of_scope, self.own), puts), None, scope)
        assert self.final_usd_micros is not None
        spent = max(0, self.final_usd_micros - self.base_usd_micros)
        transaction = settlement(self.of_scope, self.own, spent)
        if transaction is None or scope is None:
            self.why = Why.NO_CEILING  # Somebody has damaged or deleted the scope's row: a person has to look.
            return None
        self.sure_usd_micros = 0
        self.serial += 1
        return Sent(self._id, transaction, None, settled(scope, self.row, spent))

    @property
    def _is_unbooked(self) -> bool:
        """It has ended without ever having a row, and has spent: a grant of $0 is opened, and settled beyond it."""
        return not self.was_opened and (self.final_usd_micros or 0) > self.base_usd_micros

    @property
    def _id(self) -> str:
        return f"{self.instance}/{self.number}/{self.serial}"

    # --- what came of it -------------------------------------------------------------------------------

    def answered(self, request: str, answer: Answer, rows: Mapping[str, Kept], revision: int, at: MonoNs) -> None:
        """The answer to the transaction of this request. One to an earlier request says nothing new."""
        if self.sent is None or request != self.sent.request:
            return
        self.is_waiting = False
        if answer in (Answer.UNKNOWN, Answer.UNREACHABLE, Answer.REFUSED):
            self._failed(answer, at)
            return
        self.silent_since = None
        sent = self.sent
        if answer is Answer.APPLIED:
            self.failures = 0
            self._applied(sent, revision, at)
            return
        self.failures += 1
        # Compared rows never come back to their revisions: this transaction was applied earlier, or never will be.
        self.sent = None
        self.seen(rows, at, was_sent=sent)
        if self.failures > 1:
            # Many change this scope's row. Not all again at once; and what was read now will be old by then.
            self.not_before = _after(at, BACK_OFF_NS, self.failures, BACK_OFF_MAX_NS, sent.request)
            self.read_at = None

    def seen(self, rows: Mapping[str, Kept], at: MonoNs, was_sent: Sent | None = None) -> None:
        """The rows as they were read. Older ones than those that are known say nothing."""
        own, scope = rows.get(self.own.key, self.own), rows.get(self.of_scope.key, self.of_scope)
        if self.sent is not None or (scope.revision and scope.revision < self.of_scope.revision):
            return
        self.silent_since = None
        before, self.own, self.of_scope, self.read_at = self.row, own, scope, at
        self.row = grant_row(own)
        self.was_opened |= self.row is not None
        if self.row is None:
            self._without_row(own, before, was_sent)
        elif self.row.instance == self.instance:
            self.sure_usd_micros = self.row.granted_usd_micros
        elif before is not None and before.instance == self.instance:
            self.why, self.sure_usd_micros = Why.SUPERSEDED, 0

    def _without_row(self, own: Kept, before: GrantRow | None, was_sent: Sent | None) -> None:
        had, self.sure_usd_micros = before is not None or self.sure_usd_micros > 0, 0
        if self.final_usd_micros is not None:
            self.is_over = not own.revision and (had or not self.is_restored) and not self._is_unbooked
        elif had and (was_sent is None or was_sent.after is not None):
            self.why = Why.GONE

    def _applied(self, sent: Sent, revision: int, at: MonoNs) -> None:
        self.sent = self.why = None
        self.of_scope = Kept(self.of_scope.key, text_of(sent.scope_after), revision)
        self.read_at = at
        if sent.after is None:
            self.row, self.own, self.is_over = None, Kept(self.own.key), True
            return
        self.was_opened = True
        before = self.row.granted_usd_micros if self.row is not None else 0
        self.row, self.own = sent.after, Kept(self.own.key, text_of(sent.after), revision)
        self.sure_usd_micros = sent.after.granted_usd_micros
        more = sent.after.granted_usd_micros - before
        self.raised_by = more if more > 0 else self.headroom_usd_micros

    def not_read(self, answer: Answer, at: MonoNs) -> None:
        """A read came to nothing. It says as much of the store as a transaction would."""
        if not self.is_waiting:
            self._failed(answer, at)

    def restored(self, sure_usd_micros: int, *, was_opened: bool) -> None:
        """An earlier start could count on so much. ValueError: it is no amount."""
        if sure_usd_micros < 0:
            raise ValueError("a grant is not below $0")
        self.sure_usd_micros = sure_usd_micros
        self.is_restored = True
        self.was_opened = was_opened

    def _failed(self, answer: Answer, at: MonoNs) -> None:
        self.silent_since = at if self.silent_since is None else self.silent_since
        self.why = Why.REFUSED if answer is Answer.REFUSED else Why.SILENT
        self.failures += 1
        self.not_before = _after(at, SILENT_BACK_OFF_NS, self.failures, SILENT_BACK_OFF_MAX_NS, self.key)

    def ended(self, spent_usd_micros: int) -> None:
        """The run has ended, and its ledger's counter stands here for good. What it has not used is given back."""
        self.final_usd_micros = spent_usd_micros
        is_untouched = self.own.revision == 0 and self.sent is None and self.serial == 0 and not self.is_restored
        self.is_over |= is_untouched and not self._is_unbooked  # It never held anything, and spent nothing.

    def snapshot(self) -> list[Any]:
        """For the journal. It is stored before a transaction is sent that lowers the grant."""
        return [self.scope, self.run, self.base_usd_micros, self.sure_usd_micros, self.was_opened]


def _for(use: Use, ns: int) -> int:
    """What the run spends in this time, rounded up."""
    return -(-use.rate_usd_micros_per_hour * ns // NS_PER_HOUR)


def _after(at: MonoNs, first_ns: int, failures: int, most_ns: int, of: str) -> MonoNs:
    """A moment that doubles with each failure, spread so that holders which met once do not meet again."""
    longest = min(first_ns << min(failures, 12), most_ns)
    return MonoNs(at + longest // 2 + longest // 2 * (sum(map(ord, of)) * _SPREAD % 1_000) // 1_000)
