"""What a rank shows on request. No rule judges it: it is evidence for people."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs


@dataclass(frozen=True, slots=True)
class RankShowed:
    """The answer to one look. `entries`: as the rank sent them, each printable text; nothing in them is believed."""

    at: MonoNs
    connection: ConnectionId
    run: str
    look: str
    what: str
    entries: tuple[str, ...] = ()
    path: str | None = None
    step: int | None = None
    problem: str | None = None
