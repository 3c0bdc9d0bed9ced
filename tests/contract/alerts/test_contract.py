"""What every kind of receiver keeps to: one attempt, one answer of a fixed set, the same id again, and no secret."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from governor.adapters import alerts
from governor.adapters.plugins import ConfigError
from governor.core.alerts.catalogue import LABEL_CHARS_MAX, TEXT_CHARS_MAX
from governor.core.alerts.outbox import Delivery, Took
from tests.contract.alerts.rigs import RIGS, WALL_NS, Answer, Rig, a_halt, an_alert
from tests.tidy import gates
from trainer_shim.wire import LABELS_MAX

# Every status has one answer; the ones that are not here are those of the class.
TOOK = {
    **dict.fromkeys(range(300, 400), Took.REFUSED),
    **dict.fromkeys(range(400, 500), Took.REFUSED),
    **dict.fromkeys(range(500, 600), Took.LATER),
    **dict.fromkeys((401, 403, 404, 408, 425, 429, 502, 503, 504), Took.BUSY),
    **dict.fromkeys(range(200, 300), Took.TAKEN),
}
TRIED = (200, 201, 202, 299, 301, 302, 307, 308, 400, 401, 403, 404, 405, 408, 410, 413, 422, 425, 429, 499)
TRIED = (*TRIED, 500, 501, 502, 503, 504, 507, 599)


def test_every_kind_is_in_this_suite() -> None:
    gates.nothing_missing(
        gates.without_a_rig("alert receiver", alerts.names(), RIGS, "tests/contract/alerts/rigs.py RIGS")
    )


@pytest.mark.parametrize("name", alerts.names())
def test_every_kind_documents_every_key(name: str) -> None:
    keys = alerts.module(name).KEYS
    assert len({key.name for key in keys}) == len(keys)
    assert all(key.meaning.endswith(".") for key in keys), "a key's meaning is a sentence"


def test_what_is_taken_was_sent_once(any_rig: Rig) -> None:
    delivery = any_rig.receiver().post(an_alert())
    assert delivery == Delivery(Took.TAKEN, any_rig.taken)
    (asked,) = any_rig.server.asked
    assert any_rig.id_of(asked) == an_alert().alert_id
    assert any_rig.text_of(asked) == an_alert().text


def test_what_is_posted_is_json(rig: Rig) -> None:
    rig.receiver().post(an_alert())
    (asked,) = rig.server.asked
    assert (asked.method, asked.headers["Content-Type"]) == ("POST", "application/json")


@pytest.mark.parametrize("status", TRIED)
def test_every_status_has_one_meaning(rig: Rig, status: int) -> None:
    rig.server.then(Answer(status))
    assert rig.receiver().post(an_alert()) == Delivery(TOOK[status], f"http_{status}")


def test_another_attempt_bears_the_same_id(any_rig: Rig) -> None:
    rig = any_rig
    rig.server.then(rig.fails, rig.fails)
    receiver = rig.receiver()
    took = []
    for _ in range(3):
        took.append(receiver.post(an_alert()).took)
        rig.wall_ns += 60 * 10**9
    assert took == [Took.LATER, Took.LATER, Took.TAKEN]
    assert {rig.id_of(asked) for asked in rig.server.asked} == {an_alert().alert_id}
    assert len(rig.server.asked) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_receivers_wish_for_later_has_record(rig: Rig, status: int) -> None:
    said = {
        "7": 7.0,
        "Fri, 15 Jan 2027 08:01:00 GMT": 60.0,
        "Fri, 15 Jan 2027 07:00:00 GMT": 0.0,
        "soon": None,
        "-1": None,
    }
    for text, seconds in said.items():
        rig.server.then(Answer(status, {"Retry-After": text}))
        assert rig.receiver().post(an_alert()) == Delivery(Took.BUSY, f"http_{status}", seconds)


def test_a_receiver_that_hangs_is_left_at_the_deadline(any_rig: Rig) -> None:
    any_rig.server.then(Answer(hangs=True))
    assert any_rig.receiver(timeout_s=0.3).post(an_alert()) == Delivery(Took.BUSY, "timeout")


def test_a_connection_that_breaks_may_have_been_a_delivery_and_is_tried_again(any_rig: Rig) -> None:
    any_rig.server.then(Answer(200, body=b"ta", breaks_off=True))
    assert any_rig.receiver().post(an_alert()) == Delivery(Took.BUSY, "broken_off")


def test_an_answer_without_end_is_hung_up_on_and_was_an_answer(rig: Rig) -> None:
    rig.server.then(Answer(200, endless=True), Answer(500, endless=True))
    assert rig.receiver().post(an_alert()) == Delivery(Took.TAKEN, "http_200")
    assert rig.server.hung_up.wait(30)
    assert rig.receiver().post(an_alert()) == Delivery(Took.LATER, "http_500")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_is_followed_to_anywhere(rig: Rig, status: int) -> None:
    rig.server.then(Answer(status, {"Location": f"{rig.server.url}/elsewhere"}))
    assert rig.receiver().post(an_alert()).took is Took.REFUSED
    assert len(rig.server.asked) == 1


def test_a_name_that_no_resolver_takes_is_no_thread_that_dies_of_it(rig: Rig) -> None:
    rig.server.then(Answer(302, {"Location": "https://xn--a/"}))
    assert rig.receiver(timeout_s=5).post(an_alert()) == Delivery(Took.BUSY, "broken_off")


def test_nobody_there_is_busy(any_rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    receiver = any_rig.elsewhere(f"http://127.0.0.1:{port}/")
    assert receiver.post(an_alert()) == Delivery(Took.BUSY, "connect_failed")


def test_a_certificate_that_nobody_vouches_for_is_no_receiver(any_rig: Rig, any_tls_url: str) -> None:
    assert any_rig.elsewhere(any_tls_url).post(an_alert()) == Delivery(Took.BUSY, "connect_failed")


def test_a_certificate_of_ones_own_is_trusted_where_it_is_named(any_rig: Rig, any_tls_url: str, tls_ca: Path) -> None:
    delivery = any_rig.trusting(any_tls_url, tls_ca).post(an_alert())
    assert delivery == Delivery(Took.TAKEN, any_rig.taken)


def test_a_ca_file_that_is_none_is_said(any_rig: Rig) -> None:
    rig = any_rig
    receiver = rig.receiver(ca_file="/nonexistent/ca.pem")
    assert receiver.problem() == "ca_not_readable"
    assert receiver.post(an_alert()) == Delivery(Took.BUSY, "ca_not_readable")
    assert rig.server.asked == []


def test_a_secret_that_cannot_be_read_is_said_and_is_read_anew_each_time(any_rig: Rig) -> None:
    rig = any_rig
    text, receiver = rig.secret_file.read_text(), rig.receiver()
    assert receiver.problem() is None
    rig.secret_file.unlink()
    assert receiver.problem() == "secret_not_found"
    assert receiver.post(an_alert()) == Delivery(Took.BUSY, "secret_not_found")
    for wrong in rig.malformed:
        rig.secret_file.write_bytes(wrong.encode("latin-1"))
        rig.secret_file.chmod(0o600)
        assert receiver.problem() == "secret_malformed", wrong
        assert receiver.post(an_alert()) == Delivery(Took.BUSY, "secret_malformed"), wrong
    assert rig.server.asked == []
    rig.secret_file.write_text(text)
    rig.secret_file.chmod(0o644)
    assert receiver.post(an_alert()) == Delivery(Took.BUSY, "secret_readable_by_everyone")
    rig.secret_file.chmod(0o640)
    assert receiver.post(an_alert()).took is Took.TAKEN


def test_no_secret_is_in_any_answer_or_representation(any_rig: Rig) -> None:
    rig = any_rig
    leaky = "".join(rig.secrets).encode()
    rig.server.then(*(Answer(status, {"X-Echo": leaky.decode()}, leaky) for status in (200, 302, 400, 401, 503)))
    receiver = rig.receiver()
    shown = [f"{receiver!r} {receiver.where} {[repr(value) for value in vars(receiver).values()]}"]
    for _ in range(5):
        delivery = receiver.post(an_alert())
        shown.append(f"{delivery!r} {delivery.line}")
    for secret in rig.secrets:
        assert secret not in "\n".join(shown)
    # A secret goes nowhere but into its header, and the path is the receiver's own.
    for secret in rig.secrets[:-1]:
        assert not any(secret in asked.path or secret.encode() in asked.body for asked in rig.server.asked)


LABELS = {f"{number:0{LABEL_CHARS_MAX}}": "x" * LABEL_CHARS_MAX for number in range(LABELS_MAX)}
LARGEST = an_alert(text="x" * TEXT_CHARS_MAX, labels=LABELS)


@pytest.mark.parametrize("alert", [LARGEST, an_alert(run=None, stage=None, spend_usd_micros=None), a_halt()])
def test_nothing_that_is_sent_is_larger_than_a_receiver_should_have_to_take(any_rig: Rig, alert: Any) -> None:
    any_rig.receiver().post(alert)
    assert len(any_rig.server.asked[0].body) < 20_000


@pytest.mark.parametrize(
    ("url", "line"),
    [
        (None, "url is missing; add it"),
        ("alerts.example.org", "url must be an https URL"),
        ("ftp://alerts.example.org/", "url must be an https URL"),
        ("https:///costgov", "url must be an https URL"),
        ("https://alerts.example.org:http/", "url must be an https URL"),
        ("https://alerts.example.org/#there", "url must be an https URL"),
        ("https://alerts.example.org/\x00", "url must be an https URL"),
        ("https://alerts..example.org/", "url must be an https URL"),
        (f"https://{'a' * 64}.example.org/", "url must be an https URL"),
        ("https://xn--a/", "url must be an https URL"),
        ("https://ada:S3CRET@alerts.example.org/", "url holds a user or a password; put a token into"),
        ("http://alerts.example.org/S3CRET", "url is plain http to another machine"),
        ("http://10.0.0.1/S3CRET", "url is plain http to another machine"),
        ("http://169.254.169.254/", "url is plain http to another machine"),
    ],
)
def test_a_url_that_is_none_is_one_line_that_names_the_key_and_shows_nothing_of_it(
    rig: Rig, url: str | None, line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        rig.receiver(url=url)
    assert str(caught.value).startswith(f"alert[1].{line}")
    assert "\n" not in str(caught.value)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9093", "http://[::1]:9093/x", "http://localhost/", "https://a.org"])
def test_plain_http_is_for_this_machine(rig: Rig, url: str) -> None:
    assert rig.receiver(url=url).where == url.removesuffix("/x").removesuffix("/")


def test_plain_http_across_a_network_needs_a_word(rig: Rig) -> None:
    assert rig.receiver(url="http://alerts.example.org/x", insecure=True).where == "http://alerts.example.org"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"urll": "x"}, 'alert[1]: unknown key "urll"; known: '),
        ({"timeout_s": 0}, "alert[1].timeout_s must be a number of seconds"),
        ({"insecure": "yes"}, "alert[1].insecure must be true or false"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(rig: Rig, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rig.receiver(**changes)
    assert str(caught.value).startswith(line)


def test_the_walls_clock_of_this_suite_is_what_it_says() -> None:
    assert WALL_NS == 1_800_000_000 * 10**9  # 2027-01-15 08:00:00 UTC, of which the dates above are a minute away.
