"""The instance metadata service, version 2: identity, the role's credentials, and the notice of a spot instance."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from governor.adapters.http.client import HttpFailure, HttpReply, exchange, make_client
from governor.core.base.units import NS_PER_S, WallNs
from governor.remote_ports import Notice

# The service is link-local. Longer means that it will not answer (hop limit 1 in a container, firewall).
DEADLINE_S: Final = 2.0
BODY_BYTES_MAX: Final = 64 * 1024
# The longest that the service grants. It answers 401 for an expired token.
_TOKEN_TTL_S: Final = 21_600

# The region becomes part of a host name, and the id part of a request: both are checked.
# It becomes a header.
_TOKEN: Final = re.compile(r"[!-~]{1,1024}")
_INSTANCE_ID: Final = re.compile(r"i-[0-9a-f]{8,17}")
_REGION: Final = re.compile(r"[a-z]{2,3}(-[a-z]{2,16}){1,3}-[0-9]{1,2}")
_INSTANCE_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")  # It becomes part of a request, too.


@dataclass(frozen=True, slots=True)
class Identity:
    instance_id: str
    region: str
    instance_type: str  # Empty: it says none, or nothing that is one. A stop does not need it.


@dataclass(frozen=True, slots=True)
class MetadataFailure:
    reason: str  # timeout | connect_failed | http_404 | malformed | …


class Metadata:
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._client = make_client()
        self._lock = threading.Lock()
        self._token: str | None = None

    def identity(self) -> Identity | MetadataFailure:
        """Ask for our identity. Never cached: the answer decides which machine may be stopped."""
        body = self.get("/latest/dynamic/instance-identity/document")
        if isinstance(body, MetadataFailure):
            return body
        try:
            fields = json.loads(body)
            found = Identity(fields["instanceId"], fields["region"], str(fields.get("instanceType", "")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return MetadataFailure("malformed")
        texts = isinstance(found.instance_id, str) and isinstance(found.region, str)
        if not texts or not _INSTANCE_ID.fullmatch(found.instance_id) or not _REGION.fullmatch(found.region):
            return MetadataFailure("malformed")
        return found if _INSTANCE_TYPE.fullmatch(found.instance_type) else replace(found, instance_type="")

    def get(self, path: str) -> bytes | MetadataFailure:
        """Read one document. A token that the service has forgotten is renewed once."""
        reply = self._get_with_token(path)
        if isinstance(reply, HttpReply) and reply.status == 401:
            with self._lock:
                self._token = None
            reply = self._get_with_token(path)
        if isinstance(reply, HttpReply):
            return reply.body if reply.status == 200 else MetadataFailure(f"http_{reply.status}")
        return MetadataFailure(reply.reason)

    def _get_with_token(self, path: str) -> HttpReply | HttpFailure:
        with self._lock:
            if self._token is None:
                granted = self._exchange(
                    "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
                )
                if isinstance(granted, HttpFailure) or granted.status != 200:
                    return granted
                token = granted.body.decode("ascii", "replace").strip()
                if not _TOKEN.fullmatch(token):
                    return HttpFailure("malformed")
                self._token = token
            token = self._token
        return self._exchange("GET", path, {"X-aws-ec2-metadata-token": token})

    def _exchange(self, method: str, path: str, headers: dict[str, str]) -> HttpReply | HttpFailure:
        return exchange(
            self._client,
            method,
            self._endpoint + path,
            headers=headers,
            deadline_s=DEADLINE_S,
            body_bytes_max=BODY_BYTES_MAX,
        )


# --- the two-minute notice of a spot instance ------------------------------------------------------------

NOTICE_PATH: Final = "/latest/meta-data/spot/instance-action"
# Before a notice, and for an instance that is not spot.
ABSENT: Final = "http_404"
ACTION_CHARS_MAX: Final = 40


def read_notice(metadata: Metadata) -> Notice | None:
    """Ask now. None: the service did not answer, or its answer is malformed."""
    body = metadata.get(NOTICE_PATH)
    if isinstance(body, MetadataFailure):
        return Notice(None) if body.reason == ABSENT else None
    return notice_of(body)


def notice_of(body: bytes) -> Notice | None:
    """Read the document. None if it is malformed."""
    try:
        fields = json.loads(body)
        action = fields["action"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(action, str) or not action.isidentifier() or len(action) > ACTION_CHARS_MAX:
        return None
    return Notice(action, _wall(fields.get("time")))


def _wall(text: object) -> WallNs | None:
    """ISO 8601 in UTC. None for anything else: the notice counts even without a time."""
    try:
        when = datetime.fromisoformat(text) if isinstance(text, str) else None
        if when is None or when.tzinfo is None:
            return None
        return WallNs(round(when.astimezone(UTC).timestamp() * NS_PER_S))
    except (ValueError, OverflowError):
        return None
