"""The base of triggers that judge the records of one rank: levels, the choice of the rank, and spikes above a level.

A level judges the newest value in constant memory. An outlier does not enter it, and a value that is not a number does
not disable it. The first rank that reports the number is followed. When its step goes back, the series restarts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.rules.trigger import Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import Run

# Larger values are clipped to this. Products of clipped values are still finite, and far beyond any limit.
VALUE_MAX: Final = 1e30
# Values enter a level in groups of five: a limit that is five records old judges as well, at less cost.
AT_ONCE: Final = 5


def _clipped(value: float) -> float:
    return value if -VALUE_MAX <= value <= VALUE_MAX else min(max(value, -VALUE_MAX), VALUE_MAX)


@dataclass(init=False)
class RunningLevel:
    """A running mean. Values above `limit` do not enter it, unless `adopt` come in a row: then it restarts there.

    The limit is the mean plus the greater of `rise` times its size and `noise` times the spread (the mean range of five
    values in a row). The size is at least `floor`, and at least `floor_frac` of the first values' size: ratios of
    numbers near 0 explode. There is no limit until `warmup` values (rounded up to fives) have been seen. Their median
    is the first mean.
    """

    early: list[float]
    fresh: list[float]  # Since the mean last moved.
    over: int  # Values above the limit in a row.
    mean: float | None
    spread: float
    first: float  # The mean counts as at least this.

    def __init__(
        self, *, rise: float, noise: float, floor: float, floor_frac: float, warmup: int, memory: int, adopt: int
    ) -> None:
        self._rise, self._noise = rise, noise
        self._floor, self._floor_frac = floor, floor_frac
        self._warmup, self._adopt = warmup, adopt
        self._weight = min(1.0, 2 * AT_ONCE / (memory + 1))
        self.clear()

    def clear(self) -> None:
        self.early, self.fresh = [], []
        self.over = 0
        self.mean, self.spread, self.first = None, 0.0, 0.0
        self.limit = math.inf

    def restored(self) -> None:
        if self.mean is not None:
            self._start(self.mean, self.spread, self.first)

    def stands_out(self, value: float) -> bool:
        """Judge one finite value by the earlier values; add it unless it stands out."""
        if value > self.limit:
            self.over += 1
            if self.over < self._adopt:
                return True
            self.clear()  # The new values are the level now: begin again from here.
            return False
        self.over = 0
        fresh = self.fresh
        fresh.append(value)
        if len(fresh) >= AT_ONCE:
            self._settle(fresh)
        return False

    def _settle(self, fresh: list[float]) -> None:
        mean = self.mean
        if mean is None:
            self._warm_up(fresh)
            return
        low, high = min(fresh), max(fresh)
        lowest = 2 * mean - self.limit
        if low < lowest:
            # Clip from below, at the limit's distance: one absurd value must not move the mean down either.
            fresh[:] = [max(value, lowest) for value in fresh]
            low = lowest
        weight = self._weight
        spread = self.spread + weight * (high - low - self.spread)
        mean += weight * (sum(fresh, 0.0) / len(fresh) - mean)
        self._start(_clipped(mean), min(spread, VALUE_MAX), self.first)
        fresh.clear()

    def _warm_up(self, fresh: list[float]) -> None:
        self.early.extend(map(_clipped, fresh))
        fresh.clear()
        if len(self.early) < self._warmup:
            return
        mean = median(self.early)
        spread = 2 * median(abs(early - mean) for early in self.early)
        self._start(mean, spread, max(self._floor, self._floor_frac * abs(mean)))
        self.early.clear()

    def _start(self, mean: float, spread: float, first: float) -> None:
        self.mean, self.spread, self.first = mean, spread, first
        size = mean if mean > 0 else -mean
        rise, noise = self._rise * (size if size > first else first), self._noise * spread
        self.limit = mean + (rise if rise > noise else noise)


@dataclass(init=False)
class LevelBlocks:
    """Medians of every `size` values in a row: the newest `keep` medians, each with the step of its first value.

    A median of ten ignores four spikes, and sorting ten values once in ten costs less than any sliding window.
    """

    filling: list[float]
    since: int  # The step of the first value in `filling`.
    medians: deque[float]
    starts: deque[int]

    def __init__(self, size: int, keep: int) -> None:
        self.size = size
        self.filling, self.since = [], 0
        self.medians, self.starts = deque(maxlen=keep), deque(maxlen=keep)

    def add(self, value: float, step: int) -> bool:
        """Add one finite value; True when it completes a block, whose median is then the newest."""
        filling = self.filling
        if not filling:
            self.since = step
        filling.append(value)
        if len(filling) < self.size:
            return False
        self.medians.append(_clipped(median(filling)))
        self.starts.append(self.since)
        filling.clear()
        return True


# --- one rank ---

WARMING_UP: Final = unknown("warming_up")
_CUT_OFF: Final = unknown("no_connection")


@dataclass(slots=True)
class RankState:
    """The rank that a trigger follows, and the finding of its last record; unknown after a restart."""

    rank: int | None = None
    step: int = -1
    finding: Finding = field(default=WARMING_UP, metadata=UNKEPT)


class OneRank(Trigger):
    """Follows one rank: under data parallelism each rank has its own loss, and mixing them would double the noise.

    It follows the first rank that reports the number. Its finding is that of the rank's last record, or that no rank is
    connected. A fresh state has NONE_SEEN.
    """

    NONE_SEEN: ClassVar[Finding]
    IS_ONCE_A_STEP: ClassVar[bool] = False  # True: a second record of the same step is ignored.

    _state: RankState

    def _restored(self) -> None:
        state = self._state
        state.finding = self.NONE_SEEN if state.rank is None else WARMING_UP

    def _begin(self) -> None:
        """The step went back: drop all that was seen of the rank."""
        rank, self._state = self._state.rank, self._fresh()
        self._state.rank = rank

    def _next_loss(self, event: Event, run: Run) -> float | None:
        """Take the followed rank's next record and return its finite loss. None: this event is no such record."""
        if not isinstance(event, Step):
            self._see_other(event, run)
            return None
        loss, state = event.loss, self._state
        if loss is None or not math.isfinite(loss):
            return None
        if (event.rank != state.rank or event.step <= state.step) and not self._follows(event, run):
            return None
        self._state.step = event.step
        return loss

    def _see_other(self, event: Event, run: Run) -> bool:
        """Handle an event that is not a step."""
        if isinstance(event, Disconnected) and run.is_cut_off():
            self._state.finding = _CUT_OFF
        return False

    def _follows(self, event: Step, run: Run) -> bool:
        """Whether to use a record of another rank, or one whose step is not beyond the last one.

        When the step goes back, the series restarts in a fresh `_state`.
        """
        if event.rank != self._state.rank and not self._takes_over(event.rank, run):
            return False
        if event.step < self._state.step:
            self._begin()
        return event.step != self._state.step or not self.IS_ONCE_A_STEP

    def _takes_over(self, rank: int, run: Run) -> bool:
        """Whether to follow `rank`, which reports the number, instead of the present rank."""
        state = self._state
        known = run.ranks.get(state.rank) if state.rank is not None else None
        if known is not None and known.connection is not None:
            return False
        # A log has no connections: follow its lowest rank. Without a log, the governor has restarted, and the old rank
        # has not sent a hello yet.
        if known is None and state.rank is not None and run.jsonl_only and rank > state.rank:
            return False
        state.rank = rank
        return True

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return self._state.finding


