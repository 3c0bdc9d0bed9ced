"""Two runs side by side: what became better or worse, and what is no more than noise.

Paces are medians of windows of steps with their 95 % intervals. Where the intervals overlap, no difference is claimed.
Counts of rare events are told apart by the spread that counting has. One figure a run, as a share of all its time, has
no spread that anybody saw: a difference below SHARE_MIN is not told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.core.attribution.causes import Cause
from governor.reports.causes import words
from governor.reports.run.document import interval_row
from governor.reports.run.facts import RunFacts
from governor.reports.run.sections import Section, Table, share
from governor.reports.run.windows import COMMUNICATION, PARTS, Interval
from governor.text.table import Head

SCHEMA: Final = "costgov.compare/1"
SHARE_MIN: Final = 0.05  # Healthy runs of the same kind differ by 2 to 5 % of their time (measured on busy cores).
PRICE_MAX: Final = 0.02  # The price of its mean hour, off the one of its last hour.
STEP_MIN: Final = 0.01  # Of a step: less is no difference that matters, however sure.
EVENTS_MIN: Final = 5  # Fewer in both runs together say nothing.
_Z: Final = 2.0
_RARE_FRAC: Final = 0.5
_LOSS_OF: Final = 0.1  # The loss at the same step: of so much of the steps before it.

SAME: Final = "no difference beyond noise"
UNSURE: Final = "too few windows to tell"
UNTOLD: Final = "unknown"
CAUSES: Final = "Causes, of the time in steps"
OUTSIDE: Final = "Time outside of steps"
_OF_CAUSES: Final = f"Shares that differ by less than {100 * SHARE_MIN:.0f} points are not told apart."
NOISE: Final = (
    "noise is what each run shows from window to window; what two launches of the same thing differ by (another node, "
    "neighbours) is not in it: compare a run with its own repetition first"
)
ALONE: Final = "one figure: noise unknown"
APART: Final = "not told apart"
SMALL: Final = f"less than {100 * STEP_MIN:.0f} % of a step"
# Of the time in steps, which grows with them. What comes once a launch is a figure of its own, in seconds.
_IN_STEPS: Final = frozenset(cause.value for cause in Cause if cause.is_in_steps)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs. `change`: of B from A."""

    section: str
    name: str
    unit: str
    before: Interval | None
    after: Interval | None
    verdict: str
    change: float | None = None

    @property
    def is_beyond_noise(self) -> bool:
        return self.verdict in ("better", "worse", "higher", "lower")

    def row(self) -> dict[str, Any]:
        return {
            "section": self.section, "figure": self.name, "unit": self.unit, "a": interval_row(self.before),
            "b": interval_row(self.after), "change": self.change, "verdict": self.verdict,
        }  # fmt: skip


def figures(before: RunFacts, after: RunFacts) -> list[Figure]:
    """All that both can be compared by."""
    return [
        *_prices(before, after), *_paces(before, after), *_parts(before, after), *_causes(before, after),
        *_stability(before, after),
    ]  # fmt: skip


def compare_document(before: RunFacts, after: RunFacts) -> dict[str, Any]:
    found = figures(before, after)
    return {
        "schema": SCHEMA, "a": before.run, "b": after.run, "figures": [one.row() for one in found],
        "beyond_noise": [one.name for one in found if one.is_beyond_noise],
        "not_verified": list(_unseen(before, after)),
    }  # fmt: skip


def compare_sections(before: RunFacts, after: RunFacts) -> list[Section]:
    found = figures(before, after)
    beyond = [f"{one.name}: {_change(one)}, {one.verdict}" for one in found if one.is_beyond_noise]
    heads = [Head("FIGURE"), Head("A", True), Head("B", True), Head("CHANGE", True), Head("VERDICT", may_wrap=True)]
    who = f"A is {before.run}, B is {after.run}. ± is half of the 95 % interval of the median of its windows."
    sections = [Section("Beyond noise", [who], items=beyond or ["Nothing: no difference beyond noise."])]
    for name in dict.fromkeys(one.section for one in found):
        rows = [
            (one.name, _shown(one.before, one.unit), _shown(one.after, one.unit), _change(one), one.verdict)
            for one in found
            if one.section == name
        ]
        lines = [_OF_CAUSES] if name == CAUSES else []
        sections.append(Section(name, lines, Table(heads, rows)))
    unseen = list(_unseen(before, after))
    return [*sections, Section("Not verified", items=unseen)]


# --- the figures ---------------------------------------------------------------------------------------------


