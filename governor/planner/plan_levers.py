"""Single changes to a plan and what each would save: modelled for this very plan, or seen on others' runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Final

from governor.core.base.checkpoint_economics import lost_share
from governor.planner.model.levers import Evidence, Lever, Together, data_levers, modelled, together
from governor.planner.model.run_cost import RESTART_S, best_saving_s, failures_mtbf_s
from governor.planner.model.searching import Space, candidates
from governor.planner.model.setup import Checkpointing, Framework, Setup
from governor.planner.plan_estimate import Estimate, memory_frac, tokens_per_gpu_s

COMPILED: Final = {Framework.DEEPSPEED: Framework.DEEPSPEED_COMPILED, Framework.FSDP: Framework.FSDP2}
MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32)
SAVING: Final = "checkpoint interval"
# What a search varies, or works out from what it varies; everything else of a set-up is kept.
_VARIED = {
    *("shape", "gpu", "gpus", "seq_len", "micro_batch", "grad_accum", "dp", "tp", "pp", "cp", "ep"),
    *("sequence_parallel", "zero_stage", "checkpointing", "precision", "framework"),
}
_KEPT = [field.name for field in fields(Setup) if field.name not in _VARIED]


def levers_of(one: Estimate) -> tuple[list[Lever], Together]:
    """Single changes to this plan, and all of them together."""
    now = one.tokens_per_s.mid / one.setup.gpus
    predicted = one.prediction.step.tokens_per_gpu_s
    wait = one.plan.asked.data_wait
    if wait is None and one.is_measured and now < predicted:
        wait = 1 - now / predicted  # Nobody knows what for; it can be no more than this.
    saving = _of_saving(one)
    levers = [
        _of_micro_batch(one.setup, predicted),
        _of_checkpointing(one.setup, predicted),
        _of_compiling(one.setup, predicted),
        saving,
        *data_levers(wait),
    ]
    possible = min(now / best_speed(one.setup), 1.0)
    return levers, together(levers, possible * saving.usual, wait)


def best_speed(setup: Setup) -> float:
    """Tokens/s/GPU of the fastest of the other ways that fits, or of this one."""
    return max(
        [tokens_per_gpu_s(setup), *(tokens_per_gpu_s(one) for one in other_ways(setup) if memory_frac(one) <= 1)]
    )


def other_ways(setup: Setup) -> Iterator[Setup]:
    """Itself among them: on the same GPUs, in the same precision and parallelism."""
    framework = COMPILED.get(setup.framework, setup.framework)
    stages = {1, 2, 3} if setup.zero_stage and setup.framework in (*COMPILED, *COMPILED.values()) else set()
    space = Space(
        gpus=(setup.gpus,), frameworks=(setup.framework, framework), micro_batches=MICRO_BATCHES,
        zero_stages=sorted({setup.zero_stage} | stages), tps=(setup.tp,),
        pps=(setup.pp,), cps=(setup.cp,), eps=(setup.ep,), precisions=(setup.precision,),
        fixed={name: getattr(setup, name) for name in _KEPT},
    )  # fmt: skip
    return candidates(setup.shape, (setup.gpu,), setup.seq_len, setup.tokens_per_step, space)


def _of_micro_batch(setup: Setup, speed: float) -> Lever:
    name, per_rank = "micro-batch", setup.micro_batch * setup.grad_accum
    best = _best(
        setup.but(micro_batch=micro, grad_accum=round(per_rank / micro))
        for micro in MICRO_BATCHES
        if micro != setup.micro_batch and micro <= per_rank
    )
    if best is None:
        return _nothing(name, "no other fits")
    change = f"{best.micro_batch} sequences instead of {setup.micro_batch}"
    saves = modelled(name, change, 1 / speed, 1 / tokens_per_gpu_s(best), "fuller kernels, fewer launches")
    return saves or _nothing(name, f"{setup.micro_batch} is the fastest that fits")


def _of_checkpointing(setup: Setup, speed: float) -> Lever:
    name, order = "activation checkpointing", list(Checkpointing)
    lighter = order[: order.index(setup.checkpointing)]
    if not lighter:
        return _nothing(name, "there is none")
    best = _best(setup.but(checkpointing=kind) for kind in lighter)
    if best is None:
        return _nothing(name, f"less than {setup.checkpointing} does not fit")
    change = f"{best.checkpointing} instead of {setup.checkpointing}: it fits"
    saves = modelled(name, change, 1 / speed, 1 / tokens_per_gpu_s(best), "less is computed twice")
    return saves or _nothing(name, f"{best.checkpointing} is no faster")


def _of_compiling(setup: Setup, speed: float) -> Lever:
    name, framework = "compile", COMPILED.get(setup.framework)
    if framework is None:
        return _nothing(name, f"{setup.framework} has fused kernels")
    compiled = setup.but(framework=framework)
    if memory_frac(compiled) > 1:
        return _nothing(name, f"{framework} does not fit")
    saves = modelled(name, framework.value, 1 / speed, 1 / tokens_per_gpu_s(compiled), "fused element-wise kernels")
    return saves or _nothing(name, f"{framework} is no faster")


def _of_saving(one: Estimate) -> Lever:
    """Stated saves against the interval that loses least; what nobody stated is that already."""
    if one.cost is None:
        return _nothing(SAVING, "no tokens, no run: state tokens")
    saving, setup, price = one.cost.saving, one.setup, one.plan.asked.price
    if saving.is_assumed:
        return _nothing(SAVING, f"the plan counts on every {saving.interval_s / 60:,.0f} min, which loses least")
    nodes = max(setup.gpus // setup.gpu.gpus_per_node, 1)
    mtbf = failures_mtbf_s(setup.gpus, nodes, is_spot=price is not None and price.is_spot)
    best = best_saving_s(saving.save_s, mtbf)
    now, then = (lost_share(interval, saving.save_s, mtbf, RESTART_S) for interval in (saving.interval_s, best))
    change = f"every {best / 60:,.0f} min instead of {saving.interval_s / 60:,.0f}"
    basis = "saves against what a failure loses (Daly 2006)"
    if now >= 1:
        return Lever(SAVING, f"{change}: as it is, no interval ever ends", 1.0, 1.0, 1.0, Evidence.MODELLED, basis)
    saves = modelled(SAVING, change, 1 / (1 - now), 1 / (1 - then), basis)
    return saves or _nothing(SAVING, f"every {saving.interval_s / 60:,.0f} min loses as little as can be")


def _best(tries: Iterable[Setup]) -> Setup | None:
    return max((one for one in tries if memory_frac(one) <= 1), key=tokens_per_gpu_s, default=None)


def _nothing(name: str, why: str) -> Lever:
    return Lever(name, why, 1.0, 1.0, 1.0, Evidence.MODELLED, "nothing to save")
