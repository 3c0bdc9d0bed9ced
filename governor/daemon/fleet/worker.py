"""The one thread that asks the fleet's store. The loop hands over asks and rows, and gets answers as events.

Nothing of a halt waits for it. A store that does not answer costs this thread some seconds a call, and nobody else.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.events.fleet_store import Answer, AskStore, Kept, StoreAnswered
from governor.core.events.inputs import Event
from governor.core.fleet.scopes import GRANT_ROWS, ceiling_change, names_in, scope_key, scope_row
from governor.core.fleet.shared import SharedBudget
from governor.ports import Clock
from governor.remote_ports import FleetReply, FleetStore

QUEUE_MAX: Final = 256  # Asks that wait. A governor has as many grants, and each has one ask at most.
RECALLED_MAX: Final = 1_000
LISTED_MAX: Final = 10_000
TURN_S: Final = 1.0
CLOSED_WITHIN_S: Final = 4.0  # A service manager gives ten seconds for all of the governor.
SAID_EVERY: Final = 240  # Faults between two lines of the log.
SCOPES_EVERY_NS: Final = 10 * NS_PER_S

log = structlog.get_logger("costgov")


class Turn(Protocol):
    """What the thread does between asks, beside those: once a second at most."""

    def turn(self, store: FleetStore, at: MonoNs) -> None: ...

    def end(self, store: FleetStore) -> None: ...


class FleetWorker:
    def __init__(
        self, store: FleetStore, clock: Clock, post: Callable[[Event], None], turns: Sequence[Turn] = (), *,
        name: str = "fleet",
    ) -> None:  # fmt: skip
        self._store, self._clock, self._post, self._turns = store, clock, post, turns
        self._queue: queue.Queue[AskStore | None] = queue.Queue(QUEUE_MAX)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.last_answer_at: MonoNs | None = None
        self.asked_total = self.unanswered_total = self.faults_total = 0

    def begin(self) -> None:
        """RuntimeError: no thread can be started."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, ask: AskStore) -> None:
        """Have it asked. The answer comes by `post`, also where the thread has no place for it."""
        try:
            self._queue.put_nowait(ask)
        except queue.Full:
            self._answer(ask, FleetReply(Answer.UNREACHABLE, reason="queue_full"))

    def end_soon(self) -> None:
        """Begin nothing more. `close` waits for the end."""
        self._ending.set()

    def close(self, within_s: float = CLOSED_WITHIN_S) -> None:
        """Wait for the call under way, so long at most. What still waits is not asked."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        self._store.close()

    # --- the thread ------------------------------------------------------------------------------------

    def _work(self) -> None:
        next_turn = self._clock.mono()
        while not self._ending.is_set():
            at = self._clock.mono()
            if at >= next_turn:
                for turn in self._turns:
                    self._guarded(turn, partial(turn.turn, self._store, at))
                next_turn = MonoNs(self._clock.mono() + round(TURN_S * NS_PER_S))
            try:
                ask = self._queue.get(timeout=max(0.01, min(TURN_S, (next_turn - self._clock.mono()) / NS_PER_S)))
            except queue.Empty:
                continue
            if ask is not None and not self._ending.is_set():
                self._answer(ask, self._asked_guarded(ask))
        for turn in self._turns:
            self._guarded(turn, partial(turn.end, self._store))

    def _guarded(self, what: Turn | AskStore, call: Callable[[], None]) -> None:
        """A fault of one turn or ask costs what that does, and neither other grants nor the lease."""
        try:
            call()
        except Exception:  # noqa: BLE001 - the guard around turns.
            self.faults_total += 1
            if self.faults_total % SAID_EVERY == 1:
                log.error("fleet_turn_failed", of=type(what).__name__, traceback=traceback.format_exc(limit=3))

    def _asked_guarded(self, ask: AskStore) -> FleetReply:
        """Every ask gets an answer: a fault of ours says nothing of what was sent."""
        replies: list[FleetReply] = []
        self._guarded(ask, lambda: replies.append(self._asked(ask)))
        return replies[0] if replies else FleetReply(Answer.UNKNOWN, reason="fault")

    def _asked(self, ask: AskStore) -> FleetReply:
        if ask.transaction is not None:
            return self._store.transact(ask.transaction)
        return self._store.range(ask.prefix, RECALLED_MAX) if ask.prefix else self._store.read(ask.keys)

    def _answer(self, ask: AskStore, reply: FleetReply) -> None:
        at = self._clock.mono()
        self.asked_total += 1
        if reply.answer in (Answer.APPLIED, Answer.CONFLICT, Answer.READ):
            self.last_answer_at = at
        else:
            self.unanswered_total += 1
            log.debug("fleet_unanswered", answer=reply.answer.value, reason=reply.reason)
        self._post(StoreAnswered(at, ask.request, reply.answer, reply.rows, reply.revision))


class OpenScopes:
    """Gives a scope of costgov.toml its row where it has none. One that is there counts, whatever costgov.toml says."""

    def __init__(self, budgets: Sequence[SharedBudget], wall: Callable[[], WallNs]) -> None:
        self._budgets, self._wall = budgets, wall
        self._done: set[str] = set()
        self._next_at = MonoNs(0)

    def turn(self, store: FleetStore, at: MonoNs) -> None:
        wanted = {
            scope: budget.ceiling_usd_micros
            for budget in self._budgets
            for scope in budget.rows_at(self._wall())
            if scope not in self._done
        }
        if not wanted or at < self._next_at:
            return
        self._next_at = MonoNs(at + SCOPES_EVERY_NS)
        reply = store.read([scope_key(scope) for scope in wanted])
        if reply.answer is not Answer.READ:
            self._next_at = MonoNs(at + NS_PER_S)
            return
        for kept, (scope, ceiling) in zip(reply.rows, wanted.items(), strict=True):
            if kept.revision:
                self._known(kept, scope, ceiling)
            elif self._may_open(store, scope):
                change = ceiling_change(kept, ceiling)
                opened = change is not None and store.transact(change).answer is Answer.APPLIED
                if opened:
                    self._done.add(scope)
                    log.info("fleet_budget_opened", scope=scope, ceiling_usd_micros=ceiling)

    def _known(self, kept: Kept, scope: str, ceiling: int) -> None:
        self._done.add(scope)
        row = scope_row(kept)
        if row is None:
            log.error(
                "fleet_budget_unreadable", scope=scope, advice="nothing is granted: set it by `costgov fleet budget`"
            )
        elif row.ceiling_usd_micros != ceiling:
            log.warning(
                "fleet_budget_differs", scope=scope, in_etcd_usd_micros=row.ceiling_usd_micros,
                in_costgov_toml_usd_micros=ceiling, advice="etcd's counts; change it by `costgov fleet budget`",
            )  # fmt: skip

    def _may_open(self, store: FleetStore, scope: str) -> bool:
        """Whether nobody holds a grant of it: then somebody has deleted its row, and what was spent is not known."""
        found = store.range(GRANT_ROWS, LISTED_MAX)
        if found.answer is not Answer.READ or found.is_cut:
            return False
        held = any((names := names_in(kept.key)) is not None and names[1] == scope for kept in found.rows)
        if held:
            log.error(
                "fleet_budget_row_gone", scope=scope, advice="it has grants: `costgov fleet budget` makes it anew"
            )
        return not held

    def end(self, store: FleetStore) -> None: ...
