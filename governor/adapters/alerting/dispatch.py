"""Alerts from the loop to their receivers: the loop leaves them in an outbox, a thread for each receiver carries them.

The loop never waits: what it calls here takes a lock that no thread holds while it sends. A receiver that hangs has a
thread, an outbox and connections of its own, so it delays nobody, and a thread that cannot be had costs alerts alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import structlog

from governor.adapters.alerting.tables import addressees
from governor.core.alerts.catalogue import REPEAT_NS, Alert, Repeats, Route, State, of_alarm, of_incident
from governor.core.alerts.outbox import Delivery, Outbox, Took
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs
from governor.core.engine.node import Node
from governor.core.views.metrics import AlertCounts
from governor.ports import AlertReceiver, Clock
from governor.settings.model import Alert as Table

# An open halt is told again so often, as Prometheus repeats what fires: a receiver that has lost it learns it anew.
AGAIN_NS: Final = DurationNs(NS_PER_MINUTE)
INCIDENTS_OPEN_MAX: Final = 64  # As many halts as runs may be under way at once.
STAGES_TOLD_MAX: Final = 1_024  # Stages of the last hundred halts; what is forgotten is told again, under its old id.
FLUSH_S: Final = 3.0  # Of our end: a receiver across an ocean has answered three times by then.
FLUSH_IN_A_HALT_S: Final = 0.5  # Who resumes the halt waits for our end, and tells of it again.

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class Courier:
    """One receiver, and the thread that carries alerts to it. `random` spreads the pauses."""

    name: str
    receiver: AlertReceiver
    route: Route = Route()
    random: Callable[[], float] = random.random
    mono: Callable[[], int] = time.monotonic_ns
    _outbox: Outbox = field(init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _is_closing: bool = False
    _is_ended: bool = False
    _failure: str = ""  # Why it takes none now. Said once, until it takes one again; likewise what is dropped.
    _is_dropping: bool = False
    _drops_seen: int = 0

    def __post_init__(self) -> None:
        self._outbox = Outbox(replaces=self.receiver.replaces)

    @property
    def wants_again(self) -> bool:
        return self.receiver.replaces

    def offer(self, alert: Alert) -> None:
        """Take it to be sent, if this receiver wants it. Never blocks."""
        if not self.route.wants(alert):
            return
        with self._changed:
            self._outbox.offer(alert, MonoNs(self.mono()))
            self._changed.notify()
            is_cut_short = self._start()
        if is_cut_short:
            log.error("alert_not_begun", receiver=self.name, reason="no thread is to be had: raise the TasksMax")
        self._say_drops()

    def _start(self) -> bool:
        """Begin the thread where there is none; True where there is none to be had. The next alert tries again."""
        if self._is_closing or (self._thread is not None and self._thread.is_alive()):
            return False
        # What a thread had in hand that died of a fault of ours is given up: it may be what it died of.
        self._outbox.settle(Delivery(Took.REFUSED, "fault"), MonoNs(self.mono()), 0)
        thread = threading.Thread(target=self._carry, name=f"alerts {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # RLIMIT_NPROC, TasksMax.
            return True
        self._thread = thread
        return False

    def counts(self) -> AlertCounts:
        with self._changed:
            outbox = self._outbox
            return AlertCounts(self.name, outbox.sent_total, outbox.failed_total, outbox.dropped_total)

    def trouble(self) -> str | None:
        """What an operator should know of it now, in one line."""
        failure, waiting, dropped = self._failure, len(self._outbox), self._outbox.dropped_total
        if not failure:
            return None
        return f"alerts are not taken by {self.name}: {failure}; {waiting} wait, {dropped} were given up"

    def hurry(self) -> None:
        """Try what waits once more, now: there will be no later."""
        with self._changed:
            self._is_closing = True
            self._outbox.hurry(MonoNs(self.mono()))
            self._changed.notify()

    def end(self, patience_s: float) -> None:
        """Wait for the last attempts, no longer than this; what is left is counted, said, and lost."""
        if self._thread is not None:
            self._thread.join(patience_s)
        with self._changed:
            self._is_ended = True
            left = self._outbox.give_up()
        if left:
            log.error("alerts_not_sent", receiver=self.name, count=left, reason="the governor ends")

    def _carry(self) -> None:
        while (alert := self._await()) is not None:
            delivery = self.receiver.post(alert)
            with self._changed:
                self._outbox.settle(delivery, MonoNs(self.mono()), self.random())
            if self._is_ended:
                return  # It has been counted as lost.
            self._say(delivery)
            self._say_drops()

    def _await(self) -> Alert | None:
        """The next alert that is due; None once we close and nothing is."""
        with self._changed:
            while True:
                at = MonoNs(self.mono())
                alert = self._outbox.next(at)
                if alert is not None or self._is_closing:
                    return alert
                due = self._outbox.due_at()
                self._changed.wait(None if due is None else max(0.001, (due - at) / NS_PER_S))

    def _say(self, delivery: Delivery) -> None:
        if delivery.took is Took.TAKEN:
            if self._failure:
                log.warning("alert_receiver_answers", receiver=self.name)
            self._failure, self._is_dropping = "", False
            return
        if not self._failure:
            log.error("alert_receiver_fails", receiver=self.name, where=self.receiver.where, reason=delivery.line)
        self._failure = delivery.line

    def _say_drops(self) -> None:
        dropped, seen = self._outbox.dropped_total, self._drops_seen
        self._drops_seen = dropped
        if dropped > seen and not self._is_dropping:
            self._is_dropping = True
            log.error("alert_dropped", receiver=self.name, total=dropped, reason="refused, too many, or too old")


@dataclass(slots=True)
class AlertDispatcher:
    """`ports.Observer`: tells every courier of alarms and halts."""

    node: Node
    clock: Clock
    couriers: Sequence[Courier]
    flush_s: float = FLUSH_S
    _repeats: Repeats = field(default_factory=Repeats)
    _open: dict[str, Alert] = field(default_factory=dict)  # Halts that are not closed, by incident.
    _told: dict[str, None] = field(default_factory=dict)  # Ids of stages of halts; the oldest first.
    _number: int = 0
    _again_at: MonoNs = MonoNs(0)

    def tick(self, node: Any, at: MonoNs) -> None:
        self._tell_repeats(at)
        if self._open and at >= self._again_at:
            self._again_at = MonoNs(at + AGAIN_NS)
            for alert in self._open.values():
                for courier in self.couriers:
                    if courier.wants_again:
                        courier.offer(alert)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        if self.couriers and self._repeats.is_new(name, run, text, self.clock.mono()):
            self._offer(self._of_alarm(name, run, text))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        if not self.couriers:
            return
        alert = of_incident(self.node, snapshot)
        assert alert.incident is not None
        self._open.pop(alert.incident.incident_id, None)
        if alert.state is State.FIRING:
            self._open[alert.incident.incident_id] = alert
            if len(self._open) > INCIDENTS_OPEN_MAX:
                del self._open[next(iter(self._open))]
        if alert.alert_id in self._told:
            return  # Between stages there is nothing to tell; nor where a halt tries the same again.
        self._told[alert.alert_id] = None
        self._again_at = MonoNs(self.clock.mono() + AGAIN_NS)
        if len(self._told) > STAGES_TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._offer(alert)

    def counts(self) -> tuple[AlertCounts, ...]:
        return tuple(courier.counts() for courier in self.couriers)

    def document(self) -> dict[str, Any]:
        """For `costgov status`: how each receiver is."""
        troubles = [courier.trouble() for courier in self.couriers]
        return {
            "receivers": [asdict(counts) for counts in self.counts()],
            "problems": [trouble for trouble in troubles if trouble is not None],
        }

    def problems(self) -> list[str]:
        """What keeps receivers from being told, as far as this machine shows it: a line each."""
        found = [(courier, courier.receiver.problem()) for courier in self.couriers]
        return [
            f"alerts to {courier.name} cannot be sent: {Delivery(Took.BUSY, problem).line}"
            for courier, problem in found
            if problem is not None
        ]

    def close(self) -> None:
        """The last attempts, all receivers at once, within one bound."""
        self._tell_repeats(MonoNs(self.clock.mono() + REPEAT_NS))
        ends_at = time.monotonic() + (min(FLUSH_IN_A_HALT_S, self.flush_s) if self._open else self.flush_s)
        for courier in self.couriers:
            courier.hurry()
        for courier in self.couriers:
            courier.end(max(0.0, ends_at - time.monotonic()))

    def _tell_repeats(self, at: MonoNs) -> None:
        for name, run, text, repeats in self._repeats.due(at):
            self._offer(replace(self._of_alarm(name, run, text), repeats=repeats))

    def _of_alarm(self, name: str, run: str | None, text: str) -> Alert:
        self._number += 1
        return of_alarm(self.node, name, run, text, self.clock.wall(), self._number)

    def _offer(self, alert: Alert) -> None:
        for courier in self.couriers:
            courier.offer(alert)


def alert_dispatcher(tables: Sequence[Table], node: Node, clock: Clock) -> AlertDispatcher:
    couriers = [Courier(one.name, one.receiver, one.route) for one in addressees(tables)]
    return AlertDispatcher(node, clock, couriers)
