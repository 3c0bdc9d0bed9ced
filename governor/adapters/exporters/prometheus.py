"""The Prometheus endpoint, and a page for people beside it: the loop leaves a snapshot, separate threads answer.

The library's HTTP server, with bounds on what a scraper can occupy: connections (each has a thread), bytes of a
request, and seconds from the first byte to the last.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from governor.adapters.exporters import board as board_page
from governor.adapters.exporters.board import Board
from governor.adapters.exporters.bounded import shown
from governor.adapters.exporters.metric import Metric
from governor.adapters.exporters.prometheus_machine import node_labels
from governor.adapters.exporters.prometheus_metrics import METRICS, info_metrics
from governor.core.base.units import MonoNs
from governor.core.views.board import take_board
from governor.core.views.metrics import (
    LAG_BOUNDS_S,
    GovernorHealth,
    LagMeter,
    MetricsSnapshot,
    take_snapshot,
)

CONNECTIONS_MAX: Final = 16  # Two Prometheus servers and a person, several times over.
# Connections waiting in the kernel. Beyond it, a client retries only after a second.
BACKLOG: Final = 128
REQUEST_BYTES_MAX: Final = 8 * 1024  # Prometheus sends some 300 bytes.
CONNECTION_S_MAX: Final = 10.0  # Prometheus's own default scrape timeout.
READ_BYTES: Final = 4096
# For a thread to notice that we closed its connection: far above what it takes.
ROOM_S_MAX: Final = 1.0
# Without a descriptor for it, a scraper waits in the kernel, and the acceptor this long before it tries again.
AGAIN_S: Final = 1.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
WAKE_PERIOD_S: Final = 3600.0  # Nothing waits for it: close() wakes the server itself.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # Every Prometheus since 0.0.4 reads it.
_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

log = structlog.get_logger("costgov")


class MetricsUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """The endpoint cannot be opened. The message is one line: what is wrong and what to do."""


class ScrapeServer(ThreadingHTTPServer):
    """Serves GET and HEAD of /metrics from `render()`, which must not block; and of / where there is a `board`."""

    bound_s = CONNECTION_S_MAX

    def __init__(
        self, address: str, port: int, render: Callable[[], bytes], content_type: str, board: Board | None = None
    ) -> None:
        super().__init__((address, port), _Scrape, bind_and_activate=False)
        # The library's own bind looks our name up in DNS and takes no IPv6.
        self.socket.close()
        self.socket = _listen(address, port)
        self.address, self.port = self.socket.getsockname()[:2]
        self.content_type = content_type
        self.board = board
        self._render = render
        self._rendering = threading.Lock()
        self._scrapers: dict[socket.socket, threading.Thread] = {}  # In order of age. Only the acceptor uses it.
        self._is_exhausted = False  # Logged once.
        self._closing = threading.Event()
        self._acceptor = threading.Thread(
            target=self.serve_forever, args=(WAKE_PERIOD_S,), name="metrics", daemon=True
        )  # fmt: skip
        self._acceptor.start()

    def render(self) -> bytes:
        with self._rendering:  # One at a time: many at once would delay the loop.
            return self._render()

    def get_request(self) -> Any:
        try:
            accepted = super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                if not self._is_exhausted:
                    log.error("scraper_not_accepted", reason=error.strerror, again_s=AGAIN_S)
                self._is_exhausted = True
                self._closing.wait(AGAIN_S)
            raise
        self._is_exhausted = False
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a separate thread. Beyond the bound, the oldest connection is closed."""
        self._scrapers = {one: thread for one, thread in self._scrapers.items() if thread.is_alive()}
        if len(self._scrapers) == CONNECTIONS_MAX:
            oldest, thread = next(iter(self._scrapers.items()))
            _hang_up(oldest)
            thread.join(ROOM_S_MAX)
            if thread.is_alive():
                self.shutdown_request(request)
                return
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="metrics-scrape", daemon=True
        )
        try:
            thread.start()
            self._scrapers[request] = thread
        except RuntimeError:  # No thread can be started.
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # The client hung up or took too long. Any other error is our own fault.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Close all connections and end all threads."""
        self._closing.set()
        with contextlib.suppress(OSError):  # It was closed before.
            self.socket.shutdown(socket.SHUT_RDWR)  # Wakes the acceptor.
        self.shutdown()
        self._acceptor.join()
        self.server_close()
        for request, thread in self._scrapers.items():
            _hang_up(request)
            thread.join()


