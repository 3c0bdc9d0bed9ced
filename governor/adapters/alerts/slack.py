"""Slack, by an incoming webhook, as docs.slack.dev describes it. Slack itself was not tried.

Whoever knows the webhook's URL can write to its channel. So the URL is the secret: it, or its path alone, is the one
line of `secret_file`. `url` is where Slack is, and nothing is sent elsewhere. A message is a headline, the alert's
text, and a line with run, node and money. It carries the alert's id as `block_id`. Of 429 the `Retry-After` is kept to.
A halt is one message a state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from governor.adapters.http.post import URL_KEYS, Post, read_secret
from governor.adapters.plugins import ConfigError, ConfigKey, Surroundings
from governor.core.alerts.catalogue import Alert
from governor.core.alerts.outbox import Delivery, Took
from governor.ports import AlertReceiver
from governor.text.alert_line import details

NAME = "slack"
SLACK: Final = "https://hooks.slack.com"
KEYS = (
    ConfigKey("url", "text", SLACK, "Where Slack is: without the webhook's path, which is a secret."),
    *URL_KEYS[1:],
    ConfigKey("secret_file", "text", None, "The file with the webhook's URL, or with its path, /services/T…/B…/…."),
)

# Slack's own limits (reference of Block Kit).
HEADER_CHARS_MAX: Final = 150
SECTION_CHARS_MAX: Final = 3_000
CONTEXT_CHARS_MAX: Final = 2_000
_PATH: Final = re.compile(r"/[A-Za-z0-9_-][A-Za-z0-9/_-]{0,511}")


class Slack:
    """`ports.AlertReceiver`."""

    replaces = False  # Every event is delivered.

    def __init__(self, post: Post, secret_file: str) -> None:
        self._post = post
        self._secret_file = secret_file

    @property
    def where(self) -> str:
        return self._post.where

    def problem(self) -> str | None:
        _, fault = self._path()
        if fault:
            return fault
        return "ca_not_readable" if self._post.client() is None else None

    def _path(self) -> tuple[str, str]:
        """The webhook's path, and why there is none."""
        lines = read_secret(self._secret_file)
        if isinstance(lines, str):
            return "", lines
        path = lines[0].removeprefix(self.where) if len(lines) == 1 else ""
        return (path, "") if _PATH.fullmatch(path) else ("", "secret_malformed")

    def post(self, alert: Alert) -> Delivery:
        path, fault = self._path()
        if fault:
            return Delivery(Took.BUSY, fault)
        return self._post.send(json.dumps(message(alert), separators=(",", ":")).encode(), {}, path)


def message(alert: Alert) -> dict[str, Any]:
    """The message. Nothing in it mentions anybody, or becomes a link, whatever the names hold."""
    whose = f", run {alert.run}" if alert.run else ""
    headline = _clean(f"{alert.severity.word}: {alert.name}{whose} on {alert.node}")
    return {
        "text": _cut(_escaped(f"{headline}: {alert.text.partition(chr(10))[0]}"), SECTION_CHARS_MAX),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": headline[:HEADER_CHARS_MAX], "emoji": False}},
            {"type": "section", "block_id": alert.alert_id, "text": _mrkdwn(alert.text, SECTION_CHARS_MAX)},
            {"type": "context", "elements": [_mrkdwn(details(alert), CONTEXT_CHARS_MAX)]},
        ],
    }


def _mrkdwn(text: str, most: int) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": _cut(_escaped(text), most) or "-", "verbatim": True}


def _escaped(text: str) -> str:
    """As Slack wants it: these three alone."""
    return _clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(escaped: str, most: int) -> str:
    """At most so many characters, and no half of an escape at their end."""
    if len(escaped) <= most:
        return escaped
    return re.sub(r"&[a-z]{0,3}$", "", escaped[: most - 1]) + "…"


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def build(config: Mapping[str, Any], surroundings: Surroundings) -> AlertReceiver:
    post = Post(config, surroundings.wall_ns)
    if config["url"] is not None and urlsplit(config["url"]).path.startswith("/services/"):
        raise ConfigError("url holds the webhook's path, which is a secret; put the whole URL into secret_file")
    if config["secret_file"] is None:
        raise ConfigError("secret_file is missing: put the webhook's URL into a file that others cannot read")
    return Slack(post, config["secret_file"])
