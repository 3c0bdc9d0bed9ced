"""Expected against actual: what a stretch of training cost, beside what its plan and its ceiling leave for it.

Ratios are exact fractions of integers; whoever shows one rounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from governor.core.base.units import MTOK, DurationNs, UsdMicros
from governor.core.money.token_windows import Window


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is held against, as its policy and its schedule say now. None: nobody says."""

    usd_micros_per_mtok: int | None = None
    tokens_per_s: float | None = None  # Of the whole run.
    ceiling_usd_micros: int | None = None
    tokens_goal: int | None = None  # The run's total at its end.
    began_tokens: int = 0  # Its total when metering began: the ceiling pays for what comes after.

    @property
    def tokens(self) -> int | None:
        """How many tokens the ceiling is for; None also where the goal was reached before we came."""
        if self.tokens_goal is None or self.tokens_goal <= self.began_tokens:
            return None
        return self.tokens_goal - self.began_tokens


def per_mtok(usd_micros: int, tokens: int) -> Fraction | None:
    """Micro-dollars per million tokens. None without tokens, and for nothing: training costs, so no price was known."""
    return Fraction(usd_micros * MTOK, tokens) if tokens > 0 and usd_micros > 0 else None


def drift(usd_micros: int, tokens: int, expected_usd_micros_per_mtok: int | None) -> Fraction | None:
    """Actual over expected, less one: 0.1 is ten per cent dearer than planned."""
    actual = per_mtok(usd_micros, tokens)
    return None if actual is None or not expected_usd_micros_per_mtok else actual / expected_usd_micros_per_mtok - 1


def burn_rate(usd_micros: int, tokens: int, plan: Plan) -> Fraction | None:
    """$/1M tokens over what the ceiling has for each: a run that goes on at 1 lands exactly on its ceiling."""
    actual = per_mtok(usd_micros, tokens)
    if actual is None or plan.tokens is None or not plan.ceiling_usd_micros:
        return None
    return actual / Fraction(plan.ceiling_usd_micros * MTOK, plan.tokens)


@dataclass(frozen=True, slots=True)
class WindowRow:
    """A closed window and what it was held against, as the journal keeps it: history needs no policy."""

    stage: str | None
    attempt: str
    window: Window
    plan: Plan
    is_unpriced: bool = False  # It closed while the machine's price was unknown: its cost is not what it cost.


def window_row(row: WindowRow) -> dict[str, Any]:
    """The row as plain JSON; `row_of` reads it back."""
    window, plan = row.window, row.plan
    return {
        "stage": row.stage,
        "attempt": row.attempt,
        "from_tokens": window.from_tokens,
        "to_tokens": window.to_tokens,
        "duration_ns": window.duration_ns,
        "usd_micros": window.usd_micros,
        "wasted_tokens": window.wasted_tokens,
        "expected_usd_micros_per_mtok": plan.usd_micros_per_mtok,
        "expected_tokens_per_s": plan.tokens_per_s,
        "ceiling_usd_micros": plan.ceiling_usd_micros,
        "tokens_goal": plan.tokens_goal,
        "began_tokens": plan.began_tokens,
        **({"unpriced": True} if row.is_unpriced else {}),
    }


def row_of(data: Mapping[str, Any]) -> WindowRow:
    """Read a row. KeyError, TypeError or ValueError when it is not one of ours; rows of before carry no plan."""

    def whole(name: str) -> int | None:
        value = data.get(name)
        return None if value is None else int(value)

    speed = data.get("expected_tokens_per_s")
    stage = data["stage"]
    window = Window(
        from_tokens=int(data["from_tokens"]),
        to_tokens=int(data["to_tokens"]),
        duration_ns=DurationNs(int(data["duration_ns"])),
        usd_micros=UsdMicros(int(data["usd_micros"])),
        wasted_tokens=int(data["wasted_tokens"]),
    )
    if window.tokens <= 0:
        raise ValueError("a window without tokens")
    plan = Plan(
        usd_micros_per_mtok=whole("expected_usd_micros_per_mtok"),
        tokens_per_s=None if speed is None else float(speed),
        ceiling_usd_micros=whole("ceiling_usd_micros"),
        tokens_goal=whole("tokens_goal"),
        began_tokens=whole("began_tokens") or 0,
    )
    return WindowRow(
        None if stage is None else str(stage), str(data["attempt"]), window, plan, bool(data.get("unpriced"))
    )
