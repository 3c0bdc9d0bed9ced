"""A run's seconds and micro-dollars by cause: by hand, and their sums under any schedule."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Amount, Cause
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.engine.metering import charge_verdict
from governor.core.engine.node_journal import persist
from governor.core.events.inputs import Bye, CommandLaunched, Disconnected, PhaseChange, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.rules.triggers import load
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.money.test_waste import A_SECOND, a_world, until


def step(world: World, number: int, rank: int = 0, **told: Any) -> None:
    """A step that ends now."""
    parts = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.5, "optimizer_s": 0.1} | told
    world.play(a_step(number, rank, when=world.mono / NS_PER_S, ended=MonoNs(world.mono), **parts))


def steps(world: World, numbers: range, began: float, ranks: int = 1, **told: Any) -> None:
    """The first one ends at `began`, each other one a second later."""
    for place, number in enumerate(numbers):
        until(world, began + place)
        for rank in range(ranks):
            step(world, number, rank, **told)


def account_of(world: World, run: str = "llama") -> TimeAccount:
    return world.node.runs[run].history.time


def seconds(world: World, run: str = "llama") -> dict[str, float]:
    """Every cause of at least a hundredth of a second."""
    told = account_of(world, run).now(MonoNs(world.mono))
    return {cause.value: round(one.ns / NS_PER_S, 2) for cause, one in told.items() if one.ns >= NS_PER_S / 100}


def sums_hold(world: World, run: str = "llama") -> None:
    told = account_of(world, run).now(MonoNs(world.mono))
    assert sum(one.usd_micros for one in told.values()) == world.node.ledger.spend(run)


def end(world: World, run: str = "llama") -> None:
    world.play(TrainerExited(MonoNs(world.mono), run, exit_code=0))


def test_a_run_by_hand() -> None:
    """Five seconds until the hello, five of data for the first step that warms up for two, 14 ordinary ones, an end."""
    world = a_world()
    until(world, 5)
    world.hear()
    until(world, 13)
    step(world, 1, step_s=8.0, data_s=5.1, forward_s=2.3)
    steps(world, range(2, 16), began=14)
    until(world, 28)
    world.play(PhaseChange(MonoNs(world.mono), a_step(1).connection, "llama", 0, "eval"))
    until(world, 31)
    world.play(Bye(MonoNs(world.mono), a_step(1).connection, "llama", 0, 9))
    until(world, 32)
    end(world)
    assert seconds(world) == {
        "start_up": 5.0, "compile_and_warm_up": 2.0, "data_starvation": 1.5, "productive": 13.5, "shut_down": 2.0,
        "evaluation": 3.0,
    }  # fmt: skip
    sums_hold(world)


def test_money_follows_time() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    end(world)
    told = account_of(world).now(MonoNs(world.mono))
    assert told[Cause.PRODUCTIVE].usd_micros == 9 * A_SECOND
    assert told[Cause.DATA].usd_micros == A_SECOND
    assert sum(one.ns for one in told.values()) == 10 * NS_PER_S


@pytest.mark.parametrize("trigger", ["hang", "log_stalled"])
def test_a_halt_on_a_hang(trigger: str) -> None:
    """Ten seconds of silence, then the verdict."""
    assert trigger in load()
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    until(world, 20)
    charge_verdict(world.node, world.node.runs["llama"], trigger, MonoNs(world.mono))
    until(world, 25)
    assert seconds(world) == {"data_starvation": 1.0, "productive": 9.0, "hang": 10.0, "halt": 5.0}
    sums_hold(world)


def test_a_save_within_the_first_step_is_no_warm_up() -> None:
    world = a_world()
    world.hear()
    until(world, 5)
    step(world, 1, step_s=5.0, checkpoint_s=4.0)
    steps(world, range(2, 12), began=6)
    end(world)
    assert seconds(world) == {"checkpoint_stall": 4.0, "data_starvation": 1.1, "productive": 9.9}


def test_a_halt_by_hand_is_no_hang() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    until(world, 10.5)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", "enough", uid=0))
    until(world, 12)
    assert seconds(world) == {"data_starvation": 1.05, "productive": 9.45, "halt": 1.5}


def test_what_was_trained_before_is_lost() -> None:
    """Ten steps, a crash, four seconds to begin again at step 6: five steps are trained twice."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    until(world, 12)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 15)
    steps(world, range(6, 16), began=16)
    end(world)
    told = seconds(world)
    assert told["lost_steps"] == 5.0
    assert told["productive"] == 9.0 + 4.5
    sums_hold(world)


