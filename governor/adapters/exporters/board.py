"""The page at `/` of the metrics port: who looks asks for a document, and the loop leaves one at its next tick.

While nobody looks, the loop does nothing for it. While many look, it takes one document a second, and one thread
renders it once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from governor.core.views.board import incident_row
from governor.reports.board import CSP, aged, render_board

FRESH_S: Final = 1.0  # A younger document is shown again.
# Eight ticks. Whoever looks while the loop stands still sees the last document, with its age.
WAIT_S: Final = 2.0
INCIDENTS_MAX: Final = 20  # The newest; `costgov incident list` has all.
HEADERS: Final = (
    f"Content-Security-Policy: {CSP}",
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
)


class Board:
    """Of any thread, but for `publish` and `note`, which are the loop's."""

    def __init__(self, incidents: Iterable[Mapping[str, Any]] = ()) -> None:
        self._changed = threading.Condition()
        self._rendering = threading.Lock()
        self._is_wanted = False
        self._taken_at_s: float | None = None
        self._document: Mapping[str, Any] | None = None
        self._rendered: tuple[Mapping[str, Any], str] | None = None
        self._incidents: dict[str, Mapping[str, Any]] = {}
        for snapshot in incidents:
            # Of the journal: one that another version has written is left out, and a start never fails of it.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self.note(snapshot)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for a document."""
        return self._is_wanted

    def publish(self, document: Mapping[str, Any]) -> None:
        """Show it from now on. It waits for nobody who renders."""
        with self._changed:
            self._is_wanted = False
            self._document = {**document, "incidents": list(reversed(self._incidents.values()))}
            self._taken_at_s = time.monotonic()
            self._changed.notify_all()

    def note(self, snapshot: Mapping[str, Any]) -> None:
        """An incident was opened, moved on or closed."""
        row = incident_row(snapshot)
        self._incidents[row["incident_id"]] = row
        if len(self._incidents) > INCIDENTS_MAX:
            del self._incidents[next(iter(self._incidents))]

    def page(self, wait_s: float = WAIT_S) -> bytes | None:
        """The page as of now, or as of the last tick if none comes. None: there was no tick yet."""
        with self._changed:
            if not self._is_fresh():
                self._is_wanted = True
                self._changed.wait_for(self._is_fresh, wait_s)
            document, taken_at_s = self._document, self._taken_at_s
        if document is None or taken_at_s is None:
            return None
        with self._rendering:
            if self._rendered is None or self._rendered[0] is not document:
                self._rendered = (document, render_board(document))
            text = self._rendered[1]
        return aged(text, time.monotonic() - taken_at_s).encode()

    def _is_fresh(self) -> bool:
        return self._taken_at_s is not None and time.monotonic() - self._taken_at_s < FRESH_S


def is_local_host(host: str | None) -> bool:
    """Whether a browser was sent to this machine by number or as localhost; None: no browser.

    A name that a stranger's page made to point here (DNS rebinding) is neither.
    """
    if host is None:
        return True
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
