"""A bounded HTTP exchange, and reading a secret's file: what every adapter on the network needs.

An exchange has a deadline, a size limit, and a failure that says whether the request went out. A secret's file is
checked on the open descriptor, and refused if other users may read it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import queue
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

# They log each URL, whose path may be a secret, and headers.
for _library in ("httpx", "httpcore"):
    logging.getLogger(_library).setLevel(logging.WARNING)


class SecretFault(Enum):
    """Why there is no secret. The values are part of reasons, after the file's name."""

    NOT_FOUND = "not_found"
    NOT_A_FILE = "not_a_file"
    READABLE_BY_EVERYONE = "readable_by_everyone"
    NOT_READABLE = "not_readable"


def read_secret_file(path: Path, bytes_max: int) -> bytes | SecretFault:
    """Return at most `bytes_max` bytes. Never raises OSError. The file's group may read it: it is the service's own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # A FIFO would block.
        with open(fd, "rb") as file:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                return SecretFault.NOT_A_FILE
            return SecretFault.READABLE_BY_EVERYONE if mode & stat.S_IROTH else file.read(bytes_max)
    except FileNotFoundError:
        return SecretFault.NOT_FOUND
    except IsADirectoryError:
        return SecretFault.NOT_A_FILE
    except OSError:
        return SecretFault.NOT_READABLE


# --- one exchange ----------------------------------------------------------------------------------------

CONNECT_S: Final = 3.0  # A metadata service answers in ms, an API across an ocean in 0.3 s.

# More than the governor has calls in flight. A thread stuck in a resolver ends by the resolver's own timeouts.
EXCHANGES_AT_ONCE_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    body: bytes
    date: str | None  # The server's Date header, which shows our clock's error.
    retry_after: str | None = None  # Seconds or a date, as the server wrote it.


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """A failed exchange. `reason` is one of a fixed set, so that no URL, header or body can reach a log through it."""

    # timeout | broken_off | too_large | connect_failed, which means that the request has certainly not gone out.
    reason: str
    # Set if the body is too large: the head had arrived.
    status: int | None = field(default=None, compare=False)
    # Of connect_failed, where TLS was it. untrusted: the server's certificate. failed: anything else.
    tls: str = field(default="", compare=False)


def make_client(
    *, proxy: str | None = None, ca_file: str | None = None, own_cert: tuple[str, str] | None = None
) -> httpx.Client:
    """Return a client that ignores HTTP_PROXY and the like: they would send a metadata call to the proxy (measured).

    `ca_file`: the only roots to trust. `own_cert`: the files of our certificate and its key, shown to a server that
    asks. OSError if a file cannot be read or does not hold what it should. Connections are not reused: calls are rare,
    and a connection that died between two calls looks like a lost reply.
    """
    tls = _tls() if ca_file is None and own_cert is None else ssl.create_default_context(cafile=ca_file)
    if own_cert is not None:
        tls.load_cert_chain(*own_cert)
    return httpx.Client(
        trust_env=False,
        verify=tls,
        proxy=proxy,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=8, max_keepalive_connections=0),
    )


@cache
def _tls() -> ssl.SSLContext:
    # Reading the roots takes 20 ms and a megabyte, so it happens once.
    return httpx.create_ssl_context(trust_env=False)


class _Attempt:
    """The thread's side of one exchange. The caller may abandon it at any moment."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[HttpReply | HttpFailure] = queue.SimpleQueue()
        self._is_given_up = False
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore's trace hook: stores the socket, and ends a thread that leaves a resolver too late."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
        if self._is_given_up and event.endswith((".complete", "send_request_headers.started")):
            # Nothing may go out after the caller got "timeout".
            raise httpx.ReadTimeout("given up")

    def give_up(self) -> None:
        self._is_given_up = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # Wakes a thread that reads from a slow server.
                self._socket.shutdown(socket.SHUT_RDWR)


