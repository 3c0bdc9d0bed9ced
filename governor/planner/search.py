"""Which set-ups of a plan's model are worth their money: the plan's keys as lists, searched under limits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from governor.core.base.units import is_whole
from governor.core.money.prices import PriceKind
from governor.planner.catalog import CHEAPEST, NoPriceError, gpu_named, offers, offers_text, price_kind, priced_gpus
from governor.planner.estimate import Estimate, estimate, interruptions_of
from governor.planner.keys import PlanUnreadableError, resolved
from governor.planner.model.candidates import (
    CANDIDATES_MAX,
    PARALLEL,
    Choice,
    Found,
    Limits,
    Offer,
    Space,
    candidates,
    choose,
    pareto,
    promised,
    search,
)
from governor.planner.model.memory import memory_frac
from governor.planner.model.predict import band_of
from governor.planner.model.run_cost import MTOK, Spread, calendar_sigma, calendar_usual
from governor.planner.model.scaling_law import CHINCHILLA, FLOPS_PER_PARAM_TOKEN, usual_shape
from governor.planner.model.setup import Framework, Gpu, ImpossibleSetupError, Setup
from governor.planner.model.shape import Shape
from governor.planner.model.step_time import tokens_per_gpu_s
from governor.planner.request import Asked, Reader, asked, settle, usual_batch_tokens, with_stage
from governor.planner.sellers import machines_text, with_machines
from governor.planner.shape import stated_shape
from governor.planner.what_fits import would_fit
from governor.planner.words import count

# Keys that may have several values, and the values to try when they are not stated.
LISTS: Final = ("gpu", "gpus", "framework", "zero", "checkpointing", "precision", "micro-batch", "tp", "pp", "cp", "ep")
NODES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
SMALL: Final = (1, 2, 4)
LIST_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search as stated."""

    values: Mapping[str, str]
    spaces: tuple[tuple[tuple[Gpu, ...], Asked, Space], ...]
    offers: tuple[Offer, ...]
    limits: Limits
    assumed: tuple[str, ...]
    unsold: tuple[str, ...] = ()  # GPUs that were named and have no listed price.

    @property
    def one(self) -> Asked:
        return self.spaces[0][1]


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search for `tokens` tokens: `tried` candidates, of which `found` fit.

    `within`: those that leave room in memory and keep to the limits. `front`: those of them that no other beats in
    dollars, hours and GPUs at once.
    """

    tokens: float
    tried: int
    found: Sequence[Found]
    within: Sequence[Found]
    front: Sequence[Found]
    choice: Choice
    is_open: bool  # Each candidate trains as many tokens as the limits let it.

    @property
    def tight(self) -> int:
        """Candidates that fit and leave no room for an error of the prediction."""
        return sum(not one.has_room for one in self.found)

    @property
    def beyond(self) -> int:
        """Candidates with room in memory that lie beyond the limits."""
        return len(self.found) - self.tight - len(self.within)


def wanted(values: Mapping[str, str], limits: Limits) -> Wanted:
    """Read a search. ValueError, with one line for the user, for anything that cannot be read or bought."""
    plain = with_stage(resolved(values))
    if plain.get("grad-accum"):
        raise PlanUnreadableError("grad-accum: a search varies it; state batch-tokens")
    for key in ("tokens-per-s", "steps-per-hour"):
        if plain.get(key):
            raise PlanUnreadableError(f"{key}: a measured speed is of one set-up, and a search varies it")
    assumed = []
    if not plain.get("batch-tokens"):
        plain["batch-tokens"] = count(usual_batch_tokens(stated_shape(plain).params))
        assumed.append(f"batch-tokens {plain['batch-tokens']}")
    kind = price_kind(plain.get("price-kind") or "on-demand")
    gpus = [gpu_named(name) for name in _items(plain, "gpu")] or priced_gpus(kind)
    sold = _offers(plain, gpus, kind)
    unsold = tuple(gpu.name for gpu in gpus if all(offer.gpu != gpu for offer in sold))
    gpus = [gpu for gpu in gpus if gpu.name not in unsold]
    single = {key: value for key, value in plain.items() if key not in LISTS and key not in _PRICES}
    frameworks = _items(plain, "framework") or [Framework.DEEPSPEED.value]
    spaces = []
    for framework in frameworks:
        for size in sorted({gpu.gpus_per_node for gpu in gpus}):
            alike = tuple(gpu for gpu in gpus if gpu.gpus_per_node == size)
            if (space := _space(plain, single, framework, alike, sold)) is not None:
                spaces.append(space)
    if not spaces:
        raise _too_many(gpus, sold)
    return Wanted(plain, tuple(spaces), tuple(sold), limits, tuple(assumed), unsold if plain.get("gpu") else ())


_PRICES: Final = ("price", "node-price", "provider", "price-kind")


def _items(values: Mapping[str, str], key: str) -> list[str]:
    items = [item.strip() for item in values.get(key, "").split(",") if item.strip()]
    if len(items) > LIST_MAX:
        raise PlanUnreadableError(f"{key}: {len(items)} values; at most {LIST_MAX}")
    return items


def _offers(values: Mapping[str, str], gpus: Sequence[Gpu], kind: PriceKind) -> list[Offer]:
    """Stated prices apply to the only GPU named. Otherwise the offers of all listed providers, or of the stated one."""
    if values.get("price") or values.get("node-price"):
        if len(gpus) != 1:
            raise PlanUnreadableError("price: of which GPU? name one with gpu, or take prices of a provider")
        price = asked({**values, "gpus": str(gpus[0].gpus_per_node), **dict.fromkeys(_FREE, "")}).price
        assert price is not None, "a price was stated"
        return [Offer(gpus[0], price.gpu_hour_usd, "stated", price.is_spot)]
    provider = values.get("provider")
    found = with_machines(offers(tuple(gpus), kind, None if provider in (None, "", CHEAPEST) else provider), kind)
    if not found:
        of_whom = f" at {provider}" if provider else ""
        raise NoPriceError(f"no {kind.value} price of {gpus[0].name}{of_whom}; {offers_text(gpus[0], kind)}")
    return found


_FREE: Final = ("micro-batch", "grad-accum", "zero", "tp", "pp", "cp", "ep", "framework", "checkpointing", "precision")


def _too_many(gpus: Sequence[Gpu], sold: Sequence[Offer]) -> NoPriceError:
    listed = [f"{one.seller} {machines_text(one)}" for one in sold if one.machines]
    if not listed:
        names = ", ".join(gpu.name for gpu in gpus)
        return NoPriceError(f"{names}: rented singly, without a fast network between them; state network, or gpus 1")
    return NoPriceError(
        f"no seller's listing can be so many GPUs: {', '.join(listed[:6])}; state gpus, or a price with price"
    )


def is_alone(gpu: Gpu, values: Mapping[str, str]) -> bool:
    """Machines with one GPU are rented without a fast network. A user who has one states it."""
    return gpu.gpus_per_node == 1 and not values.get("network")


def _space(
    values: Mapping[str, str], single: Mapping[str, str], framework: str, gpus: tuple[Gpu, ...], sold: Sequence[Offer]
) -> tuple[tuple[Gpu, ...], Asked, Space] | None:
    """The stated lists over the values that a plan of that framework tries by default on that many GPUs.

    None if nobody is listed with any of these numbers.
    """
    node = gpus[0].gpus_per_node
    counts = [_integer("gpus", item) for item in _items(values, "gpus")]
    counts = counts or [*(n for n in SMALL if n < node), *(node * nodes for nodes in NODES)]
    if is_alone(gpus[0], values):
        counts = [count for count in counts if count == 1]
    of_these = [offer for offer in sold if offer.gpu in gpus]
    counts = [count for count in counts if any(offer.gives(count) for offer in of_these)]
    if not counts:
        return None
    biggest = {**single, "gpu": gpus[0].name, "gpus": str(max(counts)), "framework": framework}
    one = asked(biggest)
    listed = {
        key: tuple(asked({**biggest, key: item}) for item in _items(values, key)) for key in LISTS[3:] if key in values
    }
    space = replace(one.space, gpus=tuple(counts))
    for key, plans in listed.items():
        field = _FIELDS[key]
        changes: dict[str, Any] = {field: tuple(getattr(plan.space, field)[0] for plan in plans)}
        space = replace(space, **changes)
    return gpus, one, space


_FIELDS: Final = {
    "zero": "zero_stages", "checkpointing": "checkpointings", "precision": "precisions",
    "micro-batch": "micro_batches", "tp": "tps", "pp": "pps", "cp": "cps", "ep": "eps",
}  # fmt: skip


def _integer(key: str, text: str) -> int:
    if not is_whole(text) or not 1 <= int(text) <= 1_000_000:
        raise PlanUnreadableError(f"{key} {text!r}: must be a whole number from 1 to 1000000")
    return int(text)


def searched(want: Wanted, tokens: float | None) -> Searched:
    """Search under the limits. Deadlines and budgets apply to hours and dollars of the calendar, at P80.

    `tokens` None: each candidate trains as many as the limits let it, and the best trains the most.
    """
    tried: list[Setup] = []
    found: list[Found] = []
    is_open = tokens is None
    for gpus, one, space in want.spaces:
        setups = list(islice(_buyable(gpus, one, space, want.offers), CANDIDATES_MAX))
        tried += setups
        found += search(setups, want.offers, tokens or MTOK, memory_frac, _speed(one), _calendar(one), _doubt)
    if is_open:
        found = [one.times(_times(one, want.limits)) for one in found]
    choice = choose(found, want.limits)
    if tried and not found:
        nearest = min(tried, key=memory_frac)
        where = would_fit(f"{choice.reasons[0]}; on {nearest.gpus}, {nearest.shape.name}", nearest)
        choice = replace(choice, reasons=(where,))
    if not tried:
        choice = replace(choice, reasons=(_refused(want),))
    within = promised(found, want.limits)
    of_best = 0.0 if choice.primary is None else choice.primary.tokens
    return Searched(tokens or of_best, len(tried), found, within, pareto(within), choice, is_open)


def _refused(want: Wanted) -> str:
    """Why nothing could be tried: what a plan on the fewest GPUs is told."""
    (gpu, *_), one, space = want.spaces[0]
    fewest = replace(one, gpu=gpu, gpus=min(space.gpus), space=space)
    try:
        settle(fewest, memory_frac, tokens_per_gpu_s)
    except (ImpossibleSetupError, PlanUnreadableError) as error:
        return str(error)
    return "no framework runs any of these combinations: state fewer of them"


def _speed(one: Asked) -> Callable[[Setup], float]:
    """As a plan counts it: less a stated wait for data."""
    working = 1 - (one.data_wait or 0.0)
    return lambda setup: working * tokens_per_gpu_s(setup)


def _buyable(gpus: Sequence[Gpu], one: Asked, space: Space, sold: Sequence[Offer]) -> Iterator[Setup]:
    """The candidates on as many of each GPU as some seller can give."""
    for gpu in gpus:
        of_gpu = [offer for offer in sold if offer.gpu == gpu]
        counts = [count for count in space.gpus if any(offer.gives(count) for offer in of_gpu)]
        yield from candidates(one.shape, (gpu,), one.seq_len, one.batch_tokens, replace(space, gpus=counts))


def _doubt(setup: Setup) -> float:
    return calendar_sigma(Spread(*band_of(1.0, setup)).sigma)


def _calendar(one: Asked) -> Callable[[Setup, Offer], float]:
    """The calendar factor, computed once for each GPU and GPU count: it depends on nothing else in a search."""
    known: dict[tuple[str, int], float] = {}

    def factor(setup: Setup, offer: Offer) -> float:
        key = (setup.gpu.name, setup.gpus)
        if key not in known:
            known[key] = calendar_usual(*interruptions_of(setup, one, is_spot=offer.is_spot))
        return known[key]

    return factor


def _times(found: Found, limits: Limits) -> float:
    """How often the found set-up fits into the limits, at P80."""
    by_money = math.inf if limits.budget_usd is None else limits.budget_usd / found.held_usd
    by_time = math.inf if limits.deadline_h is None else limits.deadline_h / found.held_hours
    # Slightly less, so that rounding stays within the limits.
    return min(by_money, by_time) * (1 - 1e-9)


def values_of(want: Wanted, found: Found) -> dict[str, str]:
    """One found set-up as the values of a plan. `costgov plan` with these values predicts it again."""
    setup = found.setup
    stated = {key: value for key, value in want.values.items() if key not in (*LISTS, *_PRICES, "name")}
    # What a plan would choose is stated, a single rank too.
    chosen = {"tp", "pp", "vp", "ep"} if setup.framework is Framework.MEGATRON else {"ep"}
    chosen -= set() if setup.shape.is_moe else {"ep"}
    made = {
        **stated,
        "gpu": setup.gpu.name,
        "gpus": str(setup.gpus),
        "framework": setup.framework.value,
        "zero": str(setup.zero_stage),
        "checkpointing": setup.checkpointing.value,
        "micro-batch": str(setup.micro_batch),
        "price": f"{found.offer.gpu_hour_usd:.6g}",
        **({"price-kind": "spot"} if found.offer.is_spot else {}),
        **{key: str(size) for key, field in PARALLEL.items() if (size := getattr(setup, field)) > 1 or key in chosen},
    }
    if "precision" in want.values:
        made["precision"] = setup.precision.value
    return made


def estimate_found(want: Wanted, found: Found, name: str) -> Estimate:
    return estimate({**values_of(want, found), "tokens": f"{found.tokens:.0f}", "name": name})


def command_of(values: Mapping[str, str]) -> str:
    """The command that predicts a plan of these values."""
    model = [values["model"]] if values.get("model") else []
    options = [word for key, value in values.items() if key not in ("model", "name") for word in (f"--{key}", value)]
    return shlex.join(["costgov", "plan", *model, *options])


def tokens_of(values: Mapping[str, str]) -> float | None:
    return Reader(with_stage(resolved(values))).count("tokens")


# The best use of a budget: the size of a dense model and its tokens, by the scaling law.


# The deadline when none is stated. Without a deadline, one GPU for three years is cheapest.
DAYS_USUAL: Final = 30.0
# Sizes around the first guess, in steps of the square root of two. The optimum of the law is flat.
STEPS: Final = (0.25, 0.5, 0.707, 1.0, 1.414, 2.0, 4.0)
# Only for the first guess: an A100 reaches about 140 TFLOP/s at about $1.5 an hour, an H100 400 at about $3.
FLOPS_PER_USD: Final = 4e17
PARAMS_MIN: Final = 2e7
PARAMS_MAX: Final = 2e12


@dataclass(frozen=True, slots=True)
class Size:
    """One model size, and what the budget buys for it."""

    shape: Shape
    want: Wanted
    result: Searched

    @property
    def tokens(self) -> float:
        return self.result.tokens

    @property
    def loss(self) -> float:
        """In nats per token, on the text and tokenizer of the law's own models. Only for comparison."""
        return CHINCHILLA.loss(self.shape.params, self.tokens)


