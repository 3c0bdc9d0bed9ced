"""The search for a set-up: all candidates, the Pareto-optimal ones, and the two to keep.

Memory and speed come from functions that the caller passes. The search has no model of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from governor.planner.model.setup import Checkpointing, Framework, Gpu, ImpossibleSetupError, Precision, Setup
from governor.planner.model.shape import Shape

HOUR_S: Final = 3600.0
# Some seconds of work, and more choices than a user can sensibly state.
CANDIDATES_MAX: Final = 20_000
# A step may be larger than asked for by this factor, because sequences are whole.
ROUNDED: Final = 1.05
# DeepSpeed's, within a machine. Beyond it their all-to-all is slow.
EXPERT_RANKS: Final = (1, 2, 4, 8)
DEEPSPEED: Final = (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED)
SHARDED: Final = (Framework.FSDP, Framework.FSDP2, Framework.XLA)


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU at a price."""

    gpu: Gpu
    gpu_hour_usd: float  # per GPU
    seller: str
    is_spot: bool = False


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
    precisions: Sequence[Precision] = (Precision.BF16,)
    fixed: dict[str, object] = field(default_factory=dict)  # Fixed fields of Setup.


@dataclass(frozen=True, slots=True)
class Limits:
    """A limit of None is no limit."""

    deadline_h: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate that fits. The limits apply to its hours and dollars."""

    setup: Setup
    offer: Offer
    tokens_per_s: float
    hours: float
    usd: float
    memory_frac: float  # of the GPU's capacity, on the fullest GPU


def candidates(
    shape: Shape, gpus: Iterable[Gpu], seq_len: int, tokens_per_step: float, space: Space
) -> Iterator[Setup]:
    """Every set-up of the space that a framework can run. Gradient accumulation fills up the tokens of a step."""
    made = 0
    for gpu in gpus:
        for count, framework, zero, checkpointing, tp, pp, cp, ep, precision, micro in product(
            space.gpus, space.frameworks, space.zero_stages, space.checkpointings,
            space.tps, space.pps, space.cps, space.eps, space.precisions, space.micro_batches,
        ):  # fmt: skip
            dp, left = divmod(count, tp * pp * cp)
            if left or dp < 1 or not _is_sensible(gpu, framework, zero, tp, pp, ep):
                continue
            per_rank = tokens_per_step / (seq_len * dp)
            if micro > ROUNDED * per_rank:
                continue
            try:
                yield Setup(
                    shape=shape, gpu=gpu, gpus=count, seq_len=seq_len, micro_batch=micro,
                    grad_accum=max(round(per_rank / micro), 1), dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
                    sequence_parallel=tp > 1, zero_stage=zero, checkpointing=checkpointing, precision=precision,
                    framework=framework, **space.fixed,  # type: ignore[arg-type]
                )  # fmt: skip
            except ImpossibleSetupError:
                continue
            made += 1
            if made >= CANDIDATES_MAX:
                return


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
) -> list[Found]:
    """The candidates that fit, each at the cheapest offer of its GPU.

    `calendar` turns hours of steady state into hours paid for.
    """
    cheapest: dict[str, Offer] = {}
    for offer in sorted(offers, key=lambda offer: offer.gpu_hour_usd):
        cheapest.setdefault(offer.gpu.name, offer)
    found = []
    for setup in setups:
        used = memory_frac(setup)
        if used > 1:
            continue
        offer = cheapest[setup.gpu.name]
        speed = tokens_per_gpu_s(setup) * setup.gpus
        hours = calendar(setup, offer) * tokens / speed / HOUR_S
        found.append(Found(setup, offer, speed, hours, hours * setup.gpus * offer.gpu_hour_usd, used))
    return found


def pareto(found: Iterable[Found]) -> list[Found]:
    """The candidates that no other beats in dollars, hours and GPUs at once, cheapest first."""
    front: list[Found] = []
    for one in sorted(found, key=lambda one: (one.usd, one.hours, one.setup.gpus)):
        # Only a candidate that is not dearer could beat it, and those came before.
        if not any(best.hours <= one.hours and best.setup.gpus <= one.setup.gpus for best in front):
            front.append(one)
    return front


def is_within(one: Found, limits: Limits) -> bool:
    return (limits.deadline_h is None or one.hours <= limits.deadline_h) and (
        limits.budget_usd is None or one.usd <= limits.budget_usd
    )


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
    """The cheapest candidate within the limits, and its fallback. Memory that may not suffice is avoided.

    `resorts`: candidates that serve only as a fallback, when nothing else takes less memory.
    """
    if not found:
        return Choice(None, None, ("no candidate fits into its GPUs' memory",))
    within = [one for one in found if is_within(one, limits)]
    if not within:
        return Choice(None, None, (_nearest(found, limits),))
    safe = [one for one in within if one.memory_frac <= MARGIN]
    primary = _primary(safe or within, limits)
    reasons = [f"primary: {_why_primary(primary, len(within), len(safe), limits)}"]
    fallback = _fallback(primary, within) or _fallback(primary, found) or _fallback(primary, resorts)
    if fallback is None:
        reasons.append("fallback: none: no candidate needs clearly less memory, and none runs on another GPU")
    else:
        reasons.append(f"fallback: {_why_fallback(primary, fallback, limits)}")
    return Choice(primary, fallback, tuple(reasons))


def _primary(among: Sequence[Found], limits: Limits) -> Found:
    cheapest = min(among, key=lambda one: (one.usd, one.hours))
    if limits.deadline_h is not None:
        return cheapest
    # The last percent is not worth three years of waiting.
    near = [one for one in among if one.usd <= NEAR * cheapest.usd and is_within(one, limits)]
    return min(near, key=lambda one: (one.hours, one.usd))


def _fallback(primary: Found, among: Sequence[Found]) -> Found | None:
    """The fallback for `primary`: on the same machines if possible, so that it starts at once.

    Otherwise on another GPU, in case those machines are not available.
    """
    relieved = [one for one in among if one.memory_frac <= RELIEF * primary.memory_frac]
    same = [one for one in relieved if _machines(one) == _machines(primary)]
    other = [one for one in among if one.setup.gpu != primary.setup.gpu and one.memory_frac <= MARGIN]
    for group in (same, relieved, other):
        if group:
            return min(group, key=lambda one: (one.usd, one.hours))
    return None


def _machines(one: Found) -> tuple[str, int]:
    return one.setup.gpu.name, one.setup.gpus


def _nearest(found: Sequence[Found], limits: Limits) -> str:
    cheapest = min(found, key=lambda one: one.usd)
    fastest = min(found, key=lambda one: one.hours)
    wishes = []
    if limits.budget_usd is not None:
        wishes.append(
            f"${limits.budget_usd:,.0f} (the cheapest costs ${cheapest.usd:,.0f} and takes {cheapest.hours:,.0f} h)"
        )
    if limits.deadline_h is not None:
        wishes.append(
            f"{limits.deadline_h:,.0f} h (the fastest takes {fastest.hours:,.0f} h and costs ${fastest.usd:,.0f})"
        )
    return f"nothing keeps to {' and '.join(wishes)}"


def _why_primary(primary: Found, within: int, safe: int, limits: Limits) -> str:
    held = []
    if limits.budget_usd is not None:
        held.append(f"${limits.budget_usd - primary.usd:,.0f} below the budget")
    if limits.deadline_h is not None:
        held.append(f"{limits.deadline_h - primary.hours:,.0f} h before the deadline")
    room = f"takes {primary.memory_frac:.0%} of the memory"
    if not safe:
        room += f", which is more than the {MARGIN:.0%} that leave room for an error of the prediction"
    which = "the cheapest" if limits.deadline_h is not None else f"the fastest within {NEAR - 1:.0%} of the cheapest"
    return f"{which} of {within:,} that fit; " + ", ".join([*held, room])


def _why_fallback(primary: Found, fallback: Found, limits: Limits) -> str:
    dearer = fallback.usd / primary.usd - 1
    price = f"costs {abs(dearer):.0%} {'more' if dearer >= 0 else 'less'}"
    beyond = "" if is_within(fallback, limits) else ", and does not keep to the limits"
    if fallback.memory_frac <= RELIEF * primary.memory_frac:
        what = (
            f"when memory does not suffice: takes {fallback.memory_frac:.0%} of it by {_difference(primary, fallback)}"
        )
    else:
        what = (
            f"when {primary.setup.gpu.name} is not to be had: runs on {fallback.setup.gpus} x {fallback.setup.gpu.name}"
        )
    return f"{what}; {price}{beyond}"


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
        f"{name} {getattr(now, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(now, name) != getattr(was, name)
    ]
    return ", ".join(words)
