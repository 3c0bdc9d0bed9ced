"""The level that a series of numbers keeps to: what a newest value is judged by, without growing.

A value that stands out must not enter the level that judges it, and one that is not a number must not blind it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from statistics import median
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, Reading, unknown
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Disconnected, Event, Step
from governor.core.runs.state import Run

VALUE_MAX: Final = 1e30  # Larger is cut off to this: products of it still are numbers, and far beyond any limit.
AT_ONCE: Final = 5  # Values that enter a level together: a limit five records old judges as well, for less.


def _clipped(value: float) -> float:
    return value if -VALUE_MAX <= value <= VALUE_MAX else min(max(value, -VALUE_MAX), VALUE_MAX)


class RunningLevel:
    """A running mean that values above `limit` do not enter, unless they stay for `adopt` values: then they are it.

    The limit is the mean plus the greater of `rise` times its size and `noise` times the spread (the mean range of five
    values in a row). The size is at least `floor`, and at least `floor_frac` of the first values': ratios of numbers
    near 0 explode. No limit until `warmup` values (rounded up to fives) have been seen, whose median the mean begins
    with.
    """

    __slots__ = (
        "_adopt", "_early", "_first", "_floor", "_floor_frac", "_fresh", "_noise", "_over", "_rise", "_warmup",
        "_weight", "limit", "mean", "spread",
    )  # fmt: skip

    def __init__(
        self, *, rise: float, noise: float, floor: float, floor_frac: float, warmup: int, memory: int, adopt: int
    ) -> None:
        self._rise, self._noise = rise, noise
        self._floor, self._floor_frac = floor, floor_frac
        self._warmup, self._adopt = warmup, adopt
        self._weight = min(1.0, 2 * AT_ONCE / (memory + 1))
        self.clear()

    def clear(self) -> None:
        self._early: list[float] = []
        self._fresh: list[float] = []  # Since the mean last moved.
        self._first = 0.0  # The least size that the mean is taken for.
        self._over = 0  # Values above the limit in a row.
        self.mean: float | None = None
        self.spread = 0.0
        self.limit = math.inf

    def stands_out(self, value: float) -> bool:
        """Judge one finite value by those before it, then let it in unless it stands out."""
        if value > self.limit:
            self._over += 1
            if self._over < self._adopt:
                return True
            self.clear()  # Whatever it was, it is the level now; from here on afresh.
            return False
        self._over = 0
        fresh = self._fresh
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
            # As far below as the limit is above, and no further: one absurd value must not drag the mean away either.
            fresh[:] = [max(value, lowest) for value in fresh]
            low = lowest
        weight = self._weight
        spread = self.spread + weight * (high - low - self.spread)
        mean += weight * (sum(fresh, 0.0) / len(fresh) - mean)
        self._start(_clipped(mean), min(spread, VALUE_MAX), self._first)
        fresh.clear()

    def _warm_up(self, fresh: list[float]) -> None:
        self._early.extend(map(_clipped, fresh))
        fresh.clear()
        if len(self._early) < self._warmup:
            return
        mean = median(self._early)
        spread = 2 * median(abs(early - mean) for early in self._early)
        self._start(mean, spread, max(self._floor, self._floor_frac * abs(mean)))
        self._early.clear()

    def _start(self, mean: float, spread: float, first: float) -> None:
        self.mean, self.spread, self._first = mean, spread, first
        size = mean if mean > 0 else -mean
        rise, noise = self._rise * (size if size > first else first), self._noise * spread
        self.limit = mean + (rise if rise > noise else noise)

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "early": list(self._early),
            "fresh": list(self._fresh),
            "over": self._over,
            "mean": self.mean,
            "spread": self.spread,
            "first": self._first,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.clear()
        self._early = [float(value) for value in snapshot["early"]]
        self._fresh = [float(value) for value in snapshot["fresh"]]
        self._over = int(snapshot["over"])
        if snapshot["mean"] is not None:
            self._start(float(snapshot["mean"]), float(snapshot["spread"]), float(snapshot["first"]))


class LevelBlocks:
    """Medians of every `size` values in a row, the newest `keep` of them, each with the step of its first value.

    A median of ten is blind to four spikes, and sorting ten values once in ten costs less than any window that slides.
    """

    __slots__ = ("_filling", "_since", "medians", "size", "starts")

    def __init__(self, size: int, keep: int) -> None:
        self.size = size
        self.medians: deque[float] = deque(maxlen=keep)
        self.starts: deque[int] = deque(maxlen=keep)
        self.clear()

    def clear(self) -> None:
        self._filling: list[float] = []
        self._since = 0
        self.medians.clear()
        self.starts.clear()

    def add(self, value: float, step: int) -> bool:
        """Take one finite value; True when it completes a block, whose median is then the newest."""
        filling = self._filling
        if not filling:
            self._since = step
        filling.append(value)
        if len(filling) < self.size:
            return False
        self.medians.append(_clipped(median(filling)))
        self.starts.append(self._since)
        filling.clear()
        return True

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "filling": list(self._filling),
            "since": self._since,
            "medians": list(self.medians),
            "starts": list(self.starts),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.clear()
        self._filling = [float(value) for value in snapshot["filling"]]
        self._since = int(snapshot["since"])
        self.medians.extend(float(value) for value in snapshot["medians"])
        self.starts.extend(int(step) for step in snapshot["starts"])


# What triggers have in common that judge the records of one rank: whom they follow, and what they answer meanwhile.


WARMING_UP: Final = unknown("warming_up")
_CUT_OFF: Final = unknown("no_connection")


class OneRank(ABC):
    """One rank is followed: under data parallelism each sees a loss of its own, and mixing them would double the noise.

    It is the first that reports the number in question. The answer is what its last record led to, or that nobody is
    connected. A trigger gives NONE_SEEN and `_begin`, which sets `_step` and `_finding` and drops all that it holds.
    """

    NONE_SEEN: ClassVar[Finding]

    _rank: int | None
    _step: int
    _finding: Finding

    @abstractmethod
    def _begin(self) -> None: ...

    def _see_other(self, event: Event, run: Run) -> bool:
        """Whatever is no step."""
        if isinstance(event, Disconnected) and run.is_cut_off():
            self._finding = _CUT_OFF
        return False

    def _takes_over(self, rank: int, run: Run) -> bool:
        """Whether `rank`, which reports the number, is followed from now on in place of the one until now."""
        known = run.ranks.get(self._rank) if self._rank is not None else None
        if known is not None and known.connection is not None:
            return False
        # A log has no connections: its lowest rank. Else we are back, and that one has not said hello.
        if known is None and self._rank is not None and run.jsonl_only and rank > self._rank:
            return False
        self._rank = rank
        return True

    def judge(self, at: MonoNs, run: Run) -> Finding:
        return self._finding

    def new_attempt(self, run: Run) -> None:
        self._rank = None
        self._begin()


# A number of the steps far above the level that it kept to: what `loss_spike` and `grad_norm` have in common.


class Spike(OneRank):
    """Follows one number. A trigger names the number, and has keys of these names and its own defaults:
    factor, noise, floor, floor_frac, mean_records, warmup_records, adopt_records.
    """

    FIELD: ClassVar[str]  # Of a Step; the name of the value in the evidence, too.
    NAME: ClassVar[str]  # As a sentence says it.
    REASON: ClassVar[str]

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._factor: float = params["factor"]
        self._level = RunningLevel(
            rise=self._factor - 1,
            noise=params["noise"],
            floor=params["floor"],
            floor_frac=params["floor_frac"],
            warmup=params["warmup_records"],
            memory=params["mean_records"],
            adopt=params["adopt_records"],
        )
        self._value_of = attrgetter(self.FIELD)
        self._not_finite = unknown(f"{self.FIELD}_not_finite")
        self._rank = None
        self._begin()

    def _begin(self) -> None:
        self._level.clear()
        self._step = -1
        self._finding = self.NONE_SEEN

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step):
            return self._see_other(event, run)
        value = self._value_of(event)
        if value is None:
            return False
        if event.rank != self._rank and not self._takes_over(event.rank, run):
            return False
        step = event.step
        if step < self._step:
            self._begin()
        self._step = step
        if not math.isfinite(value):
            self._finding = self._not_finite
            return False
        level = self._level
        if level.stands_out(value):
            self._finding = self._high(value)
            return True
        self._finding = QUIET if level.mean is not None else WARMING_UP
        return False

    def _high(self, value: float) -> Finding:
        mean, limit = self._level.mean, self._level.limit
        return Finding(
            Reading.FIRING,
            self.REASON,
            f"{self.NAME} {value:.4g} at step {self._step}; its running mean is {mean:.4g}, the limit {limit:.4g}",
            {
                "rank": self._rank,
                "step": self._step,
                self.FIELD: value,
                "mean": mean,
                "limit": limit,
                "factor": self._factor,
            },
        )

    def snapshot(self) -> Mapping[str, Any]:
        return {"rank": self._rank, "step": self._step, "level": self._level.snapshot()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._rank = snapshot["rank"]
        self._step = int(snapshot["step"])
        self._level.restore(snapshot["level"])
        # Until the next value: whether the last one stood out is not known any more.
        self._finding = self.NONE_SEEN if self._rank is None else WARMING_UP
