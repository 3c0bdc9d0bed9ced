"""Expected against actual: the ratios by hand, and what the engine makes of a policy's plan."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.cli.status_table import render_status
from governor.core.base.policy import Budget, Expected, Policy, PolicySet
from governor.core.base.units import MICROS_PER_USD, MTOK, NS_PER_HOUR, NS_PER_S, DurationNs, MonoNs, UsdMicros, usd
from governor.core.engine import step as engine
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.run_forecast import outlook
from governor.core.events.effects import Effect, PersistRuns
from governor.core.events.operators import OperatorHalt
from governor.core.money.expected import ExpectedCost, WindowRow, burn_rate, row_of, window_row
from governor.core.money.token_price import drift, per_mtok
from governor.core.money.token_windows import Window
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.reports.terminal import closing_line
from governor.text.screen import FILE
from tests.sweeps import share_of
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, play, rule, tick

# $3.60/h is a tenth of a cent a second.
CENTS = {"price_usd_micros_per_hour": UsdMicros(3_600_000)}
PLAN = Budget(ceiling_usd_micros=usd("0.5"), tokens=100 * MTOK)


def test_the_worked_run_against_a_plan() -> None:
    """8xH100 at $7.92/h for 40 h: $316.80 for 51.6B tokens, $0.0061395 per million.

    Planned at $0.0055 it is 11.63 % dearer: 0.00613953 / 0.0055 = 1.116279. Of a ceiling of $400 for the same tokens
    each million has $0.00775194: 0.792 of it was burnt, which is 316.80 / 400.
    """
    spent, tokens = usd("316.80"), 51_600_000_000
    price = per_mtok(spent, tokens)
    assert price is not None
    assert round(price, 3) == Fraction(6_139_535, 1_000)  # Micro-dollars.
    over = drift(price, 5_500)
    assert over is not None
    assert float(over) == pytest.approx(0.116279, abs=1e-6)
    assert burn_rate(price, ExpectedCost(ceiling_usd_micros=usd(400), tokens_goal=tokens)) == Fraction(316_800, 400_000)


def test_a_run_that_goes_on_at_one_lands_exactly_on_its_ceiling() -> None:
    """Also one that came with ten millions trained: $9 are for the ninety that are left."""
    plan = ExpectedCost(ceiling_usd_micros=usd(9), tokens_goal=100 * MTOK, began_tokens=10 * MTOK)
    assert burn_rate(per_mtok(usd("0.1"), MTOK), plan) == 1
    assert usd("0.1") * (100 - 10) == plan.ceiling_usd_micros
    assert burn_rate(per_mtok(usd("0.25"), MTOK), plan) == Fraction(5, 2)


@pytest.mark.parametrize(
    "plan",
    [
        ExpectedCost(),
        ExpectedCost(ceiling_usd_micros=usd(9)),
        ExpectedCost(tokens_goal=100 * MTOK),
        ExpectedCost(ceiling_usd_micros=usd(9), tokens_goal=10 * MTOK, began_tokens=10 * MTOK),
    ],
)
def test_what_nobody_said_is_unknown(plan: ExpectedCost) -> None:
    assert burn_rate(per_mtok(usd(1), MTOK), plan) is None
    assert drift(per_mtok(usd(1), MTOK), plan.usd_micros_per_mtok) is None


def test_nothing_is_trained_for_nothing() -> None:
    """Tokens without money are tokens whose cost nobody knew: not a hundred per cent cheaper than planned."""
    assert per_mtok(0, MTOK) is None
    assert per_mtok(-1, MTOK) is None, "another run has taken its time over"
    assert per_mtok(usd(1), 0) is None
    assert drift(None, 5_500) is None
    assert burn_rate(None, ExpectedCost(ceiling_usd_micros=usd(9), tokens_goal=MTOK)) is None


def test_a_row_reads_back_and_one_of_before_has_no_plan() -> None:
    window = Window(MTOK, 2 * MTOK, DurationNs(NS_PER_HOUR), usd("1.5"), 7)
    row = WindowRow("stage1", "a1", window, ExpectedCost(10_490, 65_900.0, usd(260), 20_000 * MTOK, MTOK))
    told = json.loads(json.dumps(window_row(row)))
    assert row_of(told) == row
    unpriced = replace(row, window=replace(window, is_unpriced=True))
    assert row_of(json.loads(json.dumps(window_row(unpriced)))) == unpriced
    plan = (
        "expected_usd_micros_per_mtok",
        "expected_tokens_per_s",
        "ceiling_usd_micros",
        "tokens_goal",
        "began_tokens",
    )
    older = {name: value for name, value in told.items() if name not in plan}
    assert row_of(older) == replace(row, plan=ExpectedCost())
    for nothing in ({"to_tokens": MTOK, "wasted_tokens": 0}, {"to_tokens": MTOK - 1}):
        with pytest.raises(ValueError, match="without tokens"):
            row_of(told | nothing)


@pytest.mark.parametrize("lent", [0, MTOK])
def test_a_row_without_progress_reads_back(lent: int) -> None:
    window = Window(MTOK, MTOK + lent, DurationNs(NS_PER_HOUR), usd("1.5"), 7, lent_tokens=lent)
    row = WindowRow("stage1", "a1", window, ExpectedCost(), wasted_to=70)
    assert row_of(json.loads(json.dumps(window_row(row)))) == row


def started(budget: Budget = PLAN, expected: Expected | None = None, **facts: object) -> Node:
    """One rank, whose first million comes with the first second."""
    node = make_node(budget=budget, cloud="none", **(CENTS | facts))
    told = replace(node.policies.policies[0], expected=expected or Expected(4_000, 500_000.0))
    node.policies = PolicySet((told,), "digest")
    play(node, tick(0), hello(0, 0, world_size=1, stage="stage1"))
    return node


def trained(node: Node, first: int, last: int, step_s: int = 1) -> list[Effect]:
    """So many steps of 250,000 tokens; each second is billed before its frame arrives."""
    effects: list[Effect] = []
    for number in range(first, last + 1):
        step = a_step(number, when=number * step_s, tokens=MTOK // 4, tokens_total=number * MTOK // 4)
        effects += play(node, tick(number * step_s), step)
    return [*effects, persist(node, at(last * step_s))]


def rows(effects: list[Effect]) -> list[WindowRow]:
    kept = [record for effect in effects if isinstance(effect, PersistRuns) for record in effect.records]
    return [row_of(record.data) for record in kept if record.kind == "window"]


@pytest.mark.parametrize("price", [None, UsdMicros(3_600_000)])
def test_a_window_says_that_nobody_knew_a_price(price: UsdMicros | None) -> None:
    [row] = rows(trained(started(Budget(), price_usd_micros_per_hour=price), 1, 4))
    assert row.window.is_unpriced is (price is None)
    assert (row.window.usd_micros > 0) is (price is not None)


def test_a_window_is_kept_with_what_it_is_held_against() -> None:
    """Four seconds a million at $0.001 a second: $0.004, as planned; of $0.005 that the ceiling has for it."""
    node = started()
    [first, second] = rows(trained(node, 1, 8))
    assert first.plan == second.plan == ExpectedCost(4_000, 500_000.0, usd("0.5"), 100 * MTOK, 0)
    ahead = outlook(node.runs["llama"], at(0))
    assert ahead.last == second.window
    assert ahead.last_pace is not None
    assert ahead.last_pace == ahead.run_pace
    assert (ahead.last_prices.last, ahead.last_pace.drift_frac) == (4_000, 0.0)
    assert ahead.last_pace.burn_rate == pytest.approx(0.8)


def test_of_a_run_that_was_watched_from_its_middle_only_what_was_seen_is_burnt() -> None:
    """It comes with 50M of 100M tokens. Two millions cost $0.004 each; the ceiling has $0.01 for each that is left."""
    node = started()
    for number in range(1, 9):
        total = 50 * MTOK + number * MTOK // 4
        play(node, tick(number), a_step(number, when=number, tokens=MTOK // 4, tokens_total=total))
    pace = outlook(node.runs["llama"], at(8)).run_pace
    assert pace.burn_rate == pytest.approx(0.4)


def test_a_slow_window_drifts_and_the_run_with_it() -> None:
    """Without the first step, which has the start-up in it, 750,000 tokens cost $0.003; then a million costs $0.008."""
    node = started()
    trained(node, 1, 4)
    play(node, tick(12), a_step(8, when=12, tokens=MTOK // 4, tokens_total=2 * MTOK, attempt_step=8))  # 8 s for one.
    ahead = outlook(node.runs["llama"], at(0))
    assert ahead.last_pace is not None
    assert (ahead.last_pace.drift_frac, ahead.run_pace.drift_frac) == pytest.approx((1.0, 0.011 / 1.75 / 0.004 - 1))
    assert (ahead.last_pace.burn_rate, ahead.run_pace.burn_rate) == pytest.approx((1.6, 1.2))


def test_a_person_reads_expected_and_actual() -> None:
    node = started()
    trained(node, 1, 4)
    play(node, tick(12), a_step(8, when=12, tokens=MTOK // 4, tokens_total=2 * MTOK, attempt_step=8))
    governor = {"node": "node-a", "mode": "enforce", "price_usd_per_hour": 3.6, "policies": ["p"]}
    text = render_status({"governor": governor, "runs": [run_status(node.runs["llama"], at(12))]}, FILE)
    *_, pace, waste = text.splitlines()
    assert waste == "llama: wasted $0.0010 ($0.0010 until its first step)"
    assert pace == (
        "llama: the last 1,000,000 tokens took 8.0s, 125,000 tokens/s of 500,000 expected, $0.008000/1M now; "
        "the run so far: $0.006000/1M tokens all-in, $0.006285 steady of $0.004000 expected, drift +57.1%, "
        "burn rate 1.20"
    )


def test_the_price_that_stands_beside_the_plan_is_the_one_that_has_drifted_from_it() -> None:
    """The first step ends after a minute, which the planned price does not have. The others are on plan."""
    node = started()
    for number in range(1, 5):
        told = a_step(number, when=59 + number, tokens=MTOK // 4, tokens_total=number * MTOK // 4, attempt_step=number)
        play(node, tick(59 + number), told)
    governor = {"node": "node-a", "mode": "enforce", "price_usd_per_hour": 3.6, "policies": ["p"]}
    text = render_status({"governor": governor, "runs": [run_status(node.runs["llama"], at(63))]}, FILE)
    assert (
        "$0.063000/1M now; the run so far: $0.063000/1M tokens all-in, $0.004000 steady of $0.004000 expected, " in text
    )
    assert text.count("drift +0.0%") == text.count(" steady") == 1, "which of two it was, nobody could tell"


def test_an_unknown_price_has_neither_drift_nor_burn_rate() -> None:
    node = started(price_usd_micros_per_hour=None)
    trained(node, 1, 8)
    ahead = outlook(node.runs["llama"], at(0))
    assert ahead.last is not None
    assert ahead.last_pace is not None
    told = run_status(node.runs["llama"], at(8))
    assert {told["window"][name] for name in ("usd", "usd_per_mtok", "drift_frac", "burn_rate")} == {None}
    assert {ahead.last_pace.drift_frac, ahead.last_pace.burn_rate, ahead.run_pace.burn_rate} == {None}


def with_window(node: Node, tokens: int) -> None:
    """The policy is loaded anew, and its windows are of this size."""
    policy: Policy = node.policies.policies[0]
    changed = replace(policy, budget=replace(policy.budget, window_tokens=tokens))
    engine.reload(node, PolicySet((changed,), f"digest of {tokens}"))


def test_a_reload_changes_the_size_of_the_next_window() -> None:
    node = started()
    effects = trained(node, 1, 6)  # One and a half million.
    with_window(node, 2 * MTOK)
    effects += trained(node, 7, 20)
    with_window(node, MTOK // 2)
    effects += trained(node, 21, 30)
    edges = [(row.window.from_tokens, row.window.to_tokens) for row in rows(effects)]
    millions = [(low / MTOK, high / MTOK) for low, high in edges]
    assert millions == [(0, 1), (1, 2), (2, 4), (4, 6), (6, 6.5), (6.5, 7), (7, 7.5)]


@settings(max_examples=share_of(150), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(1, 3_000_000)),
            st.tuples(st.just("reload"), st.sampled_from([MTOK // 10, MTOK // 2, MTOK, 5 * MTOK])),
            st.tuples(st.just("restart"), st.integers(0, 100)),
            st.tuples(st.just("set back"), st.integers(1, 4_000_000)),
        ),
        max_size=60,
    )
)
def test_kept_windows_partition_the_tokens_whatever_is_reloaded_and_killed(acts: list[tuple[str, int]]) -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.hear(tokens_per_step=None)
    total = number = 0
    for act, amount in acts:
        world.at(world.boot / NS_PER_S + 1)
        match act:
            case "step":
                total, number = total + amount, number + 1
                told = {"tokens": amount, "tokens_total": total, "at": MonoNs(world.mono)}
                world.play(a_step(number, **told))
            case "reload":
                with_window(world.node, amount)
            case "restart":
                world.at(world.boot / NS_PER_S + amount)
                world.restart()
                world.tick()
                world.hear(tokens_per_step=None)
            case "set back":
                total = max(0, total - amount)
    world.at(world.boot / NS_PER_S + 1)
    world.take([persist(world.node, MonoNs(world.mono))])
    edges = [(window["from_tokens"], window["to_tokens"]) for window in world.windows]
    assert all(low < high for low, high in edges)
    assert [low for low, _ in edges] == [0, *(high for _, high in edges)][: len(edges)]
    meter = world.node.runs["llama"].history.meter
    if meter is not None:
        assert meter.from_tokens == (edges[-1][1] if edges else 0)
        assert sum(window["usd_micros"] for window in world.windows) == meter.from_usd_micros
        assert meter.from_usd_micros <= world.charged("llama")


def test_the_price_of_tokens_is_the_last_windows() -> None:
    """Four seconds a step, then one: first of what has come of the open window, then of the one that closed last."""
    node = started(replace(PLAN, window_tokens=2 * MTOK))
    trained(node, 1, 4, step_s=4)
    run = node.runs["llama"].run
    assert run.paid_tokens.last() == 16_000
    for number in range(5, 9):
        told = a_step(number, when=12 + number, tokens=MTOK // 4, tokens_total=number * MTOK // 4)
        play(node, tick(12 + number), told)
    assert run.paid_tokens.last() == 10_000
    for number in range(9, 17):
        assert run.paid_tokens.last() == 10_000, "an open window changes nothing"
        told = a_step(number, when=12 + number, tokens=MTOK // 4, tokens_total=number * MTOK // 4)
        play(node, tick(12 + number), told)
    assert run.paid_tokens.last() == 4_000


def test_a_frame_between_two_ticks_is_valued_at_its_own_time() -> None:
    """Steps of 50 and 150 ms by turns, ticks every 250 ms, $3,600/h: a window of one step costs 5 or 15 cents."""
    node = started(Budget(window_tokens=100_000), price_usd_micros_per_hour=usd(3_600))
    play(node, tick(1))
    now, ticked, costs = 1_000, 1_000, []
    for number in range(1, 41):
        now += 50 if number % 2 else 150
        while ticked + 250 <= now:
            ticked += 250
            play(node, tick(ticked / 1_000))
        play(node, a_step(number, when=now / 1_000, tokens=100_000, tokens_total=number * 100_000))
        costs.append(node.runs["llama"].money.windows[-1].usd_micros)
    assert costs[1:] == [50_000 if number % 2 else 150_000 for number in range(2, 41)]
    assert costs[0] == 1_050_000, "with what was spent before the first step"
    assert sum(costs) == usd(5), "five seconds of a dollar"


def test_three_prices_of_tokens_have_three_names_and_every_view_tells_the_same() -> None:
    """$3.60/h: a million in 4 s, then half of it a second time in 4 s: 0.4, 0.53 and 0.8 cents."""
    node = started()
    trained(node, 1, 4)
    play(node, hello(0, 4, world_size=1, attempt="a2", stage="stage1", peer=peer(900)))
    for number in (1, 2):
        told = a_step(number, when=4 + 2 * number, tokens=MTOK // 4, tokens_total=number * MTOK // 4)
        play(node, tick(4 + 2 * number), told)
    managed = node.runs["llama"]
    status = run_status(managed, at(8))
    [reading] = take_snapshot(node, at(8), GovernorHealth(), LagReading(), "").runs
    by_status = tuple(round(status[f"usd_per_mtok{of}"] * MICROS_PER_USD) for of in ("", "_all_in", "_useful"))
    assert by_status == (4_000, 8_000 * MTOK // 1_500_000, 8_000)
    assert (reading.prices.last, reading.prices.all_in, reading.prices.useful) == by_status
    assert "spent $0.0080; $0.005333/1M tokens all-in ($0.008000 useful)" in closing_line(status, "ended")
    play(node, OperatorHalt(at(8), "llama", uid=0, reason="done"))
    incident = node.runs["llama"].incident
    assert incident is not None
    kept = incident_snapshot(node, incident)
    assert tuple(kept[f"usd_micros_per_mtok{of}"] for of in ("", "_all_in", "_useful")) == by_status
    assert incident_of(json.loads(json.dumps(kept))).prices == incident.prices


def test_a_run_without_plan_or_schedule_has_windows_all_the_same() -> None:
    node = make_node(rule("nonfinite"), cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1))
    [row] = rows(trained(node, 1, 4))
    assert row.plan == ExpectedCost(tokens_goal=None)
    assert row.window.usd_micros == PRICE * 4 * NS_PER_S // NS_PER_HOUR
