"""What has been spent on this node: by run, and by stage, label, UTC day and everything together.

ChargeBook alone feeds both counters, with the very pieces that charges grow by, so each counter is the sum of its
charges. Both are kept in the commit of those charges. A budget that is set later counts from the ledger's beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from governor.core.base.units import NS_PER_DAY, UsdMicros

# Stages and label values of one node: dozens in its life. Half a thousand is 40 KB in a snapshot kept every ten
# seconds; what was charged longest ago and has no budget makes room (a label with a new value every launch would fill
# any number).
KEYS_MAX: Final = 512
KEY_CHARS_MAX: Final = 160  # Longer ones are prose: not counted, and no scope may name them.
DAYS_MAX: Final = 3  # Today, the day before, and one that a wrong clock has invented.
# Runs that nobody tracks any more and that may come back to their budgets: as many as the journal knows. Below a MB.
FORGOTTEN_MAX: Final = 1_000

Labels = Iterable[tuple[str, str]]


def stage_key(stage: str) -> str:
    return f"stage:{stage}"


def label_key(label: str, value: str) -> str:
    return f"label:{label}={value}"


def keys_of(stage: str | None, labels: Labels) -> Iterator[str]:
    """Every group that time of this stage with these labels belongs to, beside the day and the node."""
    if stage:
        yield stage_key(stage)
    for label, value in labels:
        yield label_key(label, value)


class RunSpend:
    """Counters in micro-dollars by run, over all its attempts and governors. What nobody held has a counter too."""

    def __init__(self) -> None:
        self.forgotten: dict[str, None] = {}  # They have a counter and are no longer tracked, oldest first.
        self.folded_usd_micros = 0  # What those spent whose names are gone.
        self._by_run: dict[str, int] = {}

    def enter(self, run: str, usd_micros: int) -> None:
        """Count what a charge of this run has grown by, or what a journal says that it has spent."""
        self._by_run[run] = self._by_run.get(run, 0) + usd_micros

    def move(self, run: str, to: str, usd_micros: int) -> None:
        """Follow a charge that is another run's now."""
        self.enter(run, -usd_micros)
        self.enter(to, usd_micros)

    def restore(self, run: str, usd_micros: int) -> None:
        """Go on counting from there, whatever stood here."""
        self._by_run[run] = usd_micros

    def forget(self, run: str) -> str | None:
        """The run is no longer tracked. Its counter waits for it; beyond FORGOTTEN_MAX the oldest goes into one sum.

        Returns the name that is gone with it, if one is.
        """
        self.recall(run)
        self.forgotten[run] = None
        if len(self.forgotten) <= FORGOTTEN_MAX:
            return None
        oldest = next(iter(self.forgotten))
        del self.forgotten[oldest]
        self.folded_usd_micros += self._by_run.pop(oldest, 0)
        return oldest

    def recall(self, run: str) -> None:
        """The run is tracked again: it goes on with what it has spent."""
        self.forgotten.pop(run, None)

    def of(self, run: str) -> UsdMicros:
        return UsdMicros(self._by_run.get(run, 0))

    def names(self) -> list[str]:
        return list(self._by_run)

    def total(self) -> UsdMicros:
        return UsdMicros(sum(self._by_run.values()) + self.folded_usd_micros)


class GroupSpend:
    """Counters in micro-dollars. They never go down; a day's stands beside the other days'."""

    def __init__(self) -> None:
        self.node_usd_micros = 0
        self.dropped_total = 0  # Counters that made room: their groups would begin at zero again.
        self.pinned: Collection[str] = ()  # Those with a budget are never dropped.
        self._by_key: dict[str, int] = {}  # The one charged longest ago first.
        self._by_day: dict[int, int] = {}  # By days since 1970; ordered likewise.

    def enter(self, from_wall: int, elapsed: int, stage: str | None, labels: Labels, usd_micros: int) -> None:
        """Count a piece of a charge that began at `from_wall` and lasted `elapsed`. Days are cut at 00:00 UTC."""
        self.node_usd_micros += usd_micros
        self._to_days(from_wall, elapsed, usd_micros)
        self.allot(stage, labels, usd_micros)

    def allot(self, stage: str | None, labels: Labels, usd_micros: int) -> None:
        """Count for stage and labels alone: what the node and the day have counted already, and nobody had held."""
        for key in keys_of(stage, labels):
            if len(key) <= KEY_CHARS_MAX:
                self._by_key[key] = self._by_key.pop(key, 0) + usd_micros
        while len(self._by_key) > KEYS_MAX:
            oldest = next((key for key in self._by_key if key not in self.pinned), None)
            if oldest is None:
                return
            del self._by_key[oldest]
            self.dropped_total += 1

    def pin(self, keys: Collection[str]) -> None:
        """These have a budget: no other makes them give way."""
        self.pinned = keys

    def begin_at(self, node_usd_micros: int) -> None:
        """A journal of before has no counters: this is what the node had cost by then."""
        self.node_usd_micros = node_usd_micros

    def _to_days(self, from_wall: int, elapsed: int, usd_micros: int) -> None:
        end = from_wall + elapsed
        at = from_wall
        while True:
            day = at // NS_PER_DAY
            bound = min(end, (day + 1) * NS_PER_DAY)
            # As core.cost cuts a charge: a difference of two floors, so that the parts add up.
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
        """What the UTC day of this instant has cost so far."""
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
        """Go on counting. KeyError, TypeError, ValueError or AttributeError when it is not one of ours."""
        by_key = {str(key): int(amount) for key, amount in snapshot["keys"].items()}
        by_day = {int(day): int(amount) for day, amount in snapshot["days"].items()}
        node, dropped = int(snapshot["node_usd_micros"]), int(snapshot["dropped_total"])
        self._by_key, self._by_day, self.node_usd_micros, self.dropped_total = by_key, by_day, node, dropped
