"""A search as one self-contained page: every candidate that fits, those that nothing beats, and the two to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from governor.planner.model.searching import Found
from governor.planner.output.plan_page import page_sections, section, table, whole
from governor.planner.output.plan_plots import Series, curves
from governor.planner.output.plan_words import count, days, share, usd, ways
from governor.planner.plan_search import Searched, Wanted, estimate_found
from governor.planner.plan_ways import sharding_of

POINTS_MAX: Final = 4_000  # More draws no other cloud, and the page grows by 150 bytes a point.


def search_page(want: Wanted, result: Searched) -> str:
    choice = result.choice
    kept = {"primary": choice.primary, "fallback": choice.fallback}
    chosen = [estimate_found(want, one, name, result.tokens) for name, one in kept.items() if one is not None]
    title = f"costgov plan search: {want.one.name}, {count(result.tokens)} tokens"
    reasons = "".join(f"{reason}. " for reason in choice.reasons)
    heads = ("GPUs", "seller", "sharding", "how", "memory", "tokens/s/GPU", "calendar", "calendar $")
    parts = [
        section("What it costs, and how long it takes", _cloud(result), reasons),
        section("Beaten by none in dollars, hours and GPUs", table(heads, [_row(one) for one in result.front])),
        page_sections(chosen) if chosen else "",
    ]
    return whole(title, "".join(parts))


def _cloud(result: Searched) -> str:
    series = []
    step = len(result.found) // POINTS_MAX + 1
    for name in dict.fromkeys(one.setup.gpu.name for one in result.found):
        of_gpu = [one for one in result.found[::step] if one.setup.gpu.name == name]
        series.append(Series(name, _points(of_gpu), is_line=False))
    series.append(Series("beaten by none in dollars and hours", _points(_edge(result.front)), is_edge=True))
    return curves(series, "calendar hours", "calendar $", 460)


def _edge(front: Sequence[Found]) -> list[Found]:
    """The front without those that stand in it for their few GPUs alone, from the cheapest to the fastest."""
    edge: list[Found] = []
    for one in front:  # The cheapest come first.
        if not edge or one.hours < edge[-1].hours:
            edge.append(one)
    return edge


def _points(found: Sequence[Found]) -> list[tuple[float, float, str]]:
    return [(one.hours, one.usd, _told(one)) for one in found]


def _told(one: Found) -> str:
    setup = one.setup
    return f"{setup.gpus} x {setup.gpu.name}, {ways(setup)}: {days(one.hours)}, {usd(one.usd)}"


def _row(one: Found) -> tuple[str, ...]:
    return (
        f"{one.setup.gpus} x {one.setup.gpu.name}",
        one.offer.seller,
        sharding_of(one.setup),
        ways(one.setup),
        share(one.memory_frac),
        f"{one.tokens_per_s / one.setup.gpus:,.0f}",
        days(one.hours),
        usd(one.usd),
    )
