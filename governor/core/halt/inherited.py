"""The processes of a launch whose `costgov run` is gone, for the governor that goes on with its halt.

They are not below that governor: they went to init, or to another process that takes orphans. So it goes by what the
journal has of the launch. The launch's own are the command, what was seen below it at the last look (by pid and start),
what is in the control group that was made for it, its user's processes with its mark, and all that stands below one of
these. So is then all of the command's session: nobody can enter one, and no other has its number while somebody is in
it. And so is any session that had the launch's processes alone at the last look, while one of these lives in it.
Whoever else shows a sign of the launch, as another user with its mark, which everybody can copy, is named, and not
ended. What left the tree after the last look as another user, and has dropped the mark, is not known; nor is what was
too much to be listed, where nobody who is listed lives in its session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.halt.adopted import Adoption, Table, children_of, of_parent
from governor.core.halt.kill_set import ancestors, is_below
from governor.core.halt.left_launch import Below, LeftLaunch


@dataclass(slots=True)
class Inherited(Adoption):
    """`reaper` is who goes on. What stands below it is its own, whoever started it."""

    cgroups: tuple[str, ...] = ()  # Made for the command.
    missed: int = 0  # As in Below.
    is_looked: bool = True  # Likewise.
    _sole: frozenset[ProcessId] = frozenset()  # Who lives in a session that is the launch's alone.

    def learn(self, table: Table) -> None:
        sessions = self._sessions(table)
        Adoption.learn(self, table)
        self._sole = frozenset(facts.process for facts in table.values() if facts.sid in sessions)

    def to_remember(self, table: Table) -> Below:
        """Also that the list which we go by was cut, or that there is none, for who goes on behind us."""
        return replace(Adoption.to_remember(self, table), missed=self.missed, is_looked=self.is_looked)

    def living(
        self, table: Table, uids: Collection[int], own: Iterable[ProcessId], others: Iterable[ProcessId]
    ) -> tuple[ProcessFacts, ...]:  # fmt: skip
        """What lives of it, or is perhaps of it, when its halt is over. The older first.

        Not what a halt leaves alone and knows: root's managers, and announced runs of `others`, with what stands below.
        """
        return self._left(table, (*self._its(table).values(), *self.unsure(table)), uids, own, others)

    def living_its(
        self, table: Table, uids: Collection[int], own: Iterable[ProcessId], others: Iterable[ProcessId]
    ) -> tuple[ProcessFacts, ...]:  # fmt: skip
        """As `living`, without what is perhaps of it."""
        return self._left(table, self._its(table).values(), uids, own, others)

    def _left(
        self, table: Table, found: Iterable[ProcessFacts], uids: Collection[int], own: Iterable[ProcessId],
        others: Iterable[ProcessId],
    ) -> tuple[ProcessFacts, ...]:  # fmt: skip
        apart = {*self.managers(table, uids), *self.to_leave(table, uids, own), *(process.pid for process in others)}
        us = table.get(self.reaper)
        above = {one.process.pid for one in ancestors(table, us)} if us is not None else set()
        left = (facts for facts in found if facts.state not in "ZX" and facts.process.pid not in above)
        known = [f for f in left if apart.isdisjoint((f.process.pid, *(a.process.pid for a in ancestors(table, f))))]
        return tuple(sorted(known, key=lambda facts: facts.process.start_ticks))

    def ours(self, table: Table) -> frozenset[int]:
        """Ourselves, what stands below us, and what we have started: where we were begun inside of the launch."""
        own = self.own()
        roots = (f for f in table.values() if f.process.pid == self.reaper or f.process in self._ours)
        started = (facts for facts in table.values() if (facts.process.pid, facts.process.start_ticks) in own)
        return frozenset(_with_all_below(table, (*roots, *started), frozenset()))

    def _below(self, table: Table, *, by_mark: bool = True) -> Iterator[tuple[ProcessFacts, bool]]:
        """Not what stands below us, but what is the launch's, and what shows a sign of it."""
        ours = self.ours(table)
        sessions = self._sessions(table)
        roots = (f for f in table.values() if f.sid in sessions or self._is_root(f, by_mark=by_mark))
        its = _with_all_below(table, roots, ours)
        fellows = [facts for facts in table.values() if facts.sid == self.command]
        if any(facts.process.pid in its for facts in fellows):
            its = _with_all_below(table, (*its.values(), *fellows), ours)
        yield from ((facts, True) for facts in its.values())
        signs = (facts for facts in table.values() if self._has_mark(facts) or facts.sid == self.command)
        yield from ((facts, False) for facts in signs if facts.process.pid not in its and facts.process.pid not in ours)

    def _sessions(self, table: Table) -> set[int]:
        """By our own numbers, whatever namespace they were noted in. 0: begun outside of it."""
        return {facts.sid for facts in table.values() if facts.sid and facts.process in self._sole}

    def _is_root(self, facts: ProcessFacts, *, by_mark: bool) -> bool:
        is_users = by_mark and facts.uid == self.uid and self._has_mark(facts)
        return is_users or facts.process in self._known or is_below(facts.cgroup, self.cgroups)


def _with_all_below(table: Table, roots: Iterable[ProcessFacts], but: frozenset[int]) -> dict[int, ProcessFacts]:
    """These processes and what stands below them, except `but`."""
    children, level, found = children_of(table), list(roots), dict[int, ProcessFacts]()
    while level:
        level = [facts for facts in level if facts.process.pid not in found and facts.process.pid not in but]
        found.update((facts.process.pid, facts) for facts in level)
        level = [facts for parent in level for facts in of_parent(children, parent)]
    return found


def inherited(
    launch: LeftLaunch, own_pid: int, own: Callable[[], frozenset[tuple[int, int]]], *, may_end_all: bool
) -> Inherited:  # fmt: skip
    """`own`, `may_end_all`: as of `Adoption`."""
    command = launch.processes[0]
    return Inherited(
        own_pid, command.pid, launch.mark, command.start_ticks, is_ours_alone=False, own=own, uid=launch.uid,
        may_end_all=may_end_all, _known=frozenset((*launch.processes, *launch.below.processes)), cgroups=launch.cgroups,
        missed=launch.below.missed, is_looked=launch.below.is_looked,
        _sole=frozenset(launch.below.processes).difference(launch.below.shared),
    )  # fmt: skip
