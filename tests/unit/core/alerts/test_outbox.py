"""What one receiver is sent, in which order and when, without a clock and without a thread."""

from __future__ import annotations

import pytest

from governor.core.alerts.catalogue import Alert, Severity, State
from governor.core.alerts.outbox import (
    AGE_MAX_NS,
    DOUBLINGS_MAX,
    PAUSE_MAX_NS,
    PAUSE_MIN_NS,
    WAITING_MAX,
    Delivery,
    Outbox,
    Took,
)
from governor.core.base.units import NS_PER_S, MonoNs, WallNs

T0 = MonoNs(5 * NS_PER_S)
TAKEN = Delivery(Took.TAKEN, "http_200")
BUSY = Delivery(Took.BUSY, "http_503")
LATER = Delivery(Took.LATER, "http_500")
REFUSED = Delivery(Took.REFUSED, "http_400")


def an_alert(number: int, severity: Severity = Severity.WARNING, name: str | None = None) -> Alert:
    return Alert(f"msg_{number}", name or f"a{number}", severity, State.EVENT, WallNs(number), "node-a", "text", "see")


def after(seconds: float) -> MonoNs:
    return MonoNs(T0 + round(seconds * NS_PER_S))


def sent(outbox: Outbox, at: MonoNs, answer: Delivery = TAKEN, jitter: float = 0.0) -> list[str]:
    """Everything that is tried at this moment, and answered so."""
    ids = []
    while (alert := outbox.next(at)) is not None:
        ids.append(alert.alert_id)
        outbox.settle(answer, at, jitter)
    return ids


def filled(count: int, **options: bool) -> Outbox:
    outbox = Outbox(**options)
    for number in range(count):
        outbox.offer(an_alert(number), T0)
    return outbox


def test_what_is_taken_is_sent_once_and_in_order() -> None:
    outbox = filled(3)
    assert sent(outbox, T0) == ["msg_0", "msg_1", "msg_2"]
    assert (outbox.sent_total, outbox.failed_total, outbox.dropped_total, len(outbox)) == (3, 0, 0, 0)
    assert outbox.due_at() is None


def test_a_busy_receiver_is_left_alone_and_the_order_is_kept() -> None:
    outbox = filled(3)
    assert sent(outbox, T0, BUSY) == ["msg_0"]
    assert outbox.due_at() == after(0.5)
    assert sent(outbox, MonoNs(after(0.5) - 1)) == []
    assert sent(outbox, after(0.5)) == ["msg_0", "msg_1", "msg_2"]


def test_an_alert_that_fails_holds_up_no_other() -> None:
    outbox = filled(3)
    first = outbox.next(T0)
    assert first is not None
    outbox.settle(LATER, T0, 0.0)
    assert sent(outbox, T0) == ["msg_1", "msg_2"]
    assert outbox.due_at() == after(0.5)
    assert sent(outbox, after(0.5)) == ["msg_0"]


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
@pytest.mark.parametrize("answer", [BUSY, LATER])
def test_pauses_double_up_to_a_bound_and_half_of_each_is_spread(answer: Delivery, jitter: float, share: float) -> None:
    outbox, at = filled(1), T0
    for failure in range(DOUBLINGS_MAX + 4):
        assert sent(outbox, at, answer, jitter) == ["msg_0"]
        due = outbox.due_at()
        assert due is not None
        assert due - at == share * min(PAUSE_MAX_NS, PAUSE_MIN_NS * 2**failure)
        at = due


def test_a_receiver_that_took_one_is_trusted_again() -> None:
    outbox = filled(2)
    at = T0
    for _ in range(5):
        sent(outbox, at, BUSY)
        at = outbox.due_at() or at
    assert outbox.next(at) is not None
    outbox.settle(TAKEN, at, 0.0)
    assert outbox.next(at) is not None
    outbox.settle(BUSY, at, 0.0)
    assert outbox.due_at() == at + PAUSE_MIN_NS // 2


