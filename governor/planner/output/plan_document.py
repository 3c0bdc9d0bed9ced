"""A plan as one JSON object, for programs. Times in seconds and hours, memory in GB of 1e9 bytes, money in dollars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from governor.planner.model.levers import Lever, Together
from governor.planner.model.run_cost import RunCost, Spread
from governor.planner.model.setup import Setup
from governor.planner.output.plan_words import GB
from governor.planner.plan_estimate import Estimate, memory_parts, step_parts


def document(one: Estimate, levers: Sequence[Lever] = (), both: Together | None = None) -> dict[str, Any]:
    memory, step, setup = one.prediction.memory, one.prediction.step, one.setup
    band, price = one.memory_band, one.plan.asked.price
    return {
        "name": one.plan.asked.name,
        "model": {
            "name": setup.shape.name,
            "params": setup.shape.params,
            "matmul_params": setup.shape.matmul_params,
        },
        "setup": setup_document(setup),
        "chosen": list(one.plan.chosen),
        "assumed": list(one.plan.assumed),
        "memory": {
            "parts_gb": {name: round(value / GB, 4) for name, value in memory_parts(memory).items()},
            "allocated_gb": round(memory.allocated / GB, 4),
            "reserved_gb": round(memory.reserved / GB, 4),
            "reserved_low_gb": round(band.low / GB, 4),
            "reserved_high_gb": round(band.high / GB, 4),
            "capacity_gb": round(memory.capacity / GB, 4),
            "host_gb_per_node": round(memory.host / GB, 4),
            "fits": memory.fits,
        },
        "step": {"parts_s": step_parts(step), "total_s": sum(step_parts(step).values())},
        "tokens_per_s": _spread(one.tokens_per_s),
        "tokens_per_gpu_s": _spread(one.per_gpu_s),
        "is_measured": one.is_measured,
        "mfu": one.mfu,
        "price": None
        if price is None
        else {"gpu_hour_usd": price.gpu_hour_usd, "source": price.source, "spot": price.is_spot},
        "mtok_usd": None if one.mtok_usd is None else _spread(one.mtok_usd),
        "run": None if one.cost is None else _run(one.cost),
        **lever_documents(one, levers, both),
        "notes": list(one.prediction.notes),
    }


def setup_document(setup: Setup) -> dict[str, Any]:
    names = (
        *("gpus", "seq_len", "micro_batch", "grad_accum", "dp", "tp", "pp", "virtual_stages", "cp", "ep"),
        *("zero_stage", "shard_ranks", "tokens_per_step", "node_gbps", "vintage"),
    )
    words = ("framework", "checkpointing", "precision", "attention", "offload")
    return {
        "gpu": setup.gpu.name,
        **{name: getattr(setup, name) for name in names},
        **{name: getattr(setup, name).value for name in words},
    }


def _spread(values: Spread) -> dict[str, float]:
    return {"low": values.low, "mid": values.mid, "high": values.high}


def _run(cost: RunCost) -> dict[str, Any]:
    return {
        "tokens": cost.tokens,
        "hour_usd": cost.hour_usd,
        "steady_hours": _spread(cost.steady_hours),
        "steady_usd": None if cost.steady_usd is None else _spread(cost.steady_usd),
        "calendar_hours": _spread(cost.calendar_hours),
        "calendar_usd": None if cost.calendar_usd is None else _spread(cost.calendar_usd),
        "calendar_parts": [{"name": part.name, "hours": part.hours, "basis": part.basis} for part in cost.parts],
        "save_s": cost.saving.save_s,
        "save_every_s": cost.saving.interval_s,
    }


def lever_documents(one: Estimate, levers: Sequence[Lever], both: Together | None) -> dict[str, Any]:
    """Savings are shares of the run's time; `usd` of steady state, saves, failures, evaluations; null: unknown."""
    whole = one.worked_usd
    return {
        "levers": [_lever(lever, whole) for lever in levers],
        "levers_together": None if both is None else _together(both, whole),
    }


def _lever(lever: Lever, whole_usd: float | None) -> dict[str, Any]:
    return {
        "name": lever.name,
        "change": lever.change,
        "saves": {"low": 1 - lever.least, "mid": 1 - lever.usual, "high": 1 - lever.best},
        "usd": None if whole_usd is None else (1 - lever.usual) * whole_usd,
        "evidence": lever.evidence.value,
        "basis": lever.basis,
        "is_bound": lever.is_bound,
        "is_done": lever.is_done,
    }


def _together(both: Together, whole_usd: float | None) -> dict[str, Any]:
    return {
        "low": 1 - both.least,
        "mid": 1 - both.usual,
        "high": 1 - both.best,
        "possible": 1 - both.possible,
        "usd": None if whole_usd is None else (1 - both.usual) * whole_usd,
    }
