"""etcd as the fleet's store: its endpoints in turn, a token where it has users, and what an answer means.

A transaction goes to another endpoint only where it has certainly not gone out to this one. Nothing is sent twice.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from governor.adapters.etcd.gateway import (
    TORN,
    WatchSeen,
    failure,
    kept_of,
    parsed,
    range_body,
    read_body,
    revision_of,
    rows_of,
    transaction_body,
    wants_token,
    watch_body,
)
from governor.adapters.http.client import HttpFailure, exchange, make_client, may_be_asked, origin
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.remote_ports import FleetReply

ENDPOINTS_MAX: Final = 16
TRY_S: Final = 3.0  # Of one endpoint. A follower without a leader answers after 7 s, and the next one at once.
WHOLE_S: Final = 8.0
BODY_BYTES_MAX: Final = 8 * 1_048_576  # Ten thousand rows.
TOKEN_CHARS_MAX: Final = 4_096
WATCH_BYTES_MAX: Final = 1_048_576  # A watch ends with the first change. Rows are below 4 KB, and come in one line.
CALLS_AT_ONCE_MAX: Final = 8
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str | None = None
    cert_file: str | None = None  # Ours, for etcd's --client-cert-auth.
    key_file: str | None = None
    plain: bool = False  # Plain http beyond this machine: for a network of one's own, and never with a password.


def problem(config: EtcdConfig) -> str | None:
    """Why this cannot be used, in one line. None: it can."""
    if not 0 < len(config.endpoints) <= ENDPOINTS_MAX:
        return f"etcd has 1 to {ENDPOINTS_MAX} endpoints"
    for number, url in enumerate(config.endpoints, 1):
        scheme, host, port = origin(url)
        if scheme not in ("http", "https") or host is None or port is None or "@" in url:
            return f"etcd's endpoint {number} is no URL such as https://10.0.0.1:2379"
        if not may_be_asked(url, link_local=False) and (not config.plain or config.password):
            return (
                f"etcd's endpoint {number} is plain http beyond this machine: write https, or plain = true on a "
                "network of your own, without a password"
            )
    if (config.cert_file is None) != (config.key_file is None):
        return "etcd's client certificate needs both cert_file and key_file"
    if bool(config.user) != bool(config.password):
        return "etcd's user needs a password, and a password needs a user"
    return None


class EtcdStore:
    """A `remote_ports.FleetStore`. ValueError: `problem` has one. OSError: a file of its TLS cannot be read."""

    bound_s = WHOLE_S

    def __init__(self, config: EtcdConfig, *, try_s: float = TRY_S, whole_s: float = WHOLE_S) -> None:
        if (why := problem(config)) is not None:
            raise ValueError(why)
        own = (config.cert_file, config.key_file) if config.cert_file and config.key_file else None
        self._config, self._try_s, self.bound_s = config, try_s, whole_s
        self._client = make_client(ca_file=config.ca_file, own_cert=own)
        self._places = threading.BoundedSemaphore(CALLS_AT_ONCE_MAX)
        self._first = 0  # The endpoint that answered last.
        self._token = ""
        self._user = [f"user {config.user}"] if config.user else []

    def __repr__(self) -> str:
        return f"EtcdStore({len(self._config.endpoints)} endpoints)"

    def close(self) -> None:
        self._client.close()

    # --- calls -----------------------------------------------------------------------------------------

    def transact(self, transaction: Transaction) -> FleetReply:
        reply, found = self._call("/v3/kv/txn", transaction_body(transaction), changes=True)
        if found is None:
            return reply
        try:
            if found.get("succeeded") is True:
                return FleetReply(Answer.APPLIED, revision=revision_of(found))
            return FleetReply(Answer.CONFLICT, rows_of(found, [key for key, _ in transaction.compares]))
        except TORN:
            return FleetReply(Answer.UNKNOWN, reason="not_etcd")

    def read(self, keys: Sequence[str]) -> FleetReply:
        reply, found = self._call("/v3/kv/txn", read_body(keys), changes=False)
        return reply if found is None else _rows(lambda: rows_of(found, keys))

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        reply, found = self._call("/v3/kv/range", range_body(prefix, True, limit, after), changes=False)
        if found is None:
            return reply
        rows = _rows(lambda: tuple(kept_of(kv) for kv in found.get("kvs", [])[:limit]))
        try:
            return replace(rows, is_cut=found.get("more") is True, revision=revision_of(found))
        except TORN:
            return FleetReply(Answer.UNREACHABLE, reason="not_etcd")

    def wait(self, prefix: str, after: int, wait_s: float) -> FleetReply:
        """At the endpoint that answered last. A reader whose next read moves on to another one waits there next."""
        url = self._config.endpoints[self._first]
        if self._config.user and not self._token:
            refused = self._authenticate(url, time.monotonic() + self.bound_s)
            if refused is not None:
                return refused
        seen = WatchSeen()
        answer = exchange(
            self._client,
            "POST",
            url.rstrip("/") + "/v3/watch",
            headers=self._headers(),
            content=json.dumps(watch_body(prefix, after)).encode(),
            deadline_s=wait_s,
            body_bytes_max=WATCH_BYTES_MAX,
            places=self._places,
            is_enough=seen.is_enough,
        )
        if seen.changed_at:
            return FleetReply(Answer.READ, seen.rows, max(after + 1, seen.changed_at))
        if seen.has_begun and not seen.is_over and isinstance(answer, HttpFailure) and answer.reason == "timeout":
            return FleetReply(Answer.READ, revision=after)
        return FleetReply(Answer.UNREACHABLE, reason="no_watch")

    def grant_lease(self, ttl_s: int) -> FleetReply:
        reply, found = self._call("/v3/lease/grant", {"TTL": str(ttl_s)}, changes=True)
        return reply if found is None else _lease(found)

    def keep_alive(self, lease: int) -> FleetReply:
        reply, found = self._call("/v3/lease/keepalive", {"ID": str(lease)}, changes=True)
        if found is None:
            return reply
        result = found.get("result")
        if not isinstance(result, Mapping):
            return FleetReply(Answer.UNKNOWN, reason="not_etcd")
        # Of a lease that has ended it says 200, without a TTL.
        return _lease(result) if result.get("TTL") else FleetReply(Answer.APPLIED)

    def revoke_lease(self, lease: int) -> FleetReply:
        reply, found = self._call("/v3/lease/revoke", {"ID": str(lease)}, changes=True)
        return FleetReply(Answer.APPLIED) if found is not None or reply.reason == "not_found" else reply

    # --- how they travel -------------------------------------------------------------------------------

    def _call(self, path: str, body: dict[str, Any], *, changes: bool) -> tuple[FleetReply, Mapping[str, Any] | None]:
        """The answer's body, or why there is none."""
        ends_at = time.monotonic() + self.bound_s
        last, count = FleetReply(Answer.UNREACHABLE, reason="connect_failed"), len(self._config.endpoints)
        tried: list[str] = []
        for turn in range(count):
            number = (self._first + turn) % count
            reply, found = self._ask(self._config.endpoints[number], path, body, ends_at)
            if found is not None:
                self._first = number
                return reply, found
            tried.append(f"endpoint {number + 1}: {reply.reason}")
            whose = self._user if reply.answer is Answer.REFUSED else []
            reply = replace(reply, where=", ".join([*tried, *whose]))
            if reply.answer is Answer.REFUSED or (changes and reply.answer is Answer.UNKNOWN):
                self._first = (number + 1) % count if reply.answer is Answer.UNKNOWN else number
                return reply, None
            last = reply
        # A read that is lost has changed nothing.
        return last if changes or last.answer is Answer.REFUSED else replace(last, answer=Answer.UNREACHABLE), None

    def _ask(
        self, url: str, path: str, body: dict[str, Any], ends_at: float
    ) -> tuple[FleetReply, Mapping[str, Any] | None]:
        if self._config.user and not self._token and (refused := self._authenticate(url, ends_at)) is not None:
            return refused, None
        status, found, reply = self._post(url, path, body, ends_at)
        if self._config.user and wants_token(status, found):
            if (refused := self._authenticate(url, ends_at)) is not None:
                return refused, None
            status, found, reply = self._post(url, path, body, ends_at)
        return reply, found if status == 200 else None

    def _authenticate(self, url: str, ends_at: float) -> FleetReply | None:
        """Get a token. None: there is one. Nothing of a call was sent yet, so a failure is no UNKNOWN."""
        self._token = ""
        body = {"name": self._config.user, "password": self._config.password}
        status, found, reply = self._post(url, "/v3/auth/authenticate", body, ends_at)
        token = found.get("token") if found is not None else None
        if status == 200 and isinstance(token, str) and 0 < len(token) <= TOKEN_CHARS_MAX and _TOKEN.fullmatch(token):
            self._token = token
            return None
        if reply.answer is Answer.REFUSED:
            is_off = reply.reason == "authentication_off"
            return FleetReply(Answer.REFUSED, reason=reply.reason if is_off else "authentication_failed")
        return FleetReply(Answer.UNREACHABLE, reason=reply.reason if status != 200 and reply.reason else "no_token")

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **({"Authorization": self._token} if self._token else {})}

    def _post(
        self, url: str, path: str, body: dict[str, Any], ends_at: float
    ) -> tuple[int, Mapping[str, Any] | None, FleetReply]:
        left_s = min(self._try_s, ends_at - time.monotonic())
        if left_s <= 0:
            return 0, None, FleetReply(Answer.UNREACHABLE, reason="timeout")
        answer = exchange(
            self._client,
            "POST",
            url.rstrip("/") + path,
            headers=self._headers(),
            content=json.dumps(body).encode(),
            deadline_s=left_s,
            body_bytes_max=BODY_BYTES_MAX,
            places=self._places,
        )
        if isinstance(answer, HttpFailure):
            kind = Answer.UNREACHABLE if answer.reason == "connect_failed" else Answer.UNKNOWN
            return 0, None, FleetReply(kind, reason=f"tls_{answer.tls}" if answer.tls else answer.reason)
        found = parsed(answer.body)
        if answer.status != 200:
            return answer.status, found, failure(answer.status, found)
        if found is None:
            return 0, None, FleetReply(Answer.UNKNOWN, reason="not_etcd")
        return 200, found, FleetReply(Answer.READ)


def _rows(read: Callable[[], tuple[Kept, ...]]) -> FleetReply:
    try:
        return FleetReply(Answer.READ, read())
    except TORN:
        return FleetReply(Answer.UNREACHABLE, reason="not_etcd")


def _lease(found: Mapping[str, Any]) -> FleetReply:
    try:
        lease = int(found["ID"])
    except TORN:
        return FleetReply(Answer.UNKNOWN, reason="not_etcd")
    return FleetReply(Answer.APPLIED, lease=lease)
