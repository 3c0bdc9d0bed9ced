"""HTML pages of plans (figures, bars, and cost over the number of GPUs), and the page of a search."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from governor.planner.estimate import WAYS, Estimate, by_way, estimate_of, memory_parts, step_parts
from governor.planner.model.candidates import Found, candidates
from governor.planner.model.memory import memory_frac
from governor.planner.model.setup import ImpossibleSetupError
from governor.planner.model.step_time import tokens_per_gpu_s
from governor.planner.output.report import LABELS, notes_of
from governor.planner.promise import promised_cost, promised_mtok_usd, sharding_text
from governor.planner.request import Asked, settle
from governor.planner.search import Searched, Wanted, estimate_found
from governor.planner.words import GB, UNKNOWN, count, days, gigabytes, seconds, share, usd, ways
from governor.text import page as web
from governor.text.page import section, table
from governor.text.svg import Bar, Series, colours_of, curves, legend, stacked
from governor.text.table import Head

FACTORS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Point:
    gpus: int
    estimate: Estimate


def curve(one: Estimate) -> Iterator[Point]:
    """Only where it fits and a framework runs it. The tokens per step and the GPU-hour price stay the same."""
    if one.is_measured:  # A measured speed holds only for its own number of GPUs.
        return
    asked = one.plan.asked
    for factor in FACTORS:
        gpus = int(asked.gpus * factor)
        made = None if gpus < 1 else _on(asked, gpus)
        if made is not None and made.prediction.memory.fits:
            yield Point(gpus, made)


def _on(asked: Asked, gpus: int) -> Estimate | None:
    other = replace(asked, gpus=gpus, space=replace(asked.space, gpus=(gpus,)))
    if next(candidates(other.shape, (other.gpu,), other.seq_len, other.batch_tokens, other.space), None) is None:
        return None
    try:
        return estimate_of(settle(other, memory_frac, tokens_per_gpu_s))
    except ImpossibleSetupError:
        return None


# --- plans as one page: memory bars, step-time breakdown, cost curves, and the figures as a table


def page(plans: Sequence[Estimate]) -> str:
    names = ", ".join(dict.fromkeys(one.setup.shape.name for one in plans))
    return web.page(f"costgov plan: {names}", page_sections(plans))


def page_sections(plans: Sequence[Estimate]) -> str:
    sections = [
        section("What it needs and costs", _figure_table(plans)),
        section("Memory of a GPU", _memory(plans), "Dashed: what the GPU has. What reaches beyond it does not fit."),
        section("Step time", _steps(plans), "Seconds of one optimizer step, as predicted."),
        section("Cost curves", _curves(plans), "Only numbers of GPUs on which it fits. Both scales are logarithmic."),
        section("The same under each way of sharding", _ways(plans), "Steady state; GB where it does not fit."),
        section("Chosen and assumed", _said(plans)),
    ]
    return "".join(sections)


_FIGURES: Final = (
    *("plan", "sharding", "GPUs", "GB of a GPU", "fits", "tokens/s/GPU", "80 % interval", "MFU"),
    *("steady", "calendar", "steady $", "calendar $", "80 % interval, calendar", "$ per 1M"),
)


def _figure_table(plans: Sequence[Estimate]) -> str:
    """One column for each plan, because people compare along a row."""
    names, *rows = zip(_FIGURES, *(_figures(one) for one in plans), strict=True)
    return table(_heads(names), rows)


def _heads(names: Sequence[str], texts: int = 1) -> list[Head]:
    """`texts` text columns, then number columns."""
    return [Head(name, is_number=place >= texts) for place, name in enumerate(names)]


def _figures(one: Estimate) -> tuple[str, ...]:
    memory, cost, speed = one.prediction.memory, promised_cost(one), one.per_gpu_s
    calendar = None if cost is None else cost.calendar_usd
    return (
        one.plan.asked.name,
        sharding_text(one.setup),
        f"{one.setup.gpus} x {one.setup.gpu.name}",
        f"{gigabytes(memory.reserved)} of {gigabytes(memory.capacity)}",
        "yes" if memory.fits else "NO",
        f"{speed.mid:,.0f}",
        f"{speed.low:,.0f} to {speed.high:,.0f}",
        share(one.mfu),
        UNKNOWN if cost is None else days(cost.steady_hours.mid),
        UNKNOWN if cost is None else days(cost.calendar_hours.mid),
        UNKNOWN if cost is None or cost.steady_usd is None else usd(cost.steady_usd.mid),
        UNKNOWN if calendar is None else usd(calendar.mid),
        UNKNOWN if calendar is None else f"{usd(calendar.low)} to {usd(calendar.high)}",
        UNKNOWN if (mtok := promised_mtok_usd(one)) is None else usd(mtok.mid),
    )


def _memory(plans: Sequence[Estimate]) -> str:
    bars = []
    for one in plans:
        memory = one.prediction.memory
        parts = {LABELS.get(name, name): value / GB for name, value in memory_parts(memory).items()}
        told = f"{gigabytes(memory.reserved)} GB" + ("" if memory.fits else ": does not fit")
        bars.append(Bar(one.plan.asked.name, parts, told, memory.capacity / GB))
    colours = colours_of(list(bars[0].parts))
    return legend(colours) + stacked(bars, colours, "GB")


def _steps(plans: Sequence[Estimate]) -> str:
    bars = []
    for one in plans:
        step = step_parts(one.prediction.step)
        parts = {LABELS.get(name, name): value for name, value in step.items()}
        bars.append(Bar(one.plan.asked.name, parts, f"{seconds(sum(step.values()))} s"))
    colours = colours_of(list(bars[0].parts))
    return legend(colours) + stacked(bars, colours, "s")


def _curves(plans: Sequence[Estimate]) -> str:
    """Dollars over hours, or speed over GPUs without a price or tokens. Each point is a number of GPUs."""
    found = [(one, list(curve(one))) for one in plans]
    has_cost = any(one.cost is not None and one.cost.steady_usd is not None for one, _ in found)
    series = []
    for one, points in found:
        at = []
        for point in points:
            made, gpus = point.estimate, f"{point.gpus} x {point.estimate.setup.gpu.name}"
            cost = made.cost
            if not has_cost:
                at.append((float(point.gpus), made.tokens_per_s.mid, f"{gpus}: {made.tokens_per_s.mid:,.0f} tokens/s"))
            elif cost is not None and cost.calendar_usd is not None:
                told = f"{gpus}: {days(cost.calendar_hours.mid)}, {usd(cost.calendar_usd.mid)}; {ways(made.setup)}"
                at.append((cost.calendar_hours.mid, cost.calendar_usd.mid, told))
        if at:
            series.append(Series(one.plan.asked.name, at))
    if has_cost:
        return curves(series, "calendar hours: from many GPUs at the left to few", "calendar $")
    return curves(series, "GPUs", "tokens/s of the whole run")


def _ways(plans: Sequence[Estimate]) -> str:
    rows = []
    for one in plans:
        cells = [one.plan.asked.name]
        for other in by_way(one.plan.asked).values():
            if other is None:
                cells.append("-")
            elif not other.prediction.memory.fits:
                cells.append(f"no: {gigabytes(other.prediction.memory.reserved)} GB")
            elif other.cost is not None and other.cost.steady_usd is not None:
                cells.append(usd(other.cost.steady_usd.mid))
            else:
                cells.append(f"{other.per_gpu_s.mid:,.0f} tok/s")
        rows.append(cells)
    return table(_heads(("plan", *WAYS)), rows)


def _said(plans: Sequence[Estimate]) -> str:
    items = []
    for one in plans:
        params = f"{count(one.setup.shape.params)} parameters"
        items.append(f"{one.plan.asked.name}: {one.setup.shape.name}, {params}; {ways(one.setup)}")
        items += [f"{one.plan.asked.name}: {note}" for note in notes_of(one)]
    return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"


# --- a search as one page: every candidate within the limits, the Pareto front, and the two to keep


POINTS_MAX: Final = 4_000  # More points look the same, and each adds 150 bytes to the page.


def search_page(want: Wanted, result: Searched) -> str:
    choice = result.choice
    kept = {"primary": choice.primary, "fallback": choice.fallback}
    chosen = [estimate_found(want, one, name) for name, one in kept.items() if one is not None]
    title = f"costgov plan search: {want.one.name}, {count(result.tokens)} tokens"
    reasons = "".join(f"{reason}. " for reason in choice.reasons)
    heads = ("GPUs", "seller", "sharding", "how", "memory", "tokens/s/GPU", "calendar", "calendar $")
    parts = [
        section("What it costs, and how long it takes", _cloud(result), reasons),
        section(
            "Beaten by none in dollars, hours and GPUs",
            table(_heads(heads, texts=4), [_row(one) for one in result.front]),
        ),
        page_sections(chosen) if chosen else "",
    ]
    return web.page(title, "".join(parts))


def _cloud(result: Searched) -> str:
    series = []
    step = len(result.within) // POINTS_MAX + 1
    for name in dict.fromkeys(one.setup.gpu.name for one in result.within):
        of_gpu = [one for one in result.within[::step] if one.setup.gpu.name == name]
        series.append(Series(name, _points(of_gpu), is_line=False))
    series.append(Series("beaten by none in dollars and hours", _points(_edge(result.front)), is_edge=True))
    return curves(series, "calendar hours", "calendar $", 460)


def _edge(front: Sequence[Found]) -> list[Found]:
    """The front without the set-ups that are in it only for their few GPUs, from the cheapest to the fastest."""
    edge: list[Found] = []
    for one in front:  # Cheapest first.
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
        sharding_text(one.setup),
        ways(one.setup),
        share(one.memory_frac),
        f"{one.tokens_per_s / one.setup.gpus:,.0f}",
        days(one.hours),
        usd(one.usd),
    )
