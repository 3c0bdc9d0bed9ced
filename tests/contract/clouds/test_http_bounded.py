"""One exchange has an end, whatever the other side does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from governor.adapters.http.client import EXCHANGES_AT_ONCE_MAX, HttpFailure, HttpReply, exchange, make_client

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """One connection on loopback that behaves as told, after it has read the request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(65_536)
                try:
                    behave(accepted)
                except OSError:
                    pass  # The caller has hung up, as it should.

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join(30)
        assert not thread.is_alive()


def ask(url: str, *, deadline_s: float = 0.5, body_bytes_max: int = 1000) -> HttpReply | HttpFailure:
    with make_client() as client:
        return exchange(client, "GET", url, headers={}, deadline_s=deadline_s, body_bytes_max=body_bytes_max)


def until_hung_up(connection: socket.socket) -> None:
    connection.settimeout(30)
    while connection.recv(4096):
        pass


def drip(connection: socket.socket) -> None:
    """A byte every fifth of a second: never silent for long, never done."""
    connection.sendall(HEAD % 1000)
    connection.settimeout(0.2)
    while True:
        connection.sendall(b"x")
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            continue


def drip_headers(connection: socket.socket) -> None:
    """Header bytes, one at a time, for far longer than the deadline; whoever waits them out gets a whole answer."""
    connection.settimeout(0.1)
    for byte in b"HTTP/1.1 200 OK\r\nX-Drip: " + b"x" * 60 + b"\r\nContent-Length: 0\r\n\r\n":
        connection.sendall(bytes([byte]))
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            continue


def test_a_plain_answer() -> None:
    with server(lambda connection: connection.sendall(HEAD % 5 + b"hello")) as url:
        assert ask(url, deadline_s=10) == HttpReply(200, b"hello", None)


@pytest.mark.parametrize("behave", [until_hung_up, drip, drip_headers], ids=["silent", "dripping", "headers"])
def test_no_answer_in_time(behave: Callable[[socket.socket], None]) -> None:
    with server(behave) as url:
        assert ask(url) == HttpFailure("timeout")


def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    with server(lambda connection: connection.sendall(HEAD % 10**9 + b"x" * 2000)) as url:
        assert ask(url, deadline_s=10) == HttpFailure("too_large")


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", HEAD % 1000 + b"half", b"SSH-2.0-x\r\n\r\n"])
def test_a_connection_that_breaks_off(sent: bytes) -> None:
    with server(lambda connection: connection.sendall(sent)) as url:
        assert ask(url, deadline_s=10) == HttpFailure("broken_off")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert ask(f"http://127.0.0.1:{port}/") == HttpFailure("connect_failed")


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    away = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with server(lambda connection: connection.sendall(away)) as url:
        assert ask(url, deadline_s=10) == HttpReply(302, b"", None)


class Resolver(httpx.BaseTransport):
    """Hangs as getaddrinfo() does, where no timeout of a socket counts, until it is let; then the request goes out."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.sent = threading.Semaphore(0)
        self.gave_up = threading.Semaphore(0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert self.let.wait(30)
        try:
            request.extensions["trace"]("http11.send_request_headers.started", {})
        except httpx.TimeoutException:
            self.gave_up.release()
            raise
        self.sent.release()
        return httpx.Response(200, stream=httpx.ByteStream(b""))


def test_a_resolver_that_hangs_holds_up_nobody_and_what_was_given_up_is_never_sent() -> None:
    resolver = Resolver()
    client = httpx.Client(transport=resolver)
    assert get(client) == HttpFailure("timeout")
    resolver.let.set()
    assert resolver.gave_up.acquire(timeout=30)
    assert not resolver.sent.acquire(blocking=False)
    assert get(client) == HttpReply(200, b"", None)


def test_calls_that_hang_do_not_pile_up_without_end_and_the_next_ones_say_that_they_did_not_go_out() -> None:
    resolver = Resolver()
    client = httpx.Client(transport=resolver)
    try:
        replies = [get(client, deadline_s=0.01) for _ in range(EXCHANGES_AT_ONCE_MAX + 2)]
    finally:
        resolver.let.set()
    assert replies == [HttpFailure("timeout")] * EXCHANGES_AT_ONCE_MAX + [HttpFailure("connect_failed")] * 2
    for _ in range(EXCHANGES_AT_ONCE_MAX):
        assert resolver.gave_up.acquire(timeout=30)


def get(client: httpx.Client, deadline_s: float = 0.2) -> HttpReply | HttpFailure:
    return exchange(client, "GET", "http://nowhere/", headers={}, deadline_s=deadline_s, body_bytes_max=1000)
