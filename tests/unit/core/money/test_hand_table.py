"""Whole runs worked out by hand, to the micro-dollar, and what every view tells of them: the difference is nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.policy import Budget, Expected, PolicySet
from governor.core.base.units import MICROS_PER_USD, NS_PER_S, MonoNs, UsdMicros, WallNs
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.run_forecast import outlook
from governor.core.events.machine import PriceRead
from governor.core.events.operators import OperatorHalt
from governor.core.rules.expression_variables import VARIABLES
from governor.core.views.status import run_status
from governor.reports.terminal import closing_line, live_line
from governor.text.incident_money import spent_text
from tests.hand_table.cases import STEP, UNSAID, Case, learn_price, plain_run, played
from tests.hand_table.commands import called, journal_of
from tests.hand_table.more_cases import CASES
from tests.hand_table.told import Told
from tests.hand_table.views import by_hand, metrics_of, told_by
from tests.unit.core.engine.test_launched_command import launched, pass_time
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, peer, play
from tests.unit.core.money.test_waste import A_SECOND, a_world, said, stage_row, steps, until, wasted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_view_tells_the_figure_of_the_hand(case: Case) -> None:
    world, hand = played(case), by_hand(case)
    told = list(told_by(world))
    said = [one for one in told if hand[one.figure] != UNSAID]
    assert [one for one in said if one.differs_by(hand[one.figure]) != 0] == []
    assert {one.figure for one in told} == {*hand}, "each is told by some view"
    assert world.charged("llama") == case.spend


@pytest.mark.parametrize("figure", ["spend", "usd_per_mtok_all_in"])
def test_a_figure_is_found_in_every_view_that_has_it(figure: str) -> None:
    """A pattern that finds nothing in a text would make the views agree."""
    views = {
        "status", "metrics", "incident", "report of the incident", "end line", "webhook", "Alertmanager", "expression",
        "cost stages --json", "cost stages --csv", "cost stages --md", "table of cost stages",
    }  # fmt: skip
    views |= {"live line", "cost --json", "cost --csv", "table of cost"} if figure == "spend" else set()
    by_name = {case.name: case for case in CASES}
    assert {told.view for told in told_by(played(by_name["a halt"])) if told.figure == figure} == views
    ended = {told.view for told in told_by(played(by_name["another launch"])) if told.figure == figure}
    assert ended == views - {"incident", "report of the incident"} | {"status, ended", "status in words, ended"}


def test_a_figure_that_is_off_by_one_is_told() -> None:
    told = Told("live line", "spend", 12_300_000, grid=10_000)  # "$12.30"
    assert [told.differs_by(hand) for hand in (12_300_000, 12_304_999, 12_305_001, None)] == [0, 0, 5_001, None]
    assert Told("status", "spend", 12_001).differs_by(12_000) == 1


def test_windows_before_the_price_was_known_have_none_in_any_view() -> None:
    """A window is four steps of 250,000 tokens. The price is learned at 10 s: in the middle of the third window."""
    world = a_world(price_usd_micros_per_hour=None)
    world.hear()
    big_steps(world, range(1, 11))
    until(world, 10.25)
    learn_price(world)
    big_steps(world, range(11, 16))
    status = shown_of(world)
    assert (status["usd_per_mtok"], status["usd_per_mtok_all_in"], status["drift_all_in_frac"]) == (None, None, None)
    assert status["window"]["usd_per_mtok"] is None
    assert "$ -/1M now" in live_line(status)
    assert "all-in price of its tokens unknown: for 10.2s no price was known" in closing_line(status, "ended")
    run, now = world.node.runs["llama"].run, MonoNs(world.mono)
    assert [VARIABLES[name].read(run, now) for name in ("usd_per_mtok", "usd_per_mtok_all_in")] == [None, None]
    big_steps(world, range(16, 25))
    status = shown_of(world)
    assert (micros(status["usd_per_mtok"]), micros(status["usd_per_mtok_steady"])) == (4_000, 4_000)
    assert status["usd_per_mtok_all_in"] is None
    until(world, 40)
    assert [bool(window.get("unpriced")) for window in world.windows] == [True, True, True, False, False, False]
    world.restart()
    world.tick()
    assert shown_of(world)["usd_per_mtok_all_in"] is None, "the next governor has forgotten it"


@pytest.mark.parametrize("hourly", [None, 3_600_000])
def test_after_a_reboot_the_last_windows_price_is_told_while_a_price_is_known(hourly: int | None) -> None:
    world = a_world()
    world.hear()
    big_steps(world, range(2, 9))
    until(world, 20)
    before = shown_of(world)["usd_per_mtok"]
    assert before is not None
    price = UsdMicros(hourly) if hourly is not None else None
    world.node.facts = replace(world.node.facts, boot_id="boot-2", price_usd_micros_per_hour=price)
    world.boot = world.mono = 0
    world.restart()
    world.tick()
    world.hear(attempt="a2", peer=peer(200))
    steps(world, range(9, 10), began=2, tokens=STEP, tokens_total=9 * STEP)
    assert shown_of(world)["usd_per_mtok"] == (before if hourly is not None else None)


def test_tokens_of_an_attempts_first_step_are_not_the_next_ones() -> None:
    """The second attempt tells steps 2, 4 and 6: the first is its start, of the second one half was trained before."""
    world = a_world()
    world.hear()
    steps(world, range(1, 4), began=1)
    until(world, 4)
    world.hear(attempt="a2", peer=peer(200))
    steps(world, range(2, 8, 2), began=5)
    until(world, 9)
    assert wasted(world) == {**said(start_up=1 + 1, after_last_step=1), "trained_twice": A_SECOND // 2}


def test_a_price_that_reaches_back_to_the_start_makes_all_of_it_known() -> None:
    world = a_world(price_usd_micros_per_hour=None)
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.5)
    learn_price(world, since=WallNs(world.wall_offset))
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    status = shown_of(world)
    assert micros(status["usd_per_mtok_all_in"]) == 12_000 * MICROS_PER_USD // (9 * STEP)
    assert status["usd_per_mtok"] is None, "the window has money of before it, too"


def test_time_of_a_command_that_waited_without_a_price_is_the_runs_that_takes_it_over() -> None:
    node = launched(ceiling=None)
    node.ledger.compute.metered = None
    pass_time(node, 10)
    now = node.ledger.charged_to
    play(node, PriceRead(MonoNs(now), now, node.wall(MonoNs(now)), UsdMicros(3_600_000), "x", "2026-11-01"))
    pass_time(node, 20, 11)
    play(node, hello(0, 20, run="other", world_size=1))
    assert node.runs["other"].history.unpriced_ns == now > 0


def test_waste_of_a_start_without_a_price_is_at_least_what_every_view_tells() -> None:
    """The first second of the start has no price. What it wasted is unknown, and no view says that it was nothing."""
    world = played(next(case for case in CASES if case.name == "a price learned while it starts"))
    status = shown_of(world)
    assert status["unpriced_s"] == 1.0
    told = "wasted at least $0.0030 ($0.0010 until its first step, $0.0020 after the last step)"
    assert told in closing_line(status, "ended")
    assert metrics_of(world, MonoNs(world.mono))["costgov_run_unpriced_seconds"][()] == 1.0
    row = stage_row(world)
    assert (row.wasted_usd_micros, row.unpriced_ns) == (3_000, NS_PER_S)
    assert (row.per_mtok_useful, row.per_mtok_all_in, row.used) == (None, None, None)


def test_of_a_start_and_an_end_without_a_price_no_view_says_that_nothing_was_wasted() -> None:
    """Two seconds to the first step, one of which has a price; and the end has it again."""
    world = a_world(price_usd_micros_per_hour=None)
    world.hear()
    until(world, 2)
    learn_price(world)
    steps(world, range(1, 10), began=2)
    status = shown_of(world)
    assert (status["wasted_usd"], status["unpriced_s"]) == (0.0, 2.0)
    assert "what it wasted is unknown" in closing_line(status, "ended")
    assert "wasted" not in closing_line({**status, "spend_usd": 0, "spend_rate_usd_per_hour": None}, "ended")


def test_a_halt_tells_why_its_all_in_price_is_unknown() -> None:
    world = a_world(price_usd_micros_per_hour=None)
    world.hear()
    until(world, 1)
    learn_price(world)
    steps(world, range(1, 10), began=2)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    incident = world.node.runs["llama"].incident
    assert incident is not None
    kept = json.loads(json.dumps(incident_snapshot(world.node, incident)))
    assert incident_snapshot(world.node, incident_of(kept))["unpriced_ns"] == kept["unpriced_ns"] == NS_PER_S
    unknown = ", all-in price of its tokens unknown: for 1.0s no price was known, at least $0.0010 of it wasted"
    assert unknown in spent_text(kept)
    del kept["unpriced_ns"]  # As an older governor has it.
    assert incident_of(kept).prices.unpriced_ns == 0
    assert "unknown" not in spent_text(kept)


def big_steps(world: World, numbers: range) -> None:
    for number in numbers:
        steps(world, range(number, number + 1), number, number, tokens=250_000, tokens_total=number * 250_000)


def shown_of(world: World) -> dict[str, Any]:
    world.tick()
    return dict(run_status(world.node.runs["llama"], MonoNs(world.mono)))


def micros(dollars: float) -> int:
    return round(dollars * MICROS_PER_USD)


def test_spend_that_no_token_has_bought_is_in_no_price() -> None:
    """The journal had lost all but the run's charges: $0.05. From there nine steps and 12 s, $0.012."""
    world = a_world()
    policy = world.node.policies.policies[0]
    plan = Expected(usd_micros_per_mtok_all_in=100_000)
    world.node.policies = PolicySet((replace(policy, expected=plan, budget=Budget(window_tokens=STEP)),), "digest")
    world.node.ledger.carry_in("llama", UsdMicros(50_000))
    plain_run(world)
    world.tick()
    ahead = outlook(world.node.runs["llama"], MonoNs(world.mono))
    all_in = 12_000 * MICROS_PER_USD // (9 * STEP)
    assert (ahead.prices.all_in, ahead.prices.useful) == (all_in, all_in)
    assert ahead.drift_all_in_frac == pytest.approx(12_000 / 9 / STEP * MICROS_PER_USD / 100_000 - 1)


