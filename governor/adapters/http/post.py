"""The shared part of alert receivers: one POST under one deadline, secrets from files, the meaning of an answer."""

from __future__ import annotations

import email.utils
import ipaddress
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from governor.adapters.http.client import HttpFailure, HttpReply, SecretFault, exchange, make_client, read_secret_file
from governor.adapters.plugins import ConfigError, ConfigKey
from governor.core.alerts.outbox import Delivery, Took

# Receivers are asked to answer first and work then. Only this receiver waits for it.
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 16 * 1024  # Only an answer's status is used.
SECRET_FILE_BYTES_MAX: Final = 4096
# A thread stuck in a resolver keeps its place. Each receiver has its own places, so it never takes a cloud's.
EXCHANGES_AT_ONCE_MAX: Final = 2

# Statuses about the receiver as a whole: absent, overloaded, or rejecting our secret, whose file is read each time.
BUSY: Final = frozenset({401, 403, 404, 408, 425, 429, 502, 503, 504})

URL_KEYS: Final = (
    ConfigKey("url", "text", None, "Where to. https; plain http on loopback, elsewhere only with `insecure`."),
    ConfigKey("insecure", "flag", False, "Send over plain http across a network: everybody on the way can read it."),
    ConfigKey("ca_file", "text", None, "Certificates to trust instead of the public ones, as PEM."),
    ConfigKey("timeout_s", "seconds", TIMEOUT_S, "For one attempt, from the name's look-up to the answer's end."),
)


class Post:
    """POSTs of JSON to one URL. ConfigError if the URL may not be used."""

    def __init__(self, config: Mapping[str, Any], wall_ns: Callable[[], int], path: str = "") -> None:
        """`path` is the path of the receiver's API below the URL."""
        url = _checked_url(config["url"], is_insecure=config["insecure"])
        if path and urlsplit(url).query:
            raise ConfigError(f"url holds a query, behind which {path} would be no path; leave it out")
        self.where = _where(url)
        self._url = url.rstrip("/").removesuffix(path) + path if path else url
        self._timeout_s = float(config["timeout_s"])
        self._ca_file: str | None = config["ca_file"]
        self._client: httpx.Client | None = None
        self._places = threading.BoundedSemaphore(EXCHANGES_AT_ONCE_MAX)
        self._wall_ns = wall_ns

    def __repr__(self) -> str:
        return f"Post({self.where})"

    def client(self) -> httpx.Client | None:
        """The client. None: the certificates to trust cannot be read now."""
        if self._client is None:
            try:
                self._client = make_client(ca_file=self._ca_file)
            except OSError:  # ssl.SSLError is one.
                return None
        return self._client

    def send(self, body: bytes, headers: Mapping[str, str], below: str = "") -> Delivery:
        """`below`: a path behind the URL that is known with the alert alone, as a secret one."""
        client = self.client()
        if client is None:
            return Delivery(Took.BUSY, "ca_not_readable")
        url = self._url.rstrip("/") + below if below else self._url
        reply = exchange(
            client, "POST", url, headers={"Content-Type": "application/json", **headers}, content=body,
            deadline_s=self._timeout_s, body_bytes_max=ANSWER_BYTES_MAX, places=self._places,
        )  # fmt: skip
        if isinstance(reply, HttpFailure):
            if reply.status is None:
                return Delivery(Took.BUSY, reply.reason)
            reply = HttpReply(reply.status, b"", None)  # It answered, and then sent too much.
        return Delivery(took(reply.status), f"http_{reply.status}", self._retry_after_s(reply.retry_after))

    def _retry_after_s(self, text: str | None) -> float | None:
        """Seconds, or an HTTP date. None for anything else."""
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,6}", text.strip()):
            return float(text)
        try:
            at = email.utils.parsedate_to_datetime(text).timestamp()
        except (ValueError, OverflowError):
            return None
        return max(0.0, at - self._wall_ns() / 10**9)


def took(status: int) -> Took:
    """The meaning of an HTTP status for the alert. Every status has one."""
    if 200 <= status < 300:
        return Took.TAKEN
    if status in BUSY:
        return Took.BUSY
    return Took.LATER if status >= 500 else Took.REFUSED


def read_secret(path: str) -> list[str] | str:
    """The lines of the file, read each time, so that a secret changes without a restart. A string is the reason."""
    found = read_secret_file(Path(path), SECRET_FILE_BYTES_MAX)
    if isinstance(found, SecretFault):
        return f"secret_{found.value}"
    return [line.strip() for line in found.decode("ascii", "replace").splitlines() if line.strip()]


def _checked_url(url: str | None, *, is_insecure: bool) -> str:
    if url is None:
        raise ConfigError("url is missing; add it")
    try:
        parts, port = urlsplit(url), urlsplit(url).port
        # The second value is what a resolver makes of the name. It raises UnicodeError (a ValueError) for an invalid
        # name.
        _ = httpx.URL(url).host, (parts.hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL):
        parts, port = None, None
    # The fault is named and the URL is not shown: its path may be its secret.
    if parts is None or parts.scheme not in ("https", "http") or not parts.hostname or port == 0 or parts.fragment:
        raise ConfigError('url must be an https URL such as "https://alerts.example.org/costgov"')
    if parts.username is not None or parts.password is not None:
        raise ConfigError("url holds a user or a password; put a token into token_file, or a secret into secret_file")
    if parts.scheme == "http" and not is_insecure and not _is_loopback(parts.hostname):
        raise ConfigError(
            "url is plain http to another machine, where everybody on the way can read and change it; use https, or "
            "say insecure = true"
        )
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _where(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{parts.port}" if parts.port is not None else "")
