"""What a plan promises: hours and dollars only of what fits, and ZeRO only where there is something to shard."""

from __future__ import annotations

from governor.planner.estimate import Estimate, sharding_of
from governor.planner.model.run_cost import RunCost, Spread, chance_above
from governor.planner.model.setup import Setup

ALONE = "none"


def promised_cost(one: Estimate) -> RunCost | None:
    """The cost of the run, or None: no tokens are stated, or it does not fit."""
    return one.cost if one.prediction.memory.fits else None


def promised_mtok_usd(one: Estimate) -> Spread | None:
    return one.mtok_usd if one.prediction.memory.fits else None


def sharding_text(setup: Setup) -> str:
    """What shards the states; none on one GPU, whatever the config says."""
    return ALONE if setup.gpus == 1 else sharding_of(setup)


def chance_of_no_room(one: Estimate) -> float:
    """How probable it is that the memory does not suffice."""
    return chance_above(one.prediction.memory.capacity, one.memory_band.mid, one.memory_band.sigma)
