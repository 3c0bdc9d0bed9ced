"""Which way of training a model is worth its money: candidates, those that nothing beats, and the two to keep.

What memory a set-up needs and how fast it runs is asked of functions given: the search knows no model of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from governor.planner.model.hardware import Gpu, Precision
from governor.planner.model.setup import Checkpointing, Framework, ImpossibleSetupError, Setup
from governor.planner.model.shape import Shape

HOUR_S: Final = 3600.0
CANDIDATES_MAX: Final = 20_000  # Some seconds of work. More choices than a person can state sensibly.
ROUNDED: Final = 1.05  # A step may be so much larger than asked for: sequences are whole.
EXPERT_RANKS: Final = (1, 2, 4, 8)  # DeepSpeed's, within a machine: their all-to-all is slow beyond it.
DEEPSPEED: Final = (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED)
SHARDED: Final = (Framework.FSDP, Framework.FSDP2, Framework.XLA)


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU at a price."""

    gpu: Gpu
    gpu_hour_usd: float  # of one GPU
    seller: str
    is_spot: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """What may be varied. Each is a list of what to try; impossible combinations are passed over."""

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
    fixed: dict[str, object] = field(default_factory=dict)  # Fields of Setup that are given.


@dataclass(frozen=True, slots=True)
class Limits:
    """None: there is no such limit."""

    deadline_h: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate that fits. Hours and dollars are those that the limits are held against."""

    setup: Setup
    offer: Offer
    tokens_per_s: float
    hours: float
    usd: float
    memory_frac: float  # of what the GPU has, in the fullest


def candidates(
    shape: Shape, gpus: Iterable[Gpu], seq_len: int, tokens_per_step: float, space: Space
) -> Iterator[Setup]:
    """Every set-up of the space that some framework runs, with as much accumulation as makes the step's tokens."""
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
    """Without what nobody runs: tensor parallelism beyond fast links, FSDP without sharding, ZeRO-2 in a pipeline,
    DeepSpeed's own mixtures under ZeRO-3 (it takes those as leaves, on every rank)."""
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
    """Those that fit, each at the cheapest offer of its GPU. `calendar`: hours paid for over hours of steady state."""
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
    """Those that no other beats in dollars, hours and GPUs at once, the cheapest first."""
    front: list[Found] = []
    for one in sorted(found, key=lambda one: (one.usd, one.hours, one.setup.gpus)):
        # Whatever could beat it is no dearer, and so has come before.
        if not any(best.hours <= one.hours and best.setup.gpus <= one.setup.gpus for best in front):
            front.append(one)
    return front


def is_within(one: Found, limits: Limits) -> bool:
    return (limits.deadline_h is None or one.hours <= limits.deadline_h) and (
        limits.budget_usd is None or one.usd <= limits.budget_usd
    )
