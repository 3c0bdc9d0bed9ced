"""One process that trains more than once: each training is judged from its own first step, and paid as one launch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S
from governor.core.engine.node import Node
from governor.core.events.checkpoints import NamedCheckpoint, Origin
from governor.core.events.effects import Alarm, Effect
from governor.core.money.token_windows import TokenMeter
from governor.core.money.trainings import Trainings
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick
from tests.unit.core.money.test_waste import a_world, steps, until


def alarms(effects: list[Effect], name: str) -> list[Alarm]:
    return [effect for effect in effects if isinstance(effect, Alarm) and effect.name == name]


def train(node: Node, when: int, attempt: str, steps: int, **changes: Any) -> list[Effect]:
    effects = play(node, hello(0, when, world_size=1, attempt=attempt, **changes))
    for number in range(1, steps + 1):
        effects += play(
            node,
            a_step(number, 0, when + number, attempt_step=number, tokens=100, tokens_total=None),
            tick(when + number),
        )
    return effects


def test_the_second_training_begins_at_step_0_without_the_firsts_checkpoints() -> None:
    node = make_node()
    saved = NamedCheckpoint(60, "/ck/fold0/checkpoint-60")
    train(node, 0, "a1", 3)
    play(node, hello(0, 10, world_size=1, attempt="a1", last_good=saved))
    said = train(node, 20, "a1+1", 3, resumes="called")
    run = node.runs["llama"].run
    assert (run.attempt, run.step, run.attempt_step, run.last_good) == ("a1+1", 3, 3, None)
    assert alarms(said, "begun_anew") == [], "it is not expected to go on from the first one's"
    play(node, hello(0, 30, world_size=1, attempt="a1+1", last_good=NamedCheckpoint(10, "/ck/fold1/checkpoint-10")))
    assert run.last_good is not None
    assert run.last_good.step == 10, "news, although the first training came to step 60"


def test_a_launch_keeps_what_the_launch_before_has_saved() -> None:
    node = make_node()
    train(node, 0, "a1", 3)
    play(node, hello(0, 10, world_size=1, attempt="a1", last_good=NamedCheckpoint(60, "/ck/60")))
    train(node, 20, "a2", 3, peer=peer(900), connection=ConnectionId(9))
    assert node.runs["llama"].run.last_good is not None


@pytest.mark.parametrize("is_one_process", [True, False])
def test_short_trainings_of_one_process_are_no_loop_of_restarts(is_one_process: bool) -> None:
    """A search over hyperparameters gives most trials up within a few steps."""
    node = make_node(rule("restart_loop"))
    for number in range(6):
        whose: dict[str, Any] = {} if is_one_process else {"peer": peer(900 + number)}
        train(node, 100 * number, f"a1+{number}", 2, **whose)
    assert (node.runs["llama"].incident is None) is is_one_process


def test_what_trains_unwatched_beside_it_is_said_once_and_stands_until_the_end() -> None:
    node = make_node()
    assert alarms(train(node, 0, "a1", 3), "trains_beside") == []
    assert shown(node, 4) == (None, False)
    (alarm,) = alarms(train(node, 10, "a1", 5, beside="Critic"), "trains_beside")
    assert "UNWATCHED" in alarm.text
    assert "Critic" in alarm.text
    assert shown(node, 20) == ("Critic", True)
    assert alarms(train(node, 30, "a1+1", 5), "trains_beside") == []
    assert shown(node, 40) == (None, False)


def shown(node: Node, when: float) -> tuple[str | None, bool | None]:
    """In status, and in metrics."""
    (metric,) = take_snapshot(node, at(when), GovernorHealth(), LagReading(), "").runs
    return run_status(node.runs["llama"], at(when))["unwatched_beside"], metric.trains_beside


def test_what_the_second_training_costs_repeats_nothing_of_the_firsts() -> None:
    """Healthy folds were "tokens trained twice", and half of what they cost was waste."""
    node = make_node(price_usd_micros_per_hour=22_000_000)
    for number in range(3):
        train(node, 20 * number, f"a1+{number}", 10)
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.wasted_tokens, meter.trained_tokens) == (0, 30 * 100)
    shown = run_status(node.runs["llama"], at(60))
    assert shown["usd_per_mtok_useful"] == shown["usd_per_mtok_all_in"]
    again = TokenMeter.restored(json.loads(json.dumps(meter.snapshot())), same_boot=True)
    assert again == meter
    train(node, 80, "a2", 10, peer=peer(900))
    assert meter.wasted_tokens == 10 * 100, "a launch that begins anew does repeat"


def test_one_that_has_loaded_a_checkpoint_goes_on_from_its_totals_and_repeats_what_was_lost() -> None:
    """A restart within the process."""
    node = make_node(price_usd_micros_per_hour=22_000_000)
    train(node, 0, "a1", 10)
    play(node, hello(0, 20, world_size=1, attempt="a1+1"))
    for number in range(1, 11):
        step = a_step(6 + number, 0, 20 + number, attempt_step=number, tokens=100, tokens_total=100 * (6 + number))
        play(node, step, tick(20 + number))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.wasted_tokens, meter.trained_tokens) == (400, 2_000)


@pytest.mark.parametrize("base", [10**12, 5 * 10**10])
def test_a_second_training_whose_totals_go_on_from_anothers_has_trained_none_of_those(base: int) -> None:
    node = make_node(price_usd_micros_per_hour=22_000_000)
    train(node, 0, "a1", 10, tokens_per_step=None)
    effects = play(node, hello(0, 20, world_size=1, attempt="a1+1", tokens_per_step=None))
    for number in range(1, 11):
        step = a_step(number, 0, 20 + number, attempt_step=number, tokens=100, tokens_total=base + 100 * number)
        effects += play(node, step, tick(20 + number))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.wasted_tokens, meter.trained_tokens) == (0, 2_000)
    (alarm,) = alarms(effects, "figure_refused")
    assert f"{base:,} of them are not counted" in alarm.text


# --- a relaunch of a process that trains twice: SFT for 10 steps, then DPO ------------------------------------


def trains(world: World, attempt: str, numbers: range, process: int, **changes: Any) -> None:
    """A step a second, of 10,000 tokens. The launch `process` has trained all before its own number."""
    world.pass_time("run", 2 * NS_PER_S)
    world.tick()
    world.hear(attempt=attempt, peer=peer(process), **{"origin": Origin(), **changes})
    began = world.mono // NS_PER_S + 2
    for own, number in enumerate(numbers, start=1):
        steps(world, range(number, number + 1), began + own - 1, first=own)


def trained(world: World) -> tuple[int, int]:
    """In steps: all that were trained, and of these those of before."""
    meter = world.node.runs["llama"].history.meter
    assert meter is not None
    return meter.trained_tokens // 10_000, meter.wasted_tokens // 10_000


def restarts(world: World, *, is_there: bool) -> None:
    """All is persisted every ten seconds."""
    if is_there:
        until(world, world.mono / NS_PER_S + 11)
        world.restart()
        world.tick()


SFT, DPO = "/ck/sft", "/ck/dpo"


@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize(("sft", "dpo"), [("/ck/sft", "/ck/dpo"), (None, None), (None, "/ck/dpo"), ("/ck/sft", None)])
@pytest.mark.parametrize("journal", [True, False])
def test_a_relaunch_trains_each_training_of_its_process_again(
    anew: bool, sft: str | None, dpo: str | None, journal: bool
) -> None:
    """SFT from step 8 on, or from its first, and DPO from its step 4 on, or from its first."""
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=sft)
    trains(world, "a1+1", range(1, 7), 200, checkpoint_dir=dpo)
    restarts(world, is_there=journal)
    trains(world, "a2", range(1 if anew else 9, 11), 300, checkpoint_dir=sft)
    again = 10 if anew else 2
    assert trained(world) == (16 + again, again)
    restarts(world, is_there=journal)
    if journal:
        world.hear(attempt="a2", peer=peer(300), origin=Origin(), checkpoint_dir=sft)
    trains(world, "a2+1", range(1 if anew else 5, 13), 300, checkpoint_dir=dpo)
    again += 6 if anew else 2
    assert trained(world) == (10 + 12 + again, again)


def test_a_governor_that_comes_back_before_the_second_trainings_first_step_knows_that_it_is_one() -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 200)
    world.hear(attempt="a1+1", peer=peer(200))
    world.tick()
    world.restart()
    world.tick()
    trains(world, "a1+1", range(1, 4), 200)
    restarts(world, is_there=True)
    world.hear(attempt="a1+1", peer=peer(200))
    steps(world, range(4, 7), world.mono // NS_PER_S + 1, first=4)
    assert trained(world) == (16, 0)
    assert world.node.runs["llama"].run.trains_again


def test_a_relaunch_that_skips_what_is_done_goes_on_with_the_training_of_its_directory() -> None:
    world = a_world()
    for fold in range(3):
        trains(world, f"a1+{fold}" if fold else "a1", range(1, 11), 200, checkpoint_dir=f"/ck/fold{fold}")
    trains(world, "a2", range(9, 13), 300, checkpoint_dir="/ck/fold2")
    assert trained(world) == (34, 2)
    trains(world, "a2+1", range(1, 11), 300, checkpoint_dir="/ck/fold3")
    assert trained(world) == (44, 2), "a fold that no launch has begun before, although it is this one's second"
    trains(world, "a3", range(1, 5), 400, checkpoint_dir="/ck/fold3")
    assert trained(world) == (48, 6)


def test_a_second_train_of_the_same_trainer_saves_where_the_first_does() -> None:
    world = a_world()
    for launch in (1, 2):
        trains(world, f"a{launch}", range(1, 11), 100 * launch, checkpoint_dir="/ck")
        trains(world, f"a{launch}+1", range(1, 6), 100 * launch, checkpoint_dir="/ck")
    assert trained(world) == (30, 15)


def test_a_relaunch_whose_process_starts_its_first_training_over_is_still_in_that() -> None:
    """A restart within the process loads the first one's checkpoint, and is not the second for its number."""
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=SFT)
    trains(world, "a1+1", range(1, 7), 200, checkpoint_dir=DPO)
    trains(world, "a2", range(5, 9), 300, checkpoint_dir=SFT)
    trains(world, "a2+1", range(7, 11), 300, checkpoint_dir=SFT)
    trains(world, "a2+2", range(1, 9), 300, checkpoint_dir=DPO)
    assert trained(world) == (10 + 6 + 4 + 4 + 8, 4 + 4 + 6)


