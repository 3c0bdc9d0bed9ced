"""Random searches: what `costgov plan search` recommends fits with room, keeps to its limits at P80, and can be had.

python -m benchmarks.planner.searches [--searches 300] [--seed 1]   the test of the same name plays some of them
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from governor.planner.model.candidates import Found, Limits
from governor.planner.model.memory import memory_of
from governor.planner.search import Searched, Wanted, estimate_found, searched, tokens_of, wanted
from governor.wire.price_table import built_in

MODELS: Final = ("gpt2-1558m", "mpt-1b", "llama2-7b", "llama3-8b", "llama2-13b", "mixtral-8x7b", "llama3-70b", "stage2")
GPUS: Final = ("h100", "a100", "h200", "b200", "mi300x", "l40s", "gh200", "a6000")
FRAMEWORKS: Final = ("deepspeed", "deepspeed", "deepspeed", "fsdp2", "deepspeed,fsdp2", "ddp", "megatron")
COUNTS: Final = (1, 2, 4, 8, 16, 64, 256)
SELLERS: Final = ("lambda", "verda", "hyperbolic", "aws", "cheapest")
# What docs/howto/planner.md promises.
MEMORY_MOST: Final = 0.9
NEAR: Final = 1.05
MISSED_MOST: Final = 0.2
# Sums are rounded where a plan is stated as a command.
ROUNDED: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Drawn:
    values: Mapping[str, str]
    limits: Limits


def draw(seed: int) -> Drawn:
    """One search. Limits lie as often within reach as beyond it."""
    chosen = random.Random(seed)
    values = {"model": chosen.choice(MODELS), "framework": chosen.choice(FRAMEWORKS)}
    values["gpu"] = ",".join(chosen.sample(GPUS, chosen.choice((1, 1, 2, 3))))
    values["gpus"] = ",".join(map(str, sorted(chosen.sample(COUNTS, chosen.choice((1, 2, 3))))))
    if "," not in values["gpu"] and chosen.random() < 0.4:
        values["price"] = f"{chosen.uniform(0.5, 6):.2f}"
    elif chosen.random() < 0.3:
        values["provider"] = chosen.choice(SELLERS)
    if chosen.random() < 0.2:
        values["price-kind"] = "spot"
    if chosen.random() < 0.2:
        values |= {"save-s": str(chosen.randint(5, 400)), "save-every": f"{chosen.randint(10, 120)}m"}
    if chosen.random() < 0.3:
        values["seq-len"] = str(chosen.choice((2048, 8192, 16384)))
    if chosen.random() < 0.2:
        values["data-wait"] = f"{chosen.uniform(0.05, 0.6):.2f}"
    has_tokens = chosen.random() < 0.7
    if has_tokens:
        values["tokens"] = f"{10 ** chosen.uniform(8.5, 12):.0f}"
    budget = 10 ** chosen.uniform(2.5, 6.5) if not has_tokens or chosen.random() < 0.7 else None
    deadline = 10 ** chosen.uniform(1, 3.5) if not has_tokens or chosen.random() < 0.7 else None
    return Drawn(values, Limits(deadline, budget))


def violations(want: Wanted, result: Searched) -> Iterator[str]:
    """What a search shows, or does not, against its limits. Nothing: the search holds what it promises."""
    choice, limits = result.choice, want.limits
    if len(result.found) != len(result.within) + result.tight + result.beyond:
        yield "what is left out is not counted"
    fine = [one for one in result.found if not list(_broken(one, limits))]
    if choice.primary is None:
        if fine:
            yield f"none recommended of {len(fine)} that keep to the limits"
        if result.front:
            yield "rows without a primary"
        return
    for name, one in (
        ("primary", choice.primary),
        ("fallback", choice.fallback),
        *(("row", row) for row in result.front),
    ):
        if one is not None:
            yield from (f"{name}: {broken}" for broken in (*_broken(one, limits), *_not_to_be_had(one)))
    for name, one in (("primary", choice.primary), ("fallback", choice.fallback)):
        if one is not None:
            yield from (f"{name} planned again: {broken}" for broken in _planned_again(want, one))
    if not fine:
        yield "recommended, though nothing keeps to the limits"
        return
    cheapest = min(one.usd / one.tokens for one in fine)
    if not result.is_open and choice.primary.usd / choice.primary.tokens > NEAR * cheapest * (1 + ROUNDED):
        yield "the primary is not the cheapest"
    if choice.primary.tokens < max(one.tokens for one in fine):
        yield "the primary does not train the most tokens"


def _broken(one: Found, limits: Limits) -> Iterator[str]:
    memory = memory_of(one.setup)
    if memory.reserved > MEMORY_MOST * memory.capacity:
        yield f"takes {memory.reserved / memory.capacity:.0%} of the memory"
    if limits.deadline_h is not None and one.held_hours > limits.deadline_h:
        yield f"{one.held_hours:.1f} h at P80, beyond {limits.deadline_h:.1f}"
    if limits.budget_usd is not None and one.held_usd > limits.budget_usd:
        yield f"${one.held_usd:.2f} at P80, beyond {limits.budget_usd:.2f}"


def _not_to_be_had(one: Found) -> Iterator[str]:
    """Against the rows of the price table themselves."""
    gpus, gpu = one.setup.gpus, one.setup.gpu
    if one.offer.seller == "stated":
        return
    rows = (row for row in built_in().rows if row.provider.startswith(one.offer.seller) and row.gpu == gpu.name)
    sizes = {row.gpus for row in rows if row.kind is not None}
    if not sizes or max(sizes) < min(gpus, gpu.gpus_per_node):
        yield f"{one.offer.seller} is not listed with {gpus} x {gpu.name}"


def _planned_again(want: Wanted, one: Found) -> Iterator[str]:
    """By its command it keeps to the limits too, and misses them as rarely."""
    again, limits = estimate_found(want, one, "again"), want.limits
    assert again.cost is not None, "tokens are stated"
    if not math.isclose(again.cost.held_hours, one.held_hours, rel_tol=ROUNDED):
        yield f"{again.cost.held_hours:.2f} h at P80 for {one.held_hours:.2f}"
    if again.cost.held_usd is None or not math.isclose(again.cost.held_usd, one.held_usd, rel_tol=ROUNDED):
        yield f"${again.cost.held_usd} at P80 for {one.held_usd:.2f}"
    if any(chance > MISSED_MOST + ROUNDED for chance in one.chances(limits).values()):
        yield f"misses a limit too often: {one.chances(limits)}"


def play(seed: int) -> tuple[str, list[str]]:
    """How one search ended, and what it broke."""
    drawn = draw(seed)
    try:
        want = wanted(drawn.values, drawn.limits)
        result = searched(want, tokens_of(drawn.values))
    except ValueError as refusal:
        # The planner's own errors have names; Python's has none of what to do.
        return f"refused: {type(refusal).__name__}", [str(refusal)] if type(refusal) is ValueError else []
    return "recommended" if result.choice.primary else "nothing recommended", list(violations(want, result))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the others follow")
    options = parser.parse_args(arguments)
    begun_s, ends, broken = time.process_time(), Counter[str](), 0
    for seed in range(options.seed, options.seed + options.searches):
        end, found = play(seed)
        ends[end] += 1
        broken += bool(found)
        for words in found:
            print(f"seed {seed}: {words}: {dict(draw(seed).values)} {draw(seed).limits}")
    took_s = time.process_time() - begun_s
    told = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    print(f"{options.searches} searches in {took_s:.1f} s: {told}; {broken} broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
