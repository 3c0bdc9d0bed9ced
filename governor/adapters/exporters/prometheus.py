"""The HTTP side of the metrics endpoint: one thread, and a bound on everything a scraper can make it hold.

`http.server` with threads would give every slow client a thread of its own for as long as it likes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from governor.adapters.exporters.prometheus_metrics import METRICS, Metric, build_info, shown
from governor.core.base.units import MonoNs
from governor.core.views.metrics import (
    LAG_BOUNDS_S,
    GovernorHealth,
    LagMeter,
    LagReading,
    MetricsSnapshot,
    take_snapshot,
)

CONNECTIONS_MAX: Final = 16  # Two Prometheus servers and a person, several times over.
REQUEST_BYTES_MAX: Final = 8 * 1024  # Prometheus sends some 300 bytes.
CONNECTION_S_MAX: Final = 10.0  # Prometheus's own default scrape timeout: later nobody listens.
READ_BYTES: Final = 4096


class MetricsUnavailable(Exception):  # noqa: N818 - the condition is the name.
    """The endpoint cannot be opened: one line, what and what to do."""


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    ends_at: float  # time.monotonic()
    request: bytearray = field(default_factory=bytearray)
    reply: memoryview | None = None


class ScrapeServer:
    """Serves GET and HEAD of /metrics from `render()`, which must not block."""

    def __init__(self, address: str, port: int, render: Callable[[], bytes], content_type: str) -> None:
        self._render = render
        self._content_type = content_type
        self._listener = _listen(address, port)
        self._listener.setblocking(False)
        self.address, self.port = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: dict[int, _Connection] = {}  # In order of age.
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()  # End of file wakes the thread.
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.ExitStack() as stack:
            for end in (self._selector, self._listener, self._woken):
                stack.enter_context(contextlib.closing(end))
            while True:
                oldest = next(iter(self._connections.values()), None)
                wait_s = None if oldest is None else max(0.0, oldest.ends_at - time.monotonic())
                ready = self._selector.select(wait_s)
                if any(key.fileobj is self._woken for key, _ in ready):
                    break
                for key, _ in ready:
                    self._on_ready(key)
                self._drop_late(time.monotonic())
            for connection in list(self._connections.values()):
                self._drop(connection)

    def _on_ready(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
            return
        connection = self._connections.get(key.fd)
        if connection is None:
            return  # Dropped in this very round, to make room.
        try:
            if connection.reply is None:
                self._read(connection)
            if connection.reply is not None:
                self._write(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return  # It hung up while it waited, or we are out of descriptors: the next one may have more luck.
        accepted.setblocking(False)
        if len(self._connections) == CONNECTIONS_MAX:
            self._drop(next(iter(self._connections.values())))  # The oldest has had the most time.
        self._connections[accepted.fileno()] = _Connection(accepted, time.monotonic() + CONNECTION_S_MAX)
        self._selector.register(accepted, selectors.EVENT_READ)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(READ_BYTES)
        if not data:
            self._drop(connection)
            return
        connection.request += data
        if b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            connection.reply = memoryview(self._answer(bytes(connection.request)))
        elif len(connection.request) > REQUEST_BYTES_MAX:
            connection.reply = memoryview(
                _response("431 Request Header Fields Too Large", "text/plain", b"too large\n")
            )
        if connection.reply is not None:
            self._selector.modify(connection.socket, selectors.EVENT_WRITE)

    def _write(self, connection: _Connection) -> None:
        assert connection.reply is not None
        connection.reply = connection.reply[connection.socket.send(connection.reply) :]
        if not connection.reply:
            self._drop(connection)

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"GET /metrics\n")
        if path != b"/metrics":
            return _response("404 Not Found", "text/plain", b"GET /metrics\n")
        return _response("200 OK", self._content_type, self._render(), head=method == b"HEAD")

    def _drop_late(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if connection.ends_at > now:
                break
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.socket.fileno(), None)
        self._selector.unregister(connection.socket)
        connection.socket.close()


def _listen(address: str, port: int) -> socket.socket:
    try:
        # A number, not a name: looking one up may take a minute, and start-up has no minute.
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=CONNECTIONS_MAX)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "that is not an IP address"
        raise MetricsUnavailable(f"metrics cannot listen on {address}:{port}: {reason}; set [metrics]") from error


def _response(status: str, content_type: str, body: bytes, *, head: bool = False) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((*lines, "", "")).encode() + (b"" if head else body)


# The Prometheus endpoint: the loop leaves a snapshot, a thread of its own answers scrapers.


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # Understood by every Prometheus since 0.0.4.
_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class SnapshotCollector(Collector):
    """Turns the newest snapshot into metric families. Before the first one there are none."""

    def __init__(self) -> None:
        self.snapshot: MetricsSnapshot | None = None  # Replaced as a whole: no lock.
        self._metrics = (*METRICS, build_info(version("costgov")))

    def describe(self) -> Iterable[Family]:
        return []  # Registering must not collect.

    def collect(self) -> Iterable[Family]:
        if self.snapshot is None:
            return
        snapshot = shown(self.snapshot)
        for metric in self._metrics:
            if metric.type == "histogram":
                yield _lag_family(metric, snapshot.lag)
                continue
            family = _FAMILIES[metric.type](metric.name, metric.meaning, labels=metric.labels)
            for labels, value in metric.samples(snapshot):
                family.add_metric(labels, value)
            if family.samples:
                yield family


class PrometheusExporter:
    """`ports.Observer`. `health` is asked on the loop's thread at every tick and must not block.

    MetricsUnavailable (scrape_server) when the address cannot be bound: metrics are worth a line, never a start.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        health: Callable[[], GovernorHealth],
        tick_ns: int,
        scheduler_job: str = "",
    ) -> None:
        self._health = health
        self._scheduler_job = scheduler_job
        self._lag = LagMeter(tick_ns)
        self._collector = SnapshotCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._server = ScrapeServer(address, port, self.render, CONTENT_TYPE)
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self._server.port}/metrics"

    def publish(self, snapshot: MetricsSnapshot) -> None:
        """Show this from now on."""
        self._collector.snapshot = snapshot

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def tick(self, node: Any, at: MonoNs) -> None:
        self._lag.observe(at)
        self.publish(take_snapshot(node, at, self._health(), self._lag.reading(), self._scheduler_job))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        pass

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def close(self) -> None:
        self._server.close()


def _lag_family(metric: Metric, lag: LagReading) -> Family:
    bounds = (*(str(bound) for bound in LAG_BOUNDS_S), "+Inf")
    buckets = list(zip(bounds, map(float, accumulate(lag.counts)), strict=True))
    return HistogramMetricFamily(metric.name, metric.meaning, buckets=buckets, sum_value=lag.sum_s)
