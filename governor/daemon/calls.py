"""Calls that block: the provider's, and looks at checkpoints. Each has a thread of its own; its answer is an event."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from governor.core.base.identity import SchedulerJob
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.checkpoints import (
    CheckpointLook,
    CheckpointRead,
    CheckpointSeen,
    CheckpointWeighed,
    LastGoodSeen,
)
from governor.core.events.effects import (
    DrainNode,
    FindLastGood,
    ReadBilling,
    ReadCheckpoint,
    StopCompute,
    StopOther,
    WeighCheckpoint,
)
from governor.core.events.fleet_store import AskStore
from governor.core.events.inputs import BillingAnswer, BillingRead, Event, StopAnswer, StopReplied
from governor.core.events.machine import NodeDrained
from governor.core.events.peers import OtherStopped
from governor.ports import Checkpoints, Clock
from governor.remote_ports import BillingReply, Cloud, Scheduler, StopReply

# Open calls of each kind. Kinds are counted separately: hanging disk or billing reads must not use up a stop's place.
# Provider calls end by their own time-outs. So many open calls mean that none of them ends.
STOPS_AT_ONCE_MAX: Final = 8
BILLING_READS_AT_ONCE_MAX: Final = 8
# Those that wait for their turn included. The adapter gives the turns: a user whose disk hangs uses up their own.
CHECKPOINT_READS_AT_ONCE_MAX: Final = 64
# A stop of it is under way: what a provider calls that.
ENDING_STATES: Final = ("stopping", "shutting-down")
_AT_ONCE_MAX: Final[dict[type, int]] = {
    StopCompute: STOPS_AT_ONCE_MAX,
    ReadBilling: BILLING_READS_AT_ONCE_MAX,
    ReadCheckpoint: CHECKPOINT_READS_AT_ONCE_MAX,
    FindLastGood: CHECKPOINT_READS_AT_ONCE_MAX,
    WeighCheckpoint: CHECKPOINT_READS_AT_ONCE_MAX,
    StopOther: STOPS_AT_ONCE_MAX,
    DrainNode: STOPS_AT_ONCE_MAX,
}
CALLS: Final = tuple(_AT_ONCE_MAX)

Call = DrainNode | StopCompute | StopOther | ReadBilling | ReadCheckpoint | FindLastGood | WeighCheckpoint | AskStore

NO_PROVIDER: Final = "no_provider"
NO_SCHEDULER: Final = "no_scheduler"  # The governor that began the halt had one, or another.

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class Calls:
    """Those under way, and those that are due later. `post` hands an answer to the loop and is safe from any thread."""

    clock: Clock
    checkpoints: Checkpoints
    cloud: Cloud | None
    post: Callable[[Event], None]
    scheduler: Scheduler | None = None
    job_of: Callable[[str], SchedulerJob | None] = lambda _: None  # By incident: what is ended instead of the machine.
    ask_store: Callable[[AskStore], None] = lambda _: None  # The fleet's store; without one nobody asks.
    _later: list[tuple[MonoNs, int, Call]] = field(default_factory=list)
    _order: Any = field(default_factory=itertools.count)
    _in_flight: Counter[type] = field(default_factory=Counter)
    _lock: Any = field(default_factory=threading.Lock)

    def ask_by(self, ask_store: Callable[[AskStore], None]) -> None:
        """There is a fleet: its worker has what is asked of the store."""
        self.ask_store = ask_store

    def begin(self, effect: Call) -> None:
        """Begin a call: at once, or after the time that it says."""
        if isinstance(effect, AskStore):
            self.ask_store(effect)  # It has a thread of its own, and its own bounds.
        elif isinstance(effect, ReadBilling) and effect.after_s > 0:
            due = MonoNs(self.clock.mono() + round(effect.after_s * NS_PER_S))
            heapq.heappush(self._later, (due, next(self._order), effect))
        else:
            self._begin(effect)

    def next_due(self) -> MonoNs | None:
        return self._later[0][0] if self._later else None

    def begin_due(self, at: MonoNs) -> None:
        while self._later and self._later[0][0] <= at:
            _, _, effect = heapq.heappop(self._later)
            self._begin(effect)

    @property
    def is_reading_checkpoint(self) -> bool:
        """Whether an answer about a checkpoint is still to come."""
        return any(self._in_flight[kind] > 0 for kind in (ReadCheckpoint, FindLastGood, WeighCheckpoint))

    def _begin(self, effect: Call) -> None:
        with self._lock:
            kind = type(effect)
            crowded = self._in_flight[kind] >= _AT_ONCE_MAX[kind]
            self._in_flight[kind] += 0 if crowded else 1
        if crowded:
            self._answer_unknown(effect)
            return
        try:
            job = self.job_of(effect.incident_id) if isinstance(effect, StopCompute | ReadBilling) else None
            threading.Thread(target=self._work, args=(effect, job), name=type(effect).__name__, daemon=True).start()
        except RuntimeError as error:  # No thread is available (RLIMIT_NPROC, TasksMax). The table asks again.
            log.error("call_not_begun", call=type(effect).__name__, reason=f"{error}: raise the governor's TasksMax")
            with self._lock:
                self._in_flight[type(effect)] -= 1
            self._answer_unknown(effect)

    def _work(self, effect: Call, job: SchedulerJob | None) -> None:
        try:
            self.post(self._ask_world(effect, job))
        finally:
            with self._lock:
                self._in_flight[type(effect)] -= 1

    def _stop(self, effect: StopCompute, job: SchedulerJob | None) -> StopReply:
        if job is not None and self.scheduler is not None and job.scheduler == self.scheduler.name:
            return self.scheduler.stop(job, effect.incident_id, effect.rung)
        if job is None and self.cloud is not None:
            return self.cloud.stop(effect.incident_id, effect.rung)
        return StopReply(StopAnswer.REFUSED, False, NO_PROVIDER if job is None else NO_SCHEDULER)

    def _billing(self, effect: ReadBilling, job: SchedulerJob | None) -> BillingReply:
        if job is not None and self.scheduler is not None and job.scheduler == self.scheduler.name:
            return self.scheduler.state(job)
        if job is None and self.cloud is not None:
            return self.cloud.billing(destroyed=effect.destroyed)
        return BillingReply(BillingAnswer.UNKNOWN, NO_PROVIDER if job is None else NO_SCHEDULER)

    def _drained(self, effect: DrainNode) -> NodeDrained:
        if self.scheduler is None:
            reply = StopReply(StopAnswer.REFUSED, False, NO_SCHEDULER)
        else:
            reply = self.scheduler.drain(effect.node, effect.incident_id)
        return NodeDrained(self.clock.mono(), effect.incident_id, reply.answer is StopAnswer.ACCEPTED, reply.reason)

    def _ask_world(self, effect: Call, job: SchedulerJob | None) -> Event:
        match effect:
            case StopCompute():
                reply = self._stop(effect, job)
                return StopReplied(
                    self.clock.mono(), effect.incident_id, reply.answer, reply.retryable, reply.reason, reply.destroys,
                    reply.ended_as,
                )  # fmt: skip
            case ReadBilling():
                billing = self._billing(effect, job)
                return BillingRead(self.clock.mono(), effect.incident_id, billing.answer, billing.provider_state)
            case StopOther():
                return self.stop_other(effect)
            case DrainNode():
                return self._drained(effect)
            case ReadCheckpoint():
                look = self.checkpoints.read(effect.path, effect.manifest, uid=effect.uid, gid=effect.gid)
                return CheckpointRead(self.clock.mono(), effect.incident_id, look)
            case FindLastGood():
                looks = self.checkpoints.find(effect.paths, uid=effect.uid, gid=effect.gid)
                return LastGoodSeen(self.clock.mono(), effect.run, effect.asked, tuple(looks))
            case WeighCheckpoint():
                found, reason = self.checkpoints.weigh(effect.path, uid=effect.uid, gid=effect.gid)
                return CheckpointWeighed(self.clock.mono(), effect.run, effect.name, found, reason)
            case _:
                raise AssertionError(f"{effect} does not block")

    def stop_other(self, effect: StopOther) -> OtherStopped:
        """Read first: its own governor, or somebody else, may have stopped it."""
        machine = self.cloud.other(effect.instance_id) if self.cloud is not None else None
        if machine is None:
            return OtherStopped(self.clock.mono(), effect.incident_id, effect.node, False, False, "not_allowed")
        billing = machine.billing()
        is_ended = billing.answer is BillingAnswer.ENDED
        is_accepted, reason = is_ended, billing.provider_state
        if billing.answer is BillingAnswer.RUNNING and reason not in ENDING_STATES:
            reply = machine.stop(f"{effect.incident_id}.{effect.node}", 0)
            is_accepted, reason = reply.answer is StopAnswer.ACCEPTED, reply.reason
        at = self.clock.mono()
        return OtherStopped(at, effect.incident_id, effect.node, is_accepted or is_ended, is_ended, reason)

    def _answer_unknown(self, effect: Call) -> None:
        at = self.clock.mono()
        match effect:
            case StopCompute():
                self.post(StopReplied(at, effect.incident_id, StopAnswer.UNKNOWN, True, "calls_in_flight"))
            case ReadBilling():
                self.post(BillingRead(at, effect.incident_id, BillingAnswer.UNKNOWN, "calls_in_flight"))
            case StopOther():
                unasked = OtherStopped(at, effect.incident_id, effect.node, False, False, "calls_in_flight")
                self.post(unasked)
            case DrainNode():
                self.post(NodeDrained(at, effect.incident_id, False, "calls_in_flight"))
            case ReadCheckpoint():
                self.post(CheckpointRead(at, effect.incident_id, CheckpointLook(None, 0, 0, "calls_in_flight")))
            case FindLastGood():
                unseen = CheckpointSeen(effect.paths[0], None, "calls_in_flight")
                self.post(LastGoodSeen(at, effect.run, effect.asked, (unseen,)))
            case WeighCheckpoint():
                self.post(CheckpointWeighed(at, effect.run, effect.name, None, "calls_in_flight"))