@pytest.mark.parametrize("is_seen_to_end", [True, False])
@pytest.mark.parametrize("completed", [True, False])
def test_what_came_behind_a_training_that_ended_well_is_its_end(completed: bool, is_seen_to_end: bool) -> None:
    """Ten steps, two seconds until the processes are gone, and the same name is launched anew."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    world.play(Bye(MonoNs(world.mono), a_step(1).connection, "llama", 0, 9, completed=completed))
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, 12)
    if is_seen_to_end:
        end(world)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 13)
    told = seconds(world)
    assert (told.get("shut_down"), told.get("restart")) == ((2.0, 1.0) if completed else (None, 3.0))
    sums_hold(world)


def test_an_end_that_was_seen_stays_one_when_its_name_is_launched_anew() -> None:
    """A launched command begins an attempt of its own, before any rank of it speaks."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    world.play(Bye(MonoNs(world.mono), a_step(1).connection, "llama", 0, 9, completed=True))
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, 12)
    end(world)
    world.play(CommandLaunched(MonoNs(world.mono), "llama", 1000, (ProcessId(4321, 1, "boot-1"),)))
    until(world, 13)
    world.hear(attempt="a2", peer=peer(200))
    assert account_of(world).by_cause[Cause.SHUT_DOWN].ns == 2 * NS_PER_S
    sums_hold(world)


