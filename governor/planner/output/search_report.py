"""A search as text for the terminal and as JSON: the Pareto front, the two set-ups to keep, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from governor.planner.estimate import Estimate
from governor.planner.model.candidates import CANDIDATES_MAX, MARGIN, Found
from governor.planner.model.scaling_law import CHINCHILLA
from governor.planner.output.report import document, setup_document
from governor.planner.promise import chance_of_no_room, sharding_text
from governor.planner.search import Searched, Size, Wanted, best_of, command_of, estimate_found, is_alone, values_of
from governor.planner.sellers import machines_text
from governor.planner.words import count, days, gigabytes, share, spread, usd, ways
from governor.text.screen import Screen
from governor.text.table import Head, render_rows

# Of a front: the cheapest, the fastest, and evenly spaced ones between.
ROWS_MAX = 15


def search_report(want: Wanted, result: Searched, *, screen: Screen, assumed: Sequence[str] = ()) -> str:
    choice, head = result.choice, _head(want, result)
    parts = [head, _front(result, screen)]
    for name, found in (("primary", choice.primary), ("fallback", choice.fallback)):
        if found is not None:
            parts.append(_chosen(want, name, found))
    parts.append("\n".join([*choice.reasons, *_notes(want, result, assumed)]))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def search_document(want: Wanted, result: Searched) -> dict[str, Any]:
    choice = result.choice
    both = {"primary": choice.primary, "fallback": choice.fallback}
    return {
        "model": want.one.name,
        "tokens": result.tokens,
        "deadline_h": want.limits.deadline_h,
        "budget_usd": want.limits.budget_usd,
        "candidates": result.tried,
        "fitting": len(result.found),
        "fitting_without_room": result.tight,
        "beyond_limits": result.beyond,
        "pareto": [_found(one) for one in result.front],
        **{name: None if one is None else _whole(want, name, one) for name, one in both.items()},
        "reasons": list(choice.reasons),
        "left_out": list(want.unsold),
    }


def sizes_report(sizes: Sequence[Size], *, screen: Screen, assumed: Sequence[str]) -> str:
    best = best_of(sizes)
    rows = []
    for size in sizes:
        primary = size.result.choice.primary
        assert primary is not None, "a size that nothing can train is none"
        rows.append((
            f"{size.shape.name}{'  <- best' if size is best else ''}",
            f"{size.shape.layers} x {size.shape.hidden}",
            count(size.tokens), f"{size.tokens / size.shape.params:,.1f}", f"{size.loss:.3f}",
            f"{primary.setup.gpus} x {primary.setup.gpu.name}", days(primary.hours), usd(primary.usd),
            usd(primary.held_usd),
        ))  # fmt: skip
    heads = (
        Head("SIZE"), Head("LAYERS x HIDDEN"), Head("TOKENS", is_number=True), Head("A PARAMETER", is_number=True),
        Head("LOSS", is_number=True), Head("ON"), Head("CALENDAR", is_number=True), Head("$", is_number=True),
        Head("P80 $", is_number=True),
    )  # fmt: skip
    law = CHINCHILLA
    notes = [
        f"loss = {law.irreducible} + {law.a} / N^{law.alpha} + {law.b} / D^{law.beta} nats a token "
        "(Hoffmann et al. 2022, constants of Besiroglu et al. 2024):",
        "for dense models on the law's own text; to compare sizes, not to expect. A model that serves many is better "
        "smaller and longer trained.",
    ]
    table = render_rows(heads, rows, total=False, screen=screen, notes=notes)
    return f"{table}\n{search_report(best.want, best.result, screen=screen, assumed=assumed)}"


def sizes_document(sizes: Sequence[Size]) -> dict[str, Any]:
    best = best_of(sizes)
    law = CHINCHILLA
    names = ("irreducible", "a", "alpha", "b", "beta")
    return {
        "law": {name: getattr(law, name) for name in names},
        "sizes": [
            {
                "params": round(size.shape.params),
                "layers": size.shape.layers,
                "hidden": size.shape.hidden,
                "tokens": size.tokens,
                "loss": size.loss,
                "is_best": size is best,
            }
            for size in sizes
        ],
        **search_document(best.want, best.result),
    }


def _head(want: Wanted, result: Searched) -> str:
    limits, one = want.limits, want.one
    words = []
    if limits.deadline_h is not None:
        words.append(f"within {days(limits.deadline_h)}")
    if limits.budget_usd is not None:
        words.append(f"for at most {usd(limits.budget_usd)}")
    wish = f", {' and '.join(words)}" if words else ""
    figures = f"{'tokens' if result.is_open else '$'}, hours and GPUs together"
    others = f"of the {len(result.within):,} others {len(result.front):,} are beaten by none in {figures}"
    return (
        f"{one.name}: {count(one.shape.params)} parameters; {count(result.tokens)} tokens{wish}\n"
        f"  {result.tried:,} candidates, {len(result.found):,} fit{_left_out(result)}"
        f"{f'; {others}' if result.within else ''}"
    )


def _left_out(result: Searched) -> str:
    words = []
    if result.tight:
        words.append(f"{result.tight:,} of them into more than {MARGIN:.0%} of the memory")
    if result.beyond:
        words.append(f"{result.beyond:,} beyond the limits, held at P80")
    return f"; left out are {' and '.join(words)}" if words else ""


def _front(result: Searched, screen: Screen) -> str:
    if not result.front:
        return ""
    rows = [
        (_mark(one, result), f"{one.setup.gpus} x {one.setup.gpu.name}", one.offer.seller, sharding_text(one.setup),
         ways(one.setup), share(one.memory_frac), f"{one.tokens_per_s / one.setup.gpus:,.0f}",
         *([count(one.tokens)] if result.is_open else []), days(one.hours), days(one.held_hours), usd(one.usd),
         usd(one.held_usd))
        for one in _thinned(result)
    ]  # fmt: skip
    heads = (
        Head(""), Head("GPUS"), Head("SELLER"), Head("SHARDING"), Head("HOW", may_wrap=True),
        Head("MEMORY", is_number=True), Head("TOK/S/GPU", is_number=True),
        *([Head("TOKENS", is_number=True)] if result.is_open else []), Head("CALENDAR", is_number=True),
        Head("P80", is_number=True), Head("$", is_number=True), Head("P80 $", is_number=True),
    )  # fmt: skip
    left = len(result.front) - len(rows)
    notes = [f"{left} more between them: --json has all"] if left > 0 else []
    return render_rows(heads, rows, total=False, screen=screen, notes=notes)


def _thinned(result: Searched) -> list[Found]:
    """At most ROWS_MAX of the front, always with its ends and the chosen set-ups."""
    front = list(result.front)
    if len(front) > ROWS_MAX:
        last = len(front) - 1
        kept = {round(place * last / (ROWS_MAX - 1)) for place in range(ROWS_MAX)}
        front = [one for place, one in enumerate(front) if place in kept]
    chosen = (one for one in (result.choice.primary, result.choice.fallback) if one is not None)
    front += [one for one in chosen if one not in front]
    return sorted(front, key=lambda one: (-one.tokens, one.usd))


def _mark(one: Found, result: Searched) -> str:
    return "primary" if one == result.choice.primary else "fallback" if one == result.choice.fallback else ""


def _chosen(want: Wanted, name: str, found: Found) -> str:
    one = estimate_found(want, found, name)
    assert one.cost is not None, "tokens are stated"
    low, mid, high = spread(one.cost.calendar_hours, days)
    cheap, dear, dearest = spread(one.cost.calendar_usd, usd)
    needed, memory = one.prediction.memory, one.memory_band
    return (
        f"{name}: {found.setup.gpus} x {found.setup.gpu.name} of {found.offer.seller} at "
        f"${found.offer.gpu_hour_usd:,.2f} a GPU-hour; {ways(found.setup)}\n"
        f"  {mid} ({low} to {high}), {dear} ({cheap} to {dearest}); memory {gigabytes(needed.reserved)} GB "
        f"({gigabytes(memory.low)} to {gigabytes(memory.high)}) of {gigabytes(needed.capacity)}"
        f"{_risk(one)}\n"
        f"  {command_of({**values_of(want, found), 'tokens': count(found.tokens)})}"
    )


def _risk(one: Estimate) -> str:
    risk = chance_of_no_room(one)
    return f", where {share(risk)} of such runs need more" if risk >= 0.005 else ""


def _notes(want: Wanted, result: Searched, assumed: Sequence[str]) -> list[str]:
    notes = ["hours and dollars are of the calendar: failures, saves, evaluations, and what finished runs took beyond"]
    said = [*want.one.assumed, *want.assumed, *assumed]
    if said:
        notes.append(f"assumed, as not given: {', '.join(said)}")
    if (few := _of_fewer(want, result)) is not None:
        notes.append(few)
    if want.unsold:
        notes.append(f"left out, as nobody is listed with them at that kind of price: {', '.join(want.unsold)}")
    alone = [offer.gpu.name for offer in want.offers if is_alone(offer.gpu, want.values)]
    if alone:
        names = ", ".join(dict.fromkeys(alone))
        notes.append(f"of {names} one alone: rented singly, without a fast network between them (network states one)")
    if result.tried >= CANDIDATES_MAX:
        notes.append(f"of each framework no more than {CANDIDATES_MAX:,} candidates were tried: state gpu or gpus")
    return notes


def _of_fewer(want: Wanted, result: Searched) -> str | None:
    """Sellers that would be cheaper than the primary's, and are not listed with so many."""
    primary = result.choice.primary
    if primary is None or not primary.offer.machines:
        return None
    gpus, gpu, dearest = primary.setup.gpus, primary.setup.gpu, primary.offer.gpu_hour_usd
    few = [
        f"{offer.seller} (${offer.gpu_hour_usd:,.2f}, {machines_text(offer)})"
        for offer in sorted(want.offers, key=lambda offer: offer.gpu_hour_usd)
        if offer.gpu == gpu and offer.gpu_hour_usd < dearest and not offer.gives(gpus)
    ]
    counted = f"whether {primary.offer.seller} has {gpus} x {gpu.name} free, its price list does not say"
    return f"{counted}; cheaper, but not listed with so many: {', '.join(few)}" if few else counted


def _whole(want: Wanted, name: str, found: Found) -> dict[str, Any]:
    one: Estimate = estimate_found(want, found, name)
    values: Mapping[str, str] = values_of(want, found)
    chances = {"chance_beyond": found.chances(want.limits), "tokens": found.tokens}
    return {**document(one), **chances, "seller": found.offer.seller, "command": command_of(values)}


def _found(one: Found) -> dict[str, Any]:
    return {
        "sharding": sharding_text(one.setup),
        "setup": setup_document(one.setup),
        "seller": one.offer.seller,
        "gpu_hour_usd": one.offer.gpu_hour_usd,
        "tokens": one.tokens,
        "tokens_per_s": one.tokens_per_s,
        "calendar_hours": one.hours,
        "calendar_p80_hours": one.held_hours,
        "calendar_usd": one.usd,
        "calendar_p80_usd": one.held_usd,
        "memory_share": one.memory_frac,
    }
