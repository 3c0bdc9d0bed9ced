"""A command that its first tick would halt is not started, and one that it would not halt is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from governor.app.before_launch import refusal
from governor.core.base.policy import Budget, HaltSettings, Mode, Policy, PolicySet
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs, usd
from governor.core.engine import step as engine
from governor.core.engine.node import new_node
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.inputs import CommandLaunched, TrainerExited
from governor.core.events.operators import OperatorHold
from governor.core.money.budgets import ScopedBudget, parse_scope
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, at, make_node, rule

PRICE = UsdMicros(3_600_000_000)  # $1 a second.
SPENT_S = 100


def policy_of(ceiling_usd: float | None, mode: Mode = Mode.ENFORCE) -> Policy:
    budget = Budget(ceiling_usd_micros=usd(ceiling_usd) if ceiling_usd is not None else None)
    rules = (rule("budget", mode=mode),) if ceiling_usd is not None else (rule(),)
    return Policy(name="p", rules=rules, budget=budget, halt=HaltSettings(), mode=mode)


def launched_again(
    ceiling_usd: float | None, *budgets: ScopedBudget, mode: Mode = Mode.ENFORCE, trained: str = "job",
    price: UsdMicros | None = PRICE, observe: bool = False,
) -> World:  # fmt: skip
    """A governor of the name "job", whose launch before this one has spent $100 and ended by itself."""
    node = make_node(cloud="none", exclusive=True, price_usd_micros_per_hour=price, observe=observe)
    world = World(replace(node, policies=PolicySet((policy_of(None),), "d")))
    world.play(CommandLaunched(at(0), "job", 1000, (COMMAND,)))
    world.tick()
    world.hear(run=trained)
    world.at(SPENT_S)
    world.play(TrainerExited(at(SPENT_S), trained, 0))
    world.at(SPENT_S + 1)
    # As the journal has it, under what this launch is given.
    wall = WallNs(world.boot + world.wall_offset)
    policies = PolicySet((policy_of(ceiling_usd, mode),), "d")
    world.node = new_node(node.facts, policies, BootNs(world.boot), wall, budgets)
    runs, now = list(world.runs.values()), MonoNs(world.mono)
    world.take(restore_runs(world.node, runs, BootNs(world.boot), now, world.metered))
    world.take(restore_incidents(world.node, [], now, wall))
    return world


def refused(world: World) -> str | None:
    return refusal(world.node, "job", 1000, BootNs(world.boot), MonoNs(world.mono))


def is_halted_at_once(world: World) -> bool:
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (replace(COMMAND, start_ticks=9),)))
    world.tick()
    return any(managed.incident is not None for managed in world.node.runs.values())


def group(scope: str, ceiling_usd: float) -> ScopedBudget:
    return ScopedBudget(parse_scope(scope), usd(ceiling_usd), "costgov.toml")


@pytest.mark.parametrize("ceiling_usd", [50, 90, 99, 100, 101, 105, 108, 110, 112, 114, 115, 116, 120, 150, 2_000])
@pytest.mark.parametrize("mode", Mode)
def test_what_the_first_tick_would_halt_is_refused_and_nothing_else(ceiling_usd: float, mode: Mode) -> None:
    world = launched_again(ceiling_usd, mode=mode)
    said = refused(world)
    assert (said is not None) == is_halted_at_once(world)


@pytest.mark.parametrize("scope", ["node", "run:job", "day"])
@pytest.mark.parametrize("ceiling_usd", [50, 100, 105, 110, 115, 120, 150])
def test_so_is_what_a_budget_of_the_configuration_would_halt(scope: str, ceiling_usd: float) -> None:
    world = launched_again(None, group(scope, ceiling_usd))
    said = refused(world)
    assert (said is not None) == is_halted_at_once(world)


def told_ceiling(said: str | None) -> float:
    assert said is not None
    assert "\n" not in said
    found = re.search(r"(?:--ceiling |raise it to \$)([0-9.]+) or more", said)
    assert found is not None, said
    return float(found[1])


def trained_s(world: World) -> int:
    """How many seconds the command trains, saving nothing, until it is halted."""
    start = world.mono // NS_PER_S
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (replace(COMMAND, start_ticks=9),)))
    world.hear(run="job")
    for seconds in range(300):
        world.at(start + seconds)
        if any(managed.incident is not None for managed in world.node.runs.values()):
            return seconds
        world.play(a_step(seconds + 1, when=start + seconds, run="job"))
    return 300


def test_the_line_says_a_ceiling_that_buys_a_minute_of_training() -> None:
    said = refused(launched_again(101))
    assert said is not None
    assert said.startswith("not launched: run:job has spent $101.00 and its halt is reserved $8.06: ")
    assert said.endswith(" or more, which buys at least a minute of training, or launch under another --name")
    enough = launched_again(told_ceiling(said))
    assert refused(enough) is None
    assert 60 <= trained_s(enough) < 120


@pytest.mark.parametrize("scope", ["node", "run:job", "day"])
def test_so_does_what_is_said_of_a_budget_of_the_configuration(scope: str) -> None:
    enough = launched_again(None, group(scope, told_ceiling(refused(launched_again(None, group(scope, 101))))))
    assert refused(enough) is None
    assert 60 <= trained_s(enough) < 120


def is_halted_within(world: World, until_s: float) -> bool:
    """Whether a command that trains from its launch on and saves nothing is halted by then."""
    start = world.mono / NS_PER_S
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (replace(COMMAND, start_ticks=9),)))
    world.hear(run="job")
    for seconds in (*range(int(until_s) + 1), until_s):
        world.at(start + seconds)
        if any(managed.incident is not None for managed in world.node.runs.values()):
            return True
        world.play(a_step(int(seconds) + 1, when=start + seconds, run="job"))
    return False


HALTS = (
    HaltSettings(),
    HaltSettings(grace_ns=DurationNs(5 * NS_PER_S)),
    HaltSettings(kill_grace_ns=DurationNs(90 * NS_PER_S)),
)


@pytest.mark.parametrize("halt", HALTS)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("usd_per_hour", [3.6, 22, 180, 3_600])
@pytest.mark.parametrize("scope", [None, "node", "day"])
def test_a_cent_less_than_it_says_buys_no_minute(
    scope: str | None, usd_per_hour: float, mode: Mode, halt: HaltSettings
) -> None:
    price = usd(usd_per_hour)

    def under(ceiling_usd: float) -> World:
        groups = [group(scope, ceiling_usd)] if scope is not None else []
        world = launched_again(None if groups else ceiling_usd, *groups, price=price)
        policy = replace(policy_of(None if groups else ceiling_usd), mode=mode, halt=halt)
        world.node = replace(world.node, policies=PolicySet((policy,), "d"))
        engine.reload(world.node, world.node.policies)
        return world

    told = told_ceiling(refused(under(usd_per_hour * SPENT_S / 3_600)))
    assert refused(under(told)) is None
    assert not is_halted_within(under(told), 59.999)
    assert is_halted_within(under(round(told - 0.01, 2)), 60)


def test_what_it_has_spent_is_what_the_ledger_has_and_this_start_is_told_beside_it() -> None:
    world = launched_again(101)
    world.boot += 20 * NS_PER_S
    said = refused(world)
    assert said is not None
    assert "run:job has spent $101.00, this start costs $20.00 and its halt is reserved " in said


def test_the_budget_goes_on_under_the_name_that_the_script_chose() -> None:
    said = refused(launched_again(50, trained="mine"))
    assert said is not None
    assert "run:mine" in said


def test_a_group_is_told_where_it_stands_and_what_would_do() -> None:
    said = refused(launched_again(None, group("day", 50)))
    assert said is not None
    for part in (
        "day has spent $10",
        "(costgov.toml), which buys at least a minute of training, wait for 00:00 UTC, or launch under another --name",
    ):
        assert part in said


def test_a_first_launch_an_observing_governor_and_an_unknown_price_refuse_nothing() -> None:
    node = make_node(rule("budget"), budget=Budget(ceiling_usd_micros=usd(600)), cloud="none", exclusive=True)
    assert refusal(node, "job", 0, BootNs(0), MonoNs(0)) is None
    assert refused(launched_again(50, observe=True)) is None
    assert refused(launched_again(50, price=None)) is None


def test_a_held_run_is_launched() -> None:
    world = launched_again(50)
    world.play(OperatorHold(MonoNs(world.mono), "job", DurationNs(3600 * NS_PER_S), "look", 0))
    assert refused(world) is None
    assert not is_halted_at_once(world)


def test_what_the_start_itself_has_cost_counts() -> None:
    """At $1 a second a look-up of twenty seconds costs $20."""
    world = launched_again(120)
    assert refused(world) is None
    world.boot += 20 * NS_PER_S
    assert refused(world) is not None


@pytest.mark.parametrize("ceiling_usd", [105, 110, 112, 114, 116, 120])
def test_a_ceiling_that_is_enforced_is_weighed_alike_under_a_policy_that_observes(ceiling_usd: float) -> None:
    """As `--ceiling` is: the rule is enforced, the policy's other rules are not."""
    said = []
    for mode in Mode:
        world = launched_again(ceiling_usd)
        policy = replace(policy_of(ceiling_usd), mode=mode)
        world.node = replace(world.node, policies=PolicySet((policy,), "d"))
        engine.reload(world.node, world.node.policies)
        said.append(refused(world))
    assert said[0] == said[1]
    if ceiling_usd in (105, 120):  # Six seconds hold no halt. Twenty do.
        assert (said[0] is None) == (ceiling_usd == 120)
