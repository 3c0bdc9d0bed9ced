"""One plan under each way of sharding it: DDP, FSDP, FSDP2 and the ZeRO stages, everything else as stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from governor.planner.model.searching import DEEPSPEED, EXPERT_RANKS, candidates
from governor.planner.model.setup import Framework, Setup
from governor.planner.plan_estimate import Estimate, estimate_of, memory_frac, tokens_per_gpu_s
from governor.planner.plan_request import Asked, settle

# Way -> framework and ZeRO stage.
WAYS: Final[Mapping[str, tuple[Framework, int]]] = {
    "DDP": (Framework.DDP, 0),
    "FSDP": (Framework.FSDP, 3),
    "FSDP2": (Framework.FSDP2, 3),
    "ZeRO-1": (Framework.DEEPSPEED, 1),
    "ZeRO-2": (Framework.DEEPSPEED, 2),
    "ZeRO-3": (Framework.DEEPSPEED, 3),
}


def sharding_of(setup: Setup) -> str:
    """What shards the states: of which framework, and how far."""
    match setup.framework:
        case Framework.DDP:
            return "DDP"
        case Framework.FSDP:
            return "FSDP"
        case Framework.FSDP2:
            return "FSDP2"
    return f"ZeRO-{setup.zero_stage}"


def by_way(asked: Asked) -> dict[str, Estimate | None]:
    """The plan under each way, with what it leaves open chosen anew; None: nobody runs it so."""
    return {way: _under(asked, framework, zero) for way, (framework, zero) in WAYS.items()}


def _under(asked: Asked, framework: Framework, zero: int) -> Estimate | None:
    if framework is Framework.DEEPSPEED and asked.framework is Framework.DEEPSPEED_COMPILED:
        framework = asked.framework
    # Parallelism that Megatron would be given by itself is not these frameworks'.
    tp, pp = ((asked.given[key] or 1,) for key in ("tp", "pp"))
    ep: tuple[int, ...] = (asked.given["ep"] or 1,)
    if framework in DEEPSPEED and asked.given["ep"] is None and asked.shape.is_moe:
        ep = tuple(ranks for ranks in EXPERT_RANKS if ranks <= asked.gpus and asked.shape.can_spread(ranks))
    space = replace(asked.space, frameworks=(framework,), zero_stages=(zero,), tps=tp, pps=pp, eps=ep)
    # A measured speed is of the stated way alone.
    other = replace(asked, framework=framework, space=space, measured_tokens_per_s=None)
    if next(candidates(other.shape, (other.gpu,), other.seq_len, other.batch_tokens, space), None) is None:
        return None
    return estimate_of(settle(other, memory_frac, tokens_per_gpu_s))
