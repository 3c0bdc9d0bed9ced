"""Single changes to a run: what each would save, and what they save together.

A saving is a share of the run's time. The savings of several levers multiply over what remains. They end at the best
plan for the run's GPUs: anything faster would count a saving twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from governor.core.base.save_interval import lost_share
from governor.planner.estimate import Estimate
from governor.planner.model.candidates import MARGIN, Space, candidates, interleaves
from governor.planner.model.memory import memory_frac
from governor.planner.model.run_cost import RESTART_S, best_saving_s, failures_mtbf_s
from governor.planner.model.setup import Checkpointing, Framework, Setup
from governor.planner.model.step_time import tokens_per_gpu_s
from governor.planner.request import CHUNKS


class Evidence(StrEnum):
    MEASURED = "measured"  # on this run, as the user states it
    MODELLED = "modelled"  # by this planner, for this run
    RULE = "rule of thumb"  # seen on others' runs


@dataclass(frozen=True, slots=True)
class Lever:
    """Shares of the run's time that remain: 0.8 saves a fifth. `best` <= `usual` <= `least`."""

    name: str
    change: str
    best: float
    usual: float
    least: float
    evidence: Evidence
    basis: str
    # A bound on what others can save together, and no change of its own. It is in no sum.
    is_bound: bool = False
    # The plan includes it already. The value is the cost of leaving it out.
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """The shares of the run's time that remain with all levers together."""

    best: float
    usual: float
    least: float
    possible: float  # No plan for these GPUs leaves less.

    @property
    def is_bounded(self) -> bool:
        return self.usual <= self.possible


# For runs whose GPUs wait for data. The ranges are reports of users of one to eight GPUs who made the change.
DATA_RULES: Final = (
    ("local NVMe", "read the data set from the node's own disk, not over the network", 0.70, 0.75, 0.80),
    ("loader workers", "as many as keep the queue full: more steal the trainer's cores", 0.85, 0.88, 0.90),
    ("pre-tokenised data", "tokenise once, before training", 0.90, 0.93, 0.95),
)  # fmt: skip


WAIT: Final = "waiting for data"


def data_levers(wait_share: float | None) -> list[Lever]:
    """The levers on data loading. `wait_share`: the share of time in which GPUs wait for data. None: not measured.

    A plan assumes no such wait. A known share bounds what all three levers save together.
    """
    levers = []
    for name, change, best, usual, least in DATA_RULES:
        if wait_share is None:
            basis = "of a run whose GPUs wait for data; the plan counts on none that do"
            levers.append(Lever(name, change, best, usual, least, Evidence.RULE, basis, is_done=True))
            continue
        floor = 1 - wait_share
        basis = f"of the {wait_share:.0%} in which GPUs wait for data"
        levers.append(Lever(name, change, max(best, floor), max(usual, floor), max(least, floor), Evidence.RULE, basis))
    if wait_share is not None:
        change = "none any more: the most that the three above save together"
        floor, basis = 1 - wait_share, "as stated, or the measured speed below the predicted"
        levers.append(Lever(WAIT, change, floor, floor, floor, Evidence.MEASURED, basis, is_bound=True))
    return levers


def modelled(name: str, change: str, seconds_now: float, seconds_then: float, basis: str) -> Lever | None:
    """A lever with both times from a model. None when it saves less than a thousandth."""
    left = seconds_then / seconds_now
    if left > 0.999:
        return None
    return Lever(name, change, left, left, left, Evidence.MODELLED, basis)


def together(levers: Iterable[Lever], possible: float, wait_share: float | None = None) -> Together:
    """The joint effect of all open levers.

    Levers on the loader save at most the wait for data. All levers together save at most the difference between the run
    and the best plan (`possible`: its share of the run's time).
    """
    data_names = {name for name, *_ in DATA_RULES}
    open_levers = [lever for lever in levers if not (lever.is_done or lever.is_bound)]
    left = []
    for pick in ("best", "usual", "least"):
        of_data = of_others = 1.0
        for lever in open_levers:
            if lever.name in data_names:
                of_data *= getattr(lever, pick)
            else:
                of_others *= getattr(lever, pick)
        of_data = max(of_data, 1 - (wait_share or 0.0))
        left.append(max(of_data * of_others, min(possible, 1.0)))
    return Together(left[0], left[1], left[2], possible)


# Single changes to a plan and what each would save: modelled for this plan, or seen on others' runs.


