"""The signature as the Standard Webhooks specification has it, computed here a second time, and the document."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from governor.adapters import alerts
from governor.adapters.plugins import ConfigError
from tests.contract.alerts.rigs import KEY, SECRET, WALL_NS, Asked, Rig, Told, a_halt, an_alert, webhook_rig


@pytest.fixture
def webhook(server: Told, tmp_path: Path) -> Rig:
    return webhook_rig(server, tmp_path)


def hmac_sha256(key: bytes, signed: bytes) -> bytes:
    """RFC 2104 from its definition: nothing of it is the code under test."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + signed).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


def is_genuine(asked: Asked, key: bytes) -> bool:
    """What a receiver does: any one of the signatures will do."""
    head = f"{asked.headers['webhook-id']}.{asked.headers['webhook-timestamp']}.".encode()
    expected = "v1," + base64.b64encode(hmac_sha256(key, head + asked.body)).decode()
    return expected in asked.headers["webhook-signature"].split(" ")


def test_the_second_computation_is_right() -> None:
    """RFC 4231's test case 2, and the message that the specification's reference libraries are tested with."""
    expected = bytes.fromhex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
    assert hmac_sha256(b"Jefe", b"what do ya want for nothing?") == expected
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    assert base64.b64encode(hmac_sha256(key, signed)) == b"g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_attempt_is_signed_anew_for_its_own_time(webhook: Rig) -> None:
    receiver = webhook.receiver()
    receiver.post(an_alert())
    webhook.wall_ns += 90 * 10**9
    receiver.post(an_alert())
    first, second = webhook.server.asked
    assert (first.headers["webhook-timestamp"], second.headers["webhook-timestamp"]) == ("1800000000", "1800000090")
    assert is_genuine(first, KEY)
    assert is_genuine(second, KEY)
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    assert first.body == second.body


def test_what_was_changed_on_the_way_is_not_genuine(webhook: Rig) -> None:
    webhook.receiver().post(an_alert())
    (asked,) = webhook.server.asked
    assert not is_genuine(Asked(asked.method, asked.path, asked.headers, asked.body.replace(b"300", b"900")), KEY)
    for name in ("webhook-id", "webhook-timestamp"):
        changed = {**asked.headers, name: asked.headers[name][:-1] + "9"}
        assert not is_genuine(Asked(asked.method, asked.path, changed, asked.body), KEY)


def test_while_a_secret_is_changed_both_are_good(webhook: Rig) -> None:
    new = bytes(reversed(range(64)))
    webhook.secret_file.write_text(f"whsec_{base64.b64encode(new).decode()}\n{SECRET}\n")
    webhook.receiver().post(an_alert())
    (asked,) = webhook.server.asked
    assert is_genuine(asked, KEY)
    assert is_genuine(asked, new)
    assert len(asked.headers["webhook-signature"].split(" ")) == 2


@pytest.mark.parametrize("size", [0, 23, 65])
def test_a_key_outside_of_the_specifications_bounds_is_none(webhook: Rig, size: int) -> None:
    webhook.secret_file.write_text("whsec_" + base64.b64encode(bytes(size)).decode())
    assert webhook.receiver().problem() == "secret_malformed"


@pytest.mark.parametrize("size", [24, 64])
def test_the_bounds_themselves_are_good(webhook: Rig, size: int) -> None:
    webhook.secret_file.write_text("whsec_" + base64.b64encode(bytes(size)).decode())
    assert webhook.receiver().problem() is None


def test_an_alarm_as_a_document(webhook: Rig) -> None:
    webhook.receiver().post(an_alert(repeats=3))
    assert json.loads(webhook.server.asked[0].body) == {
        "type": "costgov.alarm",
        "timestamp": "2027-01-15T08:00:00Z",
        "id": "msg_00000000000000000000000000000001",
        "name": "unwatched",
        "severity": "warning",
        "state": "event",
        "node": "node-a",
        "run": "llama",
        "stage": "8b",
        "labels": {"team": "pretrain"},
        "text": "run llama is not heard: is its node alive?",
        "see": "costgov status",
        "spend_usd": "12.345678",
        "ceiling_usd": "300.000000",
        "usd_per_mtok": "0.057400",
        "usd_per_mtok_all_in": "0.061250",
        "usd_per_mtok_useful": None,
        "usd_per_mtok_steady": "0.056900",
        "incident": None,
        "failure_mode": {
            "name": "unwatched",
            "title": "the run trains and rules cannot judge it",
            "page": "docs/reference/failure_modes.md#unwatched",
        },
        "ended": None,
        "repeats": 3,
    }


def test_the_end_of_a_halt_as_a_document(webhook: Rig) -> None:
    webhook.receiver().post(a_halt("HALTED", ended_wall=WALL_NS + 5 * 10**9))
    document = json.loads(webhook.server.asked[0].body)
    assert document["type"] == "costgov.halt"
    assert (document["state"], document["timestamp"]) == ("resolved", "2027-01-15T08:00:00Z")
    assert document["ended"] == "2027-01-15T08:00:05Z"
    assert document["incident"] == {"id": "llama.node-a.1", "stage": "HALTED", "reason": "loss_nan"}
    assert document["failure_mode"]["name"] == "loss-not-a-number"


def test_money_that_nobody_knows_is_null(webhook: Rig) -> None:
    webhook.receiver().post(an_alert(spend_usd_micros=None, ceiling_usd_micros=None))
    document = json.loads(webhook.server.asked[0].body)
    assert (document["spend_usd"], document["ceiling_usd"]) == (None, None)


def test_a_webhook_without_a_secret_is_refused_with_the_command_that_makes_one(webhook: Rig) -> None:
    with pytest.raises(ConfigError, match=r"alert\[1\]\.secret_file is missing: .*openssl rand -base64 32"):
        alerts.load("webhook", {"url": "https://alerts.example.org/"}, "alert[1]")