# --- spikes: `loss_spike` and `grad_norm` ---


@dataclass(slots=True, kw_only=True)
class _SpikeState(RankState):
    level: RunningLevel


class Spike(OneRank):
    """Follows one number. A trigger names the number, and has these keys with its own defaults: factor, noise, floor,
    floor_frac, mean_records, warmup_records, adopt_records.
    """

    # The field of a Step, and the name of the value in the evidence.
    FIELD: ClassVar[str]
    NAME: ClassVar[str]  # The number's name in a sentence.
    REASON: ClassVar[str]

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._factor: float = params["factor"]
        self._limits = {name: params[name] for name in ("noise", "floor", "floor_frac")}
        self._warmup_records: int = params["warmup_records"]
        self._mean_records: int = params["mean_records"]
        self._adopt_records: int = params["adopt_records"]
        self._value_of = attrgetter(self.FIELD)
        self._not_finite = unknown(f"{self.FIELD}_not_finite")
        self._state: _SpikeState = self._fresh()

    def _fresh(self) -> _SpikeState:
        level = RunningLevel(
            rise=self._factor - 1,
            **self._limits,
            warmup=self._warmup_records,
            memory=self._mean_records,
            adopt=self._adopt_records,
        )
        return _SpikeState(level=level, finding=self.NONE_SEEN)

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        value = self._value_of(event)
        if value is None:
            return False
        state, step = self._state, event.step
        if event.rank != state.rank or step <= state.step:
            if not self._follows(event, run):
                return False
            state = self._state
        state.step = step
        if not math.isfinite(value):
            state.finding = self._not_finite
            return False
        level = state.level
        if level.stands_out(value):
            state.finding = self._high(value)
            return True
        state.finding = QUIET if level.mean is not None else WARMING_UP
        return False

    def _high(self, value: float) -> Finding:
        state = self._state
        mean, limit = state.level.mean, state.level.limit
        return firing(
            self.REASON,
            f"{self.NAME} {value:.4g} at step {state.step}; its running mean is {mean:.4g}, the limit {limit:.4g}",
            {
                "rank": state.rank,
                "step": state.step,
                self.FIELD: value,
                "mean": mean,
                "limit": limit,
                "factor": self._factor,
            },
        )
