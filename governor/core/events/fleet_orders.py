"""Orders that a fleet's people give through its store (docs/adr/0029)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from governor.core.base.units import MonoNs, WallNs
from governor.core.events.fleet_store import StoreAnswered


class Act(Enum):
    HALT = "halt"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    act: Act
    scope: str
    reason: str
    by: str  # Who gave it, as their machine says: nothing vouches for it.
    given_wall: WallNs
    until_wall: WallNs | None = None  # By each node's clock. None: until it is released.
    is_unsaved: bool = False  # Of a halt: no checkpoint is asked for.

    def stands(self, wall: WallNs) -> bool:
        return self.until_wall is None or wall < self.until_wall

    @property
    def text(self) -> str:
        """As an incident and a hold name it."""
        return f"fleet order {self.order_id} by {self.by}: {self.reason}"


@dataclass(frozen=True, slots=True)
class OrdersRead:
    """All orders, as the store has them. It replaces what was read before."""

    at: MonoNs
    orders: tuple[Order, ...]
    unreadable: tuple[str, ...] = ()  # Keys.


@dataclass(frozen=True, slots=True)
class SilentUsedUp:
    """The machine of a governor that vanished is billed, and its runs have used up what they were granted."""

    at: MonoNs
    holder: str
    node: str
    cloud: str
    instance_id: str
    text: str  # What that rests on.


FleetEvent = StoreAnswered | OrdersRead | SilentUsedUp
