"""A JSON document by POST, signed after the Standard Webhooks specification 1.0.0 (standardwebhooks.com).

`webhook-id` is the alert's id and the same over all attempts: a receiver that knows it has the alert already.
`webhook-timestamp` is the attempt's, in seconds. `webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body`. The secret is a line of `secret_file`: `whsec_` and the base64 of 24 to 64 random bytes. During
a change of the secret the file may hold the new and the old one, a line each; then every request has both signatures.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.http.post import URL_KEYS, Post, read_secret
from governor.adapters.plugins import ConfigError, ConfigKey, Surroundings
from governor.core.alerts.catalogue import Alert
from governor.core.alerts.outbox import Delivery, Took
from governor.core.base.units import NS_PER_S, utc_text
from governor.core.money.reports.cost import exact_usd
from governor.ports import AlertReceiver
from governor.text.failure_modes import mode_of_alert

NAME = "webhook"
KEYS = (
    *URL_KEYS,
    ConfigKey("secret_file", "text", None, "The file with the signing secret, which the receiver knows as well."),
)

PREFIX: Final = "whsec_"
KEY_BYTES: Final = range(24, 65)  # The specification's bounds.
SECRETS_MAX: Final = 4  # The present one, and those that it replaces.


class Webhook:
    """`ports.AlertReceiver`."""

    replaces = False  # Every event is delivered.

    def __init__(self, post: Post, secret_file: str, surroundings: Surroundings) -> None:
        self._post = post
        self._secret_file = secret_file
        self._wall_ns = surroundings.wall_ns

    @property
    def where(self) -> str:
        return self._post.where

    def problem(self) -> str | None:
        keys = self._keys()
        if isinstance(keys, str):
            return keys
        return "ca_not_readable" if self._post.client() is None else None

    def _keys(self) -> list[bytes] | str:
        """The signing keys. A string is the reason why there is none."""
        lines = read_secret(self._secret_file)
        if isinstance(lines, str):
            return lines
        keys = [key for line in lines[:SECRETS_MAX] if (key := _key_of(line)) is not None]
        return keys if keys and len(keys) == len(lines) else "secret_malformed"

    def post(self, alert: Alert) -> Delivery:
        keys = self._keys()
        if isinstance(keys, str):
            return Delivery(Took.BUSY, keys)
        at = str(self._wall_ns() // NS_PER_S)
        body = json.dumps(document(alert), separators=(",", ":")).encode()
        signed = b".".join((alert.alert_id.encode(), at.encode(), body))
        signatures = " ".join(_signature(key, signed) for key in keys)
        headers = {"webhook-id": alert.alert_id, "webhook-timestamp": at, "webhook-signature": signatures}
        return self._post.send(body, headers)


def document(alert: Alert) -> dict[str, Any]:
    """The body, as docs/reference/alerts.md describes it. Keys are added and never change their meaning."""
    of, mode = alert.incident, mode_of_alert(alert)
    return {
        "type": f"costgov.{alert.name if alert.name in ('halt', 'test') else 'alarm'}",
        "timestamp": utc_text(alert.wall),
        "id": alert.alert_id,
        "name": alert.name,
        "severity": alert.severity.word,
        "state": alert.state.value,
        "node": alert.node,
        "run": alert.run,
        "stage": alert.stage,
        "labels": dict(alert.labels),
        "text": alert.text,
        "see": alert.see,
        "spend_usd": _usd(alert.spend_usd_micros),
        "ceiling_usd": _usd(alert.ceiling_usd_micros),
        **{name: _usd(price) for name, price in alert.prices.named("usd_per_mtok").items()},
        "incident": {"id": of.incident_id, "stage": of.halt_stage, "reason": of.reason} if of is not None else None,
        "failure_mode": {"name": mode.name, "title": mode.title, "page": mode.place} if mode is not None else None,
        "ended": utc_text(alert.ended_wall) if alert.ended_wall is not None else None,
        "repeats": alert.repeats,
    }


def _usd(micros: int | None) -> str | None:
    return None if micros is None else exact_usd(micros)


def _key_of(line: str) -> bytes | None:
    try:
        key = base64.b64decode(line.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if line.startswith(PREFIX) and len(key) in KEY_BYTES else None


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def build(config: Mapping[str, Any], surroundings: Surroundings) -> AlertReceiver:
    post = Post(config, surroundings.wall_ns)
    if config["secret_file"] is None:
        raise ConfigError(
            "secret_file is missing: receivers must be able to tell our alerts from anybody's; make one with "
            "`echo whsec_$(openssl rand -base64 32)`, and give the receiver the same"
        )
    return Webhook(post, config["secret_file"], surroundings)