def _prices(before: RunFacts, after: RunFacts) -> Iterator[Figure]:
    """A million tokens: steady by the windows and the run's own dollars an hour, all in as one figure."""
    steady = [_steady_price(one) for one in (before, after)]
    yield _judged("Price", "$/1M tokens, steady", "usd", *steady, is_less_better=True)
    name = "usd_per_mtok_all_in"
    yield _single("Price", "$/1M tokens, all in", "usd", before.told.get(name), after.told.get(name))


def _steady_price(facts: RunFacts) -> Interval | None:
    speed = facts.series.windows.tokens_per_s() if facts.series is not None else None
    rate = facts.node_usd_per_hour
    if speed is None or not rate or not speed.middle or not _is_priced_evenly(facts, rate):
        return None
    per = rate / 3600 * 1e6
    if speed.low is None or speed.high is None or not speed.low:
        return Interval(per / speed.middle, None, None, speed.windows)
    return Interval(per / speed.middle, per / speed.high, per / speed.low, speed.windows)


def _is_priced_evenly(facts: RunFacts, rate: float) -> bool:
    """Whether all that it held the node cost what an hour costs now. Else no price stands for all of its windows."""
    time = facts.told.get("time")
    if not time or not time["wall_s"]:
        return False
    priced_s = time["wall_s"] - (facts.told.get("unpriced_s") or 0.0)
    return bool(priced_s > 0 and abs(time["usd"] / priced_s * 3600 / rate - 1) <= PRICE_MAX)


def _paces(before: RunFacts, after: RunFacts) -> Iterator[Figure]:
    a, b = (one.series.windows if one.series is not None else None for one in (before, after))
    yield _judged(
        "Speed", "tokens a second", "", a.tokens_per_s() if a else None, b.tokens_per_s() if b else None,
        is_less_better=False,
    )  # fmt: skip
    yield _judged("Speed", "step", "s", a.step_s() if a else None, b.step_s() if b else None, is_less_better=True)


def _parts(before: RunFacts, after: RunFacts) -> Iterator[Figure]:
    if before.series is None or after.series is None:
        return
    a, b = before.series.windows, after.series.windows
    for name in (*PARTS, COMMUNICATION):
        means = [one.part_mean_s(name) if name in one.told else None for one in (a, b)]
        if _is_rare(a.part_s(name), means[0]) or _is_rare(b.part_s(name), means[1]):
            yield _single("Step parts", f"{name}, mean", "s", *means)
        elif name in a.told | b.told:
            least = STEP_MIN * max(one.seconds_per_step() for one in (a, b))
            yield _judged("Step parts", name, "s", a.part_s(name), b.part_s(name), is_less_better=True, least=least)


def _is_rare(median: Interval | None, mean: float | None) -> bool:
    """Whether most windows have none of it, as of saves: their median says nothing."""
    return median is not None and mean is not None and mean > 0 and median.middle < mean * _RARE_FRAC


def _causes(before: RunFacts, after: RunFacts) -> Iterator[Figure]:
    """Of the time in steps: a run's account has one figure a cause, so a small difference is not told apart.

    Shares of all time would tell a long run from a short one. What is in no step is seconds, and no regression.
    """
    a, b = (_seconds(one) for one in (before, after))
    if a is None or b is None:
        return
    whole = [sum(s for cause, s in one.items() if cause in _IN_STEPS) for one in (a, b)]
    for cause in sorted(a.keys() | b.keys(), key=lambda one: -max(a.get(one, 0.0), b.get(one, 0.0))):
        was, now = a.get(cause, 0.0), b.get(cause, 0.0)
        if cause not in _IN_STEPS:
            yield _single(OUTSIDE, words(cause), "s", was, now)
        elif all(whole):
            was, now = was / whole[0], now / whole[1]
            verdict = APART
            if abs(now - was) >= SHARE_MIN:
                verdict = "better" if (now > was) is (cause == "productive") else "worse"
            yield Figure(CAUSES, words(cause), "share", _one(was), _one(now), verdict, now - was)


def _seconds(facts: RunFacts) -> dict[str, float] | None:
    time = facts.told.get("time")
    if not time or not time["wall_s"]:
        return None
    return {"productive": float(time["productive_s"]), **{str(one["cause"]): float(one["s"]) for one in time["causes"]}}


