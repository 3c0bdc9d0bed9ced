"""Runs of several trainings in one process, in turn, relaunched, skipped or done: what was trained twice, by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from governor.core.base.policy import Budget, Expected, PolicySet
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.events.inputs import Bye
from governor.core.views.status import run_status
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_second_training import DPO, SFT, restarts, trained, trains
from tests.unit.core.engine.test_step import at, make_node, peer, rule
from tests.unit.core.money.test_waste import a_world, end

REWARD, POLICY = "/ck/reward", "/ck/policy"
DIRECTORIES = pytest.mark.parametrize(("sft", "dpo"), [(SFT, DPO), (None, None), (None, DPO), (SFT, None)])


def name(launch: int, number: int) -> str:
    return f"a{launch}+{number}" if number else f"a{launch}"


def bye(world: World, *, completed: bool = True) -> None:
    run = world.node.runs["llama"].run
    (rank,) = run.ranks.values()
    assert rank.connection is not None
    world.play(Bye(MonoNs(world.mono), rank.connection, "llama", 0, 99, completed=completed, step=run.step))


def total(world: World) -> int:
    """All progress, in steps."""
    return (world.node.runs["llama"].trained_tokens or 0) // 10_000


# --- a relaunch whose first training is done ------------------------------------------------------------------


@DIRECTORIES
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("step", [1, 5])
def test_a_done_training_attaches_and_makes_no_step_and_the_next_one_repeats_what_it_had(
    sft: str | None, dpo: str | None, journal: bool, step: int
) -> None:
    """The second died before its first save, or goes on from its step 4."""
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=sft)
    trains(world, "a1+1", range(1, 8), 200, checkpoint_dir=dpo)
    end(world)
    trains(world, "a2", range(0), 300, checkpoint_dir=sft)
    restarts(world, is_there=journal)
    trains(world, "a2+1", range(step, 13), 300, checkpoint_dir=dpo)
    assert trained(world) == (10 + 7 + 13 - step, 8 - step)
    assert total(world) == 22


def test_a_done_training_that_no_governor_heard_attach_leaves_the_next_one_its_number() -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 200)
    trains(world, "a1+1", range(1, 8), 200)
    trains(world, "a2+1", range(1, 13), 300)
    assert trained(world) == (29, 7)


def test_folds_that_are_done_attach_again_and_the_next_one_is_trained_anew() -> None:
    world = a_world()
    for fold in (0, 1):
        trains(world, name(1, fold), range(1, 11), 200, checkpoint_dir=f"/ck/fold{fold}")
    trains(world, "a1+2", range(1, 6), 200, checkpoint_dir="/ck/fold2")
    for fold in (0, 1):
        trains(world, name(2, fold), range(0), 300, checkpoint_dir=f"/ck/fold{fold}")
    trains(world, "a2+2", range(1, 11), 300, checkpoint_dir="/ck/fold2")
    assert trained(world) == (35, 5)


def test_one_that_attached_and_died_before_its_first_step_is_known_where_the_first_is_skipped() -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=SFT)
    trains(world, "a1+1", range(0), 200, checkpoint_dir=DPO)
    restarts(world, is_there=True)
    end(world)
    trains(world, "a2", range(1, 13), 300, checkpoint_dir=DPO)
    assert (trained(world), total(world)) == ((22, 0), 22)
    trains(world, "a3", range(1, 15), 400, checkpoint_dir=DPO)
    assert (trained(world), total(world)) == ((36, 12), 24)


@pytest.mark.parametrize("completed", [True, False])
def test_in_a_directory_of_its_own_it_is_another_where_the_one_of_its_number_was_trained_to_its_end(
    completed: bool,
) -> None:
    """DPO died before it attached. Behind an SFT that has not said that it is done it may be that, begun anew."""
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=SFT)
    bye(world, completed=completed)
    end(world)
    trains(world, "a2", range(1, 13), 300, checkpoint_dir=DPO)
    assert (trained(world), total(world)) == (((22, 0), 22) if completed else ((22, 10), 12))


@pytest.mark.parametrize("step", [1, 5])
def test_a_launch_with_a_fresh_directory_still_goes_on_with_what_had_not_come_to_its_end(step: int) -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir="/out/1")
    trains(world, "a2", range(0), 300, checkpoint_dir="/out/2")
    trains(world, "a3", range(step, 13), 400, checkpoint_dir="/out/3")
    assert trained(world) == (10 + 13 - step, 11 - step)


def test_of_several_trainings_of_one_directory_the_relaunch_is_in_that_of_its_number() -> None:
    world = a_world()
    for number, length in enumerate((10, 4, 6)):
        trains(world, name(1, number), range(1, length + 1), 200, checkpoint_dir="/ck")
    for number in (0, 1):
        trains(world, name(2, number), range(0), 300, checkpoint_dir="/ck")
    trains(world, "a2+2", range(1, 9), 300, checkpoint_dir="/ck")
    assert trained(world) == (28, 6)


@pytest.mark.parametrize("again", [0, 2])
@pytest.mark.parametrize("sft", [SFT, None, "/out/{}/sft"])
def test_a_training_in_a_directory_of_each_launchs_own_is_known_by_its_number(sft: str | None, again: int) -> None:
    """The one before it saves where it did before."""
    world = a_world()
    for launch, first, last in ((1, 1, 7), (2, 11 - again, 12), (3, 11, 15)):
        directory = sft.format(launch) if sft else None
        trains(world, name(launch, 0), range(first, 11), 100 * launch, checkpoint_dir=directory)
        bye(world)
        trains(world, name(launch, 1), range(1, last + 1), 100 * launch, checkpoint_dir=f"/out/{launch}/dpo")
        end(world)
    assert (trained(world), total(world)) == ((10 + 7 + again + 12 + 15, 7 + again + 12), 25)


@pytest.mark.parametrize(
    ("second", "is_done", "progress"),
    [("/ck/new", True, 32), ("/ck/new", False, 22), ("/ck/1", False, 22), ("/ck/1", True, 22)],
)
def test_behind_a_known_one_the_second_is_another_where_that_is_done(second: str, is_done: bool, progress: int) -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 100, checkpoint_dir=SFT)
    trains(world, "a1+1", range(1, 11), 100, checkpoint_dir="/ck/1")
    bye(world, completed=is_done)
    end(world)
    trains(world, "a2", range(0), 200, checkpoint_dir=SFT)
    trains(world, "a2+1", range(1, 13), 200, checkpoint_dir=second)
    assert total(world) == progress


def test_behind_skipped_ones_the_numbers_of_a_launch_say_nothing() -> None:
    """SFT and DPO are skipped. The last one is known by its directory, and what follows it has not been before."""
    world = a_world()
    for number, directory in enumerate((SFT, DPO, REWARD)):
        trains(world, name(1, number), range(1, 11), 100, checkpoint_dir=directory)
    end(world)
    trains(world, "a2", range(11, 13), 200, checkpoint_dir=REWARD)
    trains(world, "a2+1", range(1, 11), 200, checkpoint_dir=POLICY)
    assert (trained(world), total(world)) == ((42, 0), 42)


# --- trainings in turn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [(REWARD, POLICY) * 3, (REWARD, POLICY, REWARD)])
def test_trainings_in_turn_that_begin_at_nothing_repeat_nothing(ahead: tuple[str, ...]) -> None:
    """A reward model, a policy, and both again. A relaunch of all repeats all."""
    world = a_world()
    for launch in (1, 2):
        for number, directory in enumerate(ahead):
            trains(world, name(launch, number), range(1, 11), 100 * launch, checkpoint_dir=directory)
        assert trained(world) == (launch * 10 * len(ahead), (launch - 1) * 10 * len(ahead))
    shown = run_status(world.node.runs["llama"], at(world.mono // NS_PER_S))
    assert shown["tokens_total"] == 100_000 * len(ahead)


def test_a_process_that_goes_on_with_an_earlier_training_of_its_own_has_new_tokens() -> None:
    """From its checkpoint, after another has followed it."""
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=SFT)
    trains(world, "a1+1", range(1, 7), 200, checkpoint_dir=DPO)
    trains(world, "a1+2", range(10, 16), 200, checkpoint_dir=SFT)
    assert (trained(world), total(world)) == ((22, 1), 21)


@pytest.mark.parametrize("directories", [(REWARD, POLICY) * 2, ("/ck/1", "/ck/2", "/ck/3", "/ck/4")])
def test_a_price_of_twice_the_plan_halts_trainings_in_turn(directories: tuple[str, ...]) -> None:
    """The plan is half from the third on. Steps that are "trained twice" are in no steady price."""
    priced = rule(
        "usd_per_mtok",
        params={"times": 1.5, "window": DurationNs(60 * NS_PER_S), "warmup_time": DurationNs(0)},
    )
    budget = Budget(window_tokens=20_000, ceiling_usd_micros=UsdMicros(10**9))
    node = make_node(priced, budget=budget, cloud="none", price_usd_micros_per_hour=UsdMicros(3_600_000))
    world = World(node)
    for number, directory in enumerate(directories):
        planned = Expected(UsdMicros(100_000 if number < 2 else 50_000), None, None)
        node.policies = PolicySet((replace(node.policies.policies[0], expected=planned),), "digest")
        world.tick()
        trains(world, name(1, number), range(1, 101), 200, checkpoint_dir=directory)
    assert node.runs["llama"].incident is not None


@pytest.mark.parametrize("dpo", [DPO, None])
def test_a_governor_that_is_away_between_two_trainings_knows_the_second_by_its_name(dpo: str | None) -> None:
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=SFT if dpo else None)
    restarts(world, is_there=True)
    trains(world, "a1+1", range(1, 7), 200, checkpoint_dir=dpo)
    assert (trained(world), total(world)) == ((16, 0), 16)
    assert world.node.runs["llama"].run.trains_again


def test_what_is_left_to_the_token_budget_is_of_the_present_training_as_the_rule_has_it() -> None:
    budget = Budget(window_tokens=20_000, tokens=500_000, ceiling_usd_micros=UsdMicros(10**6))
    node = make_node(rule("budget"), budget=budget, cloud="none", price_usd_micros_per_hour=UsdMicros(3_600_000))
    world = World(node)
    world.tick()
    for number in range(2):
        trains(world, name(1, number), range(1, 41), 200, checkpoint_dir=f"/ck/{number}")
        shown = run_status(node.runs["llama"], MonoNs(world.mono))
        assert (shown["tokens_at"], shown["cost_left_usd"]) == (400_000, [0.01, 0.01, 0.01])
    assert node.runs["llama"].incident is None


# --- what was trained unheard, where another training came first ----------------------------------------------


@pytest.mark.parametrize(("sft", "dpo"), [(SFT, DPO), (None, None)])
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize(
    ("length", "again", "priced", "twice"),
    [
        (100, range(1, 101), 100 + 20 + 60 + 100 + 10, 100),
        (100, range(99, 101), 100 + 20 + 60 + 2 + 10, 2),
        (100, range(101, 106), 100 + 20 + 60 + 5 + 10, 0),
        (10, range(11, 16), 10 + 20 + 60 + 5 + 10, 0),
    ],
)
def test_what_the_second_had_trained_unheard_was_paid_for_whatever_the_relaunch_trains_before_it(
    sft: str | None, dpo: str | None, journal: bool, length: int, again: range, priced: int, twice: int
) -> None:
    """The first again or further, then the second from where it had come to."""
    world = a_world()
    trains(world, "a1", range(1, length + 1), 200, checkpoint_dir=sft)
    bye(world)
    trains(world, "a1+1", range(1, 21), 200, checkpoint_dir=dpo)
    world.pass_time("run", 60 * NS_PER_S)
    world.tick()
    end(world)
    trains(world, "a2", again, 300, checkpoint_dir=sft)
    bye(world)
    restarts(world, is_there=journal)
    trains(world, "a2+1", range(81, 91), 300, checkpoint_dir=dpo)
    assert (trained(world), total(world)) == ((priced, twice), max(length, again[-1]) + 90)


def test_what_one_training_had_trained_unheard_is_no_other_ones() -> None:
    """Both had come to step 10 when the second trained on unheard. The first one's steps to 60 are of elsewhere."""
    world = a_world()
    trains(world, "a1", range(1, 11), 200, checkpoint_dir=SFT)
    bye(world)
    trains(world, "a1+1", range(1, 11), 200, checkpoint_dir=DPO)
    world.pass_time("run", 60 * NS_PER_S)
    world.tick()
    end(world)
    trains(world, "a2", range(1, 3), 300, checkpoint_dir=SFT)
    end(world)
    trains(world, "a3", range(61, 66), 400, checkpoint_dir=SFT)
    assert (trained(world), total(world)) == ((10 + 10 + 2 + 5, 2), 65 + 10)


