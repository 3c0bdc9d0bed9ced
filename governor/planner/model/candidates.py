"""The search for a set-up: all candidates, the Pareto-optimal ones, and the two to keep.

Memory and speed come from functions that the caller passes. The search has no model of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from governor.planner.model.run_cost import HELD, HOUR_S, chance_above, width_of
from governor.planner.model.setup import Checkpointing, Framework, Gpu, ImpossibleSetupError, Precision, Setup
from governor.planner.model.shape import Shape

# Some seconds of work, and more choices than a user can sensibly state.
CANDIDATES_MAX: Final = 40_000
# A step may be larger than asked for by this factor, because sequences are whole.
ROUNDED: Final = 1.05
# DeepSpeed's, within a machine. Beyond it their all-to-all is slow.
EXPERT_RANKS: Final = (1, 2, 4, 8)
DEEPSPEED: Final = (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED)
# Key of a plan -> field of a set-up.
PARALLEL: Final = {"tp": "tp", "pp": "pp", "vp": "virtual_stages", "cp": "cp", "ep": "ep"}
SHARDED: Final = (Framework.FSDP, Framework.FSDP2, Framework.XLA)


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU at a price. `machines`: the GPUs of the seller's listed machines, smallest first; empty: any number."""

    gpu: Gpu
    gpu_hour_usd: float  # per GPU
    seller: str
    is_spot: bool = False
    machines: tuple[int, ...] = ()

    def gives(self, gpus: int) -> bool:
        """Whether the listing can be so many GPUs.

        Whoever lists whole nodes is taken to have more of them, on one network. Smaller machines are rented singly.
        """
        if not self.machines:
            return True
        return self.machines[0] <= gpus and (gpus <= self.machines[-1] or self.machines[-1] >= self.gpu.gpus_per_node)


@dataclass(frozen=True, slots=True)
class Space:
    """The values to try. Impossible combinations are skipped."""

    gpus: Sequence[int]
    frameworks: Sequence[Framework] = (Framework.DEEPSPEED,)
    zero_stages: Sequence[int] = (1, 2, 3)
    micro_batches: Sequence[int] = (1, 2, 4, 8)
    checkpointings: Sequence[Checkpointing] = tuple(Checkpointing)
    tps: Sequence[int] = (1,)
    pps: Sequence[int] = (1,)
    cps: Sequence[int] = (1,)
    eps: Sequence[int] = (1,)
    vps: Sequence[int] = (1,)  # Model chunks of a pipeline stage. Several: only where a framework interleaves so.
    precisions: Sequence[Precision] = (Precision.BF16,)
    fixed: dict[str, object] = field(default_factory=dict)  # Fixed fields of Setup.


@dataclass(frozen=True, slots=True)
class Limits:
    """A limit of None is no limit. Limits are held at P80: four of five such runs keep to them."""

    deadline_h: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate that fits, with the hours and dollars that are expected of it."""

    setup: Setup
    offer: Offer
    tokens: float
    tokens_per_s: float
    hours: float
    usd: float
    memory_frac: float  # of the GPU's capacity, on the fullest GPU
    sigma: float = 0.0  # standard deviation of the logarithm of the hours

    @property
    def held_hours(self) -> float:
        """P80: four of five such runs take no longer."""
        return self.hours * width_of(self.sigma, HELD)

    @property
    def held_usd(self) -> float:
        return self.usd * width_of(self.sigma, HELD)

    @property
    def has_room(self) -> bool:
        """Whether an error of the memory's prediction is likely to find room."""
        return self.memory_frac <= MARGIN

    def chances(self, limits: Limits) -> dict[str, float]:
        """How probable it is to miss each limit."""
        wishes = (("budget", limits.budget_usd, self.usd), ("deadline", limits.deadline_h, self.hours))
        return {name: chance_above(limit, of, self.sigma) for name, limit, of in wishes if limit is not None}

    def times(self, factor: float) -> Found:
        """The same with so many times the tokens."""
        return replace(self, tokens=self.tokens * factor, hours=self.hours * factor, usd=self.usd * factor)


