"""Expected against actual cost of a stretch of training, beside its plan and its ceiling.

Ratios are exact fractions of integers; the display rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, DurationNs, UsdMicros
from governor.core.money.token_price import over, per_mtok
from governor.core.money.token_windows import Window


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """The plan of a run, from its present policy and schedule. None: not stated."""

    usd_micros_per_mtok: int | None = None  # While it trains.
    tokens_per_s: float | None = None  # Of the whole run.
    ceiling_usd_micros: int | None = None
    tokens_goal: int | None = None  # The run's total at its end.
    # Its total when metering began. The ceiling pays for the tokens after it.
    began_tokens: int = 0
    usd_micros_per_mtok_all_in: int | None = None  # With starts, pauses and halts.
    lent_tokens: int = 0  # Of the tokens after it, what others have paid for by now, or was trained elsewhere.

    @property
    def tokens(self) -> int | None:
        """The tokens that the ceiling pays for; None also when the goal was reached without paying for any."""
        unpaid = self.began_tokens + self.lent_tokens
        return self.tokens_goal - unpaid if self.tokens_goal is not None and self.tokens_goal > unpaid else None


def window_rate(window: Window) -> float | None:
    """Micro-dollars an hour, as the window was charged. None for one that took no time.

    Between two attempts the machine may have been nobody's, so the rest of the window speaks where there is any.
    """
    if window.has_start and window.steady_ns > 0:
        return window.steady_usd_micros * NS_PER_HOUR / window.steady_ns
    return window.usd_micros * NS_PER_HOUR / window.duration_ns if window.duration_ns else None


def burn_rate(price: Fraction | None, plan: ExpectedCost) -> Fraction | None:
    """$/1M tokens over what the ceiling allows for each. A run that stays at 1 ends exactly at its ceiling."""
    return over(price, per_mtok(plan.ceiling_usd_micros or 0, plan.tokens or 0))


# As SQLite has integers. A larger one becomes a float there, which is no figure of a window.
JOURNAL_INT_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class WindowRow:
    """A closed window with its plan, as the journal stores it: history needs no policy."""

    stage: str | None
    attempt: str
    window: Window
    plan: ExpectedCost
    wasted_to: int = 0  # Where it has no progress: all that the run had trained again by its end.


def window_row(row: WindowRow) -> dict[str, Any]:
    """The row as plain JSON; `row_of` reads it."""
    window, plan = row.window, row.plan
    figures = (window.from_tokens, window.to_tokens, window.duration_ns, window.usd_micros, window.wasted_tokens)
    assert -JOURNAL_INT_END <= min(figures) <= max(figures) < JOURNAL_INT_END, "no reader could read it back"
    assert has_trained(window), "no reader could read it back"
    return {
        "stage": row.stage,
        "attempt": row.attempt,
        "from_tokens": window.from_tokens,
        "to_tokens": window.to_tokens,
        "duration_ns": window.duration_ns,
        "usd_micros": window.usd_micros,
        "wasted_tokens": window.wasted_tokens,
        **(_start_row(window) if window.has_start else {}),
        **plan_row(plan),
        **({"unpriced": True} if window.is_unpriced else {}),
        **({"lent_tokens": window.lent_tokens} if window.lent_tokens else {}),
        **({"wasted_to": row.wasted_to} if not window.tokens else {}),
    }


def has_trained(window: Window) -> bool:
    """Whether it is one: with tokens of progress, or at a stage's end with those alone that were trained again."""
    return window.tokens > 0 or (window.tokens == 0 and window.wasted_tokens > 0)


def plan_row(plan: ExpectedCost) -> dict[str, Any]:
    """The plan as plain JSON; `plan_of_row` reads it."""
    row = {
        "expected_usd_micros_per_mtok": plan.usd_micros_per_mtok,
        "expected_tokens_per_s": plan.tokens_per_s,
        "ceiling_usd_micros": plan.ceiling_usd_micros,
        "tokens_goal": plan.tokens_goal,
        "began_tokens": plan.began_tokens,
    }
    if plan.lent_tokens:
        row["lent_of_goal"] = plan.lent_tokens  # A window's own have the other name.
    if plan.usd_micros_per_mtok_all_in is not None:
        row["expected_usd_micros_per_mtok_all_in"] = plan.usd_micros_per_mtok_all_in
    return row


def _start_row(window: Window) -> dict[str, int]:
    return {
        "start_ns": window.start_ns,
        "start_tokens": window.start_tokens,
        "start_usd_micros": window.start_usd_micros,
    }


def row_of(data: Mapping[str, Any]) -> WindowRow:
    """Read a row. KeyError, TypeError or ValueError when it is not a window row. Old rows carry no plan."""

    def whole(name: str) -> int | None:
        value = data.get(name)
        return None if value is None else int(value)

    stage = data["stage"]
    window = Window(
        from_tokens=int(data["from_tokens"]),
        to_tokens=int(data["to_tokens"]),
        duration_ns=DurationNs(int(data["duration_ns"])),
        usd_micros=UsdMicros(int(data["usd_micros"])),
        wasted_tokens=int(data["wasted_tokens"]),
        start_ns=DurationNs(whole("start_ns") or 0),
        start_tokens=whole("start_tokens") or 0,
        start_usd_micros=UsdMicros(whole("start_usd_micros") or 0),
        is_unpriced=bool(data.get("unpriced")),
        lent_tokens=whole("lent_tokens") or 0,
    )
    if not has_trained(window):
        raise ValueError("a window without tokens")
    stage, wasted_to = None if stage is None else str(stage), whole("wasted_to") or 0
    return WindowRow(stage, str(data["attempt"]), window, plan_of_row(data), wasted_to)


def plan_of_row(data: Mapping[str, Any]) -> ExpectedCost:
    """Read a plan. TypeError or ValueError when it is none."""

    def whole(name: str) -> int | None:
        value = data.get(name)
        return None if value is None else int(value)

    speed = data.get("expected_tokens_per_s")
    return ExpectedCost(
        usd_micros_per_mtok=whole("expected_usd_micros_per_mtok"),
        tokens_per_s=None if speed is None else float(speed),
        ceiling_usd_micros=whole("ceiling_usd_micros"),
        tokens_goal=whole("tokens_goal"),
        began_tokens=whole("began_tokens") or 0,
        lent_tokens=whole("lent_of_goal") or 0,
        usd_micros_per_mtok_all_in=whole("expected_usd_micros_per_mtok_all_in"),
    )