def _stability(before: RunFacts, after: RunFacts) -> Iterator[Figure]:
    if before.series is None or after.series is None:
        return
    a, b = before.series.stability.row(), after.series.stability.row()
    counts = {
        "skipped updates": (a["skipped_steps"], b["skipped_steps"]),
        "losses that are no number": (a["nonfinite_loss_steps"], b["nonfinite_loss_steps"]),
        "loss spikes": tuple((one["loss_spikes"] or {}).get("count") for one in (a, b)),
        "gradient norm spikes": tuple((one["grad_norm_spikes"] or {}).get("count") for one in (a, b)),
    }
    for name, (was, now) in counts.items():
        if was is not None or now is not None:
            yield _counted(name, was, now, a["steps"], b["steps"])
    windows = before.series.windows, after.series.windows
    norms = [one.grad_norm() for one in windows]
    if any(norms):
        yield _judged("Stability", "gradient norm", "", *norms, is_less_better=None)
    last = min((one.kept[-1].last_step for one in windows if one.kept), default=0)
    if all(one.kept for one in windows) and last:
        losses = [one.loss_between(round(last * (1 - _LOSS_OF)), last) for one in windows]
        if any(losses):
            yield _judged("Stability", f"loss up to step {last:,}", "", *losses, is_less_better=True)


def _unseen(before: RunFacts, after: RunFacts) -> Iterator[str]:
    yield NOISE
    for one in (before, after):
        if one.ended is None:
            yield f"{one.run} goes on: its figures are as of now"
        if one.node_usd_per_hour and not _is_priced_evenly(one, one.node_usd_per_hour):
            yield f"{one.run} had more than one price: no steady price stands for all of it"
        if one.series is None:
            yield f"{one.run} has no recording: its speed, its step parts and its stability are unknown"
        yield from (f"{one.run}: {line}" for line in one.unread)
    a, b = before.series, after.series
    if a is not None and b is not None and a.world_size != b.world_size:
        yield f"they have {a.world_size} and {b.world_size} ranks: paces of the whole are compared, not of a GPU"


# --- the judgements ------------------------------------------------------------------------------------------


def _judged(
    section: str, name: str, unit: str, before: Interval | None, after: Interval | None, *,
    is_less_better: bool | None, least: float | None = None,
) -> Figure:  # fmt: skip
    """By the two intervals. `least`: a smaller difference does not matter; None: STEP_MIN of the figure itself."""
    if before is None or after is None:
        return Figure(section, name, unit, before, after, UNTOLD)
    change = after.middle / before.middle - 1 if before.middle else None
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Figure(section, name, unit, before, after, UNSURE, change)
    is_less, is_more = after.high < before.low, after.low > before.high
    verdict = SAME
    if (is_less or is_more) and abs(after.middle - before.middle) < (least or STEP_MIN * abs(before.middle)):
        verdict = SMALL
    elif is_less or is_more:
        verdict = ("lower" if is_less else "higher") if is_less_better is None else (
            "better" if is_less is is_less_better else "worse"
        )  # fmt: skip
    return Figure(section, name, unit, before, after, verdict, change)


def _single(section: str, name: str, unit: str, before: float | None, after: float | None) -> Figure:
    if before is None or after is None:
        return Figure(section, name, unit, _maybe(before), _maybe(after), UNTOLD)
    return Figure(section, name, unit, _one(before), _one(after), ALONE, after / before - 1 if before else None)


def _counted(name: str, was: int | None, now: int | None, steps_a: int, steps_b: int) -> Figure:
    """Rare events, each of a step: by a thousand steps."""
    if was is None or now is None or not steps_a or not steps_b:
        return Figure("Stability", name, "/1,000 steps", None, None, UNTOLD)
    a, b = was / steps_a, now / steps_b
    spread = math.sqrt((was + now) / (steps_a + steps_b) * (1 / steps_a + 1 / steps_b))
    verdict = SAME
    if was + now >= EVENTS_MIN and abs(b - a) > _Z * spread:
        verdict = "worse" if b > a else "better"
    elif 0 < was + now < EVENTS_MIN:
        verdict = "too few to tell"
    change = b / a - 1 if a else None
    return Figure("Stability", name, "/1,000 steps", _one(1000 * a), _one(1000 * b), verdict, change)


def _one(value: float) -> Interval:
    return Interval(value, None, None, 1)


def _maybe(value: float | None) -> Interval | None:
    return None if value is None else _one(value)


# --- as text -------------------------------------------------------------------------------------------------


def _change(one: Figure) -> str:
    if one.change is None:
        return "-"
    return f"{one.change * 100:+.1f} points" if one.unit == "share" else f"{one.change:+.1%}"


def _shown(one: Interval | None, unit: str) -> str:
    if one is None:
        return "-"
    middle = _value(one.middle, unit)
    if one.low is None or one.high is None or not one.middle:
        return middle
    return f"{middle} ±{(one.high - one.low) / 2 / abs(one.middle):.0%}"


def _value(value: float, unit: str) -> str:
    if unit == "usd":
        return f"${value:,.4g}"
    if unit == "share":
        return share(value)
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def is_regression(found: Mapping[str, Any]) -> bool:
    """Whether something of the document became worse beyond noise."""
    return any(one["verdict"] == "worse" for one in found["figures"])
