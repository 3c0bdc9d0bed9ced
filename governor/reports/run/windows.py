"""A run's steps in windows, so that two runs can be compared with their noise accounted for. Bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Final, NamedTuple

from governor.core.attribution.parts import RankSums, cut, whole_ns, within
from governor.core.base.units import NS_PER_S
from governor.core.events import step_parts

# Full windows are merged in pairs. So few suffice for an interval, and hold thousands of steps of a long run each.
WINDOWS_MAX: Final = 128
# The interval of a median needs the order statistics on both sides of it.
INTERVAL_MIN: Final = 8
WORTH_MIN: Final = 4  # Independent values.
OVERLONG_TIMES: Final = 2  # Two clocks may differ by less.
_Z: Final = 1.96  # 95 %.

PARTS: Final = tuple(step_parts.PARTS)
COMMUNICATION: Final = "communication"  # Of which: it overlaps the others.


class Interval(NamedTuple):
    """The median of a run's windows, with its 95 % interval. `low` is None where there are too few for one."""

    middle: float
    low: float | None
    high: float | None
    windows: int


class StepFigures(NamedTuple):
    """What one step tells. Seconds; None is untold. `parts` in the order of PARTS."""

    step: int
    step_s: float
    tokens: int | None
    parts: tuple[float | None, ...]
    comm_s: float | None
    loss: float | None
    grad_norm: float | None
    comm_between_s: float | None = None


@dataclass(slots=True)
class Window:
    """The sums of consecutive steps."""

    first_step: int
    last_step: int
    steps: int = 0
    seconds: float = 0.0
    tokens: int | None = 0  # None: of one of its steps they are untold.
    parts: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    account: RankSums = field(default_factory=RankSums)  # For communication: not each step tells its own.
    losses: list[float] = field(default_factory=lambda: [0.0, 0.0])  # Their sum and their number.
    norms: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def take(self, other: Window) -> None:
        self.last_step = other.last_step
        self.steps += other.steps
        self.seconds += other.seconds
        self.tokens = self.tokens + other.tokens if self.tokens is not None and other.tokens is not None else None
        self.parts = [mine + more for mine, more in zip(self.parts, other.parts, strict=True)]
        self.account.take(other.account)
        self.losses = [mine + more for mine, more in zip(self.losses, other.losses, strict=True)]
        self.norms = [mine + more for mine, more in zip(self.norms, other.norms, strict=True)]


