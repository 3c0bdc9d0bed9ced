"""Who pays for the time of a command that `costgov run` launched. Two owners, four facts, one complete table.

The command begins before anybody speaks for it: it imports, it reads data. That time is nobody's in the charges, and it
waits for the run that speaks first, which takes it over under the same charge ids (ChargeBook.hand_over). When that run
has ended and the command goes on, the time is nobody's again and waits for the next one. Meanwhile a run stands in for
the command, and what waits counts towards its ceiling (engine.launched_command).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Final

from governor.core.base.units import BootNs


class Owner(Enum):
    NOBODY = "nobody"  # What is charged to nobody waits for the run that speaks next.
    RUN = "run"  # A run of the command has held the node: it pays, and what is nobody's beside it stays nobody's.


class Fact(Enum):
    SPOKEN = "spoken"  # A run speaks for the command, or is halted or has ended in its stead.
    HELD = "held"  # Time has passed while a run of the command held the node.
    SILENT = "silent"  # Nobody speaks for the command any more, and a run begins to stand in for it.
    TAKEN_UP = "taken up"  # The governor was away, the command was not: the journal says how it stood.


class Act(Enum):
    STAY = "stay"
    TAKE = "take"  # What waits goes on the run's account.
    NAME = "name"  # Nothing waits. The account has the run's name, if it has none.
    BEGIN = "begin"  # What is charged to nobody from now on waits.
    RESUME = "resume"  # The account and the beginning are the journal's.


TABLE: Final[dict[tuple[Owner, Fact], tuple[Owner, Act]]] = {
    (Owner.NOBODY, Fact.SPOKEN): (Owner.RUN, Act.TAKE),
    (Owner.NOBODY, Fact.HELD): (Owner.RUN, Act.STAY),  # Known from the journal: it has taken what was before.
    (Owner.NOBODY, Fact.SILENT): (Owner.NOBODY, Act.STAY),  # Nobody has spoken since the launch.
    (Owner.NOBODY, Fact.TAKEN_UP): (Owner.NOBODY, Act.RESUME),
    (Owner.RUN, Fact.SPOKEN): (Owner.RUN, Act.NAME),  # A second run beside the first pays its share, and no more.
    (Owner.RUN, Fact.HELD): (Owner.RUN, Act.STAY),
    (Owner.RUN, Fact.SILENT): (Owner.NOBODY, Act.BEGIN),
    (Owner.RUN, Fact.TAKEN_UP): (Owner.RUN, Act.RESUME),
}
_HOLES: Final = set(product(Owner, Fact)) - TABLE.keys()
assert not _HOLES, f"the command's account has holes: {_HOLES}"


@dataclass(slots=True)
class CommandAccount:
    """Whose the command's time is now. Without a launched command it is followed, and nobody asks."""

    since: BootNs  # When what waits began.
    owner: Owner = Owner.NOBODY
    run: str | None = None  # Who took the command's time over last: its budget goes on when it stands in.
    goes_on: bool = False  # The command has outlived the governor before us.

    @property
    def is_held(self) -> bool:
        return self.owner is Owner.RUN

    def spoken(self, run: str) -> bool:
        """A run speaks for the command. Does it take over what waits?"""
        act = self._next(Fact.SPOKEN)
        if act is Act.TAKE or self.run is None:
            self.run = run
        return act is Act.TAKE

    def held(self) -> None:
        """Time has passed while a run of the command held the node."""
        self._next(Fact.HELD)

    def silent(self, now: BootNs) -> bool:
        """A run begins to stand in for the command. Had another held the node before it?"""
        act = self._next(Fact.SILENT)
        if act is Act.BEGIN:
            self.since = now
        return act is Act.BEGIN

    def taken_up(self, run: str | None, since: BootNs) -> None:
        """Our own crash, and not a launch: the command goes on as the journal left it."""
        self._next(Fact.TAKEN_UP)
        self.run, self.since, self.goes_on = run, since, True

    def _next(self, fact: Fact) -> Act:
        self.owner, act = TABLE[self.owner, fact]
        return act