def test_a_save_behind_the_bye_is_a_checkpoints() -> None:
    """Ten steps and a bye, a second later a save of three, then twelve until the process is gone."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    connection = a_step(1).connection
    assert connection is not None
    world.play(Bye(MonoNs(world.mono), connection, "llama", 0, 9, completed=True))
    for moment, phase in ((11, "checkpoint"), (14, "finish")):
        until(world, moment)
        world.play(PhaseChange(MonoNs(world.mono), connection, "llama", 0, phase))
    until(world, 26)
    assert seconds(world) == {"data_starvation": 1.0, "productive": 9.0, "checkpoint_stall": 3.0, "shut_down": 13.0}
    assert account_of(world).pool_ns < 10 * NS_PER_S, "the longest window"
    world.play(Disconnected(MonoNs(world.mono), connection))
    until(world, 27)
    end(world)
    assert seconds(world) == {"data_starvation": 1.0, "productive": 9.0, "checkpoint_stall": 3.0, "shut_down": 14.0}
    sums_hold(world)


def test_steps_behind_a_bye_are_training() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    world.play(Bye(MonoNs(world.mono), a_step(1).connection, "llama", 0, 9, completed=True))
    steps(world, range(11, 21), began=11)
    end(world)
    assert seconds(world) == {"data_starvation": 2.0, "productive": 18.0}


def test_only_the_step_under_way_is_not_told_yet() -> None:
    """Eight seconds into a window: what steps have told is known at once."""
    world = a_world()
    world.hear()
    steps(world, range(1, 19), began=1)
    until(world, 18.5)
    assert account_of(world).pool_ns > 5 * NS_PER_S
    assert seconds(world) == {"data_starvation": 1.8, "productive": 16.2, "not_told_yet": 0.5}
    sums_hold(world)
    end(world)
    assert "not_told_yet" not in seconds(world)


def test_a_connection_that_comes_back_goes_on() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    world.hear()
    steps(world, range(11, 21), began=11)
    end(world)
    assert seconds(world) == {"data_starvation": 2.0, "productive": 18.0}


def test_nobody_knows_what_was_while_no_governor_ran() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    world.take([persist(world.node, MonoNs(world.mono), *world.node.runs.values())])
    world.pass_time("run", 20 * NS_PER_S)
    world.restart()
    world.tick()
    world.hear()
    steps(world, range(31, 41), began=31)
    end(world)
    told = seconds(world)
    assert told["unknown"] == 20.0
    assert told["productive"] == 18.0
    sums_hold(world)


def test_a_late_rank_is_named() -> None:
    world = a_world()
    world.hear(world_size=2)
    world.play(hello(1, 0, at=MonoNs(world.mono), world_size=2))
    for number in range(1, 31):
        until(world, number)
        step(world, number, 0, data_s=0.1, forward_s=0.2, backward_s=0.6)
        step(world, number, 1, data_s=0.1, forward_s=0.5, backward_s=0.3)
    end(world)
    told = seconds(world)
    assert abs(told["straggler"] - 9.0) < 0.5, "0.3 s of each step"
    assert max(account_of(world).straggler_ns) == 1
    sums_hold(world)


def told_of(account: TimeAccount) -> tuple[int, int]:
    found = account.now(MonoNs(0)).values()
    return sum(one.ns for one in found), sum(one.usd_micros for one in found)


def test_time_that_is_charged_after_a_run_let_go_is_counted_with_its_money() -> None:
    """The ranks have gone at a second, the command is seen to end half a second later, and is charged until then."""
    account, spent = TimeAccount(), 0

    def tick(seconds: float, paid: int, *, holds: bool) -> None:
        nonlocal spent
        spent += paid
        at = int(seconds * NS_PER_S)
        account.tick(MonoNs(at), BootNs(at), BootNs(0), spent, holds=holds)

    tick(0.75, 750, holds=True)
    tick(1.0, 250, holds=False)
    assert told_of(account) == (NS_PER_S, 1000)
    tick(1.25, 0, holds=False)
    assert told_of(account) == (NS_PER_S, 1000)
    tick(1.5, 500, holds=False)
    assert told_of(account) == (int(1.5 * NS_PER_S), 1500)
    tick(100.0, 60, holds=False)  # Long after: no more time than it pays for.
    assert told_of(account) == (int(1.56 * NS_PER_S), 1560)


def test_time_between_two_attempts_is_the_restarts_once_a_rank_speaks_again() -> None:
    """The command's time is nobody's until then: its money comes at once, with the next attempt."""
    account = TimeAccount()
    account.rank_begins(0, MonoNs(0))
    account.tick(MonoNs(NS_PER_S), BootNs(NS_PER_S), BootNs(0), 1000, holds=True)
    account.step(0, a_step(1, 0, step_s=0.5), MonoNs(NS_PER_S))
    account.rank_ends(0, MonoNs(NS_PER_S))
    account.over(MonoNs(NS_PER_S))
    for seconds in range(2, 61):
        account.tick(MonoNs(seconds * NS_PER_S), BootNs(seconds * NS_PER_S), BootNs(0), 2000, holds=False)
    account.attempt_begins(MonoNs(60 * NS_PER_S))
    account.rank_begins(0, MonoNs(60 * NS_PER_S))
    account.tick(MonoNs(61 * NS_PER_S), BootNs(61 * NS_PER_S), BootNs(0), 61_000, holds=True)
    assert account.by_cause[Cause.RESTART] == Amount(59 * NS_PER_S, 59_000)
    assert told_of(account) == (61 * NS_PER_S, 61_000)


def test_a_run_that_takes_over_its_commands_time_has_all_of_it() -> None:
    """A log whose first line comes eight seconds behind the launch, and five behind the first look for it."""
    account = TimeAccount()
    for seconds in (3, 4, 5, 6, 7):
        boot = BootNs(seconds * NS_PER_S)
        account.tick(MonoNs(boot), boot, BootNs(3 * NS_PER_S), 0, holds=False)
    for seconds, spent in ((8, 8000), (9, 9000)):
        boot = BootNs(seconds * NS_PER_S)
        account.tick(MonoNs(boot), boot, BootNs(0), spent, holds=True)
    assert told_of(account) == (9 * NS_PER_S, 9000)


def test_a_run_that_was_away_is_not_charged_for_it() -> None:
    """As below a service: the node's time between two launches is no run's."""
    account = TimeAccount()
    account.rank_begins(0, MonoNs(0))
    account.tick(MonoNs(NS_PER_S), BootNs(NS_PER_S), BootNs(0), 1000, holds=True)
    account.step(0, a_step(1, 0, step_s=0.5), MonoNs(NS_PER_S))
    account.rank_ends(0, MonoNs(NS_PER_S))
    for seconds in range(1, 61):
        account.tick(MonoNs(seconds * NS_PER_S), BootNs(seconds * NS_PER_S), BootNs(0), 1000, holds=False)
    account.rank_begins(0, MonoNs(60 * NS_PER_S))
    account.tick(MonoNs(61 * NS_PER_S), BootNs(61 * NS_PER_S), BootNs(0), 2000, holds=True)
    assert told_of(account) == (2 * NS_PER_S, 2000)


def test_without_a_price_the_time_until_a_run_lets_go_counts() -> None:
    account = TimeAccount()
    for seconds, holds in ((1, True), (2, True), (3, False), (4, False)):
        account.tick(MonoNs(0), BootNs(seconds * NS_PER_S), BootNs(0), 0, holds=holds)
    assert told_of(account) == (3 * NS_PER_S, 0)


def test_what_pays_for_a_part_of_the_time_is_not_paid_all_of_it() -> None:
    """Half of ten seconds is charged. Of so small sums a hundredth may be missing: micro-dollars are coarse."""
    account = TimeAccount()
    for boot, spent, holds in ((10, 10_000, True), (10, 10_000, False), (20, 10_000, False), (20, 15_000, False)):
        account.tick(MonoNs(0), BootNs(boot * NS_PER_S), BootNs(0), spent, holds=holds)
    assert told_of(account) == (15 * NS_PER_S, 15_000)
