"""Tokens cost much more than the plan says."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.policy import Expected
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, format_duration, per_mtok_text
from governor.core.events.inputs import Event, Tick
from governor.core.money.token_price import drift, per_mtok, whole_micros
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.runs.state import Run

SAMPLES: Final = 60  # A window moves by a sixtieth.
PLAN: Final = "usd_per_mtok"  # The key of [expected].


@dataclass(slots=True)
class _State:
    samples: deque[tuple[int, int, int]] = field(default_factory=deque)  # Time, tokens of progress, micro-dollars.
    progress_tokens: int = 0


class UsdPerMtok(Trigger):
    """Dollars per million tokens over the last `window`, against `[expected] usd_per_mtok` of the policy.

    The cost is all that the run was charged meanwhile, with pauses, evaluation and saving. The tokens are those by
    which its total has grown beyond the attempt's highest: tokens that are trained again after a step back are no
    progress. An hour is long enough for an evaluation to be a part of it and not the whole. The first `warmup_time` of
    each attempt, from its first step, is left out: starting is paid once. Tokens at zero cost are no efficiency: a
    price of zero is no price.

    UNKNOWN without an expectation or a price, while tokens are not reported, until the window is full, and when no
    token was trained in it (`hang` covers that). Resets at each attempt.
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
        self._expected = expected.usd_micros_per_mtok
        self._times: float = params["times"]
        self._window_ns: DurationNs = params["window"]
        self._warmup_ns: DurationNs = params["warmup_time"]
        self._spacing_ns = self._window_ns // SAMPLES
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> None:
        if self._expected is None or not isinstance(event, Tick):
            return
        if run.tokens_total is None or run.first_step_at is None or event.at - run.first_step_at < self._warmup_ns:
            return
        state = self._state
        samples = state.samples
        if run.spend_rate_usd_micros_per_hour is None:
            samples.clear()  # The charges in between are unknown.
            return
        if samples and event.at < samples[-1][0]:
            # The state was restored after a reboot: its times are of another clock.
            samples.clear()
        if samples and event.at - samples[-1][0] < self._spacing_ns:
            return
        state.progress_tokens = max(state.progress_tokens, run.tokens_total)
        samples.append((event.at, state.progress_tokens, run.spend_usd_micros))
        while len(samples) >= 2 and event.at - samples[1][0] >= self._window_ns:
            samples.popleft()

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if self._expected is None:
            return unknown("nothing_expected")
        if run.spend_rate_usd_micros_per_hour is None:
            return unknown("price_unknown")
        samples = self._state.samples
        if not samples or samples[-1][0] - samples[0][0] < self._window_ns:
            return unknown("warming_up" if run.tokens_total is not None else "no_tokens")
        (_, from_tokens, from_usd_micros), (_, tokens, usd_micros) = samples[0], samples[-1]
        actual = per_mtok(usd_micros - from_usd_micros, tokens - from_tokens)
        above, shown = drift(actual, self._expected), whole_micros(actual)
        if shown is None or above is None:
            return unknown("no_progress")
        if above + 1 < self._times:
            return QUIET
        return firing(
            "tokens_dear",
            f"1M tokens cost {per_mtok_text(shown)} over the last {format_duration(self._window_ns)}, with its pauses, "
            f"{float(above) + 1:.2f} times the {per_mtok_text(self._expected)} of [expected] {PLAN}",
            {  # An incident's own price and drift are of token windows: these are of a time, and have other names.
                "usd_micros_per_mtok_of_time": shown,
                "expected_by": PLAN,
                "expected_usd_micros_per_mtok": self._expected,
                "times_expected": float(above) + 1,
                "times": self._times,
                "window_s": self._window_ns / NS_PER_S,
                "tokens": tokens - from_tokens,
                "usd_micros": usd_micros - from_usd_micros,
            },
        )

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        """Until the next tick that takes a sample."""
        if self._expected is None or run.tokens_total is None or run.first_step_at is None:
            return FOREVER
        armed_at = MonoNs(run.first_step_at + self._warmup_ns)
        if at < armed_at or run.spend_rate_usd_micros_per_hour is None:
            return armed_at if at < armed_at else FOREVER
        return MonoNs(self._state.samples[-1][0] + self._spacing_ns)
