"""What a played halt acts on: ranks that save, processes that end, a cloud that stops the machine and bills it.

It does not know the halt table. Effects come in, and what they lead to comes out at its time, as the daemon's events.
Each answer is one setting. governor.timeline.halt_words sets it from a case's lines.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.checkpoints import SavedCheckpoint
from governor.core.events.effects import Ask, Effect, Kill, ReadBilling, StopCompute, Term
from governor.core.events.inputs import (
    Ack,
    BillingAnswer,
    BillingRead,
    ProcessesSeen,
    StopAnswer,
    StopReplied,
)

Answer = Ack | ProcessesSeen | StopReplied | BillingRead

RUNG_DESTROY: Final = 2
NO_ANSWER_NS: Final = 30 * NS_PER_S  # The daemon waits so long for a provider's answer.


class HaltWorld:
    """One run's ranks and processes, and its machine. Times are those of the timeline."""

    def __init__(self) -> None:
        # The answers, which a case may set.
        self.is_deaf = False  # The ranks do not answer at all.
        self.saves_ns: int | None = 10 * NS_PER_S  # None: no save comes to its end.
        self.save_fails = False
        self.ends_ns: int | None = NS_PER_S  # After SIGTERM. None: it is ignored.
        self.ends_on_kill = True
        self.refused: frozenset[int] = frozenset()  # Rungs.
        self.is_busy = False
        self.is_silent = False
        self.bill_ends_ns: int | None = 30 * NS_PER_S  # After an accepted stop. None: never.
        self.ends_from_rung = 0  # What is softer is accepted and ends nothing.
        # What has become of them.
        self.is_gone = False  # No process of the run is left.
        self.is_saving = False
        self._is_standing = False
        self._is_signalled = False
        self._is_named = True  # The run's processes are known, so that a signal reaches them.
        self._asked: Ask | None = None
        self._ranks: Mapping[int, ConnectionId] = {}
        self._step = 0
        self._bill_ends_at: MonoNs | None = None
        self._waiting: list[tuple[MonoNs, int, Answer | ReadBilling]] = []  # A read sees what is when it is made.
        self._pushed = 0

    # --- time ---------------------------------------------------------------------------------------------------

    def next_at(self) -> MonoNs | None:
        return self._waiting[0][0] if self._waiting else None

    def take(self) -> Answer | None:
        """The next answer. None if nobody is left to give it."""
        at, _, answer = heapq.heappop(self._waiting)
        match answer:
            case ReadBilling():
                return self._billing(answer, at)
            case Ack() | ProcessesSeen() if self.is_gone:
                return None
            case ProcessesSeen():
                self.is_gone = self._is_named
            case Ack(checkpoint=SavedCheckpoint() as saved) if self._asked is not None:
                return replace(answer, checkpoint=replace(saved, kind=self._asked.checkpoint))
            case _:
                pass
        return answer

    def forget_calls(self) -> None:
        """The governor that called the provider is gone, and does not hear the answers."""
        self._waiting = [one for one in self._waiting if not isinstance(one[2], StopReplied | ReadBilling)]
        heapq.heapify(self._waiting)

    def relaunch(self) -> None:
        """The run is launched again, on the machine as it is billed again."""
        self.is_gone = self.is_saving = self._is_standing = self._is_signalled = False
        self._asked, self._bill_ends_at, self._waiting = None, None, []

    # --- the ranks ----------------------------------------------------------------------------------------------

    def stand(self) -> None:
        """The ranks stand still: they answer, and reach no step boundary."""
        self._is_standing = True

    def move(self, at: MonoNs) -> None:
        """The ranks get on. They begin to save if they were asked to."""
        if self._is_standing and self._asked is not None:
            self._begin_saving(at, self._asked)
        self._is_standing = False

    def do(self, effect: Effect, at: MonoNs, ranks: Mapping[int, ConnectionId], step: int, *, is_named: bool) -> None:
        """Obey as far as the settings let it. `ranks`: those connected. `step`: the one that they agree to save."""
        self._is_named = is_named
        match effect:
            case Ask(exit_after=True):
                self._ask(effect, at, ranks, step)
            case Term():
                self._end_processes(effect, at, self.ends_ns)
            case Kill():
                self._end_processes(effect, at, 0 if self.ends_on_kill else None)
            case StopCompute():
                self._stop(effect, at)
            case ReadBilling():
                after_ns = NO_ANSWER_NS if self.is_silent else round(effect.after_s * NS_PER_S)
                self._push(MonoNs(at + after_ns), effect)
            case _:
                pass

    def _ask(self, ask: Ask, at: MonoNs, ranks: Mapping[int, ConnectionId], step: int) -> None:
        known, self._asked, self._ranks, self._step = self._asked, ask, ranks, step
        if self.is_deaf or known is not None:  # Ranks that know the incident only take the other kind from it.
            return
        self._ack(at, ask, "received", ranks)
        self._ack(at, ask, "agreed", ranks)
        if not self._is_standing:
            self._begin_saving(at, ask)

    def _begin_saving(self, at: MonoNs, ask: Ask) -> None:
        if self.is_deaf or self.is_saving or self._is_signalled:
            return
        self.is_saving = True
        self._ack(at, ask, "saving", self._ranks)
        if self.saves_ns is not None:
            # Of a whole checkpoint the first rank tells. What the others confirm changes nothing.
            self._ack(MonoNs(at + self.saves_ns), ask, "failed" if self.save_fails else "saved", [*self._ranks][:1])

    def _ack(self, at: MonoNs, ask: Ask, what: str, ranks: Iterable[int]) -> None:
        saved = SavedCheckpoint(f"step-{self._step}", kind=ask.checkpoint) if what == "saved" else None
        reason = "the save has failed" if what == "failed" else None
        for rank in ranks:
            connection = self._ranks[rank]
            told = Ack(at, connection, ask.run, rank, 1, ask.incident_id, what, self._step, reason, checkpoint=saved)
            self._push(at, told)

    # --- processes and cloud ------------------------------------------------------------------------------------

    def _end_processes(self, signal: Term | Kill, at: MonoNs, after_ns: int | None) -> None:
        self._is_signalled = self._is_named
        if not self._is_named:
            after_ns = 0  # Nobody is signalled, and a look shows nobody.
        if after_ns is not None and not self.is_gone:
            ends_at = MonoNs(at + after_ns)
            self._push(ends_at, ProcessesSeen(ends_at, signal.incident_id, ()))

    def _stop(self, stop: StopCompute, at: MonoNs) -> None:
        answer, retryable, reason = StopAnswer.ACCEPTED, False, "accepted"
        if self.is_silent:
            at, answer, retryable, reason = MonoNs(at + NO_ANSWER_NS), StopAnswer.UNKNOWN, True, "timeout"
        elif self.is_busy:
            answer, retryable, reason = StopAnswer.REFUSED, True, "http_429"
        elif stop.rung in self.refused:
            answer, reason = StopAnswer.REFUSED, "UnauthorizedOperation"
        is_accepted = answer is StopAnswer.ACCEPTED
        if is_accepted and self.bill_ends_ns is not None and stop.rung >= self.ends_from_rung:
            ends_at = MonoNs(at + self.bill_ends_ns)
            self._bill_ends_at = ends_at if self._bill_ends_at is None else min(ends_at, self._bill_ends_at)
        destroys = is_accepted and stop.rung == RUNG_DESTROY
        self._push(at, StopReplied(at, stop.incident_id, answer, retryable, reason, destroys))

    def _billing(self, read: ReadBilling, at: MonoNs) -> BillingRead:
        if self.is_silent:
            return BillingRead(at, read.incident_id, BillingAnswer.UNKNOWN, "no answer")
        if self._bill_ends_at is None or at < self._bill_ends_at:
            return BillingRead(at, read.incident_id, BillingAnswer.RUNNING, "running")
        self.is_gone = True
        return BillingRead(at, read.incident_id, BillingAnswer.ENDED, "stopped")

    def _push(self, at: MonoNs, answer: Answer | ReadBilling) -> None:
        self._pushed += 1
        heapq.heappush(self._waiting, (at, self._pushed, answer))
