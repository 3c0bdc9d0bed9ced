"""Looks at ranks from outside: a `show` goes out to each, and what comes back is kept for whoever asked.

Nothing waits here. A rank that does not answer is shown as one that has not answered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.events.shown import RankShowed
from governor.core.runs.state import Rank
from governor.wire.shown import show_packet

# Of one run, and of all runs of one user. Which is forgotten first: what nobody waits for, then the oldest.
LOOKS_PER_RUN_MAX: Final = 8
LOOKS_PER_UID_MAX: Final = 32
BYTES_PER_RUN_MAX: Final = 8 << 20
BYTES_PER_UID_MAX: Final = 32 << 20
KEPT_NS: Final = 60 * NS_PER_S  # After it was begun or read for the last time.
WAITED_FOR_NS: Final = 5 * NS_PER_S  # Who waits for an answer reads ten times a second.
# torch's recorder holds the interpreter for 50 ms, in which no step goes on. Meanwhile the last answer is shown again.
COLLECTIVES_PERIOD_NS: Final = 10 * NS_PER_S
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
    uid: int = 0  # Of the run.
    only: int | None = None  # The one rank that was asked.
    read_at: MonoNs = MonoNs(0)
    bytes: int = 0  # What the answers take.
    is_of_halt: bool = False  # And that halt goes on.

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
        self.forget(at)
        if what == "collectives" and (last := self._last_collectives(run.run, at, only)) is not None:
            last.read_at = at
            return last
        if any(look.run == run.run and at - look.at < LOOK_PERIOD_NS for look in self._looks.values()):
            return None
        look = self._keep(Look(self._next_id(), run.run, what, at, {}, uid=run.uid, only=only, read_at=at))
        self._ask(look, (rank for rank in run.ranks.values() if only in (None, rank.rank)), steps)
        self._trim(look, at)
        return look

    def begin_of_halt(self, managed: ManagedRun, what: str, at: MonoNs) -> Look:
        """Ask every connected rank, however lately a person has. It gives its place to no person's look."""
        run = managed.run
        look = self._keep(Look(self._next_id(), run.run, what, at, {}, uid=run.uid, read_at=at, is_of_halt=True))
        self._ask(look, run.ranks.values())
        self._trim(look, at)
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
        size = _bytes_of(showed)
        if look.bytes + size > BYTES_PER_RUN_MAX:
            told = f"the ranks of this run have shown more than {BYTES_PER_RUN_MAX >> 20} MB"
            showed, size = replace(showed, entries=(), path=None, problem=told), 0
        look.answers[rank] = showed
        look.bytes += size
        self._trim(look, showed.at)
        return look

    def _next_id(self) -> str:
        self._number += 1
        return f"look-{self._number}"

    def _keep(self, look: Look) -> Look:
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

    def of(self, look_id: str, at: MonoNs) -> Look | None:
        self.forget(at)
        look = self._looks.get(look_id)
        if look is not None:
            look.read_at = at
        return look

    def halt_is_over(self, look: Look) -> None:
        """No halt needs this look any more. It is kept for whoever has read it, as any other, and else gone now."""
        look.is_of_halt = False
        if look.read_at == look.at:
            self._looks.pop(look.look_id, None)

    def forget(self, at: MonoNs) -> None:
        """Let go of what nobody has read for a while. What a halt has asked is kept until that is over."""
        old = [one for one in self._looks.values() if at - one.read_at > KEPT_NS and not one.is_of_halt]
        for look in old:
            del self._looks[look.look_id]

    def _last_collectives(self, run: str, at: MonoNs, only: int | None) -> Look | None:
        """The newest look that shows this already and is not too old."""
        for look in reversed(self._looks.values()):
            if look.run == run and look.what == "collectives" and look.only in (None, only):
                return look if at - look.at < COLLECTIVES_PERIOD_NS else None
        return None

    def _trim(self, newest: Look, at: MonoNs) -> None:
        """Keep to the bounds of this look's run and user. Another user's looks are not touched."""
        of_run = [look for look in self._looks.values() if look.run == newest.run]
        self._trimmed(of_run, newest, at, LOOKS_PER_RUN_MAX, BYTES_PER_RUN_MAX)
        of_uid = [look for look in self._looks.values() if look.uid == newest.uid]
        self._trimmed(of_uid, newest, at, LOOKS_PER_UID_MAX, BYTES_PER_UID_MAX)

    def _trimmed(self, kept: list[Look], newest: Look, at: MonoNs, most: int, bytes_max: int) -> None:
        kept.sort(
            key=lambda look: (look.is_of_halt or (bool(look.waiting) and at - look.read_at < WAITED_FOR_NS), look.at)
        )
        while len(kept) > most or sum(look.bytes for look in kept) > bytes_max:
            first = next(look for look in kept if look is not newest)
            kept.remove(first)
            del self._looks[first.look_id]


def _bytes_of(showed: RankShowed) -> int:
    return sum(sys.getsizeof(text) for text in (*showed.entries, showed.path or "", showed.problem or ""))
