"""etcd's JSON gateway: bodies and answers. int64 travel as strings, and what is false, zero or empty is left out."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.scopes import ROW_CHARS_MAX
from governor.remote_ports import FleetReply

TORN: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
# gRPC's codes, as the gateway's errors have them.
_UNAUTHENTICATED: Final = 16
_EXHAUSTED: Final = 8  # Too many requests, or no room left: refused before it is proposed.
# Refused for what it is: cancelled by nobody, proposed to nobody.
_REFUSALS: Final = {3: "invalid", 5: "not_found", 7: "permission_denied", 9: "precondition", 11: "out_of_range"}
# Parts of etcd's own texts, of refusals that share a code with others.
_TOLD: Final = {"user name is empty": "user_missing", "authentication is not enabled": "authentication_off"}
_LIMIT_MAX: Final = 10_000


def b64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


def range_body(key: str, prefix: bool = False, limit: int = 0, after: str = "") -> dict[str, Any]:
    body: dict[str, Any] = {"key": b64(max(key, f"{after}\0") if after else key)}
    if prefix:
        raw = key.encode("utf-8", "surrogatepass")
        end = raw[:-1] + bytes([raw[-1] + 1])  # Our prefixes end with a slash.
        body |= {"range_end": base64.b64encode(end).decode("ascii"), "limit": str(min(limit, _LIMIT_MAX))}
    return body


def watch_body(prefix: str, after: int) -> dict[str, Any]:
    body = range_body(prefix, True)
    rows = {"key": body["key"], "range_end": body["range_end"]}
    return {"create_request": {**rows, "start_revision": str(after + 1)}}


def read_body(keys: Sequence[str]) -> dict[str, Any]:
    """Ranges of one transaction: all rows are of one moment, and linearizable."""
    return {"success": [{"request_range": range_body(key)} for key in keys]}


def transaction_body(transaction: Transaction) -> dict[str, Any]:
    lease = {"lease": str(transaction.lease)} if transaction.lease else {}
    return {
        "compare": [
            {"key": b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in transaction.compares
        ],
        "success": [
            *({"request_put": {"key": b64(key), "value": b64(value), **lease}} for key, value in transaction.puts),
            *({"request_delete_range": {"key": b64(key)}} for key in transaction.deletes),
        ],
        "failure": [{"request_range": range_body(key)} for key, _ in transaction.compares],
    }


# --- answers ------------------------------------------------------------------------------------------------


def parsed(body: bytes) -> Mapping[str, Any] | None:
    """None: it is no JSON object, so it is no answer of etcd's."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None


def revision_of(found: Mapping[str, Any]) -> int:
    """One of TORN where there is none."""
    revision = int(found["header"]["revision"])
    if revision <= 0:
        raise ValueError("a revision is above 0")
    return revision


def rows_of(found: Mapping[str, Any], keys: Sequence[str]) -> tuple[Kept, ...]:
    """The answers to ranges of these keys, in their order. One of TORN where they are not that."""
    responses = found["responses"]
    if len(responses) != len(keys):
        raise ValueError("an answer to each range")
    ranges = (response["response_range"].get("kvs", []) for response in responses)
    return tuple(kept_of(kvs[0], key) if kvs else Kept(key) for key, kvs in zip(keys, ranges, strict=True))


def kept_of(kv: Mapping[str, Any], asked: str | None = None) -> Kept:
    """One of TORN where it is no row, or not the one that was asked for. A value that is too long stays unreadable."""
    key = _text(kv["key"])
    if asked is not None and key != asked:
        raise ValueError("the row of another key")
    revision = int(kv["mod_revision"])
    if revision <= 0:
        raise ValueError("a revision is above 0")
    return Kept(key, _text(kv.get("value", ""))[: ROW_CHARS_MAX + 1], revision)


def _text(encoded: Any) -> str:
    try:
        return base64.b64decode(str(encoded), validate=True).decode("utf-8", "replace")
    except binascii.Error as error:
        raise ValueError("not base64") from error


@dataclass(slots=True)
class WatchSeen:
    """What a watch has said so far: a JSON object a line. It is enough when it has told anything but its creation."""

    has_begun: bool = False
    changed_at: int = 0  # The revision of the first change.
    rows: tuple[Kept, ...] = ()  # What it changed.
    is_over: bool = False  # Cancelled, or no watch at all.
    _read: int = 0

    def is_enough(self, body: bytes) -> bool:
        while not self.changed_at and not self.is_over and (end := body.find(b"\n", self._read)) >= 0:
            self._take(body[self._read : end])
            self._read = end + 1
        return bool(self.changed_at) or self.is_over

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line)["result"]
            self.has_begun |= found.get("created") is True
            self.is_over = found.get("canceled") is True
            if found.get("events") and not self.is_over:
                self.rows = tuple(_changed(event) for event in found["events"])
                self.changed_at = revision_of(found)
        except (*TORN, RecursionError):
            self.is_over = True


def _changed(event: Mapping[str, Any]) -> Kept:
    """One of TORN where it is no event. Of a row that is gone only the key comes."""
    kept = kept_of(event["kv"])
    return Kept(kept.key) if event.get("type") == "DELETE" else kept


def failure(status: int, found: Mapping[str, Any] | None) -> FleetReply:
    """What an answer that is not 200 means for what was sent."""
    code = found.get("code") if found is not None else None
    if code in _REFUSALS and (known := next((why for text, why in _TOLD.items() if text in _told(found)), None)):
        return FleetReply(Answer.REFUSED, reason=known)
    if code in _REFUSALS and 400 <= status < 500:
        return FleetReply(Answer.REFUSED, reason=_REFUSALS[code])
    if code == _EXHAUSTED:
        return FleetReply(Answer.UNREACHABLE, reason="exhausted")
    # 14 comes after a leader was lost: the transaction may have been proposed by then. So may any other one.
    return FleetReply(Answer.UNKNOWN, reason=f"http_{status}")


def wants_token(status: int, found: Mapping[str, Any] | None) -> bool:
    """Whether the token has run out, or was never asked for. Nothing was applied then."""
    if found is None or status == 200:
        return False
    told = _told(found)
    return found.get("code") == _UNAUTHENTICATED or "user name is empty" in told or "auth store is old" in told


def _told(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else str(found.get("message", found.get("error", "")))[:200]
