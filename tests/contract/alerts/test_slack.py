"""Slack's message: within its limits, nothing in it mentions anybody, and the webhook's path goes nowhere else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from governor.adapters import alerts
from governor.adapters.alerts.slack import SECTION_CHARS_MAX
from governor.adapters.plugins import ConfigError
from governor.core.alerts.outbox import Delivery, Took
from tests.contract.alerts.rigs import Answer, Rig, Told, a_halt, an_alert, slack_rig


@pytest.fixture
def slack(server: Told, tmp_path: Path) -> Rig:
    return slack_rig(server, tmp_path)


def sent(rig: Rig) -> dict[str, Any]:
    document = json.loads(rig.server.asked[-1].body)
    assert isinstance(document, dict)
    return document


def test_a_halt_as_a_message(slack: Rig) -> None:
    slack.receiver(url=slack.server.url).post(a_halt())
    assert slack.server.asked[0].path == "/services/T0/B0/S3CRETxyz"
    assert sent(slack) == {
        "text": "critical: halt, run llama on node-a: run llama is not heard: is its node alive?",
        "blocks": [
            {"type": "header",
             "text": {"type": "plain_text", "text": "critical: halt, run llama on node-a", "emoji": False}},
            {"type": "section", "block_id": "msg_00000000000000000000000000000002",
             "text": {"type": "mrkdwn", "text": "run llama is not heard: is its node alive?", "verbatim": True}},
            {"type": "context", "elements": [
                {"type": "mrkdwn", "verbatim": True,
                 "text": "stage 8b · halt llama.node-a.1: ASKED · spent $12.35 · ceiling $300.00 · $0.057400 per 1M "
                         "tokens · team=pretrain · failure mode loss-not-a-number: "
                         "docs/reference/failure_modes.md#loss-not-a-number · see: costgov status"}]},
        ],
    }  # fmt: skip


def test_nobody_is_mentioned_and_no_link_is_made(slack: Rig) -> None:
    slack.receiver().post(an_alert(text="<!channel> <https://evil|click> & \ud800", run="<@U1>"))
    document = sent(slack)
    assert "<" not in document["text"]
    assert document["blocks"][1]["text"]["text"].startswith("&lt;!channel&gt; &lt;https://evil|click&gt; &amp; ")


def test_what_grows_by_its_escapes_is_cut_between_them(slack: Rig) -> None:
    slack.receiver().post(an_alert(text="&" * 2_000))
    text = sent(slack)["blocks"][1]["text"]["text"]
    assert len(text) <= SECTION_CHARS_MAX
    assert text.replace("&amp;", "") == "…"


# As Slack's reference of Block Kit has them, and not as our module does.
BLOCKS_MAX, BLOCK_ID_CHARS_MAX, HEADER_CHARS_MAX, TEXT_CHARS_MAX, CONTEXT_ELEMENTS_MAX = 50, 255, 150, 3_000, 10


@pytest.mark.parametrize("part", ["x", "&", "<", "é", "\U0001f525", "\n", "\ud800", "&amp;", ""])
def test_whatever_an_alert_holds_its_message_is_within_slacks_limits(slack: Rig, part: str) -> None:
    long = part * 10_000
    labels = {f"{part}{number}": long[:512] for number in range(32)}
    slack.receiver().post(an_alert(name=long, node=long, run=long, stage=long, text=long, see=long, labels=labels))
    blocks = sent(slack)["blocks"]
    header, section, context = blocks
    assert len(blocks) <= BLOCKS_MAX
    assert 0 < len(header["text"]["text"]) <= HEADER_CHARS_MAX
    assert 0 < len(section["block_id"]) <= BLOCK_ID_CHARS_MAX
    assert 0 < len(section["text"]["text"]) <= TEXT_CHARS_MAX
    assert 0 < len(context["elements"]) <= CONTEXT_ELEMENTS_MAX
    assert all(0 < len(one["text"]) <= TEXT_CHARS_MAX for one in context["elements"])


@pytest.mark.parametrize(
    "line", ["https://hooks.slack.com.evil.org/services/T/B/X", "http://a.b/services/x", "services"]
)
def test_a_webhook_of_another_place_is_none(slack: Rig, line: str) -> None:
    slack.secret_file.write_text(line + "\n")
    assert slack.receiver().post(an_alert()) == Delivery(Took.BUSY, "secret_malformed")
    assert slack.server.asked == []


def test_the_whole_url_may_be_in_the_file(slack: Rig) -> None:
    slack.secret_file.write_text(f"{slack.server.url}/services/T1/B1/x-y_z\n")
    assert slack.receiver(url=slack.server.url).post(an_alert()).took is Took.TAKEN
    assert slack.server.asked[0].path == "/services/T1/B1/x-y_z"


def test_a_rate_limit_is_kept_to(slack: Rig) -> None:
    slack.server.then(Answer(429, {"Retry-After": "30"}, b"rate_limited"))
    assert slack.receiver().post(an_alert()) == Delivery(Took.BUSY, "http_429", 30.0)


def test_no_library_logs_the_webhook(slack: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        slack.receiver().post(an_alert())
    assert "S3CRETxyz" not in caplog.text


def test_a_webhook_in_the_settings_is_refused_with_where_it_belongs() -> None:
    config = {"url": "https://hooks.slack.com/services/T/B/S3CRET", "secret_file": "/x"}
    with pytest.raises(ConfigError, match=r"^alert\[1\]\.url holds the webhook's path") as caught:
        alerts.load("slack", config, "alert[1]")
    assert "S3CRET" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^alert\[1\]\.secret_file is missing"):
        alerts.load("slack", {}, "alert[1]")
