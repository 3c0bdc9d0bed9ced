"""The orphans that come to `costgov run`: whose they are where nothing tells that they have inherited.

What leaves the command's tree stays below `costgov run`, whose children orphans become. What it starts itself has the
limit that it took before its first child (trainer_shim/mark.py), and its command has another. So whatever else stands
below it is the command's, whatever that has set or cleaned since, and counts as if it had kept the command's mark.

Not where the orphans of others come to it too: to pid 1 of a container (`docker exec`), or to a program that had
children before it became costgov (`server & exec costgov run`). There, what was seen below the command is its own, and
so is what stands below that. Of the rest nothing tells whose it is: it is named, and not ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from governor.core.base.identity import ProcessFacts, ProcessId, carries

Table = Mapping[int, ProcessFacts]


@dataclass(slots=True)
class Adoption:
    """The processes below `costgov run`."""

    reaper: int  # The pid of `costgov run`.
    command: int  # The command's, and the number of the session that it began.
    mark: int  # The command's.
    since_ticks: int  # When the command started. What is older is not its own.
    is_ours_alone: bool  # Only the command's orphans come to us.
    _known: frozenset[ProcessId] = field(default_factory=frozenset)  # What was seen below the command, of the living.

    def learn(self, table: Table) -> None:
        """Remember what stands below the command, as long as it does. Of a whole table."""
        if not self.is_ours_alone:
            self._known = frozenset(facts.process for facts, is_its in self._below(table) if is_its)

    def marked(self, table: Table) -> Table:
        """The table, with the command's mark on what is the command's and does not have it any more."""
        lost = {
            facts.process.pid: replace(facts, mark=self.mark)
            for facts, is_its in self._below(table)
            if is_its and not carries(facts.mark, self.mark)
        }
        return {**table, **lost} if lost else table

    def unsure(self, table: Table) -> tuple[ProcessFacts, ...]:
        """What is perhaps the command's: orphans from its time, of which nothing tells who started them."""
        return tuple(
            facts
            for facts, is_its in self._below(table)
            if not is_its and facts.state not in "ZX" and facts.process.start_ticks >= self.since_ticks
        )

    def _below(self, table: Table) -> Iterator[tuple[ProcessFacts, bool]]:
        """What stands below us and is not started by ourselves, and of each whether it is the command's."""
        us = table.get(self.reaper)
        if us is None:
            return
        children: dict[int, list[ProcessFacts]] = {}
        for facts in table.values():
            children.setdefault(facts.ppid, []).append(facts)
        level = [(us, self.is_ours_alone)]
        while level:
            level = [
                (facts, is_its or self._is_known(facts))
                for parent, is_its in level
                for facts in children.get(parent.process.pid, ())
                if facts.process.pid != self.reaper  # A table that changed while it was read may have a circle.
                and facts.process.start_ticks >= parent.process.start_ticks  # Else the parent's number was given again.
                and facts.mark != us.mark
                and not carries(facts.mark, us.mark)
            ]
            yield from level

    def _is_known(self, facts: ProcessFacts) -> bool:
        return carries(facts.mark, self.mark) or facts.sid == self.command or facts.process in self._known
