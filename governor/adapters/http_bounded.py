"""One HTTP exchange with an end: a deadline, a size limit, and a failure that says whether the request went out."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx

CONNECT_S: Final = 3.0  # A metadata service answers in ms, an API across an ocean in 0.3 s.


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    body: bytes
    date: str | None  # The server's Date header: shows our clock's error.


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """`reason` is one of a fixed set, so that no URL, header or body can reach a log through it."""

    reason: str  # timeout | broken_off | too_large; connect_failed: the request has certainly not gone out.


def make_client(*, proxy: str | None = None) -> httpx.Client:
    """Return a client that ignores HTTP_PROXY and friends: they would send a metadata call to the proxy (measured).

    Connections are not kept: calls are rare, and a connection that died between two of them looks like a lost reply.
    """
    return httpx.Client(
        trust_env=False,
        verify=_tls(),
        proxy=proxy,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=8, max_keepalive_connections=0),
    )


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # Reading the roots takes 20 ms and a megabyte: once is enough.


def exchange(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    content: bytes = b"",
    deadline_s: float,
    body_bytes_max: int,
) -> HttpReply | HttpFailure:
    """Send once, never retry. Ends within about twice `deadline_s`, also when the server drips; the resolver's own
    timeouts come on top where the URL names a host."""
    ends_at = time.monotonic() + deadline_s
    timeout = httpx.Timeout(deadline_s, connect=min(CONNECT_S, deadline_s))
    plain = {"Accept-Encoding": "identity", **headers}  # Nothing to inflate, so the size limit is the size.
    try:
        with client.stream(method, url, headers=plain, content=content, timeout=timeout) as response:
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > body_bytes_max:
                    return HttpFailure("too_large")
                if time.monotonic() > ends_at:
                    return HttpFailure("timeout")
            return HttpReply(response.status_code, bytes(body), response.headers.get("Date"))
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError):
        return HttpFailure("connect_failed")
    except httpx.TimeoutException:
        return HttpFailure("timeout")
    except httpx.RequestError:
        return HttpFailure("broken_off")
