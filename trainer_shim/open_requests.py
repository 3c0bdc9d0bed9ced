"""The checkpoint requests that a rank holds: which is open, what was reported of it, what to answer to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, Optional

from .agreement import CheckpointRequest, merged

CLOSED_KEPT = 16  # A request repeated after its end is answered from here; older ones belong to a finished halt.


class OpenRequests:
    """`send` puts one ack on its way. Thread-safe: requests arrive on one thread, rounds end on another."""

    def __init__(self, send: Callable[[Dict[str, Any]], None]) -> None:
        self._send = send
        self._lock = threading.RLock()  # A signal handler may ask for a checkpoint while its thread does.
        self._open: Optional[CheckpointRequest] = None
        self._last: Dict[str, Any] = {}
        self._agreed: Optional[Dict[str, Any]] = None  # Of the open incident, once the ranks have settled its step.
        self._closed: "OrderedDict[str, Dict[str, Any]]" = OrderedDict()
        self.halted: Optional[str] = None  # The incident that parked this rank: it takes no further step for another.
        self.changed = False  # A merged one made the open request stricter; the round passes it on and clears it.

    @property
    def request(self) -> Optional[CheckpointRequest]:
        """The open incident's request, with everything merged into it."""
        return self._open

    def receive(self, request: CheckpointRequest) -> bool:
        """Take a request and answer it; True when it opened an incident."""
        with self._lock:
            closed = self._closed.get(request.incident)
            if closed is not None:
                self._send(closed)
                return False
            if self._open is None and self.halted is not None:
                self._send({"incident": request.incident, "what": "merged", "merged_into": self.halted})
                return False
            if self._open is None:
                self._begin(request)
                return True
            before = self._open.incident
            self._harden(merged(self._open, request))
            if before not in (request.incident, self._open.incident):
                self._rename(before)
            elif request.incident == self._open.incident:
                self._send(self._last)
            else:
                self._merge(request.incident)
            return False

    def adopt(self, noticed: CheckpointRequest) -> CheckpointRequest:
        """Join the incident that the ranks agreed to speak of; a different open one of ours merges into it."""
        with self._lock:
            own = self._open
            if own is None:
                self._begin(noticed)
            elif own.incident != noticed.incident:
                self._open = noticed
                self._harden(merged(noticed, own))
                if self._open.incident == noticed.incident:
                    self._agreed = None
                    self._last = _ack(noticed, "received", {})
                    self._send(self._last)
                    self._merge(own.incident)
            assert self._open is not None, "adopt() leaves an incident open"
            return self._open

    def harden(self, request: CheckpointRequest) -> None:
        """Take over what other ranks' requests added."""
        with self._lock:
            if self._open is not None:
                self._open = merged(self._open, request)

    def report(self, what: str, **fields: Any) -> None:
        """Ack progress of the open incident."""
        with self._lock:
            assert self._open is not None, "tell() without an open incident"
            self._last = _ack(self._open, what, fields)
            if what == "agreed":
                self._agreed = self._last
            self._send(self._last)

    def close(self, what: str, **fields: Any) -> None:
        """Ack the end of the open incident and be ready for another."""
        with self._lock:
            assert self._open is not None, "close() without an open incident"
            self._last = _ack(self._open, what, fields)
            self._send(self._last)
            self._remember(self._open.incident, self._last)
            self._open = None
            self.changed = False

    def state(self) -> Optional[Dict[str, Any]]:
        """What hello says of an open incident after a reconnect."""
        with self._lock:
            if self._open is None:
                return None
            return {"incident": self._open.incident, "what": self._last["what"], "step": self._last.get("step")}

    def _begin(self, request: CheckpointRequest) -> None:
        self._open = request
        self._agreed = None
        self._last = _ack(request, "received", {})
        self._send(self._last)

    def _rename(self, before: str) -> None:
        """The script's own incident became a governor's: say under that name how far it is."""
        assert self._open is not None, "there is something to rename"
        told = self._last["what"]
        renamed = {"incident": self._open.incident, "exit_after": self._open.exit_after}
        self._send(_ack(self._open, "received", {}))
        if self._agreed is not None and told != "agreed":
            self._send(dict(self._agreed, **renamed))
        self._last = dict(self._last, **renamed)
        if told != "received":
            self._send(self._last)
        self._merge(before)

    def _merge(self, incident: str) -> None:
        assert self._open is not None, "there is something to merge into"
        ack = {"incident": incident, "what": "merged", "merged_into": self._open.incident}
        self._send(ack)
        self._remember(incident, ack)

    def _harden(self, stricter: CheckpointRequest) -> None:
        assert self._open is not None, "there is something to harden"
        self.changed = self.changed or stricter != self._open
        self._open = stricter

    def _remember(self, incident: str, ack: Dict[str, Any]) -> None:
        self._closed[incident] = ack
        while len(self._closed) > CLOSED_KEPT:
            self._closed.popitem(last=False)


def _ack(request: CheckpointRequest, what: str, fields: Dict[str, Any]) -> Dict[str, Any]:
    return dict(fields, incident=request.incident, what=what, exit_after=request.exit_after)
