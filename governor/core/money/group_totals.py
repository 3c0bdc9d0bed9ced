"""The spend of this node: by run, and by stage, label, UTC day and in total.

While a governor runs, only ChargeBook feeds these counters, with the amounts that charges grow by. When it starts, they
go on from what the journal holds: run by run (`Ledger.carry_in`), the unallocated spend (`Ledger.restore`), the groups
(`restore` here; `budgeting.count_before` for a journal that has none). Counters and charges are stored in one commit.
A budget that is set later counts from the ledger's beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from governor.core.base.shares import Claim, first_to_go
from governor.core.base.units import NS_PER_DAY, UsdMicros

# A node has dozens of stages and label values in its life. 512 take 40 KB in a snapshot, which is written every ten
# seconds. The least recently charged group without a budget is dropped (a label with a new value at every launch would
# fill any number).
KEYS_MAX: Final = 512
# A longer key is prose: it is not counted, and no scope may name it.
KEY_CHARS_MAX: Final = 160
DAYS_MAX: Final = 3  # Today, yesterday, and one day of a wrong clock.
# Runs that are no longer managed and may come back to their budgets, below 1 MB. The journal has the others.
PAST_MAX: Final = 1_000
# Launched commands of one ledger with runs that count to them: 50 KB in a snapshot. Each name has a ledger of its own,
# except where [paths] gives one to several.
COMMANDS_MAX: Final = 1_000

Labels = Iterable[tuple[str, str]]


def stage_key(stage: str) -> str:
    return f"stage:{stage}"


def label_key(label: str, value: str) -> str:
    return f"label:{label}={value}"


def keys_of(stage: str | None, labels: Labels) -> Iterator[str]:
    """The keys of all groups that this stage and these labels belong to, without day and node."""
    if stage:
        yield stage_key(stage)
    for label, value in labels:
        yield label_key(label, value)


class RunSpend:
    """Counters in micro-dollars by run, over all its attempts and governors. Unallocated spend has a counter too."""

    def __init__(self) -> None:
        self.past: dict[str, Claim] = {}  # Runs with a counter that are no longer managed, oldest first.
        self.folded_usd_micros = 0  # The sum of runs whose names were dropped.
        self.folded_total = 0  # How many names this governor has dropped.
        self.by_run: dict[str, int] = {}  # Read at every step of every run.
        # What runs have cost that count to a launched command (see count_to), by its name: dropped runs too.
        self._by_command: dict[str, int] = {}
        self._parts: dict[str, tuple[str, int]] = {}  # By such a run: its command, and how much of that sum it is.

    def enter(self, run: str, usd_micros: int) -> None:
        """Add what a charge of this run has grown by."""
        self.carry_in(run, usd_micros)
        if run in self._parts:
            command, part = self._parts[run]
            self._parts[run] = command, part + usd_micros
            self._by_command[command] = self._by_command.get(command, 0) + usd_micros

    def carry_in(self, run: str, usd_micros: int) -> None:
        """Add a run's spend from the journal."""
        self.by_run[run] = self.by_run.get(run, 0) + usd_micros

    def move(self, run: str, to: str, usd_micros: int) -> None:
        """Move an amount: its charge now belongs to another run."""
        self.enter(run, -usd_micros)
        self.enter(to, usd_micros)

    def restore(self, run: str, usd_micros: int) -> None:
        """Set the counter."""
        self.by_run[run] = usd_micros

    def make_past(self, run: str, claim: Claim = Claim()) -> str | None:
        """The run is no longer managed: hold its counter. Beyond PAST_MAX one counter is added to one sum.

        Returns the name of the run that was dropped, if there is one: by fair shares of the uids.
        """
        self.recall(run)
        self.past[run] = claim
        if len(self.past) <= PAST_MAX:
            return None
        dropped = first_to_go(self.past)
        del self.past[dropped]
        self.folded_usd_micros += self.by_run.pop(dropped, 0)
        self.folded_total += 1
        self._parts.pop(dropped, None)  # Its command's sum keeps it.
        return dropped

    # --- what counts to a launched command: to the ceiling of its name, whatever the run is called ---

    def count_to(self, run: str, command: str | None) -> None:
        """Count to this command all that the run has cost and will cost. None: its spend is its own again.

        What it has cost below another command stays counted to that one.
        """
        before = self._parts.get(run)
        if command is None:
            if before is not None:
                del self._parts[run]
                self._by_command[before[0]] = self.of_command(before[0]) - before[1]
        elif before is None or before[0] != command:
            part = self.by_run.get(run, 0) if before is None else 0
            self._parts[run] = command, part
            self.count_sum_to(command, part)

    def count_sum_to(self, command: str, usd_micros: int) -> None:
        """Count an amount to this command that no run of it has."""
        self._by_command[command] = self._by_command.pop(command, 0) + usd_micros
        while len(self._by_command) > COMMANDS_MAX:
            del self._by_command[next(iter(self._by_command))]

    def part_of(self, run: str) -> tuple[str, int] | None:
        """The command that the run counts to, and how much of that command's sum is the run's."""
        return self._parts.get(run)

    def of_command(self, command: str) -> int:
        return self._by_command.get(command, 0)

    def beside(self, run: str, command: str) -> int:
        """What counts to the command and is not the run's."""
        its, part = self._parts.get(run, (command, 0))
        return self.of_command(command) - (part if its == command else 0)

    def commands(self) -> dict[str, int]:
        return {command: amount for command, amount in self._by_command.items() if amount}

    def restore_commands(self, sums: Mapping[str, int]) -> None:
        """Go on with the journal's sums."""
        self._by_command = dict(sums)

    def restore_part(self, run: str, command: str, usd_micros: int) -> None:
        """The run counts to this command. The journal's sum has its part already."""
        self._parts[run] = command, usd_micros

    def mend_commands(self) -> None:
        """No sum is less than its parts: the journal's sums may have been unreadable."""
        parts: Counter[str] = Counter()
        for command, part in self._parts.values():
            parts[command] += part
        self._by_command |= {command: max(part, self.of_command(command)) for command, part in parts.items()}

    def unfold(self, run: str, usd_micros: int) -> None:
        """Give a run whose name was dropped its counter back, as the journal has it."""
        self.by_run[run] = usd_micros
        self.folded_usd_micros = max(0, self.folded_usd_micros - usd_micros)

    def recall(self, run: str) -> None:
        """Manage the run again: its counter continues."""
        self.past.pop(run, None)

    def names(self) -> list[str]:
        return list(self.by_run)

    def total(self) -> UsdMicros:
        return UsdMicros(sum(self.by_run.values()) + self.folded_usd_micros)


