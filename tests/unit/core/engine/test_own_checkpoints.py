"""A script that loads a checkpoint of its own: its ranks know the step, and not the tokens that went before it."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MonoNs
from governor.core.events.checkpoints import Origin
from governor.core.events.inputs import Disconnected, Step, TrainerExited
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import at, make_node, peer, play, tick
from tests.unit.core.runs.test_counting import Trainer

STEP_TOKENS = 250_000


def trains(world: World, since: int, until: int, *, first: int, knows: bool) -> None:
    """One step a second; `first` is the attempt's first one."""
    for number in range(since, until):
        world.at(world.mono / 10**9 + 1)
        total = STEP_TOKENS * number if knows else None
        told = Step(MonoNs(world.mono), ConnectionId(1), "llama", 0, number, number - first + 1, STEP_TOKENS, total)
        world.play(told)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_what_is_trained_on_is_progress_and_what_is_trained_again_is_waste(knows: bool, killed: bool) -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear()
    trains(world, 1, 23, first=1, knows=True)
    world.play(Disconnected(MonoNs(world.mono), ConnectionId(1)))
    world.play(TrainerExited(MonoNs(world.mono), "llama", 1))
    if killed:
        world.at(60)
        world.restart()
        world.tick()
    world.hear(attempt="a2", peer=peer(200), resumed_step=18)
    trains(world, 19, 41, first=19, knows=knows)
    world.at(world.mono / 10**9 + 20)
    meter = world.node.runs["llama"].history.meter
    assert meter is not None
    assert world.node.runs["llama"].run.tokens_total == meter.progress_tokens == 40 * STEP_TOKENS
    assert meter.wasted_tokens == 4 * STEP_TOKENS, "steps 19 to 22"
    edges = [(row["from_tokens"], row["to_tokens"]) for row in world.windows]
    assert edges == [(million * 10**6, (million + 1) * 10**6) for million in range(10)]


def test_a_step_that_is_told_twice_late_or_not_at_all_counts_once() -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear(resumed_step=40)
    for number in (41, 42, 42, 44, 43, 45, 47):
        world.play(Step(at(number), ConnectionId(1), "llama", 0, number, number - 40, STEP_TOKENS))
    assert world.node.runs["llama"].run.tokens_total == 47 * STEP_TOKENS, "by the number of its last step"


@pytest.mark.parametrize(("unheard", "counted"), [(0, 0), (50, 50), (100, 100), (101, 0)])
@pytest.mark.parametrize("heard", [0, 100])
def test_what_is_near_was_trained_by_the_run_also_where_only_its_step_tells(
    heard: int, unheard: int, counted: int
) -> None:
    """A trainer that has loaded a checkpoint of its own: before it is heard for the first time, and again."""
    trainer = Trainer()
    if heard:
        trainer.launch(origin=Origin())
        trainer.train(*range(1, 1 + heard))
    trainer.launch(origin=None)
    begun = heard + unheard
    trainer.train(*range(begun + 1, begun + 11), totals=False)
    assert (trainer.counted, trainer.paid) == ((heard + counted + 10, 0), heard + 10), "nobody has paid for it here"


def test_what_was_trained_unheard_and_paid_for_is_in_the_price_of_steps_that_tell_no_total() -> None:
    """A hundred steps, a service away for a minute while fifty more are trained, and ten by the next launch."""
    trainer = Trainer()
    trainer.launch(origin=Origin())
    trainer.train(*range(1, 101))
    for _ in range(60):
        trainer.now += 1
        play(trainer.node, tick(trainer.now))
    trainer.launch(origin=None)
    trainer.train(*range(151, 161), totals=False)
    assert (trainer.counted, trainer.paid) == ((160, 0), 160)


@pytest.mark.parametrize(
    ("attempts", "trained"),
    [
        ([(1, 23, True), (1, 4, True), (19, 41, False)], 40),
        ([(1, 6, True), (300_001, 300_011, False)], 15),
        ([(300_001, 300_011, False), (1, 4, True), (300_011, 300_021, False)], 20),
    ],
    ids=["begun anew by mistake, and resumed", "a trial, then a checkpoint of elsewhere", "of elsewhere, and resumed"],
)
def test_steps_of_which_nobody_heard_are_no_tokens_of_the_run(
    attempts: list[tuple[int, int, bool]], trained: int
) -> None:
    """A token budget would call a run complete, and end it, for what another one has trained."""
    world = World(make_node(cloud="none"))
    world.tick()
    for number, (first, end, knows) in enumerate(attempts):
        world.hear(attempt=f"a{number}", peer=peer(100 + number), resumed_step=first - 1)
        trains(world, first, end, first=first, knows=knows)
        world.play(Disconnected(MonoNs(world.mono), ConnectionId(1)))
        world.play(TrainerExited(MonoNs(world.mono), "llama", 1))
        world.restart()
        world.tick()
    assert world.node.runs["llama"].run.tokens_total == trained * STEP_TOKENS


def test_a_later_stage_that_counts_its_steps_from_one_goes_on_from_its_own() -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    for attempt, step, total in (("a1", 1_000, 1_000), ("a2", 3, 1_003), ("a3", 5, None)):
        world.hear(attempt=attempt, resumed_step=step - 1)
        told = total * STEP_TOKENS if total is not None else None
        world.play(Step(MonoNs(world.mono), ConnectionId(1), "llama", 0, step, 1, STEP_TOKENS, told))
    assert world.node.runs["llama"].run.tokens_total == 1_005 * STEP_TOKENS, "step 4 was trained unheard"
