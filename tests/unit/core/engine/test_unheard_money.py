"""Time that was charged while nobody listened: no rule goes by a price that has its money and not its tokens.

$3.60 an hour is 1,000 micro-dollars a second. A step of 10,000 tokens a second costs $0.10 for 1M all the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.policy import Budget, Expected
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import Step, Tick
from governor.core.events.streams import StreamOpened
from governor.core.views.status import run_status
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import make_node, peer, rule
from tests.unit.core.money.test_waste import end, steps, until

PRICED: dict[str, Any] = {"cloud": "none", "price_usd_micros_per_hour": UsdMicros(3_600_000)}
DEAR = {"times": 1.5, "window": DurationNs(600 * NS_PER_S), "warmup_time": DurationNs(0)}
PLAN = Expected(usd_micros_per_mtok_all_in=100_000)


def over(price: str) -> dict[str, Any]:
    """Behind the start, which is dear."""
    return {"params": {"when": f"tokens > 150000 && {price} > 0.12"}, "trigger": "expression"}


def judged(budget: Budget = Budget(), expected: Expected = PLAN, **of_rule: Any) -> World:
    """A run that has trained for 900 s."""
    world = World(make_node(budget=budget, **PRICED))
    rules = (rule(of_rule.pop("trigger"), **of_rule),) if of_rule else ()
    found = replace(world.node.policies.policies[0], rules=rules, expected=expected)
    world.node.policies = replace(world.node.policies, policies=(found,))
    return world


def trained(world: World, seconds: int = 900, **said: Any) -> World:
    world.tick()
    world.hear(**said)
    steps(world, range(1, seconds + 1), began=2)
    assert world.node.runs["llama"].incident is None
    return world


def away(world: World, how: str, seconds: int) -> None:
    """Nobody listens for so long. A suspended machine trains nothing meanwhile."""
    if how == "restart":
        world.pass_time("run", seconds * NS_PER_S)
        world.restart()
        world.tick()
        world.hear()
        return
    world.pass_time("suspend" if how == "suspend" else "run", seconds * NS_PER_S)
    world.is_awake = False
    world.tick()


def trains_on(world: World, number: int, count: int) -> None:
    began = -(-world.mono // NS_PER_S) + 1
    steps(world, range(number, number + count), began=began, first=number)


@pytest.mark.parametrize("seconds", [6, 300, 900])
@pytest.mark.parametrize("how", ["restart", "stopped"])
@pytest.mark.parametrize(
    "of_rule", [{"trigger": "usd_per_mtok", "params": DEAR}, over("usd_per_mtok_all_in"), over("usd_per_mtok_useful")]
)
def test_who_comes_back_to_a_healthy_run_lets_it_train(of_rule: dict[str, Any], how: str, seconds: int) -> None:
    """Also early in the run, where six seconds are a fifth of it."""
    before = 20 if seconds == 6 and of_rule["trigger"] == "expression" else 900
    world = trained(judged(**of_rule), before)
    away(world, how, seconds)
    managed = world.node.runs["llama"]
    until(world, world.mono / NS_PER_S + 5)  # An evaluation, or a long step.
    assert managed.incident is None
    told = run_status(managed, MonoNs(world.mono))
    assert (told["usd_per_mtok_all_in"], told["usd_per_mtok_useful"]) == (None, None)
    trains_on(world, before + seconds + 7, 60)
    assert world.node.runs["llama"].incident is None
    assert run_status(managed, MonoNs(world.mono))["usd_per_mtok_all_in"] == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("how", ["restart", "stopped"])
@pytest.mark.parametrize(
    "of_rule", [{"trigger": "usd_per_mtok", "params": DEAR}, over("usd_per_mtok_all_in"), over("usd_per_mtok_useful")]
)
def test_where_nothing_was_trained_meanwhile_the_rule_goes_by_the_next_step(of_rule: dict[str, Any], how: str) -> None:
    """All-in the run has become dear. Of the trigger's window that time is no part."""
    world = trained(judged(**of_rule))
    away(world, how, 900)
    assert world.node.runs["llama"].incident is None
    trains_on(world, 901, 2)
    until(world, world.mono / NS_PER_S + 1)
    assert (world.node.runs["llama"].incident is not None) == (of_rule["trigger"] == "expression")


def test_the_sleep_of_a_machine_is_no_part_of_the_window() -> None:
    world = trained(judged(trigger="usd_per_mtok", params=DEAR))
    away(world, "suspend", 3600)
    trains_on(world, 901, 700)
    assert world.node.runs["llama"].incident is None


