"""Looks at ranks from outside: a `show` goes out to each, and what comes back is kept for whoever asked.

Nothing waits here. A rank that does not answer is shown as one that has not answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_MS, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.shown import RankShowed
from governor.core.runs.state import Rank
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
    is_of_halt: bool = False

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
        look = self._keep(Look(self._next_id(), run.run, what, at, {}))
        self._ask(look, (rank for rank in run.ranks.values() if only in (None, rank.rank)), steps)
        return look

    def begin_of_halt(self, managed: ManagedRun, what: str, at: MonoNs) -> Look:
        """Ask every connected rank, however lately a person has. It gives its place to no person's look."""
        look = self._keep(Look(self._next_id(), managed.run.run, what, at, {}, is_of_halt=True))
        self._ask(look, managed.run.ranks.values())
        return look

    def ask_more(self, look: Look, managed: ManagedRun) -> None:
        """Ask the ranks that have connected since."""
        ranks = managed.run.ranks.values()
        self._ask(look, [rank for rank in ranks if rank.connection not in look.asked and rank.rank not in look.answers])

    def take(self, showed: RankShowed) -> Look | None:
        """Keep an answer: once, and only of who was asked. The connection is the identity, no field is.

        Return the look that has it now.
        """
        look = self._looks.get(showed.look)
        rank = look.asked.get(showed.connection) if look is not None and look.what == showed.what else None
        if look is None or rank is None or rank in look.answers:
            return None
        look.answers[rank] = showed
        return look

    def _next_id(self) -> str:
        self._number += 1
        return f"look-{self._number}"

    def _keep(self, look: Look) -> Look:
        if len(self._looks) >= LOOKS_MAX:
            of_people = (look_id for look_id, one in self._looks.items() if not one.is_of_halt)
            del self._looks[next(of_people, next(iter(self._looks)))]
        self._looks[look.look_id] = look
        return look

    def _ask(self, look: Look, ranks: Iterable[Rank], steps: int = 0) -> None:
        packet, unable = show_packet(look.look_id, look.what, steps), set(look.unable)
        for rank in ranks:
            able = rank.connection is not None and CAPABILITY in rank.capabilities
            if able and rank.connection is not None and self.send(rank.connection, packet):
                look.asked[rank.connection] = rank.rank
                unable.discard(rank.rank)
            else:
                unable.add(rank.rank)
        look.unable = tuple(sorted(unable))

    def of(self, look_id: str) -> Look | None:
        return self._looks.get(look_id)
