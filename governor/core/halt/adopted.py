"""The orphans that come to `costgov run`: whose they are where nothing tells that they have inherited.

What leaves the command's tree stays below `costgov run`, whose children orphans become. What it starts itself has the
limit that it took before its first child (trainer_shim/mark.py), and its command has another. It also knows its own
children by number: one that goes through PAM (runuser, su, sudo) drops the limit. So whatever else stands below it is
the command's, whatever that has set or cleaned since, and counts as if it had kept the command's mark. A halt of the
command ends it whatever user it has become: container entry points drop root by setpriv, gosu, su-exec or runuser.

Pid 1 of a container and who has children already leave the orphans of others to another process (init_process.py).
Where that could not be started they come too. Then what was seen below the command is its own, and so is what stands
below that. Of the rest nothing tells whose it is: it is named, and not ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from governor.core.base.identity import ProcessFacts, ProcessId, carries
from governor.core.halt.kill_set import ancestors, managers, stands_below
from governor.core.halt.left_launch import Below

Table = Mapping[int, ProcessFacts]

# As many as a halt knows besides (incident.PROCESSES_MAX): 90 bytes each, and each step of a halt writes them. What is
# below one of them, or in its session, need not be there while it lives.
REMEMBERED_MAX: Final = 1_024


@dataclass(slots=True)
class Adoption:
    """The processes below `costgov run`."""

    reaper: int  # The pid of `costgov run`.
    command: int  # The command's, and the number of the session that it began.
    mark: int  # The command's.
    since_ticks: int  # When the command started. What is older is not its own.
    is_ours_alone: bool  # Only the command's orphans come to us.
    own: Callable[[], frozenset[tuple[int, int]]] = frozenset  # Pid and start of what else we started.
    uid: int | None = None  # Ours.
    may_end_all: bool = False  # We may signal the processes of every user.
    _known: frozenset[ProcessId] = field(default_factory=frozenset)  # What was seen below the command, of the living.
    _ours: frozenset[ProcessId] = field(default_factory=frozenset)  # Likewise, below what we have started ourselves.

    def learn(self, table: Table) -> None:
        """Remember what stands below the command or below our own, as long as it lives. Of a whole table."""
        own, children = self._own(), children_of(table)
        level = [f for f in table.values() if f.process in self._ours or _number(f) in own]
        ours: set[ProcessId] = set()
        while level:
            ours.update(facts.process for facts in level)
            level = [f for parent in level for f in of_parent(children, parent) if f.process not in ours]
        self._ours = frozenset(ours)
        if not self.is_ours_alone:
            below = self._below(table, by_mark=False)  # Everybody can copy a mark.
            self._known = frozenset(facts.process for facts, is_its in below if is_its)

    def marked(self, table: Table) -> Table:
        """The table, with the command's mark on what is the command's and does not have it any more."""
        lost = {
            facts.process.pid: replace(facts, mark=self.mark)
            for facts, is_its in self._below(table)
            if is_its and not carries(facts.mark, self.mark)
        }
        return {**table, **lost} if lost else table

    def unsure(self, table: Table) -> tuple[ProcessFacts, ...]:
        """What is perhaps the command's: orphans from its time, of which nothing tells who started them.

        Our own user's come first: however many others have, they push none of these out of a line.
        """
        us, began = table.get(self.reaper), self.since_ticks
        found = (facts for facts, is_its in self._below(table) if not is_its and facts.process.start_ticks >= began)
        living = (facts for facts in found if facts.state not in "ZX")
        return tuple(sorted(living, key=lambda facts: us is None or facts.uid != us.uid))

    def is_among(self, processes: Iterable[ProcessId]) -> bool:
        """Whether the command is one of these."""
        return any((p.pid, p.start_ticks) == (self.command, self.since_ticks) for p in processes)

    def to_end(
        self, table: Table, uids: Collection[int], others: Iterable[ProcessId], leave: frozenset[int] = frozenset(),
        *, has_name: bool = False,
    ) -> frozenset[int]:  # fmt: skip
        """What a halt of the command may end, besides what is of the run's `uids`: our user's, and as root everybody's.

        Not root's managers (sshd, a container's) with what they have begun. Nor anything of a user whose other run
        lives below the command, one of `others`: it may be that run's. Beside such a run, another user's than ours
        (a sandbox) has nothing of others: what is ours serves both. But for the run that `has_name`, the command's,
        where our own user has none: else one hello of a sandbox would keep alive what starts the halted trainer again.
        `leave`: as of `to_leave`.
        """
        its = self._its(table)
        busy = _uids_of(its, others)
        if busy and self.uid not in uids and not (has_name and self._is_among_strangers(uids, busy)):
            return frozenset()
        foreign = [facts for facts in its.values() if facts.uid not in uids]
        left = self.managers(table, uids) | leave
        return frozenset(
            facts.process.pid
            for facts in foreign
            if (self.may_end_all or facts.uid == self.uid)
            and facts.uid not in busy
            and left.isdisjoint((facts.process.pid, *(above.process.pid for above in ancestors(table, facts))))
        )

    def above_both(
        self, table: Table, ranks: Iterable[ProcessId], uids: Collection[int], others: Iterable[ProcessId]
    ) -> frozenset[int]:  # fmt: skip
        """The processes above these ranks, for the run of the command's name, where all other runs are strangers'.

        A halt ends these though such a run stands below them too. Empty where there is no other run, or where one is of
        our own user or of the run's, as in `to_end`.
        """
        busy = _uids_of(self._its(table), others)
        if not busy or not self._is_among_strangers(uids, busy):
            return frozenset()
        own = (table[rank.pid] for rank in ranks if rank.pid in table)
        return frozenset(above.process.pid for facts in own for above in ancestors(table, facts))

    def managers(self, table: Table, uids: Collection[int]) -> frozenset[int]:
        """Root's managers below us, which no halt of a run of these `uids` ends."""
        its = self._its(table)
        foreign = (facts for facts in its.values() if facts.uid not in uids)
        return frozenset(process.pid for process in managers(its, foreign, 0))

    def to_leave(self, table: Table, uids: Collection[int], own: Iterable[ProcessId]) -> frozenset[int]:
        """Root's managers that a halt of root's own run leaves alone too: a process of none of its `uids` is below one.

        Without them what they have begun would end, or look like any orphan of the command. `own`: ranks and launchers.
        """
        its = self._its(table)
        found = managers(its, its.values(), 0) - frozenset(own)
        foreign = (facts for facts in its.values() if found and facts.uid not in uids and facts.state not in "ZX")
        above = {ancestor.process for facts in foreign for ancestor in ancestors(table, facts)}
        return frozenset(process.pid for process in found & above)

    def to_remember(self, table: Table) -> Below:
        """What is the command's, and would be known by nothing if we were killed now: by no mark that is believed.

        Where there are too many, of each session the oldest, which are above the others. See inherited.py.
        """
        its, before = self._its(table), Counter[int]()
        living = sorted((f for f in its.values() if f.state not in "ZX"), key=lambda facts: facts.process.start_ticks)
        unmarked: list[tuple[int, ProcessFacts]] = []
        for facts in living:
            if facts.uid != self.uid or not self._has_mark(facts):
                unmarked.append((before[facts.sid], facts))
                before[facts.sid] += 1
        unmarked.sort(key=lambda one: one[0])  # The first of each session, then the second of each.
        listed = [facts for _, facts in unmarked[:REMEMBERED_MAX]]
        of_others = {facts.sid for facts in table.values() if facts.process.pid not in its and facts.state not in "ZX"}
        return Below(
            processes=tuple(facts.process for facts in listed),
            shared=tuple(facts.process for facts in listed if facts.sid in of_others),
            unlisted=len(unmarked) - len(listed),
        )

    def ties(self, table: Table, facts: ProcessFacts) -> bool:
        """Whether the process's place below us says that it is the command's.

        Where others' orphans come too, it must have been seen below the command, or be in its session.
        """
        if not stands_below(table, facts, self.reaper):
            return False
        return self.is_ours_alone or any(self._is_known(one) for one in (facts, *ancestors(table, facts)))

    def _is_among_strangers(self, uids: Collection[int], busy: Collection[int]) -> bool:
        """Whether no other run below the command is of its users or ours."""
        return frozenset(busy).isdisjoint((self.uid, *uids))

    def _its(self, table: Table) -> dict[int, ProcessFacts]:
        return {facts.process.pid: facts for facts, is_its in self._below(table) if is_its}

    def _below(self, table: Table, *, by_mark: bool = True) -> Iterator[tuple[ProcessFacts, bool]]:
        """What stands below us and is not started by ourselves, and of each whether it is the command's.

        A mark says so of our own user's processes.
        """
        us = table.get(self.reaper)
        if us is None:
            return
        children, own = children_of(table), self._own()
        level = [(us, self.is_ours_alone)]
        while level:
            level = [
                (facts, is_its or self._is_known(facts) or (by_mark and us.uid == facts.uid and self._has_mark(facts)))
                for parent, is_its in level
                for facts in of_parent(children, parent)
                if facts.process.pid != self.reaper  # A table that changed while it was read may have a circle.
                and facts.process not in self._ours
                and _number(facts) not in own
                # Our limit would be no proof: everybody can read and set it. Our session is: nobody can enter one.
                and not (self.is_ours_alone and facts.sid == us.sid)
            ]
            yield from level

    def _own(self) -> frozenset[tuple[int, int]]:
        """Without a limit of its own the command itself looks like one of ours."""
        return self.own() - {(self.command, self.since_ticks)}

    def _has_mark(self, facts: ProcessFacts) -> bool:
        return carries(facts.mark, self.mark)

    def _is_known(self, facts: ProcessFacts) -> bool:
        return facts.sid == self.command or facts.process in self._known


def _uids_of(its: Mapping[int, ProcessFacts], others: Iterable[ProcessId]) -> frozenset[int]:
    return frozenset(its[p.pid].uid for p in others if p.pid in its and its[p.pid].process == p)


def _number(facts: ProcessFacts) -> tuple[int, int]:
    return facts.process.pid, facts.process.start_ticks


def children_of(table: Table) -> dict[int, list[ProcessFacts]]:
    children: dict[int, list[ProcessFacts]] = {}
    for facts in table.values():
        children.setdefault(facts.ppid, []).append(facts)
    return children


def of_parent(children: Mapping[int, list[ProcessFacts]], parent: ProcessFacts) -> Iterator[ProcessFacts]:
    """The children of a process. One that is older than its parent had another parent of that number."""
    its = children.get(parent.process.pid, ())
    return (facts for facts in its if facts.process.start_ticks >= parent.process.start_ticks)
