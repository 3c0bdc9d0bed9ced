"""What is exported: points of a run's series by step, samples of its GPUs, causes, and events.

Names are `group/name`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from governor.core.base.units import NS_PER_S
from governor.core.events.step_parts import OF_WHICH_FIELDS, PART_FIELDS
from governor.wire.cause_series import series_of

WAIT_NS: Final = 2 * NS_PER_S  # A step is read within one.
HELD_MAX: Final = 4_096  # Of more in that time the earliest go at once.
SPEND: Final = "cost/spend_usd"
USD_PER_MTOK: Final = "cost/usd_per_mtok"  # Of the last window of tokens that had closed by then.
TOKENS_PER_S: Final = "speed/tokens_per_s"
STEPS_PER_S: Final = "speed/steps_per_s"
STEP_S: Final = "time/step_s"
OTHER_S: Final = "time/other_s"  # What is left of the step beside its parts.
# Of what a driver tells of a GPU, what people look at. JSON lines have all of it.
SHOWN_FIGURES: Final = ("power_w", "temperature_c", "sm_clock_mhz")
# A frame's field -> its series. All others of a step are no series.
OF_FRAMES: Final[Mapping[str, str]] = {
    **{name: f"train/{name}" for name in ("loss", "grad_norm", "lr", "loss_scale", "skipped_steps", "tokens_total")},
    "step_s": STEP_S,
    **{name: f"time/{name}" for name in (*PART_FIELDS, *OF_WHICH_FIELDS)},
    **{name: f"memory/{name}" for name in ("mem_allocated_bytes", "mem_reserved_bytes", "rss_bytes")},
}


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one step. `wall`: nanoseconds. Absent figures are left out. `step`: None where nobody knows it."""

    wall: int
    step: int | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A sample of one GPU of the run. `step`: the last one before. None is what the driver did not tell.

    `figures`: the numbers of `GpuFigures` that are known, by its names; {} in most samples.
    """

    wall: int
    step: int
    index: int
    uuid: str | None
    busy_frac: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    figures: Mapping[str, float]

    def values(self) -> dict[str, float]:
        named = {"busy_frac": self.busy_frac, "memory_used_bytes": self.memory_used_bytes}
        named |= {name: self.figures.get(name) for name in SHOWN_FIGURES}
        return {f"gpu/{self.index}/{name}": value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Causes:
    """What the run's time went to, cumulative since its recording begins. `step`: the last one before.

    `ns`, `usd_micros`: by cause. No micro-dollars: the ledger charged this run nothing, or the price is unknown.
    `goes_on`: of the last point alone.
    """

    wall: int
    step: int
    ns: Mapping[str, int]
    usd_micros: Mapping[str, int]
    goes_on: bool | None = None

    def values(self) -> dict[str, float]:
        return series_of(self.ns, self.usd_micros, goes_on=self.goes_on)


@dataclass(frozen=True, slots=True)
class Happened:
    """A halt, an alarm, an attempt, an end. `step`: the last one before."""

    wall: int
    step: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Phase:
    """What the run's first rank does from now on: a name of the wire's, "init" of a new attempt, "finish" of its end.

    It tells a reader of the times what no step tells: the start, and what comes behind the last step.
    """

    wall: int
    step: int
    name: str

    def values(self) -> dict[str, float]:
        return {}


Item = Point | Gpu | Causes | Happened | Phase


class Order:
    """Items in the order of their time: a governor reads steps four times a second, behind what it saw meanwhile.

    Give each item with its moment on the recording's clock; what can be overtaken no more comes out.

    An item that is later than that comes as it is. Each other item than a point has the step of the point before it.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, int, Item]] = []
        self._given = 0
        self._step: int | None = None

    def give(self, at: int, item: Item) -> None:
        heapq.heappush(self._held, (at, self._given, item))
        self._given += 1

    def take(self, now: int | None) -> Iterator[Item]:
        """What no later line of the recording comes before. `now`: the governor's moment; None: there is no more."""
        while self._held and (now is None or self._held[0][0] <= now - WAIT_NS or len(self._held) > HELD_MAX):
            _, _, item = heapq.heappop(self._held)
            if isinstance(item, Point):
                self._step = item.step
            elif self._step is not None:
                item = replace(item, step=self._step)
            yield item