_threads = threading.BoundedSemaphore(EXCHANGES_AT_ONCE_MAX)  # For callers without their own places.


def exchange(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    content: bytes = b"",
    deadline_s: float,
    body_bytes_max: int,
    places: threading.BoundedSemaphore = _threads,
    is_enough: Callable[[bytes], bool] | None = None,
) -> HttpReply | HttpFailure:
    """Send once, never retry. Ends within `deadline_s` in all.

    `is_enough`: asked of the body as it grows, on another thread. What comes behind a yes is not waited for.

    A resolver that hangs, and a connection, header or body that arrives in small pieces, have timeouts for each piece
    only.
    So everything runs on a thread that can be abandoned.
    """
    if not places.acquire(blocking=False):
        return HttpFailure("connect_failed")  # That many exchanges hang already; this one has not begun.
    attempt = _Attempt()
    # No compression, so the size limit applies to the size received.
    plain = {"Accept-Encoding": "identity", **headers}

    def work() -> None:
        try:
            timeout = httpx.Timeout(deadline_s, connect=min(CONNECT_S, deadline_s))
            try:
                request = client.build_request(
                    method, url, headers=plain, content=content, timeout=timeout, extensions={"trace": attempt.trace}
                )
            except (httpx.InvalidURL, UnicodeError):  # A part of it came from a server, and no request can hold it.
                attempt.answers.put(HttpFailure("connect_failed"))
                return
            ends_at = time.monotonic() + deadline_s
            attempt.answers.put(_send(client, request, ends_at, body_bytes_max, is_enough))
        finally:
            attempt.answers.put(HttpFailure("broken_off"))  # Only the first one counts: a fault of ours is an answer.
            places.release()

    try:
        threading.Thread(target=work, name="http", daemon=True).start()
    except RuntimeError:  # No thread can be started (RLIMIT_NPROC, TasksMax).
        places.release()
        return HttpFailure("connect_failed")
    try:
        return attempt.answers.get(timeout=deadline_s)
    except queue.Empty:
        attempt.give_up()
        return HttpFailure("timeout")


def _send(
    client: httpx.Client, request: httpx.Request, ends_at: float, body_bytes_max: int,
    is_enough: Callable[[bytes], bool] | None,
) -> HttpReply | HttpFailure:  # fmt: skip
    try:
        response = client.send(request, stream=True)
        with contextlib.closing(response):
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > body_bytes_max:
                    return HttpFailure("too_large", response.status_code)
                if is_enough is not None and is_enough(bytes(body)):
                    break
                if time.monotonic() > ends_at:
                    return HttpFailure("timeout")
            headers = response.headers
            return HttpReply(response.status_code, bytes(body), headers.get("Date"), headers.get("Retry-After"))
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        return HttpFailure("connect_failed", tls=_tls_fault(error))
    except httpx.TimeoutException:
        return HttpFailure("timeout")
    # UnicodeError: no resolver takes the name, ours or a Location's.
    except (httpx.RequestError, UnicodeError):
        return HttpFailure("broken_off")


def _tls_fault(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ""
    return "untrusted" if isinstance(cause, ssl.SSLCertVerificationError) else "failed"


# The metadata service of EC2 by IPv6, fd00:ec2::254: a private address, not a link-local one.
_METADATA_NETWORK: Final = ipaddress.ip_network("fd00:ec2::/32")


def origin(url: str) -> tuple[str, str | None, int | None]:
    """The URL's scheme, host and port; without a host when it is not one."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:  # The port is not a number, or a bracket is missing.
        return "", None, None


def may_be_asked(url: str, *, link_local: bool) -> bool:
    """Https, or plain http on a loopback address. `link_local`: also on those of metadata services."""
    scheme, host, port = origin(url)
    if host is None or port is None or scheme not in ("https", "http"):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return scheme == "https"
    is_metadata = address.is_link_local or address in _METADATA_NETWORK
    return scheme == "https" or address.is_loopback or (link_local and is_metadata)
