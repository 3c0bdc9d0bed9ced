"""What the journal is told, as its files keep it: plain text and numbers, bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from governor.adapters.journal.journal_fallback import Entry
from governor.core.base.units import MonoNs, WallNs
from governor.ports import Row

ROW_BYTES_MAX = 256 * 1024  # A row is evidence, not an archive; the largest are stacks of every rank.


def storable(name: str | None) -> str | None:
    # SQLite takes no half surrogates, and a log that was read with `surrogateescape` may hold some.
    return None if name is None else name.encode("utf-8", "backslashreplace").decode()


def text_of(data: Mapping[str, Any]) -> str:
    # Anything that is not JSON becomes its text: a record may lose its shape, a halt may not fail over it.
    return json.dumps(dict(data), default=str, separators=(",", ":"))


def bounded(text: str) -> str:
    return text if len(text) <= ROW_BYTES_MAX else json.dumps({"cut_from_bytes": len(text), "head": text[:4096]})


def row_of(entry: Entry) -> Row:
    return Row(
        kind=entry["kind"], run=entry["run"], incident_id=entry["incident_id"], mono=MonoNs(entry["mono_ns"]),
        wall=WallNs(entry["wall_ns"]), boot_id=entry["boot_id"], data=json.loads(entry["data"]),
    )  # fmt: skip
