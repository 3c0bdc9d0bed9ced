"""One request to a Kubernetes API server, with the pod's own service account.

The token's file is read for each request: the kubelet replaces it about hourly. The server is believed by the cluster's
own CA alone. A reply is bounded in bytes and time, and whatever goes wrong is one word that holds no part of it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx

from governor.adapters.http.client import HttpFailure, exchange, make_client, may_be_asked
from governor.adapters.plugins import ConfigError

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_BYTES_MAX: Final = 16 * 1024
# A page of 250 pods has about 2.5 MB; a pod may have more than a megabyte.
BODY_BYTES_MAX: Final = 32 * 1024 * 1024
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"  # The one form that custom resources take, too.

# Not among them: what the server may have done before it failed.
_CERTAINLY_NOT_DONE: Final = frozenset({429, 503})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KubeReply:
    """`status` None: there was no whole answer. `reason`: "ok", "http_403", "timeout", "token_not_found"..."""

    reason: str
    status: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    may_be_done: bool = False  # A write that was not answered, or that failed half-way.

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later. 401 and 403 too: tokens and roles change without us."""
        return self.status is None or self.status in (401, 403, 408, 409, 429) or self.status >= 500


class KubeApi:
    """ConfigError if there is no server to ask."""

    def __init__(self, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.endpoint = _endpoint(config["endpoint"], environ)
        self._token_file = Path(config["token_file"])
        self._ca_file = str(config["ca_file"])
        self._timeout_s = float(config["timeout_s"])
        self._client: httpx.Client | None = None
        self._ca_seen: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"KubeApi({self.endpoint})"

    def get(self, path: str, ends_at: float, query: Mapping[str, str] = _NOTHING) -> KubeReply:
        """`ends_at`: time.monotonic() by which it is over."""
        return self._send("GET", path + (f"?{urlencode(query)}" if query else ""), ends_at, None, JSON)

    def create(self, path: str, ends_at: float, body: Mapping[str, Any]) -> KubeReply:
        return self._send("POST", path, ends_at, body, JSON)

    def merge(self, path: str, ends_at: float, body: Mapping[str, Any]) -> KubeReply:
        """A JSON merge patch (RFC 7386): a list in it replaces the whole list."""
        return self._send("PATCH", path, ends_at, body, MERGE_PATCH)

    def delete(self, path: str, ends_at: float, uid: str, **options: object) -> KubeReply:
        """The object with this uid alone: one that was made anew under its name stays."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, **options}
        return self._send("DELETE", path, ends_at, body, JSON)

    def _send(self, method: str, path: str, ends_at: float, body: Mapping[str, Any] | None, kind: str) -> KubeReply:
        left_s = min(self._timeout_s, ends_at - time.monotonic())
        if left_s <= 0:
            return KubeReply("timeout")
        token = _read_token(self._token_file)
        if isinstance(token, KubeReply):
            return token
        client = self._trusting_client()
        if client is None:
            return KubeReply("ca_not_readable")
        headers = {"Accept": JSON, "Content-Type": kind, "Authorization": f"Bearer {token[0]}"}
        content = b"" if body is None else json.dumps(body).encode()
        reply = exchange(
            client, method, self.endpoint + path, headers=headers, content=content, deadline_s=left_s,
            body_bytes_max=BODY_BYTES_MAX,
        )  # fmt: skip
        if isinstance(reply, HttpFailure):
            return KubeReply(reply.reason, may_be_done=method != "GET" and reply.reason != "connect_failed")
        if not 200 <= reply.status < 300:
            half_way = reply.status >= 500 and reply.status not in _CERTAINLY_NOT_DONE
            return KubeReply(f"http_{reply.status}", reply.status, may_be_done=half_way and method != "GET")
        try:
            found = json.loads(reply.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            return KubeReply("malformed", may_be_done=method != "GET")
        return KubeReply("ok", reply.status, found)

    def _trusting_client(self) -> httpx.Client | None:
        """None: the CA cannot be read. A renewed CA file makes a new client."""
        if self.endpoint.startswith("http:"):
            self._client = self._client or make_client()
            return self._client
        try:
            now = os.stat(self._ca_file)
            seen = (now.st_ino, now.st_mtime_ns)
            if self._client is None or seen != self._ca_seen:
                self._client, self._ca_seen = make_client(ca_file=self._ca_file), seen
        except OSError:  # ssl.SSLError is one.
            return None
        return self._client


def _endpoint(given: str | None, environ: Mapping[str, str]) -> str:
    if given is not None:
        if not may_be_asked(given, link_local=False):
            raise ConfigError("scheduler.kubernetes.endpoint must be an https URL, or plain http on a loopback address")
        return given.rstrip("/")
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    try:
        is_ipv6 = ipaddress.ip_address(host).version == 6
    except ValueError:
        is_ipv6 = False
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
            raise ConfigError(
                "scheduler.kubernetes: KUBERNETES_SERVICE_HOST names no server: this is no pod, or its service links "
                "are off; set scheduler.kubernetes.endpoint"
            ) from None
    if not re.fullmatch(r"[0-9]{1,5}", port):
        raise ConfigError(
            "scheduler.kubernetes: KUBERNETES_SERVICE_PORT is no number; set scheduler.kubernetes.endpoint"
        )
    return f"https://[{host}]:{port}" if is_ipv6 else f"https://{host}:{port}"


def _read_token(path: Path) -> tuple[str] | KubeReply:
    """The token, in a tuple, so that no one takes it for a reason.

    Its file may be readable by everybody: so the kubelet writes it, and everybody there is one pod.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # A FIFO would block.
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return KubeReply("token_not_a_file")
            text = file.read(TOKEN_BYTES_MAX + 1).strip()
    except FileNotFoundError:
        return KubeReply("token_not_found")
    except OSError:
        return KubeReply("token_not_readable")
    # What httpx would refuse in a header it would also quote in its error.
    if not re.fullmatch(rb"[!-~]{1,16384}", text):
        return KubeReply("token_malformed")
    return (text.decode("ascii"),)


# --- hostile parts of an object ---------------------------------------------------------------------------

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}")


def name_of(value: object) -> str | None:
    """A name that may stand in a path of the API; None for anything else."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) and ".." not in value else None


def uid_of(item: Mapping[str, Any]) -> str | None:
    value = part(item, "metadata").get("uid")
    return value if isinstance(value, str) and _UID.fullmatch(value) else None


def part(item: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The object within, or an empty one: a server's reply may hold anything."""
    for name in names:
        found = item.get(name)
        if not isinstance(found, dict):
            return _NOTHING
        item = found
    return item


def many(item: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of a list within."""
    found = item.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def path_of(prefix: str, namespace: str | None, plural: str, name: str | None = None) -> str:
    """`prefix`: "/api/v1", "/apis/batch/v1"."""
    words = [*(("namespaces", namespace) if namespace is not None else ()), plural, *((name,) if name else ())]
    return "/".join([prefix, *(quote(word, safe="") for word in words)])