# --- a random player against the hand -------------------------------------------------------------------------


@dataclass
class Play:
    """A run of some trainings, and by hand what was trained of each."""

    chance: random.Random
    how: str  # Where they save: "own", "turn" (two directories in turn), "one", "fresh" (for each launch) or "none".
    with_restarts: bool  # Of the governor.
    world: World = field(default_factory=a_world)
    lengths: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    trained: int = 0
    twice: int = 0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lengths = [self.chance.randint(2, 8) for _ in range(self.chance.randint(1, 4))]
        self.saved, self.reached = [0 for _ in self.lengths], [0 for _ in self.lengths]

    def launch(self, launch: int) -> None:
        """Its trainings in turn, until it dies in one of them or has trained all."""
        number, dies_in = 0, self.chance.choice([*range(len(self.lengths)), None])
        for at_, length in enumerate(self.lengths):
            is_done = self.saved[at_] == length
            if is_done and self.how == "own" and self.chance.random() < 0.4:
                continue  # Its directory shows that it is done.
            if self.with_restarts and self.chance.random() < 0.3:
                restarts(self.world, is_there=True)
            begin = 0 if self._may_begin_anew(at_) and self.chance.random() < 0.5 else self.saved[at_]
            end_at = self.chance.randint(begin, length) if dies_in == at_ else length
            self._train(launch, number, at_, begin, end_at)
            number += 1
            if dies_in == at_:
                break
            if self.how == "own" and begin < end_at and self.chance.random() < 0.2:  # A restart within the process.
                self._train(launch, number, at_, self.chance.randint(1, end_at), end_at)
                number += 1
            bye(self.world)
            self.saved[at_] = length
        end(self.world)

    def _may_begin_anew(self, at_: int) -> bool:
        """A relaunch does not save elsewhere what is done, and train it again."""
        return self.how != "fresh" or self.saved[at_] < self.lengths[at_]

    def _directory(self, launch: int, at_: int) -> str | None:
        return {
            "own": f"/ck/{at_}",
            "turn": f"/ck/{at_ % 2}",
            "one": "/ck",
            "fresh": f"/ck/{launch}/{at_}",
            "none": None,
        }[self.how]

    def _train(self, launch: int, number: int, at_: int, begin: int, end_at: int) -> None:
        self.said.append(f"{name(launch, number)}: training {at_} from {begin} to {end_at}")
        directory, process = self._directory(launch, at_), 100 + launch
        trains(self.world, name(launch, number), range(begin + 1, end_at + 1), process, checkpoint_dir=directory)
        self.trained += end_at - begin
        self.twice += max(0, min(end_at, self.reached[at_]) - begin)
        self.reached[at_] = max(self.reached[at_], end_at)
        self.saved[at_] = max(self.saved[at_], self.chance.choice([0, begin, end_at // 2]))
        if self.with_restarts and self.chance.random() < 0.2:
            restarts(self.world, is_there=True)
            self.world.hear(attempt=name(launch, number), peer=peer(process), checkpoint_dir=directory)

    def differs(self) -> str | None:
        if self.world.node.runs["llama"].history.meter is None:
            return None
        told, hand = (*trained(self.world), total(self.world)), (self.trained, self.twice, sum(self.reached))
        return None if told == hand else f"told {told}, by hand {hand}: {self.said}"


@pytest.mark.parametrize("how", ["own", "turn", "one", "fresh", "none"])
@pytest.mark.parametrize("with_restarts", [False, True])
def test_any_trainings_are_as_by_hand(how: str, with_restarts: bool) -> None:
    for seed in range(share_of(16)):
        play = Play(random.Random(seed), how, with_restarts)
        for launch in range(1, play.chance.randint(2, 5)):
            play.launch(launch)
            assert play.differs() is None, seed