def test_behind_it_the_trigger_halts_as_before() -> None:
    world = trained(judged(trigger="usd_per_mtok", params=DEAR))
    away(world, "restart", 300)
    trains_on(world, 1201, 10)
    began = world.mono // NS_PER_S + 2
    for place in range(400):  # Steps of two seconds.
        until(world, began + 2 * place)
        number = 1211 + place
        world.play(
            Step(
                MonoNs(world.mono), world_connection(world), "llama", 0, number, attempt_step=number,
                tokens=10_000, tokens_total=number * 10_000, loss=2.0,
            )
        )  # fmt: skip
    assert world.node.runs["llama"].incident is not None


def world_connection(world: World) -> Any:
    return next(iter(world.node.runs["llama"].run.ranks.values())).connection


# --- a log, whose lines of that time are read later ---------------------------------------------------------------


def line(world: World, number: int) -> list[Effect]:
    """As it is read now. It has no time of its own."""
    step = Step(MonoNs(world.mono), None, "log", 0, number, tokens_total=number * 10_000, loss=2.0, step_s=1.0)
    return world.play(step)


def logged(world: World, lines: int, **said: Any) -> World:
    world.play(StreamOpened(MonoNs(0), "log", 1000))
    world.tick()
    for number in range(1, lines + 1):
        until(world, number)
        line(world, number)
    return world


