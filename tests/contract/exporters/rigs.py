"""Every exporter as `wiring.py` builds it: what it shows, and a world that lets nothing through."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.adapters.exporters.report_files import ReportFiles
from governor.core.base.units import NS_PER_MS
from governor.core.views.metrics import GovernorHealth
from governor.ports import Observer


@dataclass
class Rig:
    observer: Observer
    shows: Callable[[], str]  # All that people can see of it now.
    breaks: Callable[[], None]  # From now on nothing gets out.
    neglect: Callable[[], None]  # Somebody wants to see it and then does not look.
    close: Callable[[], None]  # What wiring.py calls at the end; nothing where there is nothing to end.


def prometheus(directory: Path) -> Rig:
    exporter = PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS)
    url = httpx.URL(exporter.url)
    waiting: list[socket.socket] = []

    def neglect() -> None:
        assert url.port is not None
        waiting.append(socket.create_connection((url.host, url.port)))

    def close() -> None:
        for client in waiting:
            client.close()
        waiting.clear()
        exporter.close()

    # Nothing gets out of a closed port.
    return Rig(exporter, lambda: httpx.get(url, trust_env=False).text, exporter.close, neglect, close)


def report_files(directory: Path) -> Rig:
    reports = directory / "incidents"

    def shows() -> str:
        assert not [path for path in directory.iterdir() if path != reports], "it writes beside its directory"
        return "".join(path.read_text() for path in sorted(reports.glob("*")))

    def breaks() -> None:
        """A file where its directory was: not even root writes there."""
        shutil.rmtree(reports, ignore_errors=True)
        reports.write_text("")

    return Rig(ReportFiles(reports, reports_max=50), shows, breaks, lambda: None, lambda: None)


# Every module in governor/adapters/exporters that defines an observer. A new one passes the suite unedited.
RIGS: dict[str, Callable[[Path], Rig]] = {"prometheus": prometheus, "report_files": report_files}
