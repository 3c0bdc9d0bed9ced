"""What a run's time went to, in rows for people: the page of the metrics port and `costgov top` show the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, format_duration, format_usd, is_spend_known

SHARE_MIN: Final = 0.0005  # Less reads as 0.0 %.
WORTH_FRAC: Final = 0.01  # Of a run's time. Less is not worth anybody's hour.


class CauseRow(NamedTuple):
    """`share_frac` is of the run's time. The money is "-" where no price is known."""

    cause: str
    per_hour: str
    share_frac: float
    time: str
    confidence: str
    next_step: str

    @property
    def share(self) -> str:
        return percent(self.share_frac)


def cause_rows(run: Mapping[str, Any], most: int) -> list[CauseRow]:
    """The dearest causes of a run of the `status` answer, and one row for the sum of the others.

    So the rows add up to what was not productive. Empty before any time has passed, and of an older governor.
    """
    told = run.get("time") or {}
    wall_s = told.get("wall_s") or 0.0
    causes = [one for one in told.get("causes") or [] if one["s"] > 0 or one["usd"] > 0]
    if not wall_s or not causes:
        return []
    is_priced = is_spend_known(run.get("spend_rate_usd_per_hour"), run["spend_usd"])
    shown = causes if len(causes) <= most else causes[: most - 1]
    rows = [
        _row(
            name_of(one["cause"], is_stepless=run.get("stepless_s") is not None),
            one["s"],
            one["usd"],
            wall_s,
            is_priced,
        )._replace(confidence=one["confidence"], next_step=advice_of(one) or "")
        for one in shown
    ]
    rest = causes[len(shown) :]
    if rest:
        rest_s, dollars = sum(one["s"] for one in rest), sum(one["usd"] for one in rest)
        rows.append(_row(f"{len(rest)} others", rest_s, dollars, wall_s, is_priced))
    return rows


def advice_of(cause: Mapping[str, Any]) -> str | None:
    """The next step, of a cause that is worth one."""
    step: str | None = cause.get("next_step")
    return step if (cause.get("share") or 0.0) >= WORTH_FRAC else None


def _row(name: str, cause_s: float, dollars: float, wall_s: float, is_priced: bool) -> CauseRow:
    per_hour = f"{money_text(dollars / wall_s * 3600)}/h" if is_priced else "-"
    return CauseRow(name, per_hour, cause_s / wall_s, seconds_text(cause_s), "", "")


def name_of(cause: str, *, is_stepless: bool) -> str:
    """A hang that goes on is one as long as no step ends it."""
    return "hang so far" if cause == "hang" and is_stepless else words(cause)


def words(cause: str) -> str:
    """A cause as prose has it."""
    return cause.replace("_", " ")


def goodput_text(run: Mapping[str, Any]) -> str:
    """The productive share of the run's time; "-" while there is none."""
    goodput = (run.get("time") or {}).get("goodput")
    return "-" if goodput is None else percent(goodput)


def percent(frac: float) -> str:
    return f"{100 * frac:.1f}%" if abs(frac) >= SHARE_MIN or frac == 0 else "<0.1%"


def usd(amount: float) -> str:
    return format_usd(round(amount * MICROS_PER_USD))


def seconds(amount: float) -> str:
    return format_duration(round(amount * NS_PER_S))


def money_text(amount: float | None) -> str:
    return "-" if amount is None else usd(amount)


def seconds_text(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def count_text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def spent_text(run: Mapping[str, Any]) -> str:
    """What the run has cost, of its ceiling if it has one; "?" where no price is known."""
    if not is_spend_known(run.get("spend_rate_usd_per_hour"), run["spend_usd"]):
        return "?" if run.get("paid_by") is None else "-"
    spent = money_text(run["spend_usd"])
    return f"{spent} of {money_text(run['ceiling_usd'])}" if run.get("ceiling_usd") is not None else spent


def drift_text(run: Mapping[str, Any]) -> str:
    """How far the steady price is from the expected one. Empty where nothing is expected."""
    drift = run.get("drift_frac")
    return "" if drift is None else f"{100 * drift:+.1f}%"
