"""Spend plus the price of stopping reaches the ceiling, or the last token has been trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.policy import Budget
from governor.core.base.units import MonoNs, UsdMicros, format_usd
from governor.core.events.inputs import Event, Step
from governor.core.money.budgets import Cap
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.runs.state import Run

TOKENS_REACHED: Final = "tokens_reached"  # The run is complete.


class BudgetReached(Trigger):
    """The money or the tokens of a run are used up.

    Fires when `spend + reserve >= at_frac x ceiling`. The reserve is the price of the halt itself (grace, kill, the
    provider's declared stop and billing-granularity bounds), so that the bill ends below the ceiling. Also fires when
    the token budget is reached: the run is then complete. Ceiling and tokens are set in `[budget]`. With a ceiling and
    an unknown price the reading is UNKNOWN. The state holds across attempts: a budget belongs to the run. At the whole
    ceiling it also judges the budgets of the run's stage, labels, day and node (`[[budget]]`, `costgov budget set`):
    the spend of all their runs, plus the price of halting all of them. Under `costgov run` the ceiling also counts what
    other users' runs below the command have cost.
    """

    KIND: ClassVar[str] = "budget"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("at_frac", "frac", 1.0, "Part of the ceiling at which it fires; below 1 the token budget is left out."),
    )
    STEPPED: ClassVar[bool] = False  # A hung run spends money too.
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step})
    PLANNED: ClassVar[bool] = True
    MEANING: ClassVar[tuple[str, ...]] = (
        "what is spent, with the price of the halt itself, reaches {at_frac} of the ceiling ({ceiling})",
        "At 100% also when the last of its tokens ({tokens}) is trained, or a budget of its stage, labels, day or node "
        "is reached.",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        budget: Budget = params["budget"]
        self._ceiling = budget.ceiling_usd_micros
        self._tokens = budget.tokens
        self._at_frac: float = params["at_frac"]
        # A rule of core.base.policy.with_cap_rule: the policy's own rule judges the run's own budget.
        if params.get("caps_only"):
            self._ceiling = self._tokens = None
        # In integers: 0.8 of a ceiling must not drift with its size.
        self._limit = None if self._ceiling is None else self._ceiling * round(self._at_frac * 10**6) // 10**6

    def observe(self, event: Event, run: Run) -> bool:
        return self._tokens is not None  # Money changes only at ticks.

    def judge(self, at: MonoNs, run: Run) -> Finding:
        # Before the attempt's first step only the money is known: the token count is that of the previous attempt.
        has_trained = run.attempt_step > 0
        if self._tokens is not None and has_trained and self._at_frac >= 1 and (run.tokens_total or 0) >= self._tokens:
            return firing(
                TOKENS_REACHED,
                f"the run has trained its {self._tokens:,} tokens",
                {"tokens_total": run.tokens_total, "tokens": self._tokens},
            )
        own = self._own(run)
        if own is not None and self._is_reached(own, self._limit or 0):
            return self._reached(own, "")
        # A group's budget says itself at which parts of it somebody is told.
        caps = [cap for cap in run.caps if self._at_frac >= 1 or cap.scope == f"run:{run.run}"]
        for cap in caps:
            if self._is_reached(cap, cap.ceiling_usd_micros * round(self._at_frac * 10**6) // 10**6):
                return self._reached(cap, f"{cap.scope}: ")
        if (own is not None or caps) and run.spend_rate_usd_micros_per_hour is None:
            return unknown("price_unknown")
        return QUIET

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        return FOREVER

    def _own(self, run: Run) -> Cap | None:
        if self._ceiling is None:
            return None
        reserve, rate = run.reserve_usd_micros or UsdMicros(0), run.spend_rate_usd_micros_per_hour
        return Cap(f"run:{run.run}", self._ceiling, run.spend_usd_micros, reserve, rate)

    @staticmethod
    def _is_reached(cap: Cap, limit_usd_micros: int) -> bool:
        return cap.spend_usd_micros + cap.reserve_usd_micros >= limit_usd_micros

    def _reached(self, cap: Cap, whose: str) -> Finding:
        share = "" if self._at_frac >= 1 else f" {self._at_frac:.0%} of"
        limit = f"the ceiling {format_usd(cap.ceiling_usd_micros)}"
        whole: dict[str, Any] = {}
        if cap.whole_usd_micros is not None:
            limit = (
                f"the {format_usd(cap.ceiling_usd_micros)} that it was granted of {format_usd(cap.whole_usd_micros)}"
            )
            whole = {"whole_usd_micros": cap.whole_usd_micros}
        return firing(
            "ceiling_reached" if self._at_frac >= 1 else "ceiling_share_reached",
            f"{whose}spend {format_usd(cap.spend_usd_micros)} plus {format_usd(cap.reserve_usd_micros)} reserved for "
            f"the halt reaches{share} {limit}",
            {
                "scope": cap.scope,
                "spend_usd_micros": cap.spend_usd_micros,
                "reserve_usd_micros": cap.reserve_usd_micros,
                "ceiling_usd_micros": cap.ceiling_usd_micros,
                "spend_rate_usd_micros_per_hour": cap.rate_usd_micros_per_hour,
                "at_frac": self._at_frac,
                **whole,
            },
        )
