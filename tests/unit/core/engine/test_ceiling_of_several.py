"""When the ceiling of several runs is met: told as it comes, by hand, and the one that comes first is the one told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import HaltSettings, Policy, PolicySet
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs, usd
from governor.core.engine.node import Node, NodeFacts, new_node
from governor.core.engine.run_forecast import binding_ceiling
from governor.core.events.inputs import Event
from governor.core.money.budgets import Cap, ScopedBudget, parse_scope
from governor.core.money.ceiling_forecast import ReserveGrowth
from governor.core.views.status import budgets_status, run_status
from tests.unit.core.engine.test_ceiling_forecast import PRICE, START, a_tick, started, trained
from tests.unit.core.engine.test_step import a_step, at, hello, play, rule


def on_one_node(*runs: str, grace_s: int = 600, **ceilings: str) -> Node:
    """Each at a tenth of a cent a second together. A halt has a second of ticks and 20 s to end the processes."""
    halt = HaltSettings(stop="processes", grace_ns=DurationNs(grace_s * NS_PER_S))
    policy = Policy(name="p", rules=(rule("nonfinite"), rule("budget", checkpoint="good")), halt=halt)
    facts = NodeFacts("node-a", "boot-1", PRICE, "test", cloud="none", can_stop=False)
    budgets = [ScopedBudget(parse_scope(scope), usd(ceiling), "") for scope, ceiling in ceilings.items()]
    node = new_node(facts, PolicySet((policy,), "d"), BootNs(0), WallNs(START), budgets)
    play(node, a_tick(0))
    for place, name in enumerate(runs, 1):
        play(node, replace(hello(0, 0, world_size=1, tokens_per_step=None), run=name, connection=ConnectionId(place)))
    return node


def steps(node: Node, second: int) -> list[Event]:
    """One of each run."""
    step = a_step(second, when=second, tokens=1000, tokens_total=1000 * second)
    return [replace(step, run=name, connection=ConnectionId(place)) for place, name in enumerate(node.runs, 1)]


def times_left(node: Node, second: float) -> set[float]:
    """As every view says them."""
    told = {one["reached_in_s"] for one in budgets_status(node, at(second))}
    for managed in node.runs.values():
        status = run_status(managed, at(second))
        told |= {status["runway_s"], status["ceiling_in_s"]}
    return told


def halted_after(node: Node, since: int, until: int) -> int | None:
    for second in range(since, until):
        play(node, *steps(node, second), a_tick(second))
        if any(managed.incident is not None for managed in node.runs.values()):
            return second
    return None


def test_a_ceiling_of_the_node_is_met_when_each_view_says() -> None:
    """$0.30 last 300 s, less 30 for a save, 18 to end the processes and one of ticks: 251, and from 60 on 191.

    The policy's ten minutes of grace are no part of it: no ceiling of five minutes gives a save so much.
    """
    node = on_one_node("llama", node="0.30")
    assert halted_after(node, 1, 61) is None
    assert times_left(node, 60) == {191.0}
    assert halted_after(node, 61, 400) == 251


def test_of_two_runs_one_has_all_of_the_reserve_already() -> None:
    """$7.20 last 7,200 s. A halt takes 621 s, as one run has not saved for long: it is met after 6,579.

    The other one saves every six seconds. How far its own halt might grow is nothing to the group's.
    """
    node = on_one_node("llama", "other", node="7.20")
    for second in range(1, 5401):
        play(node, *steps(node, second), *([a_tick(second)] if second % 20 == 0 else []))
        if second % 6 == 0:
            node.runs["other"].run.last_good_at = at(second)
    assert times_left(node, 5400) == {1179.0}
    assert halted_after(node, 5401, 7000) == 6579


def test_of_two_runs_that_may_both_grow_the_one_with_the_longer_halt_leads() -> None:
    """$7.20 last 7,200 s. At 6,100 one has not saved for 100 s, so a halt takes 121: 979 s are left, half to it.

    The other saves every six seconds; its halt would have to grow by 94 s before it counts.
    """
    node = on_one_node("llama", "other", node="7.20")
    for second in range(1, 6101):
        play(node, *steps(node, second), *([a_tick(second)] if second % 20 == 0 else []))
        if second % 6 == 0:
            node.runs["other"].run.last_good_at = at(second)
    node.runs["llama"].run.last_good_at = at(6000)
    play(node, a_tick(6100.25))
    [left_s] = times_left(node, 6100.25)
    assert left_s == pytest.approx(489.25, abs=0.5)
    assert halted_after(node, 6101, 7000) == 6590


def test_a_run_that_saved_lately_lets_the_reserve_grow_once_its_halt_is_the_longer_one() -> None:
    """Of 200 s of room, with a halt of 40 s more of the other's until then: its own grows unseen for these 40."""
    both = (ReserveGrowth(), ReserveGrowth(600 * NS_PER_S, behind_ns=40 * NS_PER_S))
    cap = Cap("node", usd("1"), usd("0.7"), usd("0.1"), PRICE, growths=both)
    met = cap.met()
    assert met is not None
    assert met.after_ns == 120 * NS_PER_S, "40 s without, and 80 in which the reserve grows as the spend does"


def test_of_two_ceilings_the_one_whose_halt_comes_first_is_told() -> None:
    """The run's own has 249.5 s of room and is met in 234.75, since its reserve grows. The node's has 240."""
    node = started("0.30")
    trained(node, range(1, 17), 0)
    group = Cap("node", usd("0.5"), usd("0.25"), UsdMicros(10_000), PRICE)
    node.runs["llama"].run.set_caps((group,))
    bound = binding_ceiling(node.runs["llama"], at(16.25))
    assert bound is not None
    assert (bound.cap.scope, bound.is_own) == ("run:llama", True)
    status = run_status(node.runs["llama"], at(16.25))
    assert (status["runway_s"], status["ceiling_in_s"]) == (234.75, 234.75)


def test_of_two_ceilings_that_come_at_once_the_one_with_less_room_is_told() -> None:
    node = on_one_node("llama")
    caps = [
        Cap(scope, usd("0.5"), UsdMicros(500_000 - room), UsdMicros(0), UsdMicros(rate))
        for scope, room, rate in (("node", 240_000, 7_200_000), ("stage:a", 120_000, 3_600_000))
    ]
    node.runs["llama"].run.set_caps(tuple(caps))
    bound = binding_ceiling(node.runs["llama"], at(0))
    assert bound is not None
    assert bound.cap.scope == "stage:a"


@pytest.mark.parametrize("second", [60, 200])
def test_what_is_reserved_at_a_tick_is_what_is_told_between_two(second: int) -> None:
    """A halt has no longer than the shortest of its run's ceilings gives it, so none of them reserves more."""
    node = on_one_node("llama", day="0.90", node="0.30")
    assert halted_after(node, 1, second + 1) is None
    at_the_tick = {cap.scope: cap.reserve_usd_micros for cap in node.budgets.caps}
    told = {one["scope"]: round(one["reserve_usd"] * 1e6) for one in budgets_status(node, at(second))}
    assert at_the_tick == told


def test_between_two_ticks_the_ceiling_is_as_far_as_spend_and_reserve_of_the_last_one_say() -> None:
    """The reserve's growth is counted from the tick that has set the reserve, not from now."""
    node = started("0.30")
    trained(node, range(1, 17), 0)
    at_the_tick = run_status(node.runs["llama"], at(16.25))
    assert run_status(node.runs["llama"], at(16.45))["ceiling_in_s"] == at_the_tick["ceiling_in_s"] == 234.75
