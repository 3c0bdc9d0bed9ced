"""Mail as a mail server gets it: log-in, encryption, refusals, and what a mailbox is told."""

from __future__ import annotations

import email
import email.policy
import smtplib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from governor.adapters import alerts
from governor.adapters.alerts.email import LINES_MAX, answer_of
from governor.adapters.plugins import ConfigError
from governor.core.alerts.outbox import Delivery, Took
from tests.contract.alerts.mail_server import Handler, mail_server, tls_context
from tests.contract.alerts.rigs import Rig, a_halt, an_alert, mail_rig
from tests.contract.alerts.told import SAFETY_S, Answer, Told

Served = Callable[..., tuple[Rig, Handler]]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with ExitStack() as stack:

        def serve(tls: Any = None, **options: Any) -> tuple[Rig, Handler]:
            told = Told()
            handler = stack.enter_context(mail_server(told, tls, **options))
            return mail_rig(told, tmp_path), handler

        yield serve


def received(rig: Rig) -> EmailMessage:
    (asked,) = rig.server.asked
    message = email.message_from_bytes(asked.body, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


def test_what_a_mailbox_gets(served: Served) -> None:
    rig, _ = served()
    assert rig.receiver(to=["a@example.org", "b@example.org"]).post(a_halt()).took is Took.TAKEN
    message = received(rig)
    assert message["Subject"] == "[costgov] critical: halt run llama: run llama is not heard: is its node alive?"
    assert (message["From"], message["To"]) == ("costgov@example.org", "a@example.org, b@example.org")
    assert message["Message-ID"] == "<msg_00000000000000000000000000000002@example.org>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert str(message["Date"]) == "Fri, 15 Jan 2027 08:00:00 -0000"
    assert message.get_content().replace("\r\n", "\n") == (
        "run llama is not heard: is its node alive?\n\nnode node-a, run llama\n"
        "stage 8b · halt llama.node-a.1: ASKED · spent $12.35 · ceiling $300.00 · $0.057400 per 1M tokens · "
        "team=pretrain · failure mode loss-not-a-number: docs/reference/failure_modes.md#loss-not-a-number · "
        "see: costgov status\n2027-01-15T08:00:00Z\n"
    )


def test_the_states_of_a_halt_are_one_thread_of_single_messages(served: Served) -> None:
    rig, _ = served()
    receiver = rig.receiver()
    for number, stage in ((2, "ASKED"), (3, "HALTED")):
        receiver.post(a_halt(stage, number=number))
    headers = [asked.headers for asked in rig.server.asked]
    assert len({one["References"] for one in headers}) == 1
    assert len({one["Message-ID"] for one in headers}) == 2


def test_nothing_in_a_name_becomes_a_header(served: Served) -> None:
    rig, _ = served()
    hostile = "x\r\nBcc: all@example.org\r\n\r\nbody\x1b\ud800é"
    assert rig.receiver().post(an_alert(run=hostile, text=hostile, node=hostile)).took is Took.TAKEN
    message = received(rig)
    assert message["Bcc"] is None
    assert "é" in message["Subject"]


@pytest.mark.parametrize("part", ["x", "é", "\U0001f525", "\n", "\ud800", "x ", ".\n", "\r\n.\r\n", ""])
def test_whatever_an_alert_holds_its_lines_are_within_smtps_limit(served: Served, part: str) -> None:
    """998 octets and a line break (RFC 5322, 2.1.1). A server may refuse longer ones, and this one does."""
    rig, _ = served()
    long = part * 10_000
    alert = an_alert(name=long, node=long, run=long, stage=long, text=long, see=long, labels={"team": long})
    assert rig.receiver().post(alert).took is Took.TAKEN
    (asked,) = rig.server.asked
    assert max(map(len, asked.body.split(b"\r\n"))) <= 998
    told = long.encode("utf-8", "replace").decode().replace("\r\n", "\n")
    assert received(rig).get_content().replace("\r\n", "\n").startswith(told), "all of it arrives"


def test_with_tls_the_password_goes_encrypted_and_without_it_it_goes_nowhere(served: Served, tls_ca: Path) -> None:
    rig, handler = served(tls_context(tls_ca), smtp={"require_starttls": True})
    assert rig.receiver(ca_file=str(tls_ca)).post(an_alert()).took is Took.TAKEN
    assert handler.logged_in == ["ada"]
    assert rig.receiver().post(an_alert()) == Delivery(Took.BUSY, "connect_failed"), "nobody vouches for it"
    assert handler.logged_in == ["ada"]


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")  # Of the test's server.
def test_a_wrong_password_is_said_and_the_alert_waits(served: Served) -> None:
    rig, handler = served(auth=True)
    rig.secret_file.write_text("another one\n")
    delivery = rig.receiver().post(an_alert())
    assert (delivery, delivery.line) == (
        Delivery(Took.BUSY, "smtp_535"), "the user or the password is not accepted (smtp_535)"
    )  # fmt: skip
    assert {*handler.logged_in} == {"ada"}, "each of its ways to log in is tried"
    assert rig.receiver(user=None, password_file=None).post(an_alert()) == Delivery(Took.BUSY, "smtp_530")


@pytest.mark.parametrize(
    ("status", "took"),
    [
        (421, Took.BUSY),
        (450, Took.LATER),
        (451, Took.LATER),
        (452, Took.LATER),
        (550, Took.REFUSED),
        (554, Took.REFUSED),
    ],
)
def test_a_refusal_of_the_message_is_final_or_not_by_its_code(served: Served, status: int, took: Took) -> None:
    rig, _ = served()
    rig.server.then(Answer(status))
    assert rig.receiver().post(an_alert()) == Delivery(took, f"smtp_{status}")


def test_recipients_that_are_refused_hold_up_nobody_else(served: Served) -> None:
    rig, handler = served()
    handler.refused = {"gone@example.org": "550 no such user"}
    delivery = rig.receiver(to=["gone@example.org", "oncall@example.org"]).post(an_alert())
    assert delivery == Delivery(Took.TAKEN, "not_all_recipients")
    assert rig.receiver(to=["gone@example.org"]).post(an_alert()) == Delivery(Took.BUSY, "smtp_550")
    assert len(rig.server.asked) == 1


class Rude:
    """Says what it is given, and then talks on or goes."""

    def __init__(self, said: bytes, *, is_endless: bool = False) -> None:
        self.said, self.is_endless = said, is_endless
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._talk, daemon=True)
        self.thread.start()

    def _talk(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            try:
                connection.sendall(self.said)
                while self.is_endless:
                    connection.sendall(b"220-" + b"x" * 4_000 + b"\r\n")
            except OSError:
                pass

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "broken_off"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "broken_off"),
        (b"220-" + b"x" * 100_000, "smtp_500"),  # In smtplib's own words.
        (b"554 go away\r\n", "smtp_554"),
        (b"\xff\xfe\r\n", "broken_off"),
    ],
)
def test_what_is_no_mail_server_is_busy(tmp_path: Path, said: bytes, reason: str) -> None:
    rude, told = Rude(said), Told()
    told.url = rude.url
    delivery = mail_rig(told, tmp_path).receiver(timeout_s=5).post(an_alert())
    rude.listener.close()
    rude.thread.join(SAFETY_S)
    assert delivery == Delivery(Took.BUSY, reason)