@dataclass(slots=True)
class Windows:
    """Of the run's steps, each as one rank tells it. Without the first one of each attempt: that is no pace."""

    kept: list[Window] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # The parts of which any step told.
    overlong: int = 0  # Steps whose parts are told as longer than they: so they fit, as in the account.
    _per_window: int = 1
    _last_told: tuple[bool, ...] = ()

    def add(self, one: StepFigures) -> None:
        window = self.kept[-1] if self.kept else None
        if window is None or window.steps >= self._per_window:
            if len(self.kept) >= WINDOWS_MAX:
                self._merge()
            window = Window(one.step, one.step)
            self.kept.append(window)
        window.last_step = one.step
        window.steps += 1
        window.seconds += one.step_s
        window.tokens = window.tokens + one.tokens if window.tokens is not None and one.tokens is not None else None
        step_ns = whole_ns(one.step_s)
        named, known = within(one.parts, step_ns)
        self.overlong += known > OVERLONG_TIMES * step_ns
        for index, ns in enumerate(named):
            window.parts[index] += ns / NS_PER_S
        window.account.add_parts(cut(one.parts, step_ns, one.comm_between_s), one.comm_s, one.comm_between_s)
        self._note_told(one)
        _note(window.losses, one.loss)
        _note(window.norms, one.grad_norm)

    def _note_told(self, one: StepFigures) -> None:
        told = tuple(seconds is not None for seconds in (*one.parts, one.comm_s))
        if told != self._last_told:  # Nearly all steps tell the same.
            self._last_told = told
            self.told.update(name for name, is_told in zip((*PARTS, COMMUNICATION), told, strict=True) if is_told)

    def _merge(self) -> None:
        for even, odd in zip(self.kept[::2], self.kept[1::2], strict=True):
            even.take(odd)
        self.kept = self.kept[::2]
        self._per_window *= 2

    @property
    def whole(self) -> list[Window]:
        """All but a last one that is not full."""
        return [one for one in self.kept if one.steps == self._per_window]

    def step_s(self) -> Interval | None:
        return interval([one.seconds / one.steps for one in self.whole])

    def seconds_per_step(self) -> float:
        steps = sum(one.steps for one in self.kept)
        return sum(one.seconds for one in self.kept) / steps if steps else 0.0

    def tokens_per_s(self) -> Interval | None:
        timed = (one for one in self.whole if one.account.total_ns)
        return interval([one.tokens / one.seconds for one in timed if one.tokens is not None])

    def part_s(self, name: str) -> Interval | None:
        """Of a step, in seconds. None where no step told of that part."""
        if name not in self.told:
            return None
        if name == COMMUNICATION:
            told = (one for one in self.whole if one.account.tells_communication)
            return interval([one.account.communication_ns / NS_PER_S / one.steps for one in told])
        place = PARTS.index(name)
        return interval([one.parts[place] / one.steps for one in self.whole])

    def part_mean_s(self, name: str) -> float:
        """Of a step, over all steps: what comes seldom is not in the median."""
        steps = sum(one.steps for one in self.kept)
        return self.part_total_s(name) / steps if steps else 0.0

    def part_total_s(self, name: str) -> float:
        """Of all steps. Those whose communication was not read have the share of those whose was."""
        if name != COMMUNICATION:
            return sum(one.parts[PARTS.index(name)] for one in self.kept)
        account = RankSums()
        for one in self.kept:
            account.take(one.account)
        return account.communication_ns / NS_PER_S

    def grad_norm(self) -> Interval | None:
        return interval([one.norms[0] / one.norms[1] for one in self.whole if one.norms[1]])

    def loss_between(self, first: int, last: int) -> Interval | None:
        """Of the windows that lie in these steps."""
        inside = [one for one in self.whole if one.losses[1] and first <= one.first_step and one.last_step <= last]
        return interval([one.losses[0] / one.losses[1] for one in inside], has_trend=True)


def interval(values: Sequence[float], *, has_trend: bool = False) -> Interval | None:
    """The median with its 95 % interval by order statistics, which assumes no distribution. None without a value.

    `values`: in their order in time. What drifts from window to window tells less than as many independent ones: the
    interval is as wide as of those that they are worth, and there is none where these are too few. `has_trend`: they
    fall as they should, so that noise is their distance from a straight line.
    """
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    if count < INTERVAL_MIN:
        return Interval(middle, None, None, count)
    worth = count / correlation_time(_off_line(values) if has_trend else values)
    if has_trend:  # A curve without noise is off its line as well: then the interval is all of it.
        worth = max(worth, WORTH_MIN)
    if worth < WORTH_MIN:
        return Interval(middle, None, None, count)
    reach = _Z * count / math.sqrt(worth) / 2
    low, high = max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach))
    return Interval(middle, ordered[low], ordered[high], count)


def correlation_time(values: Sequence[float]) -> float:
    """How many values in a row are worth one independent value: 1 and more.

    By the sum of their autocorrelations in pairs, as long as these are positive and fall (Geyer's monotone sequence).
    """
    count = len(values)
    mean = math.fsum(values) / count
    off = [one - mean for one in values]
    spread = math.fsum(one * one for one in off)
    if spread <= 0 or not math.isfinite(spread):
        return 1.0
    total, last = 0.0, math.inf
    for lag in range(0, count - 1, 2):
        pair = sum(_lagged(off, each) for each in (lag, lag + 1)) / spread
        if pair <= 0:
            break
        last = min(last, pair)
        total += last
    # A short series seems less correlated than it is, as its own mean is taken off.
    return max(1.0, (2 * total - 1) * (1 + 2 * max(1.0, 2 * total - 1) / count))


def _off_line(values: Sequence[float]) -> list[float]:
    count = len(values)
    middle, mean = (count - 1) / 2, math.fsum(values) / count
    slope = math.fsum((at - middle) * value for at, value in enumerate(values)) * 12 / (count * (count * count - 1))
    return [value - mean - slope * (at - middle) for at, value in enumerate(values)]


def _lagged(off: Sequence[float], lag: int) -> float:
    return math.fsum(map(mul, off, off[lag:]))


def _note(sums: list[float], value: float | None) -> None:
    if value is not None and math.isfinite(value):
        sums[0] += value
        sums[1] += 1
