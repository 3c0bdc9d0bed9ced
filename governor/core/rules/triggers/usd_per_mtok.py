"""Tokens cost much more than the plan says."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.policy import Expected
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, UsdMicros, format_duration, per_mtok_text
from governor.core.events.inputs import Event, Tick
from governor.core.money.steady import WINDOWS_MIN, SteadySum
from governor.core.money.token_price import over, per_mtok, whole_micros
from governor.core.money.token_windows import Window
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.rules.trigger_state import ADDED
from governor.core.runs.state import Run

SAMPLES: Final = 60  # A window moves by a sixtieth.
STRETCH_MIN_NS: Final = 10 * NS_PER_S  # Steps end between two ticks: of a shorter one that is more than a tenth.
# The keys of [expected].
STEADY: Final = "usd_per_mtok"
ALL_IN: Final = "usd_per_mtok_all_in"

# Time, tokens trained by then, again or for the first time, and micro-dollars spent.
_Sample = tuple[int, int, int]
# The same, and the highest total by then.
_End = tuple[int, int, int, int]
_Kept = TypeVar("_Kept", bound=tuple[int, ...])


@dataclass(slots=True)
class _State:
    samples: deque[_Sample] = field(default_factory=deque)  # At equal times, pauses and all: for the full price.
    progress_tokens: int = 0  # The highest total.
    trained_tokens: int = field(default=-1, metadata=ADDED)  # -1: nothing was counted.
    last_total: int = field(default=-1, metadata=ADDED)
    # What was trained, and of progress, for the run's own money by the last tick. -1: nobody metered it.
    last_paid: list[int] = field(default_factory=lambda: [-1, -1], metadata=ADDED)
    ends: deque[_End] = field(default_factory=deque, metadata=ADDED)  # Of stretches of training: for the steady price.

    def count(self, total: int, paid: tuple[int, int] | None) -> bool:
        """Count what was trained since the last tick. Whether there was any.

        `paid`: what the run has trained, and of progress, for its own money. A stretch has no other tokens in it. None:
        nobody meters it, as in a timeline.
        """
        if (
            self.trained_tokens < 0
        ):  # A state of before it was added has samples of the progress: it goes on from there.
            self.trained_tokens = self.progress_tokens
        if paid is None:
            trained = max(0, total - self.last_total) if self.last_total >= 0 else 0
            self.progress_tokens = max(self.progress_tokens, total)
        else:
            before = self.last_paid if min(self.last_paid) >= 0 else paid
            trained, grown = (max(0, now - then) for now, then in zip(paid, before, strict=True))
            self.progress_tokens += grown
            self.last_paid = [*paid]
        self.last_total = total
        self.trained_tokens += trained
        return trained > 0

    def clear(self) -> None:
        self.samples.clear()
        self.ends.clear()


@dataclass(frozen=True, slots=True)
class _Cost:
    """What the window's tokens cost, as one price of the plan means it."""

    per_mtok: Fraction
    tokens: int
    usd_micros: int