class _Scrape(BaseHTTPRequestHandler):
    """Handles one request and closes the connection."""

    server: ScrapeServer

    def handle(self) -> None:
        ends_at = time.monotonic() + self.server.bound_s
        head = self._head(ends_at)
        if len(head) > REQUEST_BYTES_MAX and not _is_whole(head):
            self.send_error(431)
        elif head:
            self.rfile.close()
            self.rfile = io.BytesIO(head)
            self._bound(ends_at)  # One bound for the whole answer.
            self.handle_one_request()

    def _head(self, ends_at: float) -> bytes:
        """The request up to its empty line, or more than the limit; empty if the client hangs up. Raises OSError."""
        head = b""
        while not _is_whole(head) and len(head) <= REQUEST_BYTES_MAX:
            self._bound(ends_at)
            data = self.connection.recv(READ_BYTES)
            if not data:
                return b""
            head += data
        return head

    def _bound(self, ends_at: float) -> None:
        self.connection.settimeout(max(0.0, ends_at - time.monotonic()))

    def do_GET(self) -> None:
        path, board = self.path.partition("?")[0], self.server.board
        if path == "/metrics":
            self._reply("200 OK", self.server.render(), self.server.content_type)
        elif path == "/" and board is not None:
            self._show(board)
        else:
            self._reply("404 Not Found", b"GET / or /metrics\n" if board is not None else b"GET /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - the library's name.

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the library rejects."""
        if code in (414, 431):
            self._reply("431 Request Header Fields Too Large", b"too large\n")
        else:
            self._reply("405 Method Not Allowed", b"GET /metrics\n")

    def _show(self, board: Board) -> None:
        is_loopback = ipaddress.ip_address(self.server.address).is_loopback
        if is_loopback and not board_page.is_local_host(self.headers.get("Host")):
            self._reply("403 Forbidden", f"open http://localhost:{self.server.port}/\n".encode())
            return
        page = board.page()
        if page is None:
            self._reply("503 Service Unavailable", b"the governor's loop has not answered yet; see its log\n")
        else:
            self._reply("200 OK", page, "text/html; charset=utf-8", board_page.HEADERS)

    def _reply(self, status: str, body: bytes, content_type: str = "text/plain", more: tuple[str, ...] = ()) -> None:
        is_head = status == "200 OK" and self.command == "HEAD"
        fields = (f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "Connection: close", *more)
        head = "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode()
        self.wfile.write(head if is_head else head + body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: a scrape every few seconds is no news."""


def _is_whole(head: bytes) -> bool:
    return b"\r\n\r\n" in head or b"\n\n" in head


def _hang_up(request: socket.socket) -> None:
    """Shut the connection down. Its thread wakes and closes it."""
    with contextlib.suppress(OSError):  # It has ended meanwhile.
        request.shutdown(socket.SHUT_RDWR)


def _listen(address: str, port: int) -> socket.socket:
    try:
        # Only a number: looking a name up may take a minute, and start-up must not wait that long.
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=BACKLOG)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "that is not an IP address"
        raise MetricsUnavailable(f"metrics cannot listen on {address}:{port}: {reason}; set [metrics]") from error


class SnapshotCollector(Collector):
    """Turns the newest snapshot into metric families. Before the first snapshot there are none."""

    def __init__(self, fleet: str = "") -> None:
        self.snapshot: MetricsSnapshot | None = None  # Replaced as a whole, so no lock is needed.
        self._metrics = (*METRICS, *info_metrics(version("costgov"), fleet))

    def describe(self) -> Iterable[Family]:
        return []  # Registering must not collect.

    def collect(self) -> Iterable[Family]:
        if self.snapshot is None:
            return
        snapshot = shown(self.snapshot)
        for metric in self._metrics:
            if metric.type == "histogram":
                yield _lag_family(metric, snapshot)
                continue
            family = _FAMILIES[metric.type](metric.name, metric.meaning, labels=metric.labels)
            for labels, value in metric.samples(snapshot):
                family.add_metric(labels, value)
            if family.samples:
                yield family


class PrometheusExporter:
    """`ports.Observer`. `health` runs on the loop's thread at every tick and must not block.

    MetricsUnavailable if the address cannot be bound: missing metrics are reported and never prevent a start.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        health: Callable[[], GovernorHealth],
        tick_ns: int,
        scheduler_job: str = "",
        fleet: str = "",
        past: Callable[[int], Iterable[Mapping[str, Any]]] | None = None,
    ) -> None:
        """`past`: the newest so many incidents of the journal, for the page. None: there is no page."""
        self._board = Board(past(board_page.INCIDENTS_MAX)) if past is not None else None
        self._health = health
        self._scheduler_job = scheduler_job
        self._lag = LagMeter(tick_ns)
        self._collector = SnapshotCollector(fleet)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._server = ScrapeServer(address, port, self.render, CONTENT_TYPE, self._board)
        root = f"http://{f'[{address}]' if ':' in address else address}:{self._server.port}/"
        self.url = f"{root}metrics"
        # As start-up tells them.
        self.places = self.url if self._board is None else f"{self.url}, a page for people at {root}"

    def publish(self, snapshot: MetricsSnapshot) -> None:
        """Serve this snapshot from now on."""
        self._collector.snapshot = snapshot

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def tick(self, node: Any, at: MonoNs) -> None:
        self._lag.observe(at)
        self.publish(take_snapshot(node, at, self._health(), self._lag.reading(), self._scheduler_job))
        if self._board is not None and self._board.is_wanted:
            self._board.publish(take_board(node, at))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        if self._board is not None:
            self._board.note(snapshot)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def close(self) -> None:
        self._server.close()


def _lag_family(metric: Metric, snapshot: MetricsSnapshot) -> Family:
    lag, bounds = snapshot.lag, (*(str(bound) for bound in LAG_BOUNDS_S), "+Inf")
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    family.add_metric(
        node_labels(snapshot), list(zip(bounds, map(float, accumulate(lag.counts)), strict=True)), lag.sum_s
    )
    return family