def test_an_answer_without_end_ends(tmp_path: Path) -> None:
    """Without the bound it went on until the deadline, in ever more memory."""
    rude, told = Rude(b"", is_endless=True), Told()
    told.url = rude.url
    assert LINES_MAX <= 1_000
    delivery = mail_rig(told, tmp_path).receiver(timeout_s=SAFETY_S).post(an_alert())
    rude.thread.join(SAFETY_S)
    rude.listener.close()
    assert delivery == Delivery(Took.BUSY, "broken_off")


def test_no_encryption_across_a_network_needs_a_word(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, handler = served()
    # A name of this machine that does not look like it.
    rig.server.url = f"{socket.gethostname()}:{rig.server.url.partition(':')[2]}"
    told = rig.receiver()
    told._server = type(told._server)("127.0.0.1", told._server.port)  # type: ignore[attr-defined]
    told._may_be_plain = False  # type: ignore[attr-defined]
    assert told.post(an_alert()) == Delivery(Took.BUSY, "no_starttls")
    assert handler.logged_in == []


GOOD: dict[str, Any] = {"server": "smtp.example.org:587", "sender": "costgov@example.org", "to": ["a@example.org"]}


def test_the_least_that_is_needed() -> None:
    receiver = alerts.load("email", GOOD, "alert[1]")
    assert (receiver.where, receiver.problem()) == ("smtp://smtp.example.org:587", None)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"server": None}, "alert[1].server must be a host and a port"),
        ({"server": "smtp.example.org"}, "alert[1].server must be a host and a port"),
        ({"server": "smtp.example.org:99999"}, "alert[1].server must be a host and a port"),
        ({"server": "ada:S3CRET@smtp.example.org:25"}, "alert[1].server must be a host and a port"),
        ({"sender": "a@b\r\nRCPT TO:<x@y>"}, "alert[1].sender must be an address"),
        ({"to": []}, "alert[1].to must be 1 to 16 addresses"),
        ({"to": ["a@b\n"]}, "alert[1].to must be 1 to 16 addresses"),
        ({"to": "a@example.org"}, "alert[1].to must be a list of texts"),
        ({"user": "ada"}, "alert[1].password_file is missing"),
        ({"password_file": "/x"}, "alert[1].user is missing"),
        ({"user": "ada", "password_file": "/x", "insecure": True}, "alert[1].insecure would send the password"),
        ({"password": "S3CRET"}, 'alert[1]: unknown key "password"; known: '),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        alerts.load("email", GOOD | changes, "alert[1]")
    assert str(caught.value).startswith(line)
    assert "S3CRET" not in str(caught.value)


def test_an_answer_that_does_not_come_in_time_is_no_broken_connection() -> None:
    """smtplib raises one error for both. Whoever's clock ends first, ours or its socket's, the reason is the same."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(smtplib.SMTPServerDisconnected) as failed:
        smtplib.SMTP("127.0.0.1", silent.getsockname()[1], timeout=0.05)
    assert answer_of(failed.value) == Delivery(Took.BUSY, "timeout")
    assert answer_of(smtplib.SMTPServerDisconnected("closed")) == Delivery(Took.BUSY, "broken_off")
