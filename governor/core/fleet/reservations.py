"""All grants of one governor: what to ask of the fleet's store at a moment, and how each run stands.

The caller tells each run's use at every tick, sends what `next` returns, and tells each answer. It stores `snapshot`
before it sends what lowers a grant: a start that follows must not count on more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, DurationNs, MonoNs, WallNs
from governor.core.events.fleet_store import Answer, AskStore, Kept
from governor.core.fleet.grant import LEAD_NS, Grant, Use, Why
from governor.core.fleet.scopes import Holder, grant_key, grant_row, grants_of, names_in, scope_key

POLL_NS: Final = 60 * NS_PER_S  # How late a lowered ceiling is seen.
POLL_DENIED_NS: Final = 10 * NS_PER_S  # How late money is seen that others have given back.
# Of one governor: a node has a handful of runs, each in a handful of scopes.
GRANTS_MAX: Final = 256
GRANTS_READ_MAX: Final = 60  # etcd takes 128 operations in a transaction; each grant is two rows.
_WAITS: Final = (Why.NOTHING_LEFT, Why.LOWERED, Why.NO_CEILING)


@dataclass(frozen=True, slots=True)
class Standing:
    """A run in one scope. `silent_ns`: how long the store has not answered. None: it does, or was not asked.

    `has_ended`: the run has; what was granted stays taken until the store says that it was given back.
    """

    scope: str
    run: str
    granted_usd_micros: int
    used_usd_micros: int
    reserve_usd_micros: int
    must_halt: bool
    why: Why | None
    runway_ns: DurationNs | None  # Until the halt, on what is granted now. None: nothing is spent.
    silent_ns: DurationNs | None
    has_ended: bool = False

    @property
    def room_usd_micros(self) -> int:
        return self.granted_usd_micros - self.used_usd_micros - self.reserve_usd_micros

    @property
    def is_early_warning(self) -> bool:
        """The run is on its last grant, and nobody gives more: who watches it is told before it is halted."""
        return self.why is not None and (self.runway_ns is None or self.runway_ns < LEAD_NS)


class Reservations:
    def __init__(self, holder: Holder, instance: str) -> None:
        """`instance` names this start of the governor: no other start has had it. ValueError: a name is no name."""
        self.holder, self.instance = holder, instance
        self.prefix = grants_of(holder)  # Read at the start, for `recall`.
        self.grants: dict[tuple[str, str], Grant] = {}
        self._reading: tuple[str, tuple[Grant, ...]] | None = None
        self._serial = 0
        self._is_restart = False
        self._polled_at: MonoNs | None = None
        self._read_not_before = MonoNs(0)

    # --- what the ledger says --------------------------------------------------------------------------

    def cover(self, scope: str, run: str, use: Use) -> bool:
        """The run spends in this scope. False: there are GRANTS_MAX grants, and it gets none.

        A grant counts what the run spends from now on. ValueError: a name is no name.
        """
        grant = self.grants.get((scope, run))
        if grant is None or grant.is_over:
            if len(self.grants) >= GRANTS_MAX and grant is None:
                return False
            grant = self._opened(scope, run, use.spent_usd_micros)
        grant.use = use
        return True

    def end(self, scope: str, run: str, spent_usd_micros: int) -> None:
        """The run's billing has ended here, and its counter stands. What it has not used is given back."""
        if (grant := self.grants.get((scope, run))) is not None and not grant.is_over:
            grant.ended(spent_usd_micros)

    def forget_over(self) -> list[tuple[str, str]]:
        """Forget the grants that are settled. Returns their scopes and runs: one that is covered again begins anew."""
        over = [name for name, grant in self.grants.items() if grant.is_over]
        for name in over:
            del self.grants[name]
        return over

    def _opened(self, scope: str, run: str, base_usd_micros: int) -> Grant:
        self._serial += 1
        key = grant_key(self.holder, scope, run)
        grant = Grant(scope, run, key, base_usd_micros, self.instance, self._serial)
        grant.own, grant.of_scope = Kept(key), Kept(scope_key(scope))
        grant.is_restored = self._is_restart
        self.grants[scope, run] = grant
        return grant

    # --- the store -------------------------------------------------------------------------------------

    def next(self, at: MonoNs, wall: WallNs) -> list[AskStore]:
        """What to send now. Every ask gets one answer; `wall` only labels rows."""
        asks = []
        for grant in self.grants.values():
            if (sent := grant.next(at, wall)) is not None:
                before = grant.row.granted_usd_micros if grant.row is not None else 0
                lowers = sent.after is None or sent.after.granted_usd_micros < before
                asks.append(AskStore(sent.request, sent.transaction, lowers=lowers))
        if (read := self._read(at)) is not None:
            asks.append(read)
        return asks

    def _read(self, at: MonoNs) -> AskStore | None:
        if self._reading is not None or at < self._read_not_before:
            return None
        wanted = [grant for grant in self.grants.values() if grant.wants_read(at)]
        if not wanted and at >= (self.next_read() or at):
            self._polled_at = at
            wanted = [grant for grant in self.grants.values() if not grant.is_waiting and not grant.is_over]
        # Who was read longest ago comes first: a governor with more grants than one read holds reads them in turns.
        wanted.sort(key=lambda grant: -1 if grant.read_at is None else grant.read_at)
        wanted = wanted[:GRANTS_READ_MAX]
        if not wanted:
            return None
        self._serial += 1
        self._reading = f"{self.instance}/read/{self._serial}", tuple(wanted)
        keys = dict.fromkeys(key for grant in wanted for key in (grant.of_scope.key, grant.own.key))
        return AskStore(self._reading[0], keys=tuple(keys))

    def next_read(self) -> MonoNs | None:
        """When the rows are read again, if nothing needs them before. None: they are being read."""
        if self._reading is not None:
            return None
        if self._polled_at is None:
            return self._read_not_before
        every = POLL_DENIED_NS if any(grant.why in _WAITS for grant in self.grants.values()) else POLL_NS
        return MonoNs(max(self._polled_at + every, self._read_not_before))

    def answered(
        self, request: str, answer: Answer, rows: Iterable[Kept] = (), revision: int = 0, *, at: MonoNs
    ) -> None:
        """The answer to an ask. One that nobody waits for any more does nothing."""
        found = {kept.key: kept for kept in rows}
        if self._reading is not None and request == self._reading[0]:
            grants, self._reading = self._reading[1], None
            if answer is not Answer.READ:
                self._read_not_before = MonoNs(at + NS_PER_S)
            for grant in grants:
                if answer is Answer.READ:
                    grant.seen(found, at)
                else:
                    grant.not_read(answer, at)
            return
        for grant in self.grants.values():
            grant.answered(request, answer, found, revision, at)

    # --- a start ---------------------------------------------------------------------------------------

    def recall(self, rows: Iterable[Kept]) -> list[str]:
        """Take up the grants that an earlier start of this governor has in the store. Returns the keys it cannot read.

        They count once they have been written anew under this start. Runs that have ended are given back by `end`.
        """
        unread = []
        for kept in rows:
            row, names = grant_row(kept), names_in(kept.key)
            if row is None or names is None or names[0] != self.holder.text or len(self.grants) >= GRANTS_MAX:
                unread.append(kept.key)
                continue
            _, scope, run = names
            if (scope, run) not in self.grants:
                self._opened(scope, run, row.base_usd_micros)
        return unread

    def snapshot(self) -> list[list[Any]]:
        return [grant.snapshot() for grant in self.grants.values() if not grant.is_over]

    def restore(self, rows: Iterable[Any]) -> None:
        """What an earlier start may count on, also while the store does not answer. What cannot be read is nothing.

        Called at each start but the first of a ledger, before anything is covered: something that an earlier start has
        sent may still come late. Each run that has ended since, or whose end was not known to be settled, is covered
        and ended again.
        """
        self._is_restart = True
        for row in rows:
            try:
                scope, run, base, sure, was_opened = row
                grant = self._opened(str(scope), str(run), int(base))
                grant.restored(int(sure), was_opened=bool(was_opened))
            except (TypeError, ValueError):
                continue

    # --- how it stands ---------------------------------------------------------------------------------

    def standings(self, at: MonoNs, run: str | None = None) -> list[Standing]:
        return [
            _standing(grant, at) for grant in self.grants.values() if not grant.is_over and run in (None, grant.run)
        ]


def _standing(grant: Grant, at: MonoNs) -> Standing:
    rate, left = grant.use.rate_usd_micros_per_hour, grant.headroom_usd_micros
    has_ended = grant.final_usd_micros is not None
    silent = None if grant.silent_since is None else DurationNs(at - grant.silent_since)
    return Standing(
        grant.scope,
        grant.run,
        grant.held_usd_micros,
        grant.used_usd_micros,
        grant.use.reserve_usd_micros,
        grant.must_halt,
        grant.why or (None if silent is None else Why.SILENT),
        DurationNs(max(0, left) * NS_PER_HOUR // rate) if rate and not has_ended else None,
        silent,
        has_ended,
    )