def test_of_a_search_the_first_sixteen_trainings_are_kept() -> None:
    trainings = Trainings()
    for number in range(20):
        attempt = f"a1+{number}" if number else "a1"
        progress = 100 * number
        said = trainings.begin(attempt, None, max(0, progress - 100), progress, is_launch=number == 0, is_anew=True)
        assert said == progress
    assert len(trainings.known) == 16
    assert trainings.begin("a2", None, 1900, 2000, is_launch=True, is_anew=True) == 1900, "it has reached 100"
    assert trainings.begin("a2+15", None, 1900, 2000, is_launch=False, is_anew=True) == 1900
    assert trainings.begin("a2+16", None, 1900, 2000, is_launch=False, is_anew=True) == 2000
    assert trainings.begin("a3", None, 2000, 2100, is_launch=True, is_anew=True) == 2000


def test_an_older_journal_that_knows_no_trainings_is_read_as_before() -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 200)
    trains(world, "a1+1", range(1, 4), 200)
    meter = world.node.runs["llama"].history.meter
    assert meter is not None
    row = {name: value for name, value in meter.snapshot().items() if name != "trainings"}
    older = TokenMeter.restored(json.loads(json.dumps(row)), same_boot=True)
    older.begin_attempt("a1+1", None, trains_again=False, is_anew=True)
    assert (older.earlier_tokens, older.last_total) == (100_000, 130_000)
    older.begin_attempt("a2", None, trains_again=False, is_anew=True)
    assert older.earlier_tokens == 0
    older.begin_attempt("a2+1", None, trains_again=True, is_anew=True)
    assert older.earlier_tokens == older.progress_tokens
    with pytest.raises(ValueError, match="training 3 of 1"):
        Trainings.of({**json.loads(json.dumps(meter.snapshot()))["trainings"], "now": 3, "known": [row_of_none()]})
    unreached = {"attempt": "a1", "number": 0, "now": 0, "by_place": False, "known": [row_of_none()]}
    assert Trainings.of(unreached) == Trainings(), "of a version that did not say how far each had come"


def row_of_none() -> dict[str, Any]:
    return {"number": 0, "place": "", "reached": 0, "is_whole": False, "is_taken": False}
