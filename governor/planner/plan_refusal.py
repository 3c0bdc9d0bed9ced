"""What would fit, when a plan does not: one line."""

from __future__ import annotations

from governor.planner.model.memory import memory_of
from governor.planner.model.nearest_fit import what_fits
from governor.planner.model.setup import Setup
from governor.planner.output.plan_words import gigabytes
from governor.planner.plan_catalog import gpus
from governor.planner.plan_estimate import Estimate, memory_frac


def refusal(one: Estimate) -> str | None:
    """None: it fits."""
    return None if one.prediction.memory.fits else would_fit(one.plan.asked.name, one.setup)


def would_fit(name: str, setup: Setup) -> str:
    """What a set-up needs that does not fit, and what would fit instead."""
    memory = memory_of(setup)
    needed, has = gigabytes(memory.reserved), gigabytes(memory.capacity)
    need = f"{name} needs {needed} GB of a {setup.gpu.name}'s {has}"
    fits = what_fits(setup, _fits, larger=list(gpus().values()))
    if not fits:
        rest = "split the model (tp, pp) or the sequence (cp)"
        return f"{need}, and no smaller step, sharding, offload or number of GPUs makes it fit: {rest}"
    return f"{need}; it fits with {', or with '.join(fit.change for fit in fits)}"


def _fits(setup: Setup) -> bool:
    return memory_frac(setup) <= 1
