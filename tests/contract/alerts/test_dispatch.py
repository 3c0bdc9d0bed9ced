"""From the loop to the receivers: whoever tells is never held up, and no receiver by another."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from governor.adapters.alerting.dispatch import AGAIN_NS, AlertDispatcher, AlertSender
from governor.adapters.http.client import HttpReply, exchange, make_client
from governor.core.alerts.catalogue import REPEAT_NS, Alert, Route, Severity
from governor.core.alerts.outbox import Delivery, Took
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.views.metrics import AlertCounts
from tests.contract.alerts.rigs import (
    SAFETY_S,
    Answer,
    Asked,
    Rig,
    Told,
    alertmanager_rig,
    an_alert,
    receiver_server,
    webhook_rig,
)
from tests.contract.fakes import FakeClock
from tests.unit.core.engine.test_step import a_step, make_node, play, rule, training


def a_node() -> Node:
    node = make_node(rule())
    training(node, 30)
    return node


def a_halt_of(node: Node, **changes: Any) -> dict[str, Any]:
    incident = node.runs["llama"].incident
    if incident is None:
        play(node, a_step(31, loss=float("nan")))
        incident = node.runs["llama"].incident
    assert incident is not None
    return {**incident_snapshot(node, incident), **changes}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Rig]:
    """A second receiver, on a server of its own."""
    (tmp_path / "other").mkdir()
    with receiver_server() as told:
        yield webhook_rig(told, tmp_path / "other")


@contextmanager
def dispatcher(*rigs: Rig, flush_s: float = 0.2, timeout_s: float = SAFETY_S) -> Iterator[AlertDispatcher]:
    senders = [
        AlertSender(f"r{place}", rig.receiver(timeout_s=timeout_s), random=lambda: 0.0)
        for place, rig in enumerate(rigs)
    ]
    with closing(AlertDispatcher(a_node(), FakeClock(), senders, flush_s)) as running:
        yield running


def texts(rig: Rig) -> list[str]:
    return [rig.text_of(asked) for asked in rig.server.asked]


def test_an_alarm_comes_to_every_receiver(rig: Rig, other: Rig) -> None:
    with dispatcher(rig, other) as told:
        told.alarm("unwatched", "llama", "run llama is not heard")
        for one in (rig, other):
            assert one.server.until(lambda one=one: texts(one)) == ["run llama is not heard"]


def test_a_receiver_that_hangs_holds_up_neither_who_tells_nor_another_receiver(rig: Rig, other: Rig) -> None:
    rig.server.then(Answer(hangs=True))
    with dispatcher(rig, other) as told:
        told.alarm("a0", None, "0")
        rig.server.until(lambda: rig.server.asked)
        for number in range(1, 40):
            told.alarm(f"a{number}", None, str(number))
        other.server.until(lambda: len(other.server.asked) == 40)
        assert texts(other) == [str(number) for number in range(40)]
        assert len(rig.server.asked) == 1
        assert told.counts()[0].failed_total == 0, "it hangs to this moment"


def test_the_end_does_not_wait_for_a_receiver_that_hangs_and_says_what_was_lost(rig: Rig) -> None:
    rig.server.then(Answer(hangs=True))
    with capture_logs() as said:
        with dispatcher(rig) as told:
            for number in range(3):
                told.alarm(f"a{number}", None, "text")
            rig.server.until(lambda: rig.server.asked)
        assert told.counts() == (AlertCounts("r0", 0, 0, 3),), "no attempt has ended: it hangs to this moment"
    lost = [line for line in said if line["event"] == "alerts_not_sent"]
    assert [(line["receiver"], line["count"]) for line in lost] == [("r0", 3)]


def test_at_the_end_what_waits_is_tried_once_more(rig: Rig) -> None:
    rig.server.then(Answer(503, {"Retry-After": "300"}))
    with dispatcher(rig, flush_s=SAFETY_S) as told:
        told.alarm("left_behind", "llama", "the last word")
        until(lambda: told.counts()[0].failed_total == 1)
    assert texts(rig) == ["the last word"] * 2
    assert told.counts() == (AlertCounts("r0", 1, 1, 0),)


def test_what_was_kept_back_is_told_at_the_end(rig: Rig) -> None:
    with dispatcher(rig, flush_s=SAFETY_S) as told:
        told.alarm("rule_budget", "llama", "half of the ceiling is spent")
        told.alarm("rule_budget", "llama", "all of it is")
    assert texts(rig)[-1] == "all of it is"  # To an Alertmanager only the newest is news.


@pytest.mark.parametrize("answer", [Answer(500), Answer(503), Answer(breaks_off=True)])
def test_what_was_not_taken_is_sent_again_under_the_same_id(rig: Rig, answer: Answer) -> None:
    rig.server.then(answer)
    with dispatcher(rig) as told, capture_logs() as said:
        told.alarm("unwatched", "llama", "text")
        rig.server.until(lambda: len(rig.server.asked) == 2)
        assert len({rig.id_of(asked) for asked in rig.server.asked}) == 1
        until(lambda: told.counts()[0].sent_total == 1)
        until(lambda: [line["event"] for line in said] == ["alert_receiver_fails", "alert_receiver_answers"])
    assert told.counts() == (AlertCounts("r0", 1, 1, 0),)


def until(look: Any) -> None:
    """For what no server hears: looked at again at short notice."""
    ticker = threading.Event()
    for _ in range(SAFETY_S * 100):
        if look():
            return
        ticker.wait(0.01)
    raise AssertionError("not seen")


def test_a_receiver_that_refuses_is_said_once_and_every_drop_is_counted(rig: Rig) -> None:
    rig.server.then(*[Answer(302)] * 5)
    with capture_logs() as said, dispatcher(rig) as told:
        for number in range(5):
            told.alarm(f"a{number}", None, "text")
        until(lambda: told.counts()[0].dropped_total == 5)
        until(lambda: len(said) == 2)
        told.alarm("a5", None, "text")
        until(lambda: told.counts()[0].sent_total == 1)
    assert [line["event"] for line in said] == ["alert_receiver_fails", "alert_dropped", "alert_receiver_answers"]
    assert "it sends us elsewhere" in said[0]["reason"]
    for secret in rig.secrets:
        assert secret not in repr(said)


def test_what_an_operator_should_know_of_a_receiver_is_one_line_while_it_lasts(rig: Rig) -> None:
    rig.server.then(Answer(500))
    with dispatcher(rig) as told:
        assert told.document() == {"receivers": [asdict(AlertCounts("r0"))], "problems": []}
        told.alarm("unwatched", "llama", "text")
        line = "alerts are not taken by r0: the receiver has trouble (http_500); 1 wait, 0 were given up"
        until(lambda: told.document()["problems"] == [line])
        until(lambda: told.document() == {"receivers": [asdict(AlertCounts("r0", 1, 1, 0))], "problems": []})


def test_a_halt_is_told_once_a_stage(other: Rig) -> None:
    with dispatcher(other) as told:
        for _ in range(3):
            told.incident(a_halt_of(told.node))
        told.incident(a_halt_of(told.node, halt_stage="TERMED"))
        told.incident(a_halt_of(told.node))  # A halt that tries the same again.
        told.incident(a_halt_of(told.node, halt_stage="HALTED", closed_wall_ns=1_800_000_000 * 10**9))
        other.server.until(lambda: len(other.server.asked) == 3)
        told.tick(told.node, told.clock.mono())
    stages = [json.loads(asked.body)["incident"]["stage"] for asked in other.server.asked]
    assert stages == ["ASKED", "TERMED", "HALTED"]
    assert told.counts() == (AlertCounts("r0", 3, 0, 0),)


def test_an_open_halt_is_told_again_to_an_alertmanager_until_it_is_closed(server: Told, tmp_path: Path) -> None:
    rig = alertmanager_rig(server, tmp_path)
    clock = FakeClock()
    sender = AlertSender("am", rig.receiver(), random=lambda: 0.0)
    with closing(AlertDispatcher(a_node(), clock, [sender], flush_s=SAFETY_S)) as told:
        told.incident(a_halt_of(told.node))
        server.until(lambda: len(server.asked) == 1)
        for minute in range(2, 5):
            clock.advance(AGAIN_NS - 1)
            told.tick(told.node, clock.mono())
            clock.advance(1)
            told.tick(told.node, clock.mono())
            server.until(lambda minute=minute: len(server.asked) == minute)
        told.incident(a_halt_of(told.node, halt_stage="HALTED", closed_wall_ns=1_800_000_000 * 10**9))
        server.until(lambda: len(server.asked) == 5)
        clock.advance(10 * AGAIN_NS)
        told.tick(told.node, clock.mono())
    labels = {json.dumps(json.loads(asked.body)[0]["labels"]) for asked in server.asked}
    assert len(labels) == 1
    assert len(server.asked) == 5


def test_alarms_that_repeat_themselves_are_one_alert_and_then_their_last_word(other: Rig) -> None:
    clock = FakeClock()
    sender = AlertSender("r", other.receiver(), random=lambda: 0.0)
    with closing(AlertDispatcher(a_node(), clock, [sender], flush_s=SAFETY_S)) as told:
        for number in range(100):
            told.alarm("unwatched", "llama", f"said {number}")
            told.tick(told.node, clock.mono())
        clock.advance(REPEAT_NS)
        told.tick(told.node, clock.mono())
    assert [(one["text"], one["repeats"]) for one in map(read, other.server.asked)] == [("said 0", 0), ("said 99", 99)]
    ids = {asked.headers["webhook-id"] for asked in other.server.asked}
    assert len(ids) == 2


def read(asked: Asked) -> dict[str, Any]:
    document = json.loads(asked.body)
    assert isinstance(document, dict)
    return document


def test_each_receiver_gets_what_it_wants(rig: Rig, other: Rig) -> None:
    wanting = AlertSender("some", other.receiver(), Route(("rule_*",), Severity.WARNING))
    senders = [AlertSender("all", rig.receiver()), wanting]
    with closing(AlertDispatcher(a_node(), FakeClock(), senders, flush_s=SAFETY_S)) as told:
        for name in ("unwatched", "rule_nan", "watched_again"):
            told.alarm(name, "llama", name)
    assert texts(rig) == ["unwatched", "rule_nan", "watched_again"]
    assert texts(other) == ["rule_nan"]


def test_without_receivers_nothing_is_kept() -> None:
    told = AlertDispatcher(a_node(), FakeClock(), [])
    told.alarm("unwatched", "llama", "text")
    told.incident(a_halt_of(told.node))
    told.tick(told.node, told.clock.mono())
    told.close()
    assert told.counts() == ()
    assert not told._open
    assert not told._reported


class Faulty:
    """A receiver with a fault of ours in it: the first alert ends its thread."""

    where = "https://alerts.example.org"
    replaces = False

    def __init__(self) -> None:
        self.taken: list[str] = []

    def problem(self) -> str | None:
        return None

    def post(self, alert: Alert) -> Delivery:
        if alert.text == "0":
            raise ZeroDivisionError
        self.taken.append(alert.text)
        return Delivery(Took.TAKEN, "http_200")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_costs_the_alert_that_met_it_and_no_other() -> None:
    receiver = Faulty()
    sender = AlertSender("faulty", receiver)
    sender.offer(an_alert(text="0"))
    thread = sender._thread
    assert thread is not None
    thread.join(SAFETY_S)
    sender.offer(an_alert(text="1"))
    until(lambda: receiver.taken == ["1"])
    until(lambda: sender.counts() == AlertCounts("faulty", 1, 1, 1))
    sender.hurry()
    sender.end(SAFETY_S)


def test_a_receiver_that_hangs_takes_no_place_of_a_clouds_calls(rig: Rig) -> None:
    rig.server.then(Answer(hangs=True), Answer(hangs=True))
    receiver = rig.receiver()
    hanging = [threading.Thread(target=receiver.post, args=(an_alert(),)) for _ in range(2)]
    for thread in hanging:
        thread.start()
    rig.server.until(lambda: len(rig.server.asked) == 2)
    assert receiver.post(an_alert()) == Delivery(Took.BUSY, "connect_failed"), "its own places are taken"
    with make_client() as client:
        reply = exchange(client, "POST", rig.server.url, headers={}, deadline_s=SAFETY_S, body_bytes_max=100)
    assert isinstance(reply, HttpReply)
    rig.server.released.set()
    for thread in hanging:
        thread.join()
