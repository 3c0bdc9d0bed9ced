"""What one halt knows of the processes that it ends, and what it asks of the world to find them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from governor.core.base.identity import Clue, ProcessFacts, ProcessId
from governor.core.base.units import MonoNs
from governor.core.halt.inherited import Inherited
from governor.core.halt.kill_set import KillSet, ancestors, in_group
from governor.core.halt.neighbours import Ties

Table = Mapping[int, ProcessFacts]


class ControlGroup(Protocol):
    """A control group that was made for one command. It has what the command started, and nothing else."""

    @property
    def path(self) -> str:
        """As the process table shows it."""

    @property
    def is_populated(self) -> bool:
        """Whether any process lives in it, whosever it is and whether the table shows it or not."""

    def kill(self) -> bool:
        """SIGKILL to all that is in it at once, forks under way too. False where the kernel cannot."""


class Surroundings(Protocol):
    """What our own user's processes show besides the process table. Only `costgov run` looks at it."""

    @property
    def directory(self) -> str:
        """Where the command was started."""

    def clues(self, of: Iterable[ProcessId]) -> Mapping[ProcessId, Clue]:
        """Those that may be read. Returns soon."""


@dataclass(slots=True)
class KillInProgress:
    """One halt's processes. `signum` is the strongest signal sent so far."""

    # The announced ranks. The run is not gone before each of them is, even one that we may not end.
    ranks: tuple[ProcessId, ...]
    launchers: tuple[ProcessId, ...]
    uid: int
    other_uids: tuple[int, ...]
    signum: signal.Signals
    inherited: Inherited | None = None  # Its launch, which another governor has begun.
    has_name: bool = False  # Its run is the one of the command's name.
    marks: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # What its ranks run or ran.
    # Perhaps of the run, as of now: never signalled, and named when all else is gone.
    unsure: Callable[[], Iterable[ProcessId]] = tuple
    others: Callable[[], Iterable[ProcessId]] = tuple  # Announced processes of the node's other runs, as of now.
    strangers: Callable[[], Iterable[ProcessId]] = tuple  # Those of `others` that are other users'.
    # Other runs before their hello: those that environments have shown, and what may be another run of the sweep.
    apart: tuple[ProcessId, ...] = ()
    siblings: tuple[ProcessId, ...] = ()
    signalled: tuple[ProcessId, ...] = ()  # In this halt, by an earlier governor too.
    bearers_shared: tuple[ProcessId, ...] = ()  # Those with the run's mark where another launch has it too.
    ties: Ties = field(default_factory=lambda: Ties((), ()))  # As of the last table.
    of_command: frozenset[int] = frozenset()  # Likewise: what may be ended whatever its uid is.
    left: frozenset[int] = frozenset()  # Likewise: root's managers, which would be ended as root's run.
    managers: frozenset[int] = frozenset()  # Likewise: these, and those that the run's users do not have.
    members: KillSet | None = None  # None before a process table could be read.
    is_waiting: bool = False  # `signum` waits for a readable process table.
    unsent: tuple[ProcessId, ...] = ()  # Processes not yet sent `signum`, first in the next round.
    empty_scans: int = 0
    is_gone_reported: bool = False
    next_at: MonoNs = MonoNs(0)

    @property
    def uids(self) -> tuple[int, ...]:
        return (self.uid, *self.other_uids)

    def leaves_all_in(self, table: Table, path: str) -> bool:
        """Whether all that this control group holds is root's managers that are left alone, and what they have begun.

        It was looked at as root, who sees every process. The kernel's own word, that somebody is in it, says no more.
        """
        inside = in_group(table, path)
        above = ((facts, *ancestors(table, facts)) for facts in inside)
        return bool(inside) and all(any(one.process.pid in self.managers for one in line) for line in above)

    @property
    def kept(self) -> tuple[ProcessId, ...]:
        """What this halt has known as the run's: its launcher may be gone by now, and nothing else may tell."""
        return (*self.signalled, *(self.members.members if self.members is not None else ()))
