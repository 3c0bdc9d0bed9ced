"""Who pays for the time of a command that `costgov run` launched. Two owners, six facts, one complete table.

The command begins before any run reports: it imports, it reads data. The charges of that time are unallocated. They
wait for the first run that reports, which takes them over under the same charge ids (ChargeBook.hand_over). When that
run has ended and the command continues, its time is unallocated again and waits for the next run. Meanwhile a run
stands in for the command, and the waiting charges count towards its ceiling (engine.launched_command).

The account has the run that took the time over last: it began to report when no other run of the command did. Its
budget goes on while it stands in, and at the command's next launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Final

from governor.core.base.units import BootNs
from governor.core.money.spend_marks import Marks


class Owner(Enum):
    UNALLOCATED = "unallocated"  # Unallocated charges wait for the next run that reports.
    # A run of the command has held the node and pays. Unallocated charges beside it stay unallocated.
    RUN = "run"


class Fact(Enum):
    # A run reports for the command, or is halted or has ended in its place.
    RUN_REPORTS = "run reports"
    RUN_FOLLOWS = "run follows"  # A run begins to report, and the one that has the account has ended.
    RUN_INHERITS = "run inherits"  # A run that took over the time of the command's launch before stands in for it.
    NODE_HELD = "node held"  # Time has passed while a run of the command held the node.
    # No run reports for the command any more, and a run begins to stand in for it.
    RUN_STANDS_IN = "run stands in"
    # The governor restarted while the command went on: the journal has the account.
    RESTORED = "restored"


class Act(Enum):
    STAY = "stay"
    TAKE = "take"  # The waiting charges move to the run.
    # The account takes the run's name, if it has none.
    NAME = "name"
    MOVE = "move"  # Nothing waits. The account takes the run's name.
    BEGIN = "begin"  # Unallocated charges from now on wait.
    RESUME = "resume"  # The account and its beginning come from the journal.


TABLE: Final[dict[tuple[Owner, Fact], tuple[Owner, Act]]] = {
    (Owner.UNALLOCATED, Fact.RUN_REPORTS): (Owner.RUN, Act.TAKE),
    (Owner.UNALLOCATED, Fact.RUN_FOLLOWS): (Owner.RUN, Act.TAKE),
    (Owner.UNALLOCATED, Fact.RUN_INHERITS): (Owner.UNALLOCATED, Act.NAME),
    # Restored from the journal: the run has taken the earlier charges already.
    (Owner.UNALLOCATED, Fact.NODE_HELD): (Owner.RUN, Act.STAY),
    (Owner.UNALLOCATED, Fact.RUN_STANDS_IN): (Owner.UNALLOCATED, Act.STAY),  # No run has reported since the launch.
    (Owner.UNALLOCATED, Fact.RESTORED): (Owner.UNALLOCATED, Act.RESUME),
    (Owner.RUN, Fact.RUN_REPORTS): (Owner.RUN, Act.NAME),  # A second run beside the first pays only its share.
    (Owner.RUN, Fact.RUN_FOLLOWS): (Owner.RUN, Act.MOVE),  # No tick fell between the two.
    (Owner.RUN, Fact.RUN_INHERITS): (Owner.RUN, Act.NAME),
    (Owner.RUN, Fact.NODE_HELD): (Owner.RUN, Act.STAY),
    (Owner.RUN, Fact.RUN_STANDS_IN): (Owner.UNALLOCATED, Act.BEGIN),
    (Owner.RUN, Fact.RESTORED): (Owner.RUN, Act.RESUME),
}
_HOLES: Final = set(product(Owner, Fact)) - TABLE.keys()
assert not _HOLES, f"the command's account has holes: {_HOLES}"


@dataclass(slots=True)
class CommandAccount:
    """The present owner of the command's time. It exists also without a launched command, but is not used then."""

    since: BootNs  # Since when charges wait.
    owner: Owner = Owner.UNALLOCATED
    # The last run that took over the command's time. Its budget holds while it stands in.
    run: str | None = None
    goes_on: bool = False  # The command has outlived the previous governor.
    # A run of the command's own user has reported. Before, the command may have become another user, whose run pays.
    has_own: bool = False
    unpriced_ns: int = 0  # Of the time that waits, what has no price.
    marks: Marks = field(default_factory=Marks)  # Of all unallocated spend, while time waits.

    @property
    def is_held(self) -> bool:
        return self.owner is Owner.RUN

    def pass_unpriced(self, passed_ns: int) -> None:
        """Time that waits has passed without a price; below zero: a price that was read late reaches back."""
        self.unpriced_ns = max(0, self.unpriced_ns + passed_ns)

    def take_unpriced(self) -> int:
        """What of the waiting time has no price. A run takes it over."""
        taken, self.unpriced_ns = self.unpriced_ns, 0
        return taken

    def run_reports(self, run: str, *, follows: bool = False) -> bool:
        """A run reports for the command. Returns whether it takes over the waiting charges.

        `follows`: it begins to, and the run that has the account has ended.
        """
        return self._name(run, Fact.RUN_FOLLOWS if follows else Fact.RUN_REPORTS) is Act.TAKE

    def own_reports(self) -> None:
        """The command's own user has a run of it. What others below it were charged before is that run's."""
        self.has_own = True

    def inherit(self, run: str) -> None:
        """No run reports yet, and this one took over the time of the command's launch before: its budget goes on."""
        self._name(run, Fact.RUN_INHERITS)

    def node_held(self) -> None:
        """Time has passed while a run of the command held the node."""
        self._next(Fact.NODE_HELD)

    def run_stands_in(self, now: BootNs) -> bool:
        """A run begins to stand in for the command. Returns whether another run had held the node before."""
        act = self._next(Fact.RUN_STANDS_IN)
        if act is Act.BEGIN:
            self.since = now
            self.marks.forget()
        return act is Act.BEGIN

    def restore(self, run: str | None, since: BootNs, *, has_own: bool = True) -> None:
        """The governor restarted while the command went on: restore the account from the journal."""
        self._next(Fact.RESTORED)
        self.run, self.since, self.goes_on, self.has_own = run, since, True, has_own

    def _name(self, run: str, fact: Fact) -> Act:
        act = self._next(fact)
        if act in (Act.TAKE, Act.MOVE) or self.run is None:
            self.run = run
        return act

    def _next(self, fact: Fact) -> Act:
        self.owner, act = TABLE[self.owner, fact]
        return act
