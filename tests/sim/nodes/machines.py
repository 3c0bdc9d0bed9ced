"""What there is in a history of several nodes: what goes wrong, how the run is watched, and each node as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.units import NS_PER_MS, NS_PER_S, UsdMicros
from governor.core.engine.node import Node
from governor.core.halt.incident import Incident

RUN: Final = "llama"
JOB: Final = "costgov/llama/a1/watch/0/0/1"
NEXT_JOB: Final = "costgov/llama/a2/watch/0/0/1"
UID: Final = 1000
PRICE: Final = UsdMicros(98_320_000)
RANKS: Final = 2  # Of each node.
GRID_NS: Final = 500 * NS_PER_MS
STEP_NS: Final = NS_PER_S
BEAT_NS: Final = NS_PER_S  # Of a rank, and of a governor.
GRACE_S: Final = 8
TERM_S: Final = 3
KILL_S: Final = 1
SAVE_NS: Final = 2 * NS_PER_S
STOP_BOUND_S: Final = 4  # As the provider declares it.
WALL_NS: Final = 1_700_000_000 * NS_PER_S

Span = tuple[int, float, float]  # Node, from, until.


@dataclass(frozen=True, slots=True)
class Faults:
    """All that goes wrong in one history. Moments are of the world's clock, seconds."""

    lose: float = 0.0
    double: float = 0.0
    delay_s: float = 0.05
    cut: tuple[Span, ...] = ()  # Nobody hears it, and it hears nobody.
    frozen: tuple[Span, ...] = ()  # Nothing there runs.
    dead: tuple[tuple[int, float], ...] = ()  # Node, from: the machine is gone.
    governor_down: tuple[Span, ...] = ()
    clock_off_s: tuple[float, ...] = ()  # By node: its wall clock.
    deaf: frozenset[int] = frozenset()  # Nodes whose ranks obey nothing but SIGKILL.
    stop_s: float = 2.0  # From a stop until its machine is billed no more.


@dataclass(frozen=True, slots=True)
class Watched:
    """By which rules every governor watches the run, and what its machines cost."""

    hang: bool = False
    ceiling_usd_micros: UsdMicros | None = None
    prices: tuple[UsdMicros, ...] = ()  # By node, of an hour. PRICE where none is said.

    def price(self, number: int) -> UsdMicros:
        return self.prices[number] if number < len(self.prices) else PRICE


@dataclass(slots=True)
class Machine:
    """A node: its engine, what its journal holds, and its ranks."""

    number: int
    node: Node
    price: UsdMicros
    kept_runs: dict[str, str] = field(default_factory=dict)
    kept_incidents: dict[str, str] = field(default_factory=dict)
    kept_metered: Mapping[str, Any] | None = None
    ranks_alive: bool = True
    termed_at: int | None = None
    is_billed: bool = True
    swept_by: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)  # Who has asked for a stop of this machine that was taken.
    step: int = 0
    moves: int = 0  # Of its ranks, beside the steps.
    joined_at: int = 0  # When the run came to it.
    left_at: int | None = None  # When the run went elsewhere: what its machine costs since then is not the run's.
    ended_at: int | None = None  # When its billing ended.

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def incident(self) -> Incident | None:
        managed = self.node.runs.get(RUN)
        return managed.incident if managed is not None else None
