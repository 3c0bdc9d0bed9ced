"""The plans of the four stages: the set-up to run, the fallback, and the cost of each, from a small search space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from governor.planner.catalog import GpuPrice, gpu_named, listed_price
from governor.planner.model.candidates import EXPERT_RANKS, Limits, Offer, Space, candidates, choose, search
from governor.planner.model.memory import memory_frac
from governor.planner.model.predict import Prediction, predict
from governor.planner.model.run_cost import RunCost, Spread, failures_mtbf_s, run_cost, saving_of
from governor.planner.model.setup import Checkpointing, Gpu, Offload, Setup
from governor.planner.model.step_time import tokens_per_gpu_s
from governor.planner.model.training_stages import STAGES, TrainingStage

# It lists machines of eight of both GPUs, at a price in the middle of the market.
PROVIDER: Final = "Lambda"
GPU: Final = "H100-SXM-80GB"
OTHER_GPU: Final = "A100-SXM-80GB"  # The same memory, an older network, and usually available.
MICRO_BATCHES: Final = (1, 2, 4, 8, 16)
CHECKPOINTINGS: Final = (Checkpointing.NONE, Checkpointing.FULL)  # Eager models offer no other.


@dataclass(frozen=True, slots=True)
class Costed:
    prediction: Prediction
    price: GpuPrice
    cost: RunCost

    @property
    def setup(self) -> Setup:
        return self.prediction.setup


@dataclass(frozen=True, slots=True)
class StagePlan:
    """`elsewhere`: the fallback on the same number of the other GPU.

    `tried` set-ups were searched; `fitting` of them fit.
    """

    stage: TrainingStage
    primary: Costed
    fallback: Costed
    elsewhere: Costed
    tried: int
    fitting: int
    reasons: tuple[str, ...]

    @property
    def each(self) -> tuple[tuple[str, Costed], ...]:
        return ("primary", self.primary), ("fallback", self.fallback), ("fallback on A100", self.elsewhere)


@cache
def stage_plans() -> tuple[StagePlan, ...]:
    return tuple(_planned(stage) for stage in STAGES)


def setups_of(stage: TrainingStage, gpu: Gpu) -> Iterator[Setup]:
    """The search space: the stage's machines, ZeRO, micro-batches, no or full checkpointing.

    For a mixture, experts over 1 to 8 ranks: DeepSpeed's own mixtures, which allow ZeRO up to 2.
    """
    if stage.shape.is_moe:
        return _of_space(stage, gpu, Space(stage.gpus, zero_stages=(1, 2), eps=EXPERT_RANKS))
    return _of_space(stage, gpu, Space(stage.gpus, zero_stages=(1, 2, 3)))


def resorts_of(stage: TrainingStage, gpu: Gpu) -> Iterator[Setup]:
    """Fallbacks for when nothing in the space takes less memory.

    They are a mixture whose experts ZeRO-3 gathers whole, and a dense model whose optimizer steps on the host.
    """
    if stage.shape.is_moe:
        return _of_space(stage, gpu, Space(stage.gpus, zero_stages=(3,)))
    return _of_space(stage, gpu, Space(stage.gpus, zero_stages=(2, 3), fixed={"offload": Offload.OPTIMIZER_CPU}))


def _of_space(stage: TrainingStage, gpu: Gpu, space: Space) -> Iterator[Setup]:
    space = replace(space, micro_batches=MICRO_BATCHES, checkpointings=CHECKPOINTINGS)
    for setup in candidates(stage.shape, (gpu,), stage.seq_len, stage.step_tokens, space):
        if setup.tokens_per_step == stage.step_tokens:
            yield setup


def costed(setup: Setup, tokens: float) -> Costed:
    price = listed_price(setup.gpu, setup.gpus, PROVIDER, "on-demand")
    prediction = predict(setup)
    nodes = max(setup.gpus // setup.gpu.gpus_per_node, 1)
    mtbf = failures_mtbf_s(setup.gpus, nodes, is_spot=False)
    saving = saving_of(setup.shape.params, nodes, mtbf)
    cost = run_cost(tokens, Spread(*prediction.tokens_per_s), setup.gpus, price.gpu_hour_usd, saving, mtbf)
    return Costed(prediction, price, cost)


def _planned(stage: TrainingStage) -> StagePlan:
    gpu = gpu_named(GPU)
    setups = list(setups_of(stage, gpu))
    offer = Offer(gpu, listed_price(gpu, gpu.gpus_per_node, PROVIDER, "on-demand").gpu_hour_usd, PROVIDER)
    found, resorts = (
        search(some, (offer,), stage.tokens, memory_frac, tokens_per_gpu_s) for some in (setups, resorts_of(stage, gpu))
    )
    choice = choose(found, Limits(), resorts)
    assert choice.primary is not None, f"{stage.name}: {choice.reasons}"
    assert choice.fallback is not None, f"{stage.name}: {choice.reasons}"
    primary, fallback = costed(choice.primary.setup, stage.tokens), costed(choice.fallback.setup, stage.tokens)
    elsewhere = costed(fallback.setup.but(gpu=gpu_named(OTHER_GPU)), stage.tokens)
    return StagePlan(stage, primary, fallback, elsewhere, len(setups), len(found), choice.reasons)