class GroupSpend:
    """Counters in micro-dollars. They go down only where a charge moves to another payer. Each day has its own."""

    def __init__(self) -> None:
        self.node_usd_micros = 0
        # Dropped counters. Their groups would begin at zero again.
        self.dropped_total = 0
        self.pinned: Collection[str] = ()  # Groups with a budget are never dropped.
        self._by_key: dict[str, int] = {}  # Least recently charged first.
        self._by_day: dict[int, int] = {}  # By days since 1970, in the same order.

    def enter(self, from_wall: int, elapsed: int, stage: str | None, labels: Labels, usd_micros: int) -> None:
        """Count a piece of a charge that began at `from_wall` and lasted `elapsed`. Days are split at 00:00 UTC."""
        self.node_usd_micros += usd_micros
        self._to_days(from_wall, elapsed, usd_micros)
        self.allot(stage, labels, usd_micros)

    def allot(self, stage: str | None, labels: Labels, usd_micros: int) -> None:
        """Count only for stage and labels: node and day have counted the amount already, for another payer."""
        for key in keys_of(stage, labels):
            if len(key) <= KEY_CHARS_MAX:
                self._by_key[key] = max(0, self._by_key.pop(key, 0) + usd_micros)  # Its counter may have been dropped.
        while len(self._by_key) > KEYS_MAX:
            oldest = next((key for key in self._by_key if key not in self.pinned), None)
            if oldest is None:
                return
            del self._by_key[oldest]
            self.dropped_total += 1

    def pin(self, keys: Collection[str]) -> None:
        """Set the groups that have a budget: they are never dropped."""
        self.pinned = keys

    def begin_at(self, node_usd_micros: int) -> None:
        """Set the node's spend from a journal that has no group counters yet."""
        self.node_usd_micros = node_usd_micros

    def _to_days(self, from_wall: int, elapsed: int, usd_micros: int) -> None:
        end = from_wall + elapsed
        at = from_wall
        while True:
            day = at // NS_PER_DAY
            bound = min(end, (day + 1) * NS_PER_DAY)
            # As core.money.reports.cost cuts a charge: the difference of two floors, so that the parts add up.
            before, after = at - from_wall, bound - from_wall
            part = usd_micros * after // elapsed - usd_micros * before // elapsed if elapsed else usd_micros
            self._by_day[day] = self._by_day.pop(day, 0) + part
            at = bound
            if at >= end:
                break
        while len(self._by_day) > DAYS_MAX:
            del self._by_day[next(iter(self._by_day))]

    def of_key(self, key: str) -> int:
        return self._by_key.get(key, 0)

    def of_day(self, wall: int) -> int:
        """The spend of this instant's UTC day so far."""
        return self._by_day.get(wall // NS_PER_DAY, 0)

    def keys(self) -> list[str]:
        return list(self._by_key)

    def snapshot(self) -> dict[str, Any]:
        return {
            "keys": dict(self._by_key),
            "days": {str(day): amount for day, amount in self._by_day.items()},
            "node_usd_micros": self.node_usd_micros,
            "dropped_total": self.dropped_total,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Restore the counters. KeyError, TypeError, ValueError or AttributeError when it is not a snapshot of them."""
        by_key = {str(key): int(amount) for key, amount in snapshot["keys"].items()}
        by_day = {int(day): int(amount) for day, amount in snapshot["days"].items()}
        node, dropped = int(snapshot["node_usd_micros"]), int(snapshot["dropped_total"])
        self._by_key, self._by_day, self.node_usd_micros, self.dropped_total = by_key, by_day, node, dropped