def test_a_past_time_has_no_window_that_another_run_has_paid_for() -> None:
    """The open window is unknown then, so its ten thousand tokens are left out."""
    case = next(case for case in CASES if case.name == "behind the command's own run")
    with journal_of(played(case)) as env:
        ago, now = (
            json.loads(called(env, "cost", "stages", "--run", "llama", *words, "--json"))["stages"][0]
            for words in (("--until", "2100-01-01"), ())
        )
    assert (ago["tokens"], now["tokens"]) == (80_000, 90_000)
    assert ago["actual_usd"] == now["actual_usd"] == "0.011000"


@pytest.mark.parametrize("words", [("--until", "2100-01-01"), ("--since", "2000-01-01")])
@pytest.mark.parametrize(
    ("name", "again"),
    [("a stage that has only trained again", (30_000, "0.002000")), ("a stage that has never stepped", (0, None))],
)
def test_of_a_past_time_too_each_stage_has_the_tokens_that_it_trained_again(
    name: str, again: tuple[int, str | None], words: tuple[str, str]
) -> None:
    """Causes are unknown then: what was trained twice is told by the share of its windows, without the starts.

    In p2 that is all of its two seconds. In p3 it is four tokens of six in its window, of five seconds.
    """
    case = next(case for case in CASES if case.name == name)
    with journal_of(played(case)) as env:
        stages = json.loads(called(env, "cost", "stages", "--run", "llama", *words, "--json"))["stages"]
    assert [(one["tokens"], one["tokens_wasted"], one["wasted_usd"]) for one in stages] == [
        (90_000, 0, "0.000000"),
        (0, *again),
        (40_000, 40_000, "0.003333"),
    ]
    assert [one["actual_usd"] for one in stages] == ["0.012000", "0.007000", "0.012000"]
