"""The two-minute notice of a spot instance, as its metadata service shows it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from governor.adapters.clouds.ec2.metadata import Metadata, MetadataFailure
from governor.core.base.units import NS_PER_S, WallNs
from governor.ports import Notice

PATH: Final = "/latest/meta-data/spot/instance-action"
ABSENT: Final = "http_404"  # Until there is one, and for an instance that is not spot.
ACTION_CHARS_MAX: Final = 40


def read(metadata: Metadata) -> Notice | None:
    """Ask now. None: the service did not answer, or not what it should."""
    body = metadata.get(PATH)
    if isinstance(body, MetadataFailure):
        return Notice(None) if body.reason == ABSENT else None
    return notice_of(body)


def notice_of(body: bytes) -> Notice | None:
    """Read the document; None where it is none."""
    try:
        fields = json.loads(body)
        action = fields["action"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(action, str) or not action.isidentifier() or len(action) > ACTION_CHARS_MAX:
        return None
    return Notice(action, _wall(fields.get("time")))


def _wall(text: object) -> WallNs | None:
    """ISO 8601 in UTC; None for anything else: that the machine goes is news all the same."""
    try:
        when = datetime.fromisoformat(text) if isinstance(text, str) else None
        if when is None or when.tzinfo is None:
            return None
        return WallNs(round(when.astimezone(UTC).timestamp() * NS_PER_S))
    except (ValueError, OverflowError):
        return None