def candidates(
    shape: Shape, gpus: Iterable[Gpu], seq_len: int, tokens_per_step: float, space: Space
) -> Iterator[Setup]:
    """Every set-up of the space that a framework can run. Gradient accumulation fills up the tokens of a step."""
    made = 0
    pipelines = tuple(product(space.pps, space.vps))
    for gpu in gpus:
        for count, framework, zero, checkpointing, tp, (pp, vp), cp, ep, precision, micro in product(
            space.gpus, space.frameworks, space.zero_stages, space.checkpointings,
            space.tps, pipelines, space.cps, space.eps, space.precisions, space.micro_batches,
        ):  # fmt: skip
            dp, left = divmod(count, tp * pp * cp)
            if left or dp < 1 or not _is_sensible(gpu, framework, zero, tp, pp, ep):
                continue
            per_rank = tokens_per_step / (seq_len * dp)
            if micro > ROUNDED * per_rank:
                continue
            accum = max(round(per_rank / micro), 1)
            if vp > 1 and len(space.vps) > 1 and not interleaves(framework, shape.layers, pp, vp, accum):
                continue
            try:
                yield Setup(
                    shape=shape, gpu=gpu, gpus=count, seq_len=seq_len, micro_batch=micro,
                    grad_accum=accum, dp=dp, tp=tp, pp=pp, virtual_stages=vp, cp=cp, ep=ep,
                    sequence_parallel=tp > 1, zero_stage=zero, checkpointing=checkpointing, precision=precision,
                    framework=framework, **space.fixed,  # type: ignore[arg-type]
                )  # fmt: skip
            except ImpossibleSetupError:
                continue
            made += 1
            if made >= CANDIDATES_MAX:
                return