def read_late(world: World, lines: range) -> None:
    """The service comes back, and reads them in three ticks."""
    world.pass_time("run", len(lines) * NS_PER_S)
    world.restart()
    world.play(StreamOpened(MonoNs(world.mono), "log", 1000))
    world.tick()
    third = -(-len(lines) // 3)
    for begin in range(lines.start, lines.stop, third):
        until(world, world.mono / NS_PER_S + 0.25)
        world.mono, world.boot = world.mono - 1, world.boot - 1  # Lines are read just before a tick.
        world.pass_time("run", NS_PER_S // 100)
        for number in range(begin, min(lines.stop, begin + third)):
            line(world, number)
    until(world, world.mono / NS_PER_S + 1)


@pytest.mark.parametrize("price", ["usd_per_mtok_all_in", "usd_per_mtok_useful"])
def test_lines_that_wait_unread_are_no_tokens_that_were_not_trained(price: str) -> None:
    world = logged(judged(**over(price)), 300)
    read_late(world, range(301, 901))
    managed = world.node.runs["log"]
    assert managed.incident is None
    assert run_status(managed, MonoNs(world.mono))["usd_per_mtok_all_in"] == pytest.approx(0.1, rel=0.02)


def test_the_gate_waits_until_they_are_read() -> None:
    """Of 2,000 steps at a tenth of a cent, with $2.40 for all: of 600 steps that were paid, 50 are read."""
    budget = Budget(ceiling_usd_micros=UsdMicros(2_400_000), tokens=20_000_000)
    world = logged(judged(budget, trigger="gate", params={"steps": 40, "tokens": 0}), 30)
    read_late(world, range(31, 631))
    managed = world.node.runs["log"]
    assert managed.incident is None
    for number in range(631, 700):
        until(world, world.mono / NS_PER_S + 1)
        line(world, number)
    assert managed.rules.findings["r-gate"].reason == "gate_passed"


@pytest.mark.parametrize("is_fresh", [True, False])
def test_of_a_log_that_is_read_from_its_end_no_line_of_before_can_follow(is_fresh: bool) -> None:
    """The second launch of a name: its log is written faster than ticks come. The price is known at its first step."""
    world = logged(judged(), 100)
    world.pass_time("run", 30 * NS_PER_S)
    world.restart()
    world.play(StreamOpened(MonoNs(world.mono), "log", 1000, is_fresh=is_fresh))
    world.tick()
    assert price_of(world) is None
    prices = []
    for number in range(101, 400):
        world.pass_time("run", NS_PER_S // 10)
        line(world, number)
        world.tick()
        prices.append(price_of(world))
    assert (prices[1] is not None, prices[-1] is not None) == (is_fresh, is_fresh)


def test_a_gap_of_this_governors_own_is_read_late_also_of_a_fresh_log() -> None:
    world = in_life(logged(judged(), 0))
    world.play(StreamOpened(MonoNs(world.mono), "log", 1000, is_fresh=True))
    for number in range(1, 100):
        world.pass_time("run", NS_PER_S)
        line(world, number)
        world.tick()
    world.pass_time("run", 60 * NS_PER_S)
    world.tick()
    for number in range(100, 110):
        world.pass_time("run", NS_PER_S // 10)
        line(world, number)
        world.tick()
    assert price_of(world) is None


def price_of(world: World) -> int | None:
    found: int | None = run_status(world.node.runs["log"], MonoNs(world.mono))["usd_per_mtok_all_in"]
    return found


# --- what is said -----------------------------------------------------------------------------------------------------


def names(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


@pytest.mark.parametrize("how", ["restart", "stopped"])
def test_no_ceiling_is_ahead_of_what_is_not_heard(how: str) -> None:
    """2,000 steps cost $2.00, of $2.20. At the return half of them are paid, and two thirds are left as heard."""
    budget = Budget(ceiling_usd_micros=UsdMicros(2_200_000), tokens=20_000_000, window_tokens=100_000)
    world, told = judged(budget), list[str]()
    take = world.take
    world.take = lambda effects: told.extend(names(effects)) or take(effects)  # type: ignore[method-assign]
    trained(world, 600)
    away(world, how, 500)
    until(world, world.mono / NS_PER_S + 5)
    if how == "stopped":  # Behind a restart the speed is not known at once, which is another matter.
        trains_on(world, 1106, 60)
    assert "ceiling_ahead" not in told


def test_a_launch_that_the_journal_knows_has_begun_nothing_anew() -> None:
    """Its checkpoint of step 160 is its own, saved while nobody listened."""
    world = World(make_node(**PRICED))
    told = list[str]()
    take = world.take
    world.take = lambda effects: told.extend(names(effects)) or take(effects)  # type: ignore[method-assign]
    trained(world, 75, resumes="called")
    world.pass_time("run", 90 * NS_PER_S)
    saved_at = MonoNs(world.mono - 5 * NS_PER_S)
    world.restart()
    world.tick()
    world.hear(resumes="called", last_good=NamedCheckpoint(160, "/ck/160", mono_ns=saved_at))
    steps(world, range(76, 78), began=world.mono // NS_PER_S + 1, first=76)
    until(world, world.mono / NS_PER_S + 2)
    assert "begun_anew" not in told


# --- what waits for no step ----------------------------------------------------------------------------------------


def in_life(world: World) -> World:
    """Its ticks come each 250 ms, as a daemon's: what they leave out is a gap."""

    def tick() -> None:
        at = world.boot
        world.play(Tick(MonoNs(world.mono), BootNs(at), WallNs(at + world.wall_offset), unbroken=False))

    world.tick = tick  # type: ignore[method-assign]
    return world


def comes_back(world: World, how: str, **said: Any) -> None:
    """The next attempt, or the same one behind a gap of a minute."""
    if how == "relaunch":
        end(world)
        until(world, world.mono / NS_PER_S + 30)
        world.hear(attempt="a2", peer=peer(200), **said)
    elif how != "none":
        world.pass_time("suspend" if how == "suspend" else "run", 60 * NS_PER_S)
        if how == "restart":
            world.restart()
        world.tick()
        if how == "restart":
            world.hear(**said)


COMING_BACK = pytest.mark.parametrize("how", ["none", "stopped", "suspend", "restart", "relaunch"])


@COMING_BACK
def test_a_run_that_tells_no_tokens_is_asked_at_the_gate_as_before(how: str) -> None:
    """It was never asked: no token could be heard that its price waited for."""
    said: dict[str, Any] = {"total_steps": 2_000, "tokens_per_step": None}
    budget = Budget(ceiling_usd_micros=UsdMicros(1_000_000))
    world = in_life(judged(budget, trigger="gate", params={"steps": 20, "tokens": 0}))
    world.tick()
    world.hear(**said)
    steps(world, range(1, 11), began=2, tokens=None, tokens_total=None)
    comes_back(world, how, **said)
    first = 1 if how == "relaunch" else 11
    began = -(-world.mono // NS_PER_S) + 1
    for number in range(60):
        if world.node.runs["llama"].incident is None:
            steps(world, [first + number], began=began + number, first=first + number, tokens=None, tokens_total=None)
    assert world.node.runs["llama"].incident is not None


@COMING_BACK
def test_a_run_that_hangs_behind_it_has_a_price_again(how: str) -> None:
    world = trained(in_life(judged(**over("usd_per_mtok_all_in"))))
    comes_back(world, how)
    until(world, world.mono / NS_PER_S + 600)
    assert world.node.runs["llama"].incident is not None


@pytest.mark.parametrize("how", ["stopped", "restart"])
def test_a_launch_behind_it_that_hangs_before_its_first_step_has_a_price_within_an_hour(how: str) -> None:
    """What the one before has trained unheard, its first step would tell."""
    world = trained(in_life(judged(**over("usd_per_mtok_all_in"))))
    comes_back(world, how)
    end(world)
    world.hear(attempt="a2", peer=peer(200))
    until(world, world.mono / NS_PER_S + 3_500)
    assert world.node.runs["llama"].incident is None
    until(world, world.mono / NS_PER_S + 200)
    assert world.node.runs["llama"].incident is not None
