"""Memory figures of this process, from files and counters that never touch the device."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Optional

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def put_fields(fields: Dict[str, Any]) -> None:
    """Add what is known to a step frame's fields."""
    rss = rss_bytes()
    if rss is not None:
        fields["rss_bytes"] = rss
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    # The allocator's own counters: no device call. The nested form skips flattening ~200 entries.
    stats = torch.cuda.memory_stats_as_nested_dict()
    if stats:
        fields["mem_allocated_bytes"] = int(stats["allocated_bytes"]["all"]["current"])
        fields["mem_reserved_bytes"] = int(stats["reserved_bytes"]["all"]["current"])


def rss_bytes() -> Optional[int]:
    """Return the resident set, or None where /proc is not there."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None