COMPILED: Final = {Framework.DEEPSPEED: Framework.DEEPSPEED_COMPILED, Framework.FSDP: Framework.FSDP2}
MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32)
INTERLEAVING: Final = "interleaved pipeline"
SAVING: Final = "checkpoint interval"
# What a search varies, or derives from that. All other fields of a set-up stay.
_VARIED = {
    *("shape", "gpu", "gpus", "seq_len", "micro_batch", "grad_accum", "dp", "tp", "pp", "virtual_stages"),
    *("cp", "ep", "sequence_parallel", "zero_stage", "checkpointing", "precision", "framework"),
}
_KEPT = [field.name for field in fields(Setup) if field.name not in _VARIED]


def levers_of(one: Estimate) -> tuple[list[Lever], Together]:
    """Single changes to this plan, and all of them together."""
    now = one.tokens_per_s.mid / one.setup.gpus
    predicted = one.prediction.step.tokens_per_gpu_s
    wait = one.plan.asked.data_wait
    if wait is None and one.is_measured and now < predicted:
        # The cause is unknown. The wait for data cannot be longer than this.
        wait = 1 - now / predicted
    saving = _of_saving(one)
    levers = [
        _of_micro_batch(one.setup, predicted),
        _of_checkpointing(one.setup, predicted),
        _of_compiling(one.setup, predicted),
        *_of_interleaving(one.setup, predicted),
        saving,
        *data_levers(wait),
    ]
    possible = min(now / best_speed(one.setup), 1.0)
    return levers, together(levers, possible * saving.usual, wait)


def best_speed(setup: Setup) -> float:
    """Tokens/s/GPU of the fastest other way that leaves room in memory, or of this one."""
    return max([tokens_per_gpu_s(setup), *(tokens_per_gpu_s(one) for one in other_ways(setup) if _has_room(one))])


def other_ways(setup: Setup) -> Iterator[Setup]:
    """All ways on the same GPUs, in the same precision and parallelism, including this one."""
    framework = COMPILED.get(setup.framework, setup.framework)
    stages = {1, 2, 3} if setup.zero_stage and setup.framework in (*COMPILED, *COMPILED.values()) else set()
    chunks = CHUNKS if setup.framework is Framework.MEGATRON and setup.pp > 1 else ()
    space = Space(
        gpus=(setup.gpus,), frameworks=(setup.framework, framework), micro_batches=MICRO_BATCHES,
        zero_stages=sorted({setup.zero_stage} | stages), tps=(setup.tp,),
        pps=(setup.pp,), vps=sorted({setup.virtual_stages, *chunks}),
        cps=(setup.cp,), eps=(setup.ep,), precisions=(setup.precision,),
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
        return _nothing(name, "no other fits with room")
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
        return _nothing(name, f"less than {setup.checkpointing} does not fit with room")
    change = f"{best.checkpointing} instead of {setup.checkpointing}: it fits"
    saves = modelled(name, change, 1 / speed, 1 / tokens_per_gpu_s(best), "less is computed twice")
    return saves or _nothing(name, f"{best.checkpointing} is no faster")


def _of_compiling(setup: Setup, speed: float) -> Lever:
    name, framework = "compile", COMPILED.get(setup.framework)
    if framework is None:
        return _nothing(name, f"{setup.framework} has fused kernels")
    compiled = setup.but(framework=framework)
    if not _has_room(compiled):
        return _nothing(name, f"{framework} does not fit with room")
    saves = modelled(name, framework.value, 1 / speed, 1 / tokens_per_gpu_s(compiled), "fused element-wise kernels")
    return saves or _nothing(name, f"{framework} is no faster")


def _of_interleaving(setup: Setup, speed: float) -> list[Lever]:
    """Of a pipeline alone: more chunks of a stage leave less of it idle."""
    more = [
        setup.but(virtual_stages=chunks)
        for chunks in CHUNKS
        if chunks != setup.virtual_stages
        and interleaves(setup.framework, setup.shape.layers, setup.pp, chunks, setup.grad_accum)
    ]
    best = _best(more)
    if best is None:
        return []
    change = f"vp {best.virtual_stages} instead of {setup.virtual_stages}"
    saves = modelled(INTERLEAVING, change, 1 / speed, 1 / tokens_per_gpu_s(best), "a shorter bubble of the pipeline")
    return [saves or _nothing(INTERLEAVING, f"vp {setup.virtual_stages} is the fastest that fits")]


def _of_saving(one: Estimate) -> Lever:
    """Stated saves against the interval that loses the least. An assumed interval is that one already."""
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
    return max((one for one in tries if _has_room(one)), key=tokens_per_gpu_s, default=None)


def _has_room(setup: Setup) -> bool:
    """As in a search and in a plan's choice: no lever leads to what would only just fit."""
    return memory_frac(setup) <= MARGIN


def _nothing(name: str, why: str) -> Lever:
    return Lever(name, why, 1.0, 1.0, 1.0, Evidence.MODELLED, "nothing to save")
