"""The scrape server on a machine that has nothing left for it, or not its address."""

from __future__ import annotations

import resource
import socket
import threading
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from governor.adapters.exporters.prometheus import MetricsUnavailable, PrometheusExporter, ScrapeServer
from governor.core.views.metrics import GovernorHealth


class CountingServer(ScrapeServer):
    asked = 0

    def get_request(self) -> Any:
        self.asked += 1
        return super().get_request()


def test_without_a_descriptor_for_a_scraper_it_says_so_once_and_waits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        capture_logs() as said,
        closing(CountingServer("127.0.0.1", 0, lambda: b"page", "text/plain")) as server,
        socket.socket() as client,
    ):
        client.settimeout(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            client.connect((server.address, server.port))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            again = threading.Event()
            while server.asked < 2:
                again.wait(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.asked < 10
    assert [entry["event"] for entry in said] == ["scraper_not_accepted"]


@pytest.mark.parametrize("address", ["not an address", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_one_clear_line(address: str) -> None:
    with pytest.raises(MetricsUnavailable, match="cannot listen on"):
        PrometheusExporter(address, 0, health=GovernorHealth, tick_ns=1)
