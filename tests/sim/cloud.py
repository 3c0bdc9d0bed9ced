"""A simulated provider: accepts, refuses, forgets, and bills from its own book."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import BillingAnswer, BillingRead, StopAnswer, StopReplied
from governor.core.halt.table import StopTarget
from tests.sim.faults import INCIDENT, around, some_moment

if TYPE_CHECKING:
    from tests.sim.world import World


class Cloud:
    def __init__(self, world: World) -> None:
        self.world = world
        self.billing = True
        self.machine_up = True
        self.ended_at: list[MonoNs] = []  # Instants at which the invoice ended.
        self.restarted_at: list[MonoNs] = []
        self.restarts_left = world.faults.restarts
        self._stopping = 0  # Counts stops under way; a restart cancels them.

    def start(self) -> None:
        rng, plan, faults = self.world.rng, self.world.plan, self.world.faults
        if faults.by_hand:
            self.world.after(some_moment(rng, plan), self._stopped_by_hand)
        if faults.bystander and plan.stop is not StopTarget.PROCESSES:
            self.world.after(rng.randrange(1, plan.grace_ns), self._bystander_reads)

    def stop(self, rung: int) -> None:
        rng, faults, plan = self.world.rng, self.world.faults, self.world.plan
        reply_ns = around(rng, plan.stop_reply_ns) if faults.slow_replies else rng.randrange(1, NS_PER_S)
        if rng.random() < faults.busy:
            self._reply(StopAnswer.REFUSED, True, "http_429", reply_ns)
        elif rung in faults.refused_rungs or (faults.refuses_when_stopped and not self.billing):
            self._reply(StopAnswer.REFUSED, False, "UnauthorizedOperation", reply_ns)
        elif rng.random() < faults.timeout:
            if rng.random() < 0.5:
                self._begin_stopping(rung)
            self._reply(StopAnswer.UNKNOWN, True, "timeout", around(rng, plan.stop_reply_ns))
        else:
            self._begin_stopping(rung)
            self._reply(StopAnswer.ACCEPTED, False, "accepted", reply_ns)

    def _reply(self, answer: StopAnswer, retryable: bool, reason: str, delay_ns: int) -> None:
        self.world.tell(lambda at: StopReplied(at, INCIDENT, answer, retryable, reason), delay_ns)

    def _begin_stopping(self, rung: int) -> None:
        if rung not in self.world.faults.idle_rungs:
            generation = self._stopping
            self.world.after(self.takes_ns(), lambda: self._end(generation))

    def takes_ns(self) -> int:
        """From the request, obeyed, to the end of billing."""
        rng, verify_ns = self.world.rng, self.world.plan.verify_ns
        return around(rng, verify_ns) if self.world.faults.slow_stop else rng.randrange(1, verify_ns // 2)

    def _stopped_by_hand(self) -> None:
        self.world.note("the operator stops the machine by hand")
        self._end(self._stopping)
        if self.world.faults.bystander and self.world.plan.stop is not StopTarget.PROCESSES:
            for _ in range(6):  # They look whether it worked.
                self.world.after(self.world.rng.randrange(1, 10 * NS_PER_S), self.read)

    def _end(self, generation: int) -> None:
        if not self.billing or generation != self._stopping:
            return
        self.billing = False
        self.ended_at.append(self.world.now)
        self.world.note("invoice ends")
        # Billing ends as the shutdown begins: for a moment processes are still there.
        self.world.after(self.world.rng.randrange(1, 20 * NS_PER_S), self._power_off)
        if self.restarts_left > 0:
            self.world.after(around(self.world.rng, self.world.plan.verify_ns // 2), self._restart)

    def _power_off(self) -> None:
        if not self.billing:
            self.machine_up = False
            self.world.trainer.machine_off()
            self.world.performer.on_machine_off()

    def _restart(self) -> None:
        if self.restarts_left > 0 and not self.billing and not self.world.healed and not self.world.performer.closed:
            self.restarts_left -= 1
            self._stopping += 1
            self.restarted_at.append(self.world.now)
            self.billing = self.machine_up = True
            self.world.note("restarted behind us: invoice begins again")
            self.world.trainer.machine_on()

    def restarted_since(self, at: MonoNs) -> bool:
        """Was the machine brought back after it was seen down at `at`?"""
        return any(restarted_at >= at for restarted_at in self.restarted_at)

    def read(self) -> None:
        """Sample now what the book says, and answer a moment later."""
        rng, faults = self.world.rng, self.world.faults
        answer = BillingAnswer.RUNNING if self.billing else BillingAnswer.ENDED
        if rng.random() < faults.read_unknown:
            answer = BillingAnswer.UNKNOWN
        elif faults.read_stale and not self.billing and self.world.now - self.ended_at[-1] < 20 * NS_PER_S:
            answer = BillingAnswer.RUNNING
        if answer is BillingAnswer.ENDED:
            self.world.performer.ended_samples.append(self.world.now)
        self.world.tell(lambda at: BillingRead(at, INCIDENT, answer, answer.value), rng.randrange(1, NS_PER_S))

    def _bystander_reads(self) -> None:
        if not self.world.healed and not self.world.performer.closed:
            self.read()
            self.world.after(around(self.world.rng, 5 * NS_PER_S), self._bystander_reads)
