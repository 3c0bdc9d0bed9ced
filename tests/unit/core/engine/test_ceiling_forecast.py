"""The alarm before it happens: once, for a reason that the forecast's interval gives, and again only after a change."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.policy import Budget, PolicySet
from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs, parse_utc, usd
from governor.core.engine import step as engine
from governor.core.engine.budgeting import standing
from governor.core.engine.node import Node, new_node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.engine.run_forecast import Binding, binding_ceiling, hit_of, outlook, tokens_goal
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import TrainerExited
from governor.core.events.machine import PriceRead
from governor.core.events.operators import OperatorHalt
from governor.core.money.budgets import Cap, ScopedBudget, parse_scope
from governor.core.money.ceiling_forecast import CeilingReport, ReserveGrowth, ceiling_report_of
from governor.core.money.forecast import forecast
from governor.core.money.token_windows import Window
from governor.core.views.status import budgets_status, run_status
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, rule, tick

# $3.60/h is a tenth of a cent a second; a million takes four seconds, $0.004. A halt takes 20 s to end the processes, a
# second of ticks, and as much grace as there is unsaved work: from 1 s to the policy's 60.
PRICE = UsdMicros(3_600_000)
START = parse_utc("2026-11-21T12:00:00Z")


def started(ceiling: str, tokens: int | None = 100 * MTOK, **facts: object) -> Node:
    known = {"price_usd_micros_per_hour": PRICE, "cloud": "none", "can_stop": False} | facts
    node = make_node(
        rule("nonfinite"), rule("budget"), budget=Budget(ceiling_usd_micros=usd(ceiling), tokens=tokens), **known
    )
    play(node, a_tick(0), hello(0, 0, world_size=1, tokens_per_step=None))
    return node


def a_tick(seconds: float) -> engine.Tick:
    return replace(tick(seconds), wall=WallNs(START + at(seconds)))


def trained(node: Node, steps: range, since: float, step_s: float = 1.0, start: float | None = None) -> list[str]:
    """Steps of 250,000 tokens, billed before their frames arrive. Returns what was alarmed about the ceiling."""
    effects: list[Effect] = []
    for index, number in enumerate(steps, 1):
        when = since + index * step_s
        step = a_step(number, when=when, tokens=MTOK // 4, tokens_total=number * MTOK // 4, step_s=step_s)
        effects += play(node, a_tick(when), step)
    return said([*effects, *play(node, a_tick(since + len(steps) * step_s + 0.25))])


def said(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Alarm) and effect.name == "ceiling_ahead"]


def test_a_run_that_will_not_make_it_says_where_when_and_how_much() -> None:
    """100M tokens take 400 s and 40 cents; 30 are allowed.

    At 16.25 s, behind the fourth window's end, 1.625 cents are spent and work of 15.25 s is unsaved: 34.25 s of
    reserve, 3.425 cents, with 18 s for SIGTERM and SIGKILL. The room is 24.95 cents. The reserve will grow to 30 s of
    unsaved work, by 14.75 s: 234.75 s are left, until 12:04:11, in which 234 more steps are trained. If it saves just
    before, the 30 s fall back to one.
    """
    node = started("0.30")
    assert trained(node, range(1, 16), 0) == [], "two windows beside the first have no interval"
    [text] = trained(node, range(16, 17), 15)
    assert text == (
        "at this rate the ceiling $0.3000 is hit at step 250 (250 to 279), 2026-11-21 12:04 UTC, "
        "before the goal of 100,000,000 tokens, by which $0.4002 would be spent"
    )
    assert node.runs["llama"].run.reserve_usd_micros == 34_250


@pytest.mark.parametrize("start_up_s", [1.0, 60.0])
@pytest.mark.parametrize("trained_steps", [16, 40])
def test_a_start_up_is_no_speed(start_up_s: float, trained_steps: int) -> None:
    """However long the first step took: the step that is told is the one at which the ceiling comes, give or take one.

    The windows after it are a hundredth apart, as real ones are.
    """
    node = started("0.50", tokens=200 * MTOK)
    trained(node, range(1, 2), 0, step_s=start_up_s)
    now, steps = start_up_s, iter(range(2, 1000))
    texts: list[str] = []
    halted_at = None
    for number in steps:
        now += 1.01 if number % 2 else 0.99
        step = a_step(number, when=now, tokens=MTOK // 4, tokens_total=number * MTOK // 4, step_s=1.0)
        effects = play(node, a_tick(now), step)
        texts += said(effects)
        if number == trained_steps:
            told = hit_of(node.runs["llama"], *bound_of(node, now))
        if node.runs["llama"].incident is not None:
            halted_at = number
            break
    assert halted_at is not None
    assert told is not None
    assert told.tokens_total is not None
    assert told.tokens_total * 4 // MTOK == pytest.approx(halted_at, abs=2)
    [text] = texts
    [step_told] = [int(word) for word in re.findall(r"at step (\d+)", text)]
    assert step_told == pytest.approx(halted_at, abs=2)


def bound_of(node: Node, now: float) -> tuple[Binding, int | None]:
    bound = binding_ceiling(node.runs["llama"], at(now))
    assert bound is not None
    return bound, tokens_goal(node.runs["llama"])


def test_one_window_speaks_by_its_steps_after_the_first() -> None:
    """A minute of start-up, then a second a step: what is left of 100M tokens after the first is 396 s."""
    node = started("100", tokens=100 * MTOK)
    trained(node, range(1, 2), 0, step_s=60.0)
    trained(node, range(2, 5), 60)
    ahead = outlook(node.runs["llama"], at(64))
    assert ahead.left is not None
    assert ahead.left.hours_left.mid * 3600 == pytest.approx(396.0)
    trained(node, range(5, 9), 63)
    ahead = outlook(node.runs["llama"], at(68))
    assert ahead.left is not None
    assert (ahead.left.windows, round(ahead.left.hours_left.mid * 3600)) == (1, 392)


def test_a_window_of_one_step_says_nothing_of_those_to_come() -> None:
    node = started("100", tokens=100 * MTOK)
    play(node, a_tick(300), a_step(1, when=300, tokens=MTOK, tokens_total=MTOK, step_s=300.0))
    assert outlook(node.runs["llama"], at(300)).left is None
    play(node, a_tick(304), a_step(2, when=304, tokens=MTOK, tokens_total=2 * MTOK, step_s=4.0))
    left = outlook(node.runs["llama"], at(304)).left
    assert left is not None
    assert left.hours_left.mid * 3600 == pytest.approx(392.0)


def test_it_is_said_once() -> None:
    node = started("0.30")
    assert len(trained(node, range(1, 81), 0)) == 1


def test_a_run_that_makes_it_says_nothing() -> None:
    """40 cents, and a reserve that grows to 21 s and a tenth of the 480 s that 48 cents last, are 46.9.

    Of 46 cents it is halted if it never saves, as it has not until then: that is said. With a save just before, as of
    any above 42, it makes it.
    """
    assert trained(started("0.48"), range(1, 101), 0) == []
    undecided = started("0.46")
    assert len(trained(undecided, range(1, 101), 0)) == 1
    assert run_status(undecided.runs["llama"], at(100.25))["ceiling_before_end"] is None
    assert len(trained(started("0.42"), range(1, 101), 0)) == 1


def test_one_slow_window_is_no_news() -> None:
    """100 s for one million, as long as a quarter of the rest: then as before, for the run that has room for that."""
    node = started("0.70")
    assert trained(node, range(1, 17), 0) == []
    assert trained(node, range(17, 21), 16, step_s=25.0) == []
    assert trained(node, range(21, 101), 116) == []


def test_a_lasting_slowness_is() -> None:
    node = started("0.70")
    assert trained(node, range(1, 17), 0) == []
    assert len(trained(node, range(17, 81), 16, step_s=4.0)) == 1


def test_it_says_between_which_steps() -> None:
    """Windows of four and of six seconds in turns, and a run that saves: a step and a minute, each with its ends."""
    node, texts = started("9.00", tokens=10_000 * MTOK), []
    for pair in range(8):
        node.runs["llama"].run.name_last_good(NamedCheckpoint(pair, None), at(10 * pair))
        texts += trained(node, range(8 * pair + 1, 8 * pair + 5), 10 * pair)
        texts += trained(node, range(8 * pair + 5, 8 * pair + 9), 10 * pair + 4, step_s=1.5)
    number = r"[\d,]+"
    [text] = texts
    assert re.search(rf"is hit at step {number} \({number} to {number}\), 2026-11-21 14:2\d UTC", text), text


@given(st.integers(3, 50), st.integers(0, 10**9), st.integers(1, 10**5), st.data())
def test_no_single_window_lifts_the_lower_end_above_the_others(
    count: int, others_ns: int, future: int, data: st.DataObject
) -> None:
    """Whatever it took, wherever it lies: among windows that are all alike the interval grows faster than the mean."""
    costs = [others_ns] * count
    costs[data.draw(st.integers(0, count - 1))] = data.draw(st.integers(others_ns, 10**12))
    windows = [
        Window(index * MTOK, (index + 1) * MTOK, DurationNs(cost), UsdMicros(0), 0) for index, cost in enumerate(costs)
    ]
    told = forecast(windows, future * MTOK)
    assert told is not None
    assert told.hours_left.low is not None
    assert told.hours_left.low <= others_ns / NS_PER_HOUR * future * (1 + 1e-9)


def test_a_raised_ceiling_is_news_where_it_does_not_suffice_either() -> None:
    node = started("0.30")
    assert len(trained(node, range(1, 21), 0)) == 1
    with_ceiling(node, "0.40")
    [text] = trained(node, range(21, 25), 20.25)
    assert "the ceiling $0.4000" in text
    with_ceiling(node, "0.60")
    assert trained(node, range(25, 45), 24.5) == []


def with_ceiling(node: Node, ceiling: str) -> None:
    policy = node.policies.policies[0]
    changed = replace(policy, budget=replace(policy.budget, ceiling_usd_micros=usd(ceiling)))
    engine.reload(node, PolicySet((changed,), ceiling))


def test_another_goal_counts_at_once() -> None:
    """Seventy million tokens are 28 cents, and with the reserve more than 30."""
    node = started("0.30", tokens=50 * MTOK)
    assert trained(node, range(1, 41), 0) == []
    policy = node.policies.policies[0]
    engine.reload(node, PolicySet((replace(policy, budget=replace(policy.budget, tokens=70 * MTOK)),), "d"))
    [text] = said(play(node, a_tick(40.5)))
    assert "the goal of 70,000,000 tokens, by which $0.2805 would be spent" in text


def with_price(node: Node, when: float, usd_micros_per_hour: int) -> None:
    moment = a_tick(when)
    play(node, PriceRead(moment.at, moment.boot, moment.wall, UsdMicros(usd_micros_per_hour), "spot", "2026-11-21"))


def test_a_dearer_price_is_news_and_a_little_dearer_is_not() -> None:
    node = started("0.30")
    assert len(trained(node, range(1, 21), 0)) == 1
    with_price(node, 20.25, 4_500_000)  # A quarter more.
    assert trained(node, range(21, 25), 20.25) == []
    with_price(node, 24.5, 5_400_000)
    assert len(trained(node, range(25, 29), 24.5)) == 1
    with_price(node, 28.75, PRICE)
    assert trained(node, range(29, 33), 28.75) == [], "cheaper again: known already"


def test_a_dear_minute_is_no_news_while_the_windows_were_cheap() -> None:
    """What a neighbour paid for falls to this run: the rate says so at once, and the windows do not yet."""
    node = started("0.70")
    assert trained(node, range(1, 41), 0) == []
    with_price(node, 40.25, 4 * PRICE)
    assert said(play(node, a_tick(40.5), a_tick(41))) == []


def test_a_run_that_recovers_and_falls_back_is_said_again() -> None:
    node = started("1.20", tokens=200 * MTOK)
    trained(node, range(1, 5), 0)
    assert len(trained(node, range(5, 41), 4.25, step_s=3.0)) == 1
    quick = trained(node, range(41, 281), 112.5, step_s=0.25)  # So many that the slow ones are forgotten.
    assert quick == []
    assert node.runs["llama"].reported.ceilings == {}, "it was on its way to make it"
    assert len(trained(node, range(281, 521), 172.75, step_s=5.0)) == 1


def test_a_governor_that_comes_back_does_not_say_it_again() -> None:
    node = started("0.30")
    assert len(trained(node, range(1, 21), 0)) == 1
    kept = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(20))))
    reborn = started("0.30", boot=20)
    reborn.runs.clear()
    restore_runs(reborn, [kept], BootNs(at(20)), at(20))
    play(reborn, a_tick(21), hello(0, 21, world_size=1, tokens_per_step=None))
    assert trained(reborn, range(21, 61), 21) == []
    older = {name: value for name, value in kept.items() if name != "ceilings_told"}
    assert restore_runs(make_node(boot=20), [older], BootNs(at(20)), at(20)), "a journal of before is read"


@pytest.mark.parametrize(("ceiling", "at_s"), [("8.00", 4_319), ("100", None)])
def test_without_a_goal_an_hour_ahead_and_half_of_it_used(ceiling: str, at_s: int | None) -> None:
    """$8.00 less a reserve of 22 s, and of 59 s more from the first step on, last 7,919 s: from 4,319 s on an hour."""
    node = started(ceiling, tokens=None)
    effects: list[Effect] = []
    for second in range(100, 4_500, 100):
        effects += play(node, a_tick(second + 19))
        if said(effects):
            break
    assert (second + 19 if said(effects) else None) == at_s
    if at_s is not None:
        assert said(effects) == [
            "at this rate the ceiling $8.00 is hit at 2026-11-21 14:11 UTC (14:11 to 14:12): $4.32 is spent, and "
            "$0.0220 is reserved for the halt"
        ]


def test_who_gives_a_run_an_hours_money_hears_of_it_at_half() -> None:
    """$2.00: half of what the reserve of 81 s leaves of it is spent after 959.5 s."""
    node = started("2.00", tokens=None)
    assert said(play(node, a_tick(1), a_tick(959.25))) == []
    assert len(said(play(node, a_tick(959.5), a_tick(1000)))) == 1


def test_an_unknown_price_an_ended_run_and_one_that_is_being_halted_say_nothing() -> None:
    assert trained(started("0.30", price_usd_micros_per_hour=None), range(1, 41), 0) == []
    ended, halted = started("0.30"), started("0.30")
    trained(ended, range(1, 12), 0)
    trained(halted, range(1, 12), 0)
    last = a_step(12, tokens=MTOK // 4, tokens_total=3 * MTOK)
    assert said(play(ended, a_tick(12), last, TrainerExited(at(12), "llama", 0), a_tick(12.25))) == []
    assert said(play(halted, a_tick(12), last, OperatorHalt(at(12), "llama", "enough", 0), a_tick(12.25))) == []


def within(scope: str, ceiling: str, wall: int) -> Node:
    """A run without a ceiling of its own, $3.60/h, under a budget of several."""
    node = make_node(price_usd_micros_per_hour=PRICE, cloud="none", can_stop=False)
    budgets = [ScopedBudget(parse_scope(scope), usd(ceiling), "")]
    node = new_node(node.facts, node.policies, BootNs(0), WallNs(wall), budgets)
    play(node, replace(tick(0), wall=WallNs(wall)), hello(0, 0, world_size=1, stage="stage1", tokens_per_step=None))
    return node


def test_the_ceiling_of_several_is_told_with_its_name() -> None:
    node = within("stage:stage1", "2.00", START)
    [text] = said(play(node, a_tick(1), a_tick(1100)))
    assert "the ceiling $2.00 of stage:stage1 is hit at 2026-11-21 12:31 UTC (12:31 to 12:32): $1.10 is spent" in text


@pytest.mark.parametrize(("to_midnight_s", "is_said"), [(2_000, True), (1_900, False)])
def test_a_days_ceiling_is_hit_on_that_day_or_not_at_all(to_midnight_s: int, is_said: bool) -> None:
    """$2.00 less a reserve of 22 s last 1,978 s."""
    midnight = parse_utc("2026-11-22")
    node = within("day", "2.00", midnight - to_midnight_s * NS_PER_S)
    ticks = [replace(tick(s), wall=WallNs(midnight - to_midnight_s * NS_PER_S + at(s))) for s in (1, 1_100)]
    assert bool(said(play(node, *ticks))) is is_said


def test_a_days_ceiling_is_told_anew_on_the_next_day() -> None:
    """$20.00 a day at $3.60/h: 5 h 33 min less a reserve of 22 s. The last of them begins 4 h 33 min after midnight."""
    midnight = parse_utc("2026-11-22")
    node = within("day", "20.00", midnight)

    def later(*seconds: int) -> list[str]:
        return said(play(node, *[replace(tick(s), wall=WallNs(midnight + at(s))) for s in seconds]))

    assert len(later(1, 19_000, 19_001)) == 1
    day = 86_400
    assert later(day, day + 10_000) == []
    [text] = later(day + 19_000, day + 19_001)
    assert "the ceiling $20.00 of day is hit at 2026-11-23 05:3" in text
    assert later(day + 19_500) == []
    kept = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(day + 19_500))))
    assert ceiling_report_of(kept["ceilings_told"]["day"]) == node.runs["llama"].reported.ceilings["day"]
    assert ceiling_report_of([1, None, 2]) == CeilingReport(1, None, 2)


def test_the_list_of_budgets_says_when_a_ceiling_is_met_as_its_run_does() -> None:
    """As above: 24.95 cents of room are 249.5 s, and the reserve grows by 14.75 s: 234.75."""
    node = started("0.30")
    trained(node, range(1, 17), 0)
    [listed] = budgets_status(node, at(16.25))
    assert listed["reached_in_s"] == pytest.approx(234.75)
    assert listed["reached_in_s"] == run_status(node.runs["llama"], at(16.25))["ceiling_in_s"]


@pytest.mark.parametrize("ceiling", ["0.30", "0.08", "0.06"])
def test_each_view_says_the_same_time_until_the_ceiling(ceiling: str) -> None:
    """Just after a save, near the ceiling: the runway was zero while the run trained on, by twenty seconds."""
    node = started(ceiling)
    trained(node, range(1, 17), 0)
    told = run_status(node.runs["llama"], at(16.25))
    [listed] = budgets_status(node, at(16.25))
    assert told["runway_s"] == told["ceiling_in_s"] == listed["reached_in_s"]
    assert told["runway_s"] > 0


def test_of_a_group_each_run_says_the_time_that_the_group_has() -> None:
    node = started("0.30")
    trained(node, range(1, 17), 0)
    group = Cap("node", usd("0.2"), usd("0.1"), usd("0.02"), PRICE, growths=(ReserveGrowth(20 * NS_PER_S),))
    node.runs["llama"].run.set_caps((group,))
    bound = binding_ceiling(node.runs["llama"], at(16.25))
    assert bound is not None
    assert bound.met is not None
    assert (bound.cap.scope, bound.met.after_ns) == ("node", 60 * NS_PER_S), (
        "not by this run's own growth, which is less"
    )


def test_the_room_is_what_is_left_when_the_reserve_has_grown() -> None:
    """Ten seconds at a tenth of a cent."""
    cap = Cap("run:llama", usd("0.3"), usd("0.1"), usd("0.02"), PRICE, growths=(ReserveGrowth(10 * NS_PER_S),))
    assert Binding(cap, PRICE, cap.met(), is_own=True).spend_max_usd_micros == usd("0.27")


def test_of_a_group_those_alone_let_the_reserve_grow_who_pay() -> None:
    node = started("0.30")
    trained(node, range(1, 17), 0)
    budget = ScopedBudget(parse_scope("node"), usd(1), "x")
    assert [one.most_ns for one in standing(node, budget, at(16.25)).growths] == [14_750_000_000]
    node.runs["llama"].is_separate = True
    assert standing(node, budget, at(16.25)).growths == ()
