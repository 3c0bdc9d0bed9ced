"""A plan, predicted and priced: the data that all reports show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from governor.planner.model.candidates import DEEPSPEED, EXPERT_RANKS, candidates
from governor.planner.model.memory import Memory, memory_frac
from governor.planner.model.predict import Prediction, predict
from governor.planner.model.run_cost import HOUR_S, MTOK, RunCost, Saving, Spread, failures_mtbf_s, run_cost, saving_of
from governor.planner.model.setup import Framework, Setup
from governor.planner.model.step_time import StepTime, tokens_per_gpu_s
from governor.planner.request import Asked, RunPlan, asked, settle

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
_NOT_PARTS = ("tokens_per_gpu_s", "mfu")


@dataclass(frozen=True, slots=True)
class Estimate:
    """`cost` is None without stated tokens. `tokens_per_s` is for the whole run. A measured one has no band."""

    plan: RunPlan
    prediction: Prediction
    tokens_per_s: Spread
    cost: RunCost | None

    @property
    def setup(self) -> Setup:
        return self.plan.setup

    @property
    def is_measured(self) -> bool:
        return self.plan.asked.measured_tokens_per_s is not None

    @property
    def per_gpu_s(self) -> Spread:
        return self.tokens_per_s.times(1 / self.setup.gpus)

    @property
    def memory_band(self) -> Spread:
        """`reserved`, in bytes."""
        reserved = self.prediction.memory.reserved
        low, high = self.prediction.memory_band.around(reserved)
        return Spread(low, reserved, high)

    @property
    def mfu(self) -> float:
        predicted = self.prediction.step
        return predicted.mfu * self.per_gpu_s.mid / predicted.tokens_per_gpu_s

    @property
    def mtok_usd(self) -> Spread | None:
        price = self.plan.asked.price
        if price is None:
            return None
        return self.tokens_per_s.under(MTOK / HOUR_S * price.gpu_hour_usd * self.setup.gpus)

    @property
    def worked_usd(self) -> float | None:
        """Dollars of steady state, saves, failures and evaluations, which single changes can save.

        The unexplained rest of the calendar is not included.
        """
        if self.cost is None or self.cost.hour_usd is None:
            return None
        return self.cost.hour_usd * (self.cost.steady_hours.mid + sum(part.hours for part in self.cost.parts[:2]))


def memory_parts(memory: Memory) -> dict[str, float]:
    """Bytes of one GPU, in the order of the report. `rest` is what the driver shows beyond the parts."""
    parts = {name: float(getattr(memory, name)) for name in MEMORY_PARTS}
    parts["context"] = memory.context
    parts["fragmentation"] = max(memory.reserved - memory.allocated - memory.context, 0.0)
    return parts


def step_parts(step: StepTime) -> dict[str, float]:
    """Seconds of one optimizer step. They sum to its total."""
    return {part.name: float(getattr(step, part.name)) for part in fields(step) if part.name not in _NOT_PARTS}


def estimate(values: Mapping[str, str]) -> Estimate:
    """Predict a stated plan. ValueError, with one line for the user, when that is impossible."""
    return estimate_of(settle(asked(values), memory_frac, tokens_per_gpu_s))


def estimate_of(plan: RunPlan) -> Estimate:
    setup, stated = plan.setup, plan.asked
    # A plan decides what it assumes, so its assumptions do not widen the interval.
    prediction = predict(setup)
    band = prediction.tokens_per_gpu_s
    speed = Spread(band.low, band.mid, band.high).times(setup.gpus)
    if stated.measured_tokens_per_s is not None:
        speed = Spread(*[stated.measured_tokens_per_s] * 3)
    elif stated.data_wait is not None:
        speed = speed.times(1 - stated.data_wait)
    cost = None if stated.tokens is None else _cost(plan, speed, stated.tokens)
    return Estimate(plan, prediction, speed, cost)


def interruptions_of(setup: Setup, stated: Asked, *, is_spot: bool) -> tuple[Saving, float]:
    """How the run saves, and the mean time between its interruptions."""
    nodes = max(setup.gpus // setup.gpu.gpus_per_node, 1)
    mtbf = failures_mtbf_s(setup.gpus, nodes, is_spot=is_spot)
    return saving_of(setup.shape.params, nodes, mtbf, stated.save_s, stated.save_every_s), mtbf


def _cost(plan: RunPlan, speed: Spread, tokens: float) -> RunCost:
    setup, stated = plan.setup, plan.asked
    saving, mtbf = interruptions_of(setup, stated, is_spot=stated.price is not None and stated.price.is_spot)
    price = None if stated.price is None else stated.price.gpu_hour_usd
    is_measured = stated.measured_tokens_per_s is not None
    return run_cost(tokens, speed, setup.gpus, price, saving, mtbf, is_measured=is_measured)


# One plan under each way of sharding: DDP, FSDP, FSDP2 and the ZeRO stages. Everything else is as stated.


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
    """The framework that shards the states, and its stage."""
    match setup.framework:
        case Framework.DDP:
            return "DDP"
        case Framework.FSDP:
            return "FSDP"
        case Framework.FSDP2:
            return "FSDP2"
    return f"ZeRO-{setup.zero_stage}"


def by_way(asked: Asked) -> dict[str, Estimate | None]:
    """The plan under each way, with its open values chosen again. None: no framework runs it."""
    return {way: _under(asked, framework, zero) for way, (framework, zero) in WAYS.items()}


def _under(asked: Asked, framework: Framework, zero: int) -> Estimate | None:
    if framework is Framework.DEEPSPEED and asked.framework is Framework.DEEPSPEED_COMPILED:
        framework = asked.framework
    # These frameworks do not get the parallelism that Megatron gets by default.
    tp, pp = ((asked.given[key] or 1,) for key in ("tp", "pp"))
    ep: tuple[int, ...] = (asked.given["ep"] or 1,)
    if framework in DEEPSPEED and asked.given["ep"] is None and asked.shape.is_moe:
        ep = tuple(ranks for ranks in EXPERT_RANKS if ranks <= asked.gpus and asked.shape.can_spread(ranks))
    space = replace(asked.space, frameworks=(framework,), zero_stages=(zero,), tps=tp, pps=pp, eps=ep)
    # A measured speed applies only to the stated way.
    other = replace(asked, framework=framework, space=space, measured_tokens_per_s=None)
    if next(candidates(other.shape, (other.gpu,), other.seq_len, other.batch_tokens, space), None) is None:
        return None
    return estimate_of(settle(other, memory_frac, tokens_per_gpu_s))