@pytest.mark.parametrize(("wished_s", "pause_s"), [(0.1, 0.5), (7.0, 7.0), (86_400.0, PAUSE_MAX_NS / NS_PER_S)])
def test_a_receivers_wish_is_kept_within_bounds(wished_s: float, pause_s: float) -> None:
    outbox = filled(1)
    sent(outbox, T0, Delivery(Took.BUSY, "http_429", wished_s))
    assert outbox.due_at() == after(pause_s)


def test_what_is_refused_is_given_up_and_counted() -> None:
    outbox = filled(2)
    assert sent(outbox, T0, REFUSED) == ["msg_0", "msg_1"]
    assert (outbox.sent_total, outbox.failed_total, outbox.dropped_total, len(outbox)) == (0, 2, 2, 0)


def test_what_is_a_day_old_is_given_up() -> None:
    outbox = filled(1)
    sent(outbox, T0, BUSY)
    outbox.offer(an_alert(1), MonoNs(T0 + 1))
    assert sent(outbox, MonoNs(T0 + AGE_MAX_NS)) == ["msg_1"]
    assert outbox.dropped_total == 1


def test_beyond_the_bound_the_least_urgent_that_has_waited_longest_is_given_up() -> None:
    outbox = Outbox()
    outbox.offer(an_alert(0, Severity.CRITICAL), T0)
    outbox.offer(an_alert(1, Severity.INFO), T0)
    for number in range(2, WAITING_MAX + 1):
        outbox.offer(an_alert(number), T0)
    assert (len(outbox), outbox.dropped_total) == (WAITING_MAX, 1)
    outbox.offer(an_alert(998), T0)
    outbox.offer(an_alert(999, Severity.INFO), T0)
    ids = sent(outbox, T0)
    assert ids[0] == "msg_0"
    assert ids[1] == "msg_3"
    assert {"msg_1", "msg_2", "msg_999"}.isdisjoint(ids)
    assert outbox.dropped_total == 3


def test_where_only_the_newest_is_news_what_waits_is_replaced() -> None:
    outbox = Outbox(replaces=True)
    outbox.offer(an_alert(1, name="halt"), T0)
    outbox.offer(an_alert(2, name="unwatched"), T0)
    outbox.offer(an_alert(3, name="halt"), T0)
    assert sent(outbox, T0) == ["msg_3", "msg_2"]


@pytest.mark.parametrize("answer", [BUSY, LATER])
def test_what_was_told_anew_during_an_attempt_is_not_tried_again(answer: Delivery) -> None:
    outbox = Outbox(replaces=True)
    outbox.offer(an_alert(1, name="halt"), T0)
    assert outbox.next(T0) is not None
    outbox.offer(an_alert(2, name="halt"), T0)
    outbox.settle(answer, T0, 0.0)
    assert sent(outbox, after(10)) == ["msg_2"]


def test_at_the_end_everything_is_tried_once_more() -> None:
    outbox = filled(2)
    sent(outbox, T0, BUSY)
    outbox.hurry(after(0.1))
    assert sent(outbox, after(0.1)) == ["msg_0", "msg_1"]


def test_what_is_left_at_the_end_is_counted_also_what_is_in_hand_and_its_late_answer_changes_nothing() -> None:
    outbox = filled(3)
    assert outbox.next(T0) is not None
    assert outbox.give_up() == 3
    outbox.settle(TAKEN, T0, 0.0)
    assert (outbox.sent_total, outbox.dropped_total, len(outbox)) == (0, 3, 0)


@pytest.mark.parametrize("reason", ["http_500", "http_302", "http_418", "timeout", "secret_malformed", "something"])
def test_every_reason_has_a_line_that_names_it(reason: str) -> None:
    line = Delivery(Took.LATER, reason).line
    assert line.endswith(f" ({reason})")
    assert "\n" not in line