class UsdPerMtok(Trigger):
    """What a million tokens cost over the last `window`, held against its like in the policy's `[expected]`.

    `usd_per_mtok` has no starts and no pauses, so *the steady price* is held against it: the median of the stretches of
    training in the window, a sixtieth of it each (at least ten seconds, and a step), that trained nothing twice. No
    save, evaluation or stall moves it. `usd_per_mtok_all_in` has the pauses too, so *the full price* is held against
    it: all that the run was charged in the window, over all tokens that it trained, also those that were trained again.
    An hour is long enough for an evaluation to be a part of it and not the whole. Where a policy has both, either of
    them fires. The finding names the two prices that it compares.

    The first `warmup_time` of each attempt, from its first step, is left out: starting is paid once. An all-in plan has
    its share of starts all the same, and allows that much more. Tokens at zero cost are no efficiency: a price of zero
    is no price.

    UNKNOWN without an expectation or a price, while tokens are not reported, until the window is full, and when no
    token was trained in it (`hang` covers that), or only ones that were trained before. After time in which no governor
    listened it is UNKNOWN until a step is counted, or for that time and a minute more (for the first hour of a launch
    behind it), and the window begins anew.
    Resets at each attempt.
    """

    KIND: ClassVar[str] = "usd_per_mtok"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("times", "number", 1.5, "Fires from so many times the expected cost on.", 1),
        Key("window", "duration", "1h", "Time over which cost and tokens are taken.", "1m"),
        Key("warmup_time", "duration", "30m", "Time from the first step of an attempt that is left out."),
    )
    STEPPED: ClassVar[bool] = True
    LISTENS: ClassVar[frozenset[type]] = frozenset({Tick})
    PLANNED: ClassVar[bool] = True
    LIMITS: ClassVar[tuple[str, ...]] = ("times",)
    MEANING: ClassVar[tuple[str, ...]] = (
        "a million tokens cost {times} times what the policy expects or more, over the last {window}",
        "The first {warmup_time} of each attempt are left out.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        expected: Expected = params["expected"]
        self._steady, self._all_in = expected.usd_micros_per_mtok, expected.usd_micros_per_mtok_all_in
        self._is_planned = expected.has_price
        self._times: float = params["times"]
        self._window_ns: DurationNs = params["window"]
        self._warmup_ns: DurationNs = params["warmup_time"]
        self._spacing_ns = self._window_ns // SAMPLES
        self._stretch_ns = max(self._spacing_ns, STRETCH_MIN_NS)
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> None:
        if not self._is_planned or not isinstance(event, Tick):
            return
        unheard_ns = run.unheard_ns
        if unheard_ns is not None and unheard_ns >= self._spacing_ns:
            self._state.clear()  # Not all that was trained for its money need be told.
        if run.tokens_total is None or run.first_step_at is None or event.at - run.first_step_at < self._warmup_ns:
            return
        state = self._state
        has_trained = state.count(run.tokens_total, run.paid_tokens.counted)
        if run.spend_rate_usd_micros_per_hour is None:
            state.clear()  # The charges in between are unknown.
            return
        if unheard_ns is not None:
            return
        if event.at < max(state.samples[-1][0] if state.samples else 0, state.ends[-1][0] if state.ends else 0):
            # The state was restored after a reboot: its times are of another clock.
            state.clear()
        now = (event.at, state.trained_tokens, run.spend_usd_micros)
        if self._all_in is not None:
            self._keep(state.samples, now, self._spacing_ns, 2)
        if self._steady is not None and has_trained:
            self._keep(state.ends, (*now, state.progress_tokens), self._stretch_ns, WINDOWS_MIN + 2)

    def _keep(self, kept: deque[_Kept], now: _Kept, spacing_ns: int, over_least: int) -> None:
        """Keep the sample, and drop those that the window has left behind. Fewer than `over_least` are not dropped."""
        if kept and now[0] - kept[-1][0] < spacing_ns:
            return
        kept.append(now)
        while len(kept) >= over_least and now[0] - kept[1][0] >= self._window_ns:
            kept.popleft()

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if not self._is_planned:
            return unknown("nothing_expected")
        if run.spend_rate_usd_micros_per_hour is None:
            return unknown("price_unknown")
        if run.tokens_total is None:
            return unknown("no_tokens")
        if run.unheard_ns is not None:
            return unknown("unheard")
        state, found = self._state, []
        if self._steady is not None:
            cost = _steady_cost(state.ends) if self._is_full(state.ends) else None
            found.append(self._held(STEADY, self._steady, cost, is_full=self._is_full(state.ends)))
        if self._all_in is not None:
            cost = _full_cost(state.samples) if self._is_full(state.samples) else None
            found.append(self._held(ALL_IN, self._all_in, cost, is_full=self._is_full(state.samples)))
        return next((one for one in found if one.is_firing), next((one for one in found if one is not QUIET), QUIET))

    def _is_full(self, kept: deque[_Sample] | deque[_End]) -> bool:
        return bool(kept) and kept[-1][0] - kept[0][0] >= self._window_ns

    def _held(self, key: str, planned: int, cost: _Cost | None, *, is_full: bool) -> Finding:
        """The window's price held against one price of the plan."""
        times = over(cost.per_mtok, planned) if cost is not None else None
        if cost is None or times is None or (shown := whole_micros(cost.per_mtok)) is None:
            return unknown("no_progress" if is_full else "warming_up")
        if times < self._times:
            return QUIET
        kind, how = ("steady", "without") if key == STEADY else ("all-in", "with")
        return firing(
            "tokens_dear",
            f"1M tokens cost {per_mtok_text(shown)} {kind} ({how} pauses) over the last "
            f"{format_duration(self._window_ns)}, {float(times):.2f} times the {kind} {per_mtok_text(planned)} of "
            f"[expected] {key}",
            {  # An incident's own price and drift are of token windows: these are of a time, and have other names.
                "usd_micros_per_mtok_of_time": shown,
                "expected_by": key,
                "expected_usd_micros_per_mtok": planned,
                "times_expected": float(times),
                "times": self._times,
                "window_s": self._window_ns / NS_PER_S,
                "tokens": cost.tokens,
                "usd_micros": cost.usd_micros,
            },
        )

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """Until the next tick that takes a sample."""
        if not self._is_planned or run.tokens_total is None or run.first_step_at is None:
            return FOREVER
        armed_at = MonoNs(run.first_step_at + self._warmup_ns)
        if at < armed_at or run.spend_rate_usd_micros_per_hour is None:
            return armed_at if at < armed_at else FOREVER
        state = self._state
        next_sample = state.samples[-1][0] + self._spacing_ns if state.samples else at
        next_end = state.ends[-1][0] + self._stretch_ns if state.ends else at
        due = [next_sample] if self._all_in is not None else []
        return MonoNs(min(due + ([next_end] if self._steady is not None else [])))


def _full_cost(samples: deque[_Sample]) -> _Cost | None:
    (_, from_tokens, from_usd_micros), (_, tokens, usd_micros) = samples[0], samples[-1]
    tokens, usd_micros = tokens - from_tokens, usd_micros - from_usd_micros
    price = per_mtok(usd_micros, tokens)
    return None if price is None else _Cost(price, tokens, usd_micros)


def _steady_cost(ends: deque[_End]) -> _Cost | None:
    """None where too few stretches are clean for a middle: their sum would have the pauses."""
    total = SteadySum()
    for (since, trained_before, spent_before, progress_before), (until, trained, spent_now, progress) in pairwise(ends):
        wasted = trained - trained_before - (progress - progress_before)
        spent = UsdMicros(spent_now - spent_before)
        total.add(Window(progress_before, progress, DurationNs(until - since), spent, wasted))
    if len(total.clean) < WINDOWS_MIN or (price := total.per_mtok) is None:
        return None
    return _Cost(price, sum(tokens for _, tokens in total.clean), sum(spent for spent, _ in total.clean))
