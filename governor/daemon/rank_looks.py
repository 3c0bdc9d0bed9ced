"""Looks at ranks from outside: a `show` goes out to each, and what comes back is kept for whoever asked.

Nothing waits here. A rank that does not answer is shown as one that has not answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_MS, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.shown import RankShowed
from governor.wire.shown import show_packet

LOOKS_MAX: Final = 16  # The oldest is forgotten.
LOOK_PERIOD_NS: Final = 200 * NS_PER_MS  # Between two of one run: a script in a loop must not keep ranks busy.
CAPABILITY: Final = "show"

Send = Callable[[ConnectionId, bytes], bool]


@dataclass(slots=True)
class Look:
    look_id: str
    run: str
    what: str
    at: MonoNs
    asked: dict[ConnectionId, int]  # Connection -> rank.
    unable: tuple[int, ...] = ()  # Ranks that were not asked: not connected, an older shim, or a full socket.
    answers: dict[int, RankShowed] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(sorted(rank for rank in self.asked.values() if rank not in self.answers))


@dataclass(slots=True)
class RankLooks:
    send: Send
    _looks: dict[str, Look] = field(default_factory=dict)
    _number: int = 0

    def begin(self, managed: ManagedRun, what: str, at: MonoNs, steps: int = 0, only: int | None = None) -> Look | None:
        """Ask the run's connected ranks, or one of them. None: it was asked a moment ago."""
        run = managed.run
        if any(look.run == run.run and at - look.at < LOOK_PERIOD_NS for look in self._looks.values()):
            return None
        self._number += 1
        look = Look(f"look-{self._number}", run.run, what, at, {})
        packet, unable = show_packet(look.look_id, what, steps), []
        for rank in run.ranks.values():
            if only is not None and rank.rank != only:
                continue
            able = rank.connection is not None and CAPABILITY in rank.capabilities
            if able and rank.connection is not None and self.send(rank.connection, packet):
                look.asked[rank.connection] = rank.rank
            else:
                unable.append(rank.rank)
        look.unable = tuple(sorted(unable))
        self._looks[look.look_id] = look
        if len(self._looks) > LOOKS_MAX:
            del self._looks[next(iter(self._looks))]
        return look

    def take(self, showed: RankShowed) -> None:
        """Keep an answer: once, and only of who was asked. The connection is the identity, no field is."""
        look = self._looks.get(showed.look)
        rank = look.asked.get(showed.connection) if look is not None and look.what == showed.what else None
        if look is not None and rank is not None:
            look.answers.setdefault(rank, showed)

    def of(self, look_id: str) -> Look | None:
        return self._looks.get(look_id)
