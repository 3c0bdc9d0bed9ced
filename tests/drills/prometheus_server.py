"""A real Prometheus on loopback, of Debian's package, for drills."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

DEADLINE_S: Final = 60.0
PACE_S: Final = 0.1
NEEDS_PROMETHEUS: Final = [
    pytest.mark.skipif(shutil.which(name) is None, reason="Debian's package prometheus is not installed")
    for name in ("prometheus", "promtool")
]


class Prometheus:
    """A real server on loopback; every wait also notices its death."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self.url = ""

    def await_ready(self) -> None:
        for _ in range(round(DEADLINE_S / PACE_S)):
            ports = [c.laddr.port for c in psutil.Process(self._process.pid).net_connections() if c.status == "LISTEN"]
            if ports:
                self.url = f"http://127.0.0.1:{ports[0]}"
                return
            self._pace()
        pytest.fail("prometheus does not listen")

    def ask(self, path: str, **params: str) -> Any:
        """Return the `data` of an answer, or None while there is none. An error of ours, as in a query, fails."""
        try:
            reply = httpx.get(f"{self.url}/api/v1/{path}", params=params, trust_env=False, timeout=DEADLINE_S)
        except httpx.TransportError:
            return None
        assert reply.status_code not in (400, 422), f"{params}: {reply.text}"
        return reply.json()["data"] if reply.status_code == 200 else None

    def series(self, query: str) -> list[Any]:
        """Return the samples of a query now; none while there is no answer."""
        return (self.ask("query", query=query) or {"result": []})["result"]  # type: ignore[no-any-return]

    def value(self, query: str) -> str | None:
        """Return the value of a query that has one sample, or None while there is no answer."""
        result = self.series(query)
        assert len(result) <= 1, result
        return str(result[0]["value"][1]) if result else None

    def await_value(self, query: str, expected: str) -> None:
        found = None
        for _ in range(round(DEADLINE_S / PACE_S)):
            if (found := self.value(query)) == expected:
                return
            self._pace()
        pytest.fail(f"{query} is {found}, not {expected}")

    def _pace(self) -> None:
        if select.select([self._pidfd], [], [], PACE_S)[0]:
            pytest.fail(f"prometheus ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        os.close(self._pidfd)


def scrape_of(targets: Sequence[str], **more: Any) -> dict[str, Any]:
    """A job of prometheus.yml."""
    return {"job_name": "costgov", "static_configs": [{"targets": [*targets]}], **more}


@contextmanager
def prometheus(
    target: str, directory: Path, rules: Sequence[Path] = (), scrape: dict[str, Any] | None = None
) -> Iterator[Prometheus]:
    """A server that scrapes the target twice a second, or goes by `scrape`, and judges the rules as often."""
    scrape = scrape or scrape_of([target])
    config = directory / "prometheus.yml"
    # JSON is YAML. The interval decides only how long the drill waits.
    intervals = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    files = [str(path) for path in rules]
    config.write_text(json.dumps({"global": intervals, "rule_files": files, "scrape_configs": [scrape]}))
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
    with closing(Prometheus(process)) as running:
        running.await_ready()
        yield running