def interleaves(framework: Framework, layers: int, pp: int, chunks: int, micro_batches: int) -> bool:
    """Whether Megatron cuts each stage of a pipeline into so many chunks.

    It takes a multiple of the stages as micro-batches. Chunks are of equal depth: few of them may lack a layer, as two
    of Llama 3's 16 x 8 did with 126 layers.
    """
    deepest = -(-layers // (pp * chunks))
    is_even = deepest * pp * chunks <= ROUNDED * layers
    return framework is Framework.MEGATRON and pp > 1 and micro_batches % pp == 0 and is_even


def _is_sensible(gpu: Gpu, framework: Framework, zero: int, tp: int, pp: int, ep: int) -> bool:
    """Whether anyone runs the combination.

    Excluded: tensor parallelism beyond fast links, FSDP without sharding, ZeRO-2 in a pipeline, and DeepSpeed's own
    mixtures under ZeRO-3 (ZeRO-3 takes those as leaves, on every rank).
    """
    if tp > gpu.scale_up_domain:
        return False
    if framework in SHARDED and zero != 3:
        return False
    if framework is Framework.DDP and (zero or tp > 1 or pp > 1):
        return False
    if framework in DEEPSPEED and ep > 1 and zero > 2:
        return False
    return not (pp > 1 and zero > 1)


def search(
    setups: Iterable[Setup],
    offers: Sequence[Offer],
    tokens: float,
    memory_frac: Callable[[Setup], float],
    tokens_per_gpu_s: Callable[[Setup], float],
    calendar: Callable[[Setup, Offer], float] = lambda _setup, _offer: 1.0,
    doubt: Callable[[Setup], float] = lambda _setup: 0.0,
) -> list[Found]:
    """The candidates that fit, each at the cheapest offer that can be so many of its GPU. Without one, it is left out.

    `calendar` turns hours of steady state into hours paid for; `doubt` is the deviation of their logarithm.
    """
    cheapest: dict[tuple[str, int], Offer | None] = {}
    by_price = sorted(offers, key=lambda offer: offer.gpu_hour_usd)
    found = []
    for setup in setups:
        machines = setup.gpu.name, setup.gpus
        if machines not in cheapest:
            able = (one for one in by_price if one.gpu.name == setup.gpu.name and one.gives(setup.gpus))
            cheapest[machines] = next(able, None)
        offer = cheapest[machines]
        if offer is None or (used := memory_frac(setup)) > 1:
            continue
        speed = tokens_per_gpu_s(setup) * setup.gpus
        hours = calendar(setup, offer) * tokens / speed / HOUR_S
        usd = hours * setup.gpus * offer.gpu_hour_usd
        found.append(Found(setup, offer, tokens, speed, hours, usd, used, doubt(setup)))
    return found


def pareto(found: Iterable[Found]) -> list[Found]:
    """The candidates that no other beats in dollars, hours and GPUs at once, cheapest first.

    Where each trains another number of tokens for the same money: in tokens, hours and GPUs, most tokens first.
    """
    front: list[Found] = []
    for one in sorted(found, key=lambda one: (*_worth(one), one.setup.gpus)):
        # Only a candidate that is not dearer could beat it, and those came before.
        if not any(best.hours <= one.hours and best.setup.gpus <= one.setup.gpus for best in front):
            front.append(one)
    return front


def _worth(one: Found) -> tuple[float, float, float]:
    """The order of what is best: most tokens, least dollars, least hours."""
    return -one.tokens, one.usd, one.hours


def is_within(one: Found, limits: Limits) -> bool:
    """Whether four of five such runs keep to the limits."""
    return (limits.deadline_h is None or one.held_hours <= limits.deadline_h) and (
        limits.budget_usd is None or one.held_usd <= limits.budget_usd
    )


def promised(found: Iterable[Found], limits: Limits) -> list[Found]:
    """The candidates that leave room in memory and keep to the limits. Nothing else is ranked or recommended."""
    return [one for one in found if one.has_room and is_within(one, limits)]


# The two set-ups to keep, with the reasons: the one to run, and the fallback when it fails.


# A memory prediction with this margin is reliable: half of the published measurements lie within 12 %.
MARGIN: Final = 0.90
# Without a deadline, the fastest candidate within this factor of the cheapest price wins.
NEAR: Final = 1.05
# A fallback takes at most this part of the primary's memory. Otherwise it could fail for the same reason.
RELIEF: Final = 0.80


@dataclass(frozen=True, slots=True)
class Choice:
    """`primary` is None when no candidate keeps to the limits. `reasons` then names the nearest one."""

    primary: Found | None
    fallback: Found | None
    reasons: tuple[str, ...]


def choose(found: Sequence[Found], limits: Limits, resorts: Sequence[Found] = ()) -> Choice:
    """The cheapest candidate within the limits, and its fallback. Both leave room in memory.

    `resorts`: candidates that serve only as a fallback, when nothing else takes less memory.
    """
    if not found:
        return Choice(None, None, ("no candidate fits into its GPUs' memory",))
    roomy = [one for one in found if one.has_room]
    if not roomy:
        return Choice(None, None, (_tight(found),))
    within = promised(roomy, limits)
    if not within:
        return Choice(None, None, (_nearest(roomy, limits),))
    primary = _primary(within, limits)
    is_open = any(one.tokens != primary.tokens for one in within)
    reasons = [f"primary: {_why_primary(primary, len(within), limits, is_open=is_open)}"]
    fallback = _fallback(primary, within) or _fallback(primary, resorts)
    if fallback is None:
        which = "" if len(within) == len(roomy) else " within the limits"
        reasons.append(f"fallback: none: no candidate{which} needs clearly less memory, and none runs on another GPU")
    else:
        reasons.append(f"fallback: {_why_fallback(primary, fallback)}")
    return Choice(primary, fallback, tuple(reasons))


def _primary(among: Sequence[Found], limits: Limits) -> Found:
    cheapest = min(among, key=_worth)
    if limits.deadline_h is not None:
        return cheapest
    # The last percent is not worth three years of waiting.
    near = [one for one in among if one.usd <= NEAR * cheapest.usd]
    return min(near, key=lambda one: (one.hours, one.usd))


def _fallback(primary: Found, among: Sequence[Found]) -> Found | None:
    """The fallback for `primary`: on the same machines if possible, so that it starts at once.

    Otherwise on another GPU, in case those machines are not available.
    """
    relieved = [one for one in among if one.memory_frac <= RELIEF * primary.memory_frac]
    same = [one for one in relieved if _machines(one) == _machines(primary)]
    other = [one for one in among if one.setup.gpu != primary.setup.gpu and one.has_room]
    for group in (same, relieved, other):
        if group:
            return min(group, key=_worth)
    return None


def _machines(one: Found) -> tuple[str, int]:
    return one.setup.gpu.name, one.setup.gpus


def _tight(found: Sequence[Found]) -> str:
    least = min(found, key=lambda one: one.memory_frac)
    return (
        f"no candidate leaves room in memory: {len(found):,} fit, the thriftiest into {least.memory_frac:.0%} of it; "
        f"{MARGIN:.0%} at most leave room for an error of the prediction"
    )


def _nearest(found: Sequence[Found], limits: Limits) -> str:
    cheapest = min(found, key=lambda one: one.held_usd)
    fastest = min(found, key=lambda one: one.held_hours)
    wishes = []
    if limits.budget_usd is not None:
        wishes.append(f"${limits.budget_usd:,.0f} (the cheapest costs {_expected(cheapest)})")
    if limits.deadline_h is not None:
        wishes.append(f"{limits.deadline_h:,.0f} h (the fastest takes {_expected(fastest)})")
    return f"nothing keeps to {' and '.join(wishes)}, as four of five such runs would have to"


def _expected(one: Found) -> str:
    return (
        f"${one.usd:,.0f} and {one.hours:,.0f} h as expected, ${one.held_usd:,.0f} and {one.held_hours:,.0f} h at P80"
    )


def _why_primary(primary: Found, within: int, limits: Limits, *, is_open: bool) -> str:
    held = []
    if limits.budget_usd is not None:
        held.append(f"${limits.budget_usd - primary.held_usd:,.0f} below the budget")
    if limits.deadline_h is not None:
        held.append(f"{limits.deadline_h - primary.held_hours:,.0f} h before the deadline")
    if held:
        missed = (f"the {name} by {chance:.0%}" for name, chance in primary.chances(limits).items())
        held = [" and ".join(held) + f" at P80 (missed is {' and '.join(missed)} of such runs)"]
    room = f"takes {primary.memory_frac:.0%} of the memory"
    which = "the cheapest" if limits.deadline_h is not None else f"the fastest within {NEAR - 1:.0%} of the cheapest"
    if is_open:
        which = "trains the most tokens"
    limited = " and keep to the limits" if held else ""
    return f"{which} of {within:,} that leave room in memory{limited}; " + ", ".join([*held, room])


def _why_fallback(primary: Found, fallback: Found) -> str:
    if fallback.tokens != primary.tokens:
        price = f"trains {1 - fallback.tokens / primary.tokens:.0%} fewer tokens"
    else:
        dearer = fallback.usd / primary.usd - 1
        price = f"costs {abs(dearer):.0%} {'more' if dearer >= 0 else 'less'}"
    if fallback.memory_frac <= RELIEF * primary.memory_frac:
        what = (
            f"when memory does not suffice: takes {fallback.memory_frac:.0%} of it by {_difference(primary, fallback)}"
        )
    else:
        what = (
            f"when {primary.setup.gpu.name} is not to be had: runs on {fallback.setup.gpus} x {fallback.setup.gpu.name}"
        )
    return f"{what}; {price}"


def _difference(primary: Found, fallback: Found) -> str:
    """How the fallback differs from the primary, in words."""
    was, now = primary.setup, fallback.setup
    words = []
    if (now.gpu, now.gpus) != (was.gpu, was.gpus):
        words.append(f"{now.gpus} x {now.gpu.name}")
    if now.framework is not was.framework:
        words.append(now.framework.value)
    if now.zero_stage != was.zero_stage:
        words.append(f"ZeRO-{now.zero_stage}")
    if now.checkpointing is not was.checkpointing:
        words.append(
            "no checkpointing" if now.checkpointing is Checkpointing.NONE else f"{now.checkpointing} checkpointing"
        )
    if now.micro_batch != was.micro_batch:
        words.append(f"micro-batch {now.micro_batch}")
    words += [
        f"{name} {getattr(now, field)}"
        for name, field in PARALLEL.items()
        if getattr(now, field) != getattr(was, field)
    ]
    return ", ".join(words)
