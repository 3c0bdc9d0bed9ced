"""The page at `/` of the metrics port, over plain HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from governor.adapters.exporters.board import INCIDENTS_MAX, Board
from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.core.base.units import NS_PER_MS
from governor.core.engine.node import Node
from governor.core.views.board import RUNS_MAX, take_board
from governor.core.views.metrics import GovernorHealth
from tests.golden.report_cases import nan_halt
from tests.unit.core.engine.test_step import at, hello, make_node, play, tick, training

SECRET = "hf_abcdefghijklmnop"
MARKUP = '<img src=x onerror="alert(1)">&"\''


def exporter_of(past: bool = True) -> PrometheusExporter:
    return PrometheusExporter(
        "127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS, past=(lambda _: []) if past else None
    )


@contextmanager
def ticking(tell: Callable[[], None]) -> Iterator[None]:
    """The loop, faster than it is."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(0.01):
            tell()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def serving(node: Node) -> Iterator[httpx.Client]:
    with closing(exporter_of()) as exporter:
        root = exporter.url.removesuffix("metrics")
        with ticking(lambda: exporter.tick(node, at(3))), httpx.Client(base_url=root, trust_env=False) as client:
            yield client


class Text(HTMLParser):
    """The words of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_it_shows_runs_and_no_address_but_its_own() -> None:
    node = make_node(node="gpu-17")
    training(node, 3)
    with serving(node) as client:
        reply = client.get("/?x=1")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = Text(reply.text)
    assert {"gpu-17", "llama ", "$/1M tokens now"} <= {*page.words}
    names = ("src", "href", "style", "onclick")
    fetched = [(tag, name) for tag, fields in page.tags for name in names if name in fields]
    assert fetched == [("link", "href")], "the empty icon, which is no request"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in reply.text.replace("http-equiv", "")


def test_a_name_is_never_markup() -> None:
    node = make_node(node=MARKUP)
    play(node, hello(0, 0, run=MARKUP), tick(1))
    with serving(node) as client:
        reply = client.get("/")
    page = Text(reply.text)
    assert "img" not in [tag for tag, _ in page.tags]
    assert any(MARKUP in words for words in page.words)


def test_half_a_pair_of_surrogates_is_no_fault_of_the_page() -> None:
    with serving(make_node(node="half \ud800 pair")) as client:
        assert client.get("/").status_code == 200


def test_what_users_write_is_not_on_it() -> None:
    """Reasons, texts, paths: the port has no password."""
    node = make_node(node="gpu-17")
    play(node, hello(0, 0, stage=SECRET, attempt=SECRET, labels={"team": SECRET}), tick(1))
    with closing(exporter_of()) as exporter:
        exporter.incident(nan_halt() | {"text": SECRET, "resume": SECRET, "stage": SECRET, "evidence": {"a": SECRET}})
        with ticking(lambda: exporter.tick(node, at(3))):
            page = httpx.get(exporter.url.removesuffix("metrics"), trust_env=False).text
    assert "run7.gpu-17.1" in page
    assert SECRET not in page


def test_while_nobody_looks_nothing_is_taken() -> None:
    board = Board()
    assert not board.is_wanted
    node = make_node(node="gpu-17")
    assert board.page(wait_s=0) is None, "no tick has come"
    assert board.is_wanted
    board.publish(take_board(node, at(1)))
    assert not board.is_wanted
    first = board.page(wait_s=0)
    assert first is not None
    assert b"gpu-17" in first
    assert not board.is_wanted, "a document of now is shown again"


def test_runs_and_incidents_are_bounded_and_the_living_ones_come_first() -> None:
    node = make_node()
    for number in range(RUNS_MAX + 8):
        play(node, tick(number), hello(0, number, run=f"run-{number}"))
    board = Board(nan_halt() | {"incident_id": f"i{number}"} for number in range(3 * INCIDENTS_MAX))
    board.publish(take_board(node, at(100)))
    page = board.page()
    assert page is not None
    assert page.count(b"<article>") == RUNS_MAX
    assert b"i59" in page
    assert b"i39<" not in page
    assert len(page) < 200_000


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9477", "200"), ("localhost:9477", "200"), ("[::1]:9477", "200"), ("LOCALHOST", "200"),
        ("evil.example", "403"), ("localhost.evil.example:9477", "403"), ("[evil", "403"), ("", "403"),
    ],
)  # fmt: skip
def test_a_stranger_s_name_for_this_machine_is_refused(host: str, status: str) -> None:
    """DNS rebinding: a page of theirs could read this one otherwise. /metrics is as it was."""
    with serving(make_node()) as client:
        port = client.base_url.port
        for path, wanted in (("/", status), ("/metrics", "200")):
            with socket.create_connection(("127.0.0.1", port or 0), timeout=30) as raw:
                raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert raw.recv(65_536).split(b" ", 2)[1].decode() == wanted


def test_it_is_read_only_and_may_be_off() -> None:
    with serving(make_node()) as client:
        assert client.head("/").status_code == 200
        assert client.head("/").content == b""
        assert client.post("/").status_code == 405
        assert client.get("/other").status_code == 404
    with closing(exporter_of(past=False)) as exporter:
        assert httpx.get(exporter.url.removesuffix("metrics"), trust_env=False).status_code == 404
        assert "page" not in exporter.places


def test_an_incident_of_another_version_prevents_no_start() -> None:
    strange: list[Mapping[str, Any]] = [{}, nan_halt() | {"opened_wall_ns": None}, nan_halt()]
    board = Board(strange)
    board.publish(take_board(make_node(), at(1)))
    page = board.page()
    assert page is not None
    assert page.count(b"run7.gpu-17.1") == 1
