"""Prometheus' Alertmanager, by `POST /api/v2/alerts` (its OpenAPI document; tried with Alertmanager 0.25).

A halt is one alert from its verdict to its end. It is repeated every minute while it is open, and resolved when it is
closed. A halt of less than a quarter of an hour fires as long as an alarm does; otherwise Alertmanager would never
send it to a receiver that groups. An alarm is an event: it fires for a quarter of an hour after it was accepted. The
labels identify an alert (`alertname`, `severity`, `node`, `run`, `stage`, `incident`, and the run's own). The text,
the state of the halt and the money are annotations. Each of several replicated Alertmanagers has its own table, as in
Prometheus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.http.post import URL_KEYS, Post, read_secret
from governor.adapters.plugins import ConfigKey, Surroundings
from governor.core.alerts.catalogue import Alert, State
from governor.core.alerts.outbox import Delivery, Took
from governor.core.base.units import NS_PER_MINUTE, DurationNs, format_usd, per_mtok_text, utc_text
from governor.ports import AlertReceiver
from governor.text.failure_modes import mode_of_alert

NAME = "alertmanager"
KEYS = (
    *URL_KEYS,
    ConfigKey("token_file", "text", None, "The file with a bearer token, for a proxy before it."),
)

PATH: Final = "/api/v2/alerts"
# Three times Alertmanager's usual group_interval, so that a grouped alert is sent before it ends. A halt that is not
# repeated for so long has lost its governor, and then its machine's own alerts fire.
STANDS_NS: Final = DurationNs(15 * NS_PER_MINUTE)
# The prefix of every alertname: an Alertmanager has other clients.
PREFIX: Final = "costgov_"
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")


class Alertmanager:
    """`ports.AlertReceiver`."""

    replaces = True

    def __init__(self, post: Post, token_file: str | None, surroundings: Surroundings) -> None:
        self._post = post
        self._token_file = token_file
        self._wall_ns = surroundings.wall_ns

    @property
    def where(self) -> str:
        return self._post.where

    def problem(self) -> str | None:
        headers = self._headers()
        if isinstance(headers, str):
            return headers
        return "ca_not_readable" if self._post.client() is None else None

    def _headers(self) -> dict[str, str] | str:
        """The headers, with the token if there is one. A string is the reason why it cannot be read."""
        if self._token_file is None:
            return {}
        lines = read_secret(self._token_file)
        if isinstance(lines, str):
            return lines
        if len(lines) != 1 or not _TOKEN.fullmatch(lines[0]):
            return "secret_malformed"
        return {"Authorization": f"Bearer {lines[0]}"}

    def post(self, alert: Alert) -> Delivery:
        headers = self._headers()
        if isinstance(headers, str):
            return Delivery(Took.BUSY, headers)
        body = json.dumps([posted(alert, self._wall_ns())], separators=(",", ":")).encode()
        return self._post.send(body, headers)


def posted(alert: Alert, wall: int) -> dict[str, Any]:
    """The alert in Alertmanager's form, at this moment. An end in the past means resolved."""
    of, prices, mode = alert.incident, alert.prices.named("usd_per_mtok"), mode_of_alert(alert)
    labels = {_label(name): value for name, value in alert.labels.items()}
    labels |= {
        "alertname": PREFIX + alert.name,
        "severity": alert.severity.word,
        "node": alert.node,
        "run": alert.run or "",
        "stage": alert.stage or "",
        "incident": of.incident_id if of is not None else "",
    }
    annotations = {
        "summary": alert.text.partition("\n")[0],
        "description": f"{alert.text}\nsee: {alert.see}",
        "spend": format_usd(alert.spend_usd_micros) if alert.spend_usd_micros is not None else "",
        "ceiling": format_usd(alert.ceiling_usd_micros) if alert.ceiling_usd_micros is not None else "",
        **{name: per_mtok_text(price) for name, price in prices.items() if price is not None},
        "halt_stage": of.halt_stage if of is not None else "",
        "reason": of.reason if of is not None else "",
        "failure_mode": mode.place if mode is not None else "",
        "id": alert.alert_id,
    }
    ends: int = wall + STANDS_NS
    # Alertmanager sends no alert that ends before its group is sent, so a halt of seconds would never be seen.
    if alert.state is State.RESOLVED and alert.ended_wall is not None and alert.ended_wall - alert.wall >= STANDS_NS:
        ends = alert.ended_wall
    return {
        "labels": {name: _clean(value) for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": utc_text(alert.wall),
        "endsAt": utc_text(max(ends, alert.wall)),
    }


def _label(name: str) -> str:
    """A label of the run as a Prometheus label."""
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return plain if re.match(r"[a-zA-Z_]", plain) else f"_{plain}"


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def build(config: Mapping[str, Any], surroundings: Surroundings) -> AlertReceiver:
    return Alertmanager(Post(config, surroundings.wall_ns, PATH), config["token_file"], surroundings)
