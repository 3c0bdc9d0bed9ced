"""Spend plus the price of stopping reaches the ceiling, or the last token has been trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from governor.core.events import Event
from governor.core.findings import QUIET, Finding, Reading, unknown
from governor.core.policy import Budget
from governor.core.run_state import Run
from governor.core.triggers.base import Key
from governor.core.units import MonoNs, UsdMicros, format_usd


class BudgetReached:
    """The money or the tokens of a run are used up.

    Fires when `spend + reserve >= at_frac x ceiling`, where the reserve is the price of the halt itself (grace, kill,
    the provider's declared stop and billing-granularity bounds), so that the bill lands below the ceiling. Fires too
    when the token budget is reached: the run is then complete. Ceiling and tokens stand in `[budget]`. With a ceiling
    and an unknown price the reading is UNKNOWN. Holds across attempts: a budget belongs to the run.
    """

    KIND: ClassVar[str] = "budget"
    KEYS: ClassVar[tuple[Key, ...]] = (
        Key("at_frac", "frac", 1.0, "Part of the ceiling at which it fires; below 1 the token budget is left out."),
    )
    STEPPED: ClassVar[bool] = False  # A hung run spends too.

    def __init__(self, params: Mapping[str, Any]) -> None:
        budget: Budget = params["budget"]
        self._ceiling = budget.ceiling_usd_micros
        self._tokens = budget.tokens
        self._at_frac: float = params["at_frac"]
        # In integers: 0.8 of a ceiling must not drift with its size.
        self._limit = None if self._ceiling is None else self._ceiling * round(self._at_frac * 10**6) // 10**6

    def observe(self, event: Event, run: Run) -> None:
        pass

    def judge(self, at: MonoNs, run: Run) -> Finding:
        # Of an attempt that has not trained a step we know money alone: what was reached was the one before it.
        has_trained = run.attempt_step > 0
        if self._tokens is not None and has_trained and self._at_frac >= 1 and (run.tokens_total or 0) >= self._tokens:
            return Finding(
                Reading.FIRING,
                "tokens_reached",
                f"the run has trained its {self._tokens:,} tokens",
                {"tokens_total": run.tokens_total, "tokens": self._tokens},
            )
        if self._limit is None:
            return QUIET
        reserve_usd_micros = run.reserve_usd_micros or UsdMicros(0)
        if run.spend_usd_micros + reserve_usd_micros >= self._limit:
            return self._reached(run, reserve_usd_micros)
        if run.spend_rate_usd_micros_per_hour is None:
            return unknown("price_unknown")
        return QUIET

    def _reached(self, run: Run, reserve_usd_micros: UsdMicros) -> Finding:
        assert self._ceiling is not None
        share = "" if self._at_frac >= 1 else f" {self._at_frac:.0%} of"
        return Finding(
            Reading.FIRING,
            "ceiling_reached" if self._at_frac >= 1 else "ceiling_share_reached",
            f"spend {format_usd(run.spend_usd_micros)} plus {format_usd(reserve_usd_micros)} reserved for the halt "
            f"reaches{share} the ceiling {format_usd(self._ceiling)}",
            {
                "spend_usd_micros": run.spend_usd_micros,
                "reserve_usd_micros": reserve_usd_micros,
                "ceiling_usd_micros": self._ceiling,
                "spend_rate_usd_micros_per_hour": run.spend_rate_usd_micros_per_hour,
                "at_frac": self._at_frac,
            },
        )

    def new_attempt(self, run: Run) -> None:
        pass

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        pass
