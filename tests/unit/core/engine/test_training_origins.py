"""Several trainings of a process, of which one goes on from another run's checkpoint: each has its own count."""

from __future__ import annotations

import pytest

from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_S, UsdMicros
from governor.core.events.checkpoints import Origin
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_second_training import DPO, SFT, restarts, trained, trains
from tests.unit.core.engine.test_step import a_step, make_node, peer, rule
from tests.unit.core.money.test_waste import a_world, end

S = 10_000
OWN, OTHER = Origin(), Origin("A", 82, 82 * S)


@pytest.mark.parametrize(("sft", "dpo"), [(SFT, DPO), (None, None)])
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize(
    ("again", "on", "total", "paid", "twice"),
    [
        (range(83, 93), range(1, 13), 10 + 12, 10 + 7 + 10 + 12, 10 + 7),
        (range(89, 93), range(1, 13), 10 + 12, 10 + 7 + 4 + 12, 4 + 7),
        (range(89, 93), range(8, 13), 10 + 12, 10 + 7 + 4 + 5, 4),
        (range(91, 95), range(6, 13), 12 + 12, 10 + 7 + 4 + 7, 2 + 2),
        (range(0), range(1, 13), 10 + 12, 10 + 7 + 12, 7),
    ],
)
def test_each_training_of_a_relaunch_goes_on_with_its_own_origin(
    sft: str | None, dpo: str | None, journal: bool, again: range, on: range, total: int, paid: int, twice: int
) -> None:
    world = a_world()
    trains(world, "a1", range(83, 93), 100, checkpoint_dir=sft, origin=OTHER)
    trains(world, "a1+1", range(1, 8), 100, checkpoint_dir=dpo)
    end(world)
    restarts(world, is_there=journal)
    trains(world, "a2", again, 200, checkpoint_dir=sft, origin=OTHER)
    restarts(world, is_there=journal)
    trains(world, "a2+1", on, 200, checkpoint_dir=dpo)
    managed = world.node.runs["llama"]
    assert (managed.trained_tokens or 0) // S == total
    assert trained(world) == (paid, twice)
    assert managed.history.meter is not None
    assert managed.history.meter.lent_tokens == 0


def test_a_trainer_without_totals_counts_each_trainings_own_steps_too() -> None:
    world = a_world()
    for launch, first in ((1, 83), (2, 89)):
        for number, steps, origin in ((0, range(first, 93), OTHER), (1, range(1, 7 + launch), OWN)):
            facts = {"origin": origin, "peer": peer(100 * launch), "world_size": 1, "tokens_per_step": None}
            world.pass_time("run", 2 * NS_PER_S)
            world.hear(attempt=f"a{launch}+{number}" if number else f"a{launch}", **facts)
            for own, step in enumerate(steps, 1):
                world.pass_time("run", NS_PER_S)
                said = {"run": "llama", "attempt_step": own, "tokens": S, "tokens_total": None}
                world.play(a_step(step, when=world.mono / NS_PER_S, **said))
                world.tick()
        end(world)
    assert trained(world) == (10 + 7 + 4 + 8, 4 + 7)
    assert world.node.runs["llama"].trained_tokens == (10 + 8) * S


@pytest.mark.parametrize("sft", [SFT, None])
def test_a_goal_is_not_met_by_what_another_training_has_trained(sft: str | None) -> None:
    """Fifteen steps. SFT has ten of its own behind another run's 82, which its relaunch trains again."""
    budget = Budget(window_tokens=2 * S, tokens=15 * S, ceiling_usd_micros=UsdMicros(10**9))
    world = World(
        make_node(rule("budget"), budget=budget, cloud="none", price_usd_micros_per_hour=UsdMicros(3_600_000))
    )
    world.tick()
    trains(world, "a1", range(83, 93), 100, checkpoint_dir=sft, origin=OTHER)
    trains(world, "a1+1", range(1, 8), 100, checkpoint_dir=DPO if sft else None)
    end(world)
    trains(world, "a2", range(83, 93), 200, checkpoint_dir=sft, origin=OTHER)
    managed = world.node.runs["llama"]
    assert (managed.run.tokens_total, managed.trained_tokens, managed.incident) == (10 * S, 17 * S, None)
    trains(world, "a2+1", range(1, 15), 200, checkpoint_dir=DPO if sft else None)
    assert (managed.run.tokens_total, managed.incident) == (14 * S, None)
    trains(world, "a2+2", range(15, 17), 200, checkpoint_dir=DPO if sft else None)
    assert managed.incident is not None, "a restart within the process takes it to the goal"


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("first", "twice"), [(5, 3), (1, 7)])
def test_a_relaunch_that_skips_the_first_training_is_told_by_its_origin(*, fresh: bool, first: int, twice: int) -> None:
    """By its number it would be the first one: its tokens were new, and the goal came at DPO's tenth step."""
    budget = Budget(window_tokens=2 * S, tokens=20 * S, ceiling_usd_micros=UsdMicros(10**9))
    world = World(
        make_node(rule("budget"), budget=budget, cloud="none", price_usd_micros_per_hour=UsdMicros(3_600_000))
    )
    world.tick()
    trains(world, "a1", range(83, 93), 100, checkpoint_dir="/d/0/1" if fresh else None, origin=OTHER)
    trains(world, "a1+1", range(1, 8), 100, checkpoint_dir="/d/1/1" if fresh else None)
    end(world)
    trains(world, "a2", range(first, 20), 200, checkpoint_dir="/d/1/2" if fresh else None, origin=OWN)
    managed = world.node.runs["llama"]
    assert (managed.run.tokens_total, managed.trained_tokens, managed.incident) == (19 * S, 29 * S, None)
    assert trained(world)[1] == twice
