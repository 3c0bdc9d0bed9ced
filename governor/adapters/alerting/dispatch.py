"""Alerts from the loop to their receivers: the loop fills an outbox, and one thread per receiver sends from it.

The loop never waits: it takes a lock that no thread holds while it sends. Each receiver has its own thread, outbox and
connections, so one that hangs delays no other. A thread that cannot be started costs alerts only.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import structlog

from governor.adapters.alerting.tables import configured_receivers
from governor.core.alerts.catalogue import REPEAT_NS, Alert, Repeats, Route, State, of_alarm, of_incident
from governor.core.alerts.outbox import Delivery, Outbox, Took
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs
from governor.core.engine.node import Node
from governor.core.views.metrics import AlertCounts
from governor.ports import AlertReceiver, Clock
from governor.settings.streams import Alert as Table

# An open halt is repeated at this period, as Prometheus repeats what fires: a receiver that lost it receives it again.
AGAIN_NS: Final = DurationNs(NS_PER_MINUTE)
INCIDENTS_OPEN_MAX: Final = 64  # As many halts as runs may be under way at once.
# States of the last hundred halts. A forgotten one is reported again, under its old id.
STATES_REPORTED_MAX: Final = 1_024
# At our end. A receiver across an ocean has answered three times by then.
FLUSH_S: Final = 3.0
# The governor that resumes the halt waits for our end, and reports it again.
FLUSH_IN_A_HALT_S: Final = 0.5

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class AlertSender:
    """One receiver, and the thread that sends alerts to it. `random` spreads the pauses."""

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
    # Why it takes none now. Logged once until it takes one again; so is dropping.
    _failure: str = ""
    _is_dropping: bool = False
    _drops_seen: int = 0

    def __post_init__(self) -> None:
        self._outbox = Outbox(replaces=self.receiver.replaces)

    @property
    def wants_again(self) -> bool:
        return self.receiver.replaces

    def offer(self, alert: Alert) -> None:
        """Queue the alert if this receiver wants it. Never blocks."""
        if not self.route.wants(alert):
            return
        with self._changed:
            self._outbox.offer(alert, MonoNs(self.mono()))
            self._changed.notify()
            is_cut_short = self._start()
        if is_cut_short:
            log.error("alert_not_begun", receiver=self.name, reason="no thread is to be had: raise the TasksMax")
        self._log_drops()

    def _start(self) -> bool:
        """Start the thread if there is none. True: none can be started, and the next alert tries again."""
        if self._is_closing or (self._thread is not None and self._thread.is_alive()):
            return False
        # Drop the alert that a crashed thread was sending: it may be the cause of the crash.
        self._outbox.settle(Delivery(Took.REFUSED, "fault"), MonoNs(self.mono()), 0)
        thread = threading.Thread(target=self._send_due, name=f"alerts {self.name}", daemon=True)
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
        """What an operator should know of the receiver now, in one line."""
        failure, waiting, dropped = self._failure, len(self._outbox), self._outbox.dropped_total
        if not failure:
            return None
        return f"alerts are not taken by {self.name}: {failure}; {waiting} wait, {dropped} were given up"

    def hurry(self) -> None:
        """Try the queue once more, now: we are closing."""
        with self._changed:
            self._is_closing = True
            self._outbox.hurry(MonoNs(self.mono()))
            self._changed.notify()

    def end(self, patience_s: float) -> None:
        """Wait for the last attempts, at most `patience_s`. The rest is counted, logged and lost."""
        if self._thread is not None:
            self._thread.join(patience_s)
        with self._changed:
            self._is_ended = True
            left = self._outbox.give_up()
        if left:
            log.error("alerts_not_sent", receiver=self.name, count=left, reason="the governor ends")

    def _send_due(self) -> None:
        while (alert := self._next_due()) is not None:
            delivery = self.receiver.post(alert)
            with self._changed:
                self._outbox.settle(delivery, MonoNs(self.mono()), self.random())
            if self._is_ended:
                return  # It was counted as lost.
            self._log_result(delivery)
            self._log_drops()

    def _next_due(self) -> Alert | None:
        """The next alert that is due. None once we close and none is due."""
        with self._changed:
            while True:
                at = MonoNs(self.mono())
                alert = self._outbox.next(at)
                if alert is not None or self._is_closing:
                    return alert
                due = self._outbox.due_at()
                self._changed.wait(None if due is None else max(0.001, (due - at) / NS_PER_S))

    def _log_result(self, delivery: Delivery) -> None:
        if delivery.took is Took.TAKEN:
            if self._failure:
                log.warning("alert_receiver_answers", receiver=self.name)
            self._failure, self._is_dropping = "", False
            return
        if not self._failure:
            log.error("alert_receiver_fails", receiver=self.name, where=self.receiver.where, reason=delivery.line)
        self._failure = delivery.line

    def _log_drops(self) -> None:
        dropped, seen = self._outbox.dropped_total, self._drops_seen
        self._drops_seen = dropped
        if dropped > seen and not self._is_dropping:
            self._is_dropping = True
            log.error("alert_dropped", receiver=self.name, total=dropped, reason="refused, too many, or too old")


@dataclass(slots=True)
class AlertDispatcher:
    """`ports.Observer`: reports alarms and halts to every courier."""

    node: Node
    clock: Clock
    senders: Sequence[AlertSender]
    flush_s: float = FLUSH_S
    _repeats: Repeats = field(default_factory=Repeats)
    _open: dict[str, Alert] = field(default_factory=dict)  # Open halts, by incident.
    _reported: dict[str, None] = field(default_factory=dict)  # Ids of reported states of halts, the oldest first.
    _number: int = 0
    _again_at: MonoNs = MonoNs(0)

    def tick(self, node: Any, at: MonoNs) -> None:
        self._offer_repeats(at)
        if self._open and at >= self._again_at:
            self._again_at = MonoNs(at + AGAIN_NS)
            for alert in self._open.values():
                for sender in self.senders:
                    if sender.wants_again:
                        sender.offer(alert)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        if self.senders and self._repeats.is_new(name, run, text, self.clock.mono()):
            self._offer(self._of_alarm(name, run, text))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        if not self.senders:
            return
        alert = of_incident(self.node, snapshot)
        assert alert.incident is not None
        self._open.pop(alert.incident.incident_id, None)
        if alert.state is State.FIRING:
            self._open[alert.incident.incident_id] = alert
            if len(self._open) > INCIDENTS_OPEN_MAX:
                del self._open[next(iter(self._open))]
        if alert.alert_id in self._reported:
            # The state has not changed, or a halt tries the same again.
            return
        self._reported[alert.alert_id] = None
        self._again_at = MonoNs(self.clock.mono() + AGAIN_NS)
        if len(self._reported) > STATES_REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        self._offer(alert)

    def counts(self) -> tuple[AlertCounts, ...]:
        return tuple(sender.counts() for sender in self.senders)

    def document(self) -> dict[str, Any]:
        """The part of `costgov status` about the receivers."""
        troubles = [sender.trouble() for sender in self.senders]
        return {
            "receivers": [asdict(counts) for counts in self.counts()],
            "problems": [trouble for trouble in troubles if trouble is not None],
        }

    def problems(self) -> list[str]:
        """Why receivers could not be reached, as far as this machine shows: one line each."""
        found = [(sender, sender.receiver.problem()) for sender in self.senders]
        return [
            f"alerts to {sender.name} cannot be sent: {Delivery(Took.BUSY, problem).line}"
            for sender, problem in found
            if problem is not None
        ]

    def close(self) -> None:
        """Make the last attempts, for all receivers at once, within one bound."""
        self._offer_repeats(MonoNs(self.clock.mono() + REPEAT_NS))
        ends_at = time.monotonic() + (min(FLUSH_IN_A_HALT_S, self.flush_s) if self._open else self.flush_s)
        for sender in self.senders:
            sender.hurry()
        for sender in self.senders:
            sender.end(max(0.0, ends_at - time.monotonic()))

    def _offer_repeats(self, at: MonoNs) -> None:
        for name, run, text, repeats in self._repeats.due(at):
            self._offer(replace(self._of_alarm(name, run, text), repeats=repeats))

    def _of_alarm(self, name: str, run: str | None, text: str) -> Alert:
        self._number += 1
        return of_alarm(self.node, name, run, text, self.clock.wall(), self._number)

    def _offer(self, alert: Alert) -> None:
        for sender in self.senders:
            sender.offer(alert)


def alert_dispatcher(tables: Sequence[Table], node: Node, clock: Clock) -> AlertDispatcher:
    senders = [AlertSender(one.name, one.receiver, one.route) for one in configured_receivers(tables)]
    return AlertDispatcher(node, clock, senders)
