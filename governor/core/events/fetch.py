"""What a rank's shim reports of the fetches of its training thread: batches that it asks a loader for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from governor.core.base.units import MonoNs


@dataclass(frozen=True, slots=True)
class Fetch:
    """`since`: when the present fetch began; None outside of one."""

    since: MonoNs | None
    longest_ns: int  # Of the fetches of this attempt that have ended.
    # Of a loader's first batch only: how often that loader was started before. It starts workers and fills buffers.
    starts: int | None = None

    @classmethod
    def read(cls, record: Mapping[str, Any] | None, at: MonoNs) -> Self | None:
        """Read the `fetch` of a beat that came `at`. None: the shim is older, or what it says cannot be."""
        if record is None:
            return None
        longest_ns = record.get("longest_ns", 0)
        since, starts = record.get("since_ns"), record.get("starts")
        if not _is_count(longest_ns) or not (since is None or _is_count(since)):
            return None
        # A strange count is none: then the longest of all limits holds.
        known = None if starts is None else starts if _is_count(starts) else 0
        return cls(None if since is None else MonoNs(min(since, at)), longest_ns, known)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
