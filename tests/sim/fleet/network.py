"""What lies between a governor and the store: delay, loss, a lost answer, a copy that comes late, a partition."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from governor.core.base.units import NS_PER_MS, NS_PER_S
from governor.core.events.fleet_store import Answer, AskStore
from governor.remote_ports import FleetReply

if TYPE_CHECKING:
    from tests.sim.fleet.world import World

GIVEN_UP_NS = 8 * NS_PER_S
Deliver = Callable[[FleetReply], None]


class Network:
    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng

    def is_cut(self, governor: int) -> bool:
        now = self.world.now
        return any(begins <= now < until and governor in of for begins, until, of in self.world.partitions)

    def send(self, governor: int, ask: AskStore, deliver: Deliver) -> None:
        """One answer to each ask, as the adapter gives it."""
        history, rng, after = self.world.history, self.rng, self.world.after
        if self.is_cut(governor) and rng.random() < 0.5:
            self._give_up(ask, deliver, Answer.UNREACHABLE, rng.randrange(3 * NS_PER_S))
            return
        there, back = self._delay(), self._delay()
        fate = rng.random()
        if fate < history.lost:
            self._give_up(ask, deliver, Answer.UNKNOWN, GIVEN_UP_NS)
            return
        if ask.transaction is not None and rng.random() < history.late:
            after(GIVEN_UP_NS + rng.randrange(120 * NS_PER_S), lambda: self._arrives(governor, ask, None))
            self._give_up(ask, deliver, Answer.UNKNOWN, GIVEN_UP_NS)
            return
        if ask.transaction is not None and rng.random() < history.doubled:
            after(there + rng.randrange(60 * NS_PER_S), lambda: self._arrives(governor, ask, None))
        is_answered = rng.random() >= history.unanswered

        def arrive() -> None:
            reply = self._arrives(governor, ask, deliver)
            if reply is None or not is_answered:
                self._give_up(ask, deliver, Answer.UNKNOWN, GIVEN_UP_NS - there)
            else:
                after(back, lambda: self._answer(governor, ask, reply, deliver))

        after(there, arrive)

    def _arrives(self, governor: int, ask: AskStore, deliver: Deliver | None) -> FleetReply | None:
        if self.is_cut(governor):
            return None
        if ask.transaction is None:
            return self.world.store.read(ask.keys)
        return self.world.transact(ask.transaction)

    def _answer(self, governor: int, ask: AskStore, reply: FleetReply, deliver: Deliver) -> None:
        if self.is_cut(governor):
            self._give_up(ask, deliver, Answer.UNKNOWN, GIVEN_UP_NS)
        else:
            deliver(reply)

    def _give_up(self, ask: AskStore, deliver: Deliver, answer: Answer, after_ns: int) -> None:
        if ask.transaction is None:
            answer = Answer.UNREACHABLE  # A read has changed nothing.
        self.world.after(max(0, after_ns), lambda: deliver(FleetReply(answer)))

    def _delay(self) -> int:
        return self.rng.randrange(3 * NS_PER_S if self.rng.random() < 0.03 else 50 * NS_PER_MS)