def sizes_for(values: Mapping[str, str], limits: Limits) -> list[Size]:
    """Sizes around the best one, smallest first, without those for which nothing fits or can be bought."""
    assert limits.budget_usd is not None, "a budget"
    # Half of the budget is a guess for the calendar's part.
    best = CHINCHILLA.best_params(limits.budget_usd * FLOPS_PER_USD / 2)
    for _ in range(3):
        size = _size(values, limits, min(max(best, PARAMS_MIN), PARAMS_MAX))
        if size is None:
            best /= 4
            continue
        flops = FLOPS_PER_PARAM_TOKEN * size.shape.params * size.tokens
        best = CHINCHILLA.best_params(flops)
    tried = (_size(values, limits, min(max(step * best, PARAMS_MIN), PARAMS_MAX)) for step in STEPS)
    return list({size.shape.params: size for size in tried if size is not None}.values())


def best_of(sizes: Sequence[Size]) -> Size:
    return min(sizes, key=lambda size: size.loss)


def _size(values: Mapping[str, str], limits: Limits, params: float) -> Size | None:
    shape = usual_shape(params)
    want = wanted({**values, "shape": words_of(shape), "name": shape.name}, limits)
    result = searched(want, None)
    return Size(shape, want, result) if result.choice.primary is not None and result.tokens > 0 else None


def words_of(shape: Shape) -> str:
    """A dense shape in the format of the key `shape`."""
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    return ",".join([*(f"{name}={getattr(shape, name)}" for name in names), f"tied={int(shape.tied)}"])
