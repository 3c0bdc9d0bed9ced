"""A governor's part in its fleet: budgets, what it holds of them, what people were told, and the orders that stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.units import NS_PER_DAY, NS_PER_S, MonoNs, UsdMicros, WallNs
from governor.core.events.fleet_store import Answer, AskStore, StoreAnswered
from governor.core.fleet.orders import Orders
from governor.core.fleet.reservations import Reservations
from governor.core.fleet.scopes import DAY, FLEET, Holder
from governor.core.money.budgets import TORN
from governor.core.money.group_totals import keys_of
from governor.core.money.prices import Day, day_text

BUDGETS_MAX: Final = 16  # Each is a grant of each run.
# The next day's grant is asked for so long before midnight.
EARLY_NS: Final = 60 * NS_PER_S
RECALL_AGAIN_NS: Final = 5 * NS_PER_S

Name = tuple[str, str]  # Scope and run.


@dataclass(frozen=True, slots=True)
class SharedBudget:
    scope: str
    ceiling_usd_micros: UsdMicros  # Of a scope that has no row yet. What the store has counts.

    def covers(self, stage: str | None, labels: Mapping[str, str]) -> bool:
        return self.scope in (FLEET, DAY) or self.scope in keys_of(stage, labels.items())

    def rows_at(self, wall: WallNs) -> list[str]:
        """The scope as the store has it: the one that counts now first, then one that is opened early."""
        if self.scope != DAY:
            return [self.scope]
        today = Day(wall // NS_PER_DAY)
        is_late = wall % NS_PER_DAY >= NS_PER_DAY - EARLY_NS
        return [f"{DAY}:{day_text(Day(day))}" for day in (today, today + 1)[: 2 if is_late else 1]]


@dataclass(slots=True)
class Shared:
    """`machine`: the provider's id of this machine. With the same one, grants of before a reboot are still ours."""

    budgets: Sequence[SharedBudget]
    holder: Holder
    instance: str
    machine: str | None = None
    reservations: Reservations = field(init=False)
    orders: Orders = field(default_factory=Orders)
    waits_since: dict[Name, MonoNs] = field(default_factory=dict)  # For a first grant.
    told: dict[Name, str] = field(default_factory=dict)  # The alarm that stands.
    is_stored: bool = False  # The journal has our holder, so that the next start knows its grants.
    left_behind: str | None = None  # The holder that this machine was before it was started anew.
    unread: int = 0  # Rows of ours that cannot be read.
    _recall: str | None = None  # The ask that is under way.
    _recall_at: MonoNs | None = None  # When it is due. None: there is nothing to recall.
    _recalls: int = 0

    def __post_init__(self) -> None:
        self.reservations = Reservations(self.holder, self.instance)

    def covers(self, stage: str | None, labels: Mapping[str, str]) -> bool:
        return any(budget.covers(stage, labels) for budget in self.budgets)

    # --- the journal -----------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        own = self.holder
        return {
            "holder": [own.node, own.boot_id, own.ledger],
            "machine": self.machine,
            "grants": self.reservations.snapshot(),
            "orders": self.orders.rows(),
        }

    def restore(self, row: Mapping[str, Any]) -> None:
        """Go on from an earlier start's grants. One of TORN when the row is not ours."""
        node, boot_id, ledger = (str(part) for part in row["holder"])
        before = Holder(node, boot_id, ledger)
        is_same = boot_id == self.holder.boot_id or (self.machine is not None and row["machine"] == self.machine)
        # A copy of the disk in another machine would take the grants of one that runs.
        self.holder = before if is_same else Holder(self.holder.node, self.holder.boot_id, ledger)
        self.left_behind = None if is_same else before.text
        self.reservations = Reservations(self.holder, self.instance)
        self.reservations.restore(row["grants"] if is_same else ())
        self._recall_at = MonoNs(0)
        self.orders.restore(row.get("orders", ()))

    def note_stored(self) -> None:
        self.is_stored = True

    def take_left_behind(self) -> str | None:
        """The holder of before a reboot whose grants stay taken; once."""
        found, self.left_behind = self.left_behind, None
        return found

    # --- the store -------------------------------------------------------------------------------------

    def asks(self, at: MonoNs, wall: WallNs) -> list[AskStore]:
        asks = self.reservations.next(at, wall)
        if self._recall is None and self._recall_at is not None and at >= self._recall_at:
            self._recalls += 1
            self._recall = f"{self.instance}/recall/{self._recalls}"
            asks.append(AskStore(self._recall, prefix=self.reservations.prefix))
        return asks

    def answered(self, event: StoreAnswered) -> None:
        if event.request != self._recall:
            self.reservations.answered(event.request, event.answer, event.rows, event.revision, at=event.at)
            return
        self._recall = None
        self._recall_at = None if event.answer is Answer.READ else MonoNs(event.at + RECALL_AGAIN_NS)
        if event.answer is Answer.READ:
            self.unread = len(self.reservations.recall(event.rows))

    # --- what was told ---------------------------------------------------------------------------------

    def waits(self, name: Name, at: MonoNs) -> int:
        """How long this run has waited for its first grant in this scope, in nanoseconds."""
        return at - self.waits_since.setdefault(name, at)

    def has_not_to_wait(self, name: Name) -> None:
        self.waits_since.pop(name, None)

    def note_told(self, name: Name, what: str) -> bool:
        """Whether this is news of this grant. Empty: all is well."""
        if self.told.get(name, "") == what:
            return False
        if what:
            self.told[name] = what
        else:
            self.told.pop(name, None)
        return True

    def forget(self, names: Sequence[Name]) -> None:
        for name in names:
            self.waits_since.pop(name, None)
            self.told.pop(name, None)


def restore_shared(shared: Shared | None, snapshot: Mapping[str, Any]) -> None:
    """Take up the grants of the node's snapshot. A fleet that is new to this ledger has none. Raises one of TORN."""
    if shared is None or "shared" not in snapshot:
        return
    try:
        shared.restore(snapshot["shared"])
    except TORN:
        # Its grants in the store are found by nobody: they stay taken, and nobody spends them.
        shared.left_behind = "a holder that the journal has no more"
