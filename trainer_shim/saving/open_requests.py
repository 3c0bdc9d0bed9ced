"""The checkpoint requests that a rank holds: which is open, what was reported of it, what to answer to the next."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, NamedTuple, Optional

OWN = "own."  # The names of incidents that the training script opens begin with this: see Watcher.checkpoint.
CLOSED_KEPT = 16  # A request that is repeated after its end is answered from here. Older ones belong to finished halts.


class CheckpointRequest(NamedTuple):
    """What a governor, or the script, asks for, as one rank holds it. `deadline_ns` is this node's CLOCK_MONOTONIC."""

    incident: str
    checkpoint: str  # good | suspect | none
    deadline_ns: int
    exit_after: bool
    exit_code: int
    reason: str

    @property
    def is_own(self) -> bool:
        """Whether the script asked, and it is no halt."""
        return self.incident.startswith(OWN) and not self.exit_after


def request_of(frame: Dict[str, Any]) -> CheckpointRequest:
    """Read a valid `letter` frame."""
    kind = frame["checkpoint"]
    return CheckpointRequest(
        incident=frame["incident"],
        # A kind that we do not know is saved, and never counts as the last good one.
        checkpoint=kind if kind in ("good", "none") else "suspect",
        deadline_ns=frame["deadline_mono_ns"],
        exit_after=frame["exit_after"],
        exit_code=frame["exit_code"],
        reason=frame.get("reason") or "",
    )


def merged(first: CheckpointRequest, second: CheckpointRequest) -> CheckpointRequest:
    """Fold a later request into the open one: the first incident's name, the more cautious of everything else.

    A governor's name replaces the script's own: the governor waits for acks under its name and knows no other.
    """
    if first.incident.startswith(OWN) and not second.incident.startswith(OWN):
        first = first._replace(incident=second.incident, reason=second.reason)
    kinds = {first.checkpoint, second.checkpoint}
    return first._replace(
        checkpoint="suspect" if "suspect" in kinds else "good" if "good" in kinds else "none",
        deadline_ns=min(first.deadline_ns, second.deadline_ns),
        exit_after=first.exit_after or second.exit_after,
        exit_code=first.exit_code if first.exit_after else second.exit_code,
    )


def notice_of(request: CheckpointRequest, boot_id: str, now_ns: int) -> str:
    """Write a request for the other ranks, with the time left: on another node its clock means nothing."""
    return json.dumps(dict(request._asdict(), boot_id=boot_id, left_ns=request.deadline_ns - now_ns))


def request_of_notice(text: str, boot_id: str, now_ns: int) -> CheckpointRequest:
    """Read another rank's notice."""
    fields = json.loads(text)
    left_ns = fields.pop("left_ns")
    if fields.pop("boot_id") != boot_id:
        fields["deadline_ns"] = now_ns + left_ns
    return CheckpointRequest(**fields)


class OpenRequests:
    """`send` puts one ack on its way. Thread-safe: requests arrive on one thread, rounds end on another."""

    def __init__(self, send: Callable[[Dict[str, Any]], None]) -> None:
        self._send = send
        self._lock = threading.RLock()  # A signal handler may ask for a checkpoint while its thread does.
        self._open: Optional[CheckpointRequest] = None
        self._last: Dict[str, Any] = {}
        self._agreed: Optional[Dict[str, Any]] = None  # The open incident's ack of its step, once there is one.
        self._closed: "OrderedDict[str, Dict[str, Any]]" = OrderedDict()
        self._halted: Optional[str] = None  # The incident that parked this rank. Later ones merge into it.
        self._changed = False  # A merged request made the open one stricter, and the round does not know yet.

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
            if self._open is None and self._halted is not None:
                self._send({"incident": request.incident, "what": "merged", "merged_into": self._halted})
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
        """Join the incident that the ranks' notice names. A different open one of ours merges into it."""
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
            assert self._open is not None, "report() without an open incident"
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
            self._changed = False

    def halt(self, incident: str) -> None:
        """This rank is parked for `incident`: it takes no further step for another."""
        self._halted = incident

    def take_changed(self) -> bool:
        """Whether a merged request made the open one stricter since the last call."""
        if not self._changed:
            return False  # Not cleared: the listener may set it between the reading and a clearing.
        self._changed = False
        return True

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
        """The script's own incident became a governor's: repeat under that name what was reported so far."""
        assert self._open is not None, "there is something to rename"
        reported = self._last["what"]
        renamed = {"incident": self._open.incident, "exit_after": self._open.exit_after}
        self._send(_ack(self._open, "received", {}))
        if self._agreed is not None and reported != "agreed":
            self._send(dict(self._agreed, **renamed))
        self._last = dict(self._last, **renamed)
        if reported != "received":
            self._send(self._last)
        self._merge(before)

    def _merge(self, incident: str) -> None:
        assert self._open is not None, "there is something to merge into"
        ack = {"incident": incident, "what": "merged", "merged_into": self._open.incident}
        self._send(ack)
        self._remember(incident, ack)

    def _harden(self, stricter: CheckpointRequest) -> None:
        assert self._open is not None, "there is something to harden"
        self._changed = self._changed or stricter != self._open
        self._open = stricter

    def _remember(self, incident: str, ack: Dict[str, Any]) -> None:
        self._closed[incident] = ack
        while len(self._closed) > CLOSED_KEPT:
            self._closed.popitem(last=False)


def _ack(request: CheckpointRequest, what: str, fields: Dict[str, Any]) -> Dict[str, Any]:
    return dict(fields, incident=request.incident, what=what, exit_after=request.exit_after)
