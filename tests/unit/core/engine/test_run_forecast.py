"""A run's windows and what they say of its rest, through the engine: steps in, rows and status out."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from governor.adapters.exporters.prometheus import SnapshotCollector
from governor.cli.status_table import render_status
from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget, PolicySet
from governor.core.base.units import MTOK, NS_PER_S, BootNs, UsdMicros, usd
from governor.core.engine import run_forecast
from governor.core.engine import step as engine
from governor.core.engine.node import Node
from governor.core.engine.node_journal import WINDOWS_UNCOMMITTED_MAX, persist, run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.engine.run_forecast import outlook
from governor.core.events.effects import Effect, PersistRuns
from governor.core.events.inputs import Disconnected, PhaseChange, TrainerExited
from governor.core.money.expected import ExpectedCost, plan_of_row
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from governor.text.screen import FILE
from tests.unit.core.engine import test_ceiling_forecast as ceiling
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, peer, play, rule, tick

STEP_TOKENS = 250_000


def trained(node: Node, first: int, last: int, *, total_before: int = 0) -> list[Effect]:
    """A step a second; each is billed before its frame arrives."""
    effects: list[Effect] = []
    for number in range(first, last + 1):
        total = total_before + (number - first + 1) * STEP_TOKENS
        step = a_step(number, tokens=STEP_TOKENS, tokens_total=total)
        effects += play(node, tick(number), step)
    return [*effects, persist(node, at(last))]


def windows(effects: list[Effect]) -> list[dict[str, object]]:
    kept = [record for effect in effects if isinstance(effect, PersistRuns) for record in effect.records]
    assert {record.kind for record in kept} <= {"window"}
    return [dict(record.data) for record in kept]


def started(**facts: object) -> Node:
    budget = Budget(ceiling_usd_micros=UsdMicros(1_000_000_000), tokens=100 * MTOK)
    node = make_node(budget=budget, cloud="none", **facts)
    play(node, tick(0), hello(0, 0, world_size=1, stage="stage1"))
    play(node, PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    return node


def test_every_million_tokens_leaves_a_row_with_what_it_took_and_cost() -> None:
    rows = windows(trained(started(), 1, 10))
    assert [(row["from_tokens"], row["to_tokens"]) for row in rows] == [(0, MTOK), (MTOK, 2 * MTOK)]
    assert [row["duration_ns"] for row in rows] == [4 * NS_PER_S] * 2
    assert sum(row["usd_micros"] for row in rows) == PRICE * 8 // 3600  # type: ignore[misc]
    assert {(row["stage"], row["attempt"]) for row in rows} == {("stage1", "a1")}


def test_a_log_that_is_read_in_one_go_piles_no_windows_up() -> None:
    node = started()
    effects = []
    for number in range(1, 3 * WINDOWS_UNCOMMITTED_MAX):
        effects += play(node, a_step(number, when=1 + number / 1e6, tokens=MTOK, tokens_total=number * MTOK), tick(1))
    assert len(node.windows_uncommitted) < WINDOWS_UNCOMMITTED_MAX
    # The first is kept with the run that begins. Many wait: a commit for each window would be several a second.
    kept = [len(effect.records) for effect in effects if isinstance(effect, PersistRuns)]
    assert kept == [1, WINDOWS_UNCOMMITTED_MAX, WINDOWS_UNCOMMITTED_MAX]


def test_a_resume_from_an_older_step_is_waste_and_the_windows_go_on() -> None:
    node = started()
    before = windows(trained(node, 1, 10))  # 2.5M tokens.
    play(node, hello(0, 11, world_size=1, attempt="a2", stage="stage1", peer=peer(900)))
    after = windows(trained(node, 12, 19, total_before=MTOK))  # Back to 1M, then to 3M.
    assert before[-1]["to_tokens"] == after[0]["from_tokens"] == 2 * MTOK
    assert after[0]["wasted_tokens"] == 1_500_000
    assert run_status(node.runs["llama"], at(19))["tokens_wasted"] == 1_500_000


def test_a_frame_told_twice_or_late_counts_once() -> None:
    node = started()
    effects = trained(node, 1, 3)
    late = a_step(1, when=3, tokens=STEP_TOKENS, tokens_total=STEP_TOKENS)
    twice = a_step(3, when=3, tokens=STEP_TOKENS, tokens_total=3 * STEP_TOKENS)
    effects += play(node, late, twice)
    effects += trained(node, 4, 4, total_before=3 * STEP_TOKENS)
    assert len(windows(effects)) == 1
    assert run_status(node.runs["llama"], at(4))["tokens_wasted"] == 0


def test_a_process_that_attaches_anew_counts_its_steps_from_one_and_trains_on() -> None:
    node = started()
    trained(node, 1, 40)
    again = hello(0, 42, world_size=1, connection=ConnectionId(2), stage="stage1")
    effects = play(node, Disconnected(at(41), ConnectionId(1)), again)
    for number in range(1, 41):
        told = {"tokens": STEP_TOKENS, "tokens_total": (40 + number) * STEP_TOKENS, "connection": ConnectionId(2)}
        step = a_step(40 + number, when=42 + number, attempt_step=number, **told)
        late = a_step(39 + number, when=42 + number, attempt_step=number - 1, **told)
        effects += play(node, tick(42 + number), step, step, late)
    edges = [(row["from_tokens"], row["to_tokens"]) for row in windows([*effects, persist(node, at(82))])]
    assert edges == [(number * MTOK, (number + 1) * MTOK) for number in range(10, 20)]
    assert run_status(node.runs["llama"], at(82))["tokens_wasted"] == 0


def test_a_run_that_sets_itself_back_within_an_attempt_wastes_what_it_trains_again() -> None:
    node = started()
    trained(node, 1, 10)
    for number in range(5, 9):
        play(
            node,
            a_step(number, when=11, attempt_step=number + 6, tokens=STEP_TOKENS, tokens_total=number * STEP_TOKENS),
        )
    assert run_status(node.runs["llama"], at(11))["tokens_wasted"] == 4 * STEP_TOKENS


def test_a_launcher_that_numbers_its_restarts_alike_counts_from_one_again() -> None:
    node = started()
    trained(node, 1, 10)
    play(node, Disconnected(at(10), ConnectionId(1)), TrainerExited(at(10), "llama", 1))
    play(node, hello(0, 11, world_size=1, peer=peer(300), stage="stage1"))
    step = a_step(1, when=12, tokens=STEP_TOKENS, tokens_total=11 * STEP_TOKENS)
    play(node, tick(12), step)
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert meter.progress_tokens == 11 * STEP_TOKENS


def test_a_governor_that_comes_back_closes_the_window_that_was_open() -> None:
    node = started()
    trained(node, 1, 2)
    kept = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(2))))
    reborn = make_node(cloud="none", boot=2)
    restore_runs(reborn, [kept], BootNs(at(2)), at(2))
    play(reborn, tick(3), hello(0, 3, world_size=1, stage="stage1"))
    [row] = windows(trained(reborn, 4, 5, total_before=2 * STEP_TOKENS))
    assert (row["from_tokens"], row["to_tokens"], row["duration_ns"]) == (0, MTOK, 5 * NS_PER_S)


def restarted(node: Node, when: float, boot_id: str = "boot-1") -> Node:
    """The governor is killed and comes back to what was kept at this moment."""
    kept = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(when))))
    reborn = make_node(cloud="none", boot=when, boot_id=boot_id)
    restore_runs(reborn, [kept], BootNs(at(when)), at(when))
    play(reborn, tick(when), hello(0, when, world_size=1, stage="stage1"))
    return reborn


def a_million(node: Node, since: float) -> list[Effect]:
    """The run's first four steps."""
    effects = []
    for number in range(1, 5):
        step = a_step(number, when=since + number, tokens=STEP_TOKENS, tokens_total=number * STEP_TOKENS)
        effects += play(node, tick(since + number), step)
    return [*effects, persist(node, at(since + 4))]


def test_a_governor_that_comes_back_before_the_first_step_knows_since_when_the_run_has_paid() -> None:
    """On a machine that has been up for a month, which is no part of the run's first window."""
    month = 30 * 24 * 3600
    node = make_node(cloud="none", boot=month)
    play(node, tick(month), hello(0, month, world_size=1, stage="stage1"), tick(month + 60))
    reborn = restarted(node, month + 60)
    [row] = windows(a_million(reborn, month + 60))
    assert (row["from_tokens"], row["to_tokens"], row["duration_ns"]) == (0, MTOK, 64 * NS_PER_S)
    assert row["usd_micros"] == PRICE * 60 // 3600 + PRICE * 4 // 3600


def test_after_a_reboot_the_first_window_has_the_money_of_before_and_the_time_since() -> None:
    node = make_node(cloud="none", boot=3600)
    play(node, tick(3600), hello(0, 3600, world_size=1), tick(3660))
    reborn = restarted(node, 3660, boot_id="boot-2")
    [row] = windows(a_million(reborn, 3660))
    assert (row["duration_ns"], row["usd_micros"]) == (4 * NS_PER_S, PRICE * 60 // 3600 + PRICE * 4 // 3600)


def test_the_journal_knows_the_ceiling_before_the_first_step() -> None:
    node = started()
    kept = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(0))))
    assert plan_of_row(kept["plan"]) == ExpectedCost(ceiling_usd_micros=usd(1000), tokens_goal=100 * MTOK)


def test_status_tells_what_is_left_and_when_the_ceiling_is_met() -> None:
    node = started()
    trained(node, 1, 40)
    told = run_status(node.runs["llama"], at(40))
    assert told["tokens_goal"] == 100 * MTOK
    low, middle, high = told["hours_left"]
    assert low <= middle <= high
    assert middle == pytest.approx(
        90 * MTOK / STEP_TOKENS / 3600, rel=0.03
    )  # The first second, before the first step, is paid, too.
    assert told["cost_left_usd"][1] == pytest.approx(98.32 * middle, rel=1e-3)
    room = 1000 - told["spend_usd"] - node.runs["llama"].run.reserve_usd_micros / 1e6  # type: ignore[operator]
    grows_s = 60 - 39  # So long more work is unsaved every second, up to the grace.
    assert told["ceiling_in_s"] == pytest.approx(room / 98.32 * 3600 - grows_s, rel=1e-6)
    assert told["ceiling_before_end"] is False


def test_without_goal_price_or_tokens_nothing_is_made_up() -> None:
    node = make_node(cloud="none", price_usd_micros_per_hour=None)
    play(node, tick(0), hello(0, 0, world_size=1, tokens_per_step=None))
    play(node, tick(1), a_step(1))
    told = run_status(node.runs["llama"], at(1))
    unknown = ("tokens_goal", "hours_left", "cost_left_usd", "ceiling_in_s", "ceiling_at_tokens", "tokens_wasted")
    assert [told[name] for name in unknown] == [None] * len(unknown)


def test_an_unknown_price_leaves_the_time_and_hides_the_cost() -> None:
    node = started(price_usd_micros_per_hour=None)
    trained(node, 1, 40)
    told = run_status(node.runs["llama"], at(40))
    assert told["hours_left"] is not None
    assert told["cost_left_usd"] is None


def test_a_step_that_took_no_time_at_all_stops_no_tick() -> None:
    """The smallest step time that a frame may tell, on a run with a ceiling: status, table and metrics go on."""
    node = started()
    for number in range(1, 6):
        tiny = a_step(number, tokens=STEP_TOKENS, tokens_total=number * STEP_TOKENS, step_s=1e-302)
        play(node, tick(number), tiny)
    assert node.runs["llama"].run.tokens_per_s is not None
    told = run_status(node.runs["llama"], at(5))
    assert (told["ceiling_at_tokens"], told["ceiling_before_end"]) == (None, False)
    left, pace, _ = shown(node, 5)
    assert left == "llama: 6m 35s and $10.79 left to 100,000,000 tokens"
    assert pace.startswith("llama: the last 1,000,000 tokens took 4.0s, 250,000 tokens/s, $0.1")
    exporter = SnapshotCollector()
    exporter.snapshot = take_snapshot(node, at(5), GovernorHealth(), LagReading(), "")
    assert any(family.name == "costgov_run_ceiling_reached_in_seconds" for family in exporter.collect())


def shown(node: Node, seconds: float) -> list[str]:
    governor = {"node": "node-a", "mode": "enforce", "price_usd_per_hour": 98.32, "policies": ["p"]}
    text = render_status({"governor": governor, "runs": [run_status(node.runs["llama"], at(seconds))]}, FILE)
    return [line for line in text.splitlines() if line.startswith("llama:")]


def test_a_person_reads_what_is_left() -> None:
    node = started()
    trained(node, 1, 40)
    [line, pace, waste] = shown(node, 40)
    assert line == "llama: 6m 0s and $9.83 left to 100,000,000 tokens"  # 360 steps of a second at $98.32/h.
    # 4 s are $0.109244; the ceiling of $1,000 has $10 for each of its 100 millions.
    assert pace == (
        "llama: the last 1,000,000 tokens took 4.0s, 250,000 tokens/s, $0.109244/1M now; "
        "the run so far: $0.109244/1M tokens all-in, burn rate 0.01"
    )
    assert waste == "llama: wasted $0.0273 ($0.0273 until its first step)"  # A second, to the first step's end.


def test_a_person_reads_how_sure_it_is_and_what_was_lost() -> None:
    node = started()
    trained(node, 1, 10)
    play(node, hello(0, 30, world_size=1, attempt="a2", stage="stage1", peer=peer(900)))
    trained(node, 31, 44, total_before=MTOK)
    trained(node, 50, 61, total_before=MTOK + 14 * STEP_TOKENS)  # Five seconds late: one window is not like the others.
    line = shown(node, 61)[0]
    assert re.fullmatch(
        r"llama: [\d hms]+ \([\d hms]+ to [\d hms]+\) and \$[\d.]+ \(\$[\d.]+ to \$[\d.]+\) left to "
        r"100,000,000 tokens; 1,500,000 tokens trained twice",
        line,
    ), line


def test_a_person_is_told_of_a_ceiling_that_comes_before_the_end() -> None:
    budget = Budget(ceiling_usd_micros=UsdMicros(20_000_000), tokens=1000 * MTOK)
    node = make_node(rule("nonfinite"), budget=budget, cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1, stage="stage1"))
    play(node, PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    trained(node, 1, 40)
    assert shown(node, 40)[-1].startswith("llama: at this rate the ceiling is met first, in 10m ")  # $20 less reserve.


def uneven(goal: int, ceiling_usd: int = 20, alarmed: list[str] | None = None) -> Node:
    """Windows of four and of six seconds in turns: 200,000 tokens a second, at $98.32 an hour."""
    budget = Budget(ceiling_usd_micros=usd(ceiling_usd), tokens=goal)
    node = make_node(rule("nonfinite"), budget=budget, cloud="none")
    play(node, tick(0), hello(0, 0, world_size=1, stage="stage1"))
    play(node, PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    when = 0.0
    for number in range(1, 41):
        when += 1.5 if (number - 1) // 4 % 2 else 1.0
        step = a_step(number, when=when, tokens=STEP_TOKENS, tokens_total=number * STEP_TOKENS)
        effects = play(node, tick(when), step)
        if alarmed is not None:
            alarmed += ceiling.said(effects)
    return node


@pytest.mark.parametrize(("goal_m", "is_hit"), [(125, "may be hit"), (130, "is hit")])
def test_an_alarm_of_a_ceiling_says_may_be_where_its_interval_reaches_over_the_goal(goal_m: int, is_hit: str) -> None:
    """Up to step 510 of 250,000 tokens each: 127.5 million."""
    told: list[str] = []
    uneven(goal_m * MTOK, 18, told)
    assert [text.partition(", 20")[0] for text in told] == [
        f"at this rate the ceiling $18.00 {is_hit} at step 444 (406 to 510)"
    ]


@pytest.mark.parametrize(("goal_m", "first"), [(100, False), (130, None), (400, True)])
def test_a_ceiling_comes_first_where_all_of_its_interval_says_so(goal_m: int, first: bool | None) -> None:
    """Its interval is some 125 to 142 million tokens: with a save just before, it has 60 s more at 200,000 a second."""
    node = uneven(goal_m * MTOK)
    told = run_status(node.runs["llama"], at(50))
    low, high = told["ceiling_between_tokens"]
    assert 120 * MTOK < low < told["ceiling_at_tokens"] < high < 143 * MTOK
    assert told["ceiling_before_end"] is first
    early_s, late_s = told["ceiling_between_s"]
    assert early_s == told["ceiling_in_s"] == pytest.approx(late_s - 59), "it has not saved yet"
    said = [line for line in shown(node, 50) if "met first" in line]
    assert len(said) == (first is not False)
    for line in said:
        verb = "is" if first else "may be"
        amounts = r"in [\dms ]+ \([\dms ]+ to [\dms ]+\), at [\d,]+ \([\d,]+ to [\d,]+\) tokens"
        assert re.fullmatch(rf"llama: at this rate the ceiling {verb} met first, {amounts}", line)


def test_without_a_goal_the_windows_say_when_the_ceiling_is_met_too() -> None:
    node = uneven(400 * MTOK)
    with_goal = run_status(node.runs["llama"], at(50))
    policy = node.policies.policies[0]
    engine.reload(node, PolicySet((replace(policy, budget=Budget(policy.budget.ceiling_usd_micros)),), "d"))
    told = run_status(node.runs["llama"], at(50))
    assert told["tokens_goal"] is None
    names = ("ceiling_at_tokens", "ceiling_between_tokens")
    assert [told[name] for name in names] == [with_goal[name] for name in names]
    assert told["ceiling_before_end"] is None


def test_a_run_that_saves_is_told_between_which_moments_its_ceiling_is_met() -> None:
    """Every 20 s, and the reserve may grow to 60 s of work: it ends where 10 to 20 s are unsaved."""
    node = uneven(400 * MTOK)
    run = node.runs["llama"].run
    run.last_good_at = at(40)
    run.saves.rhythm_ns.add(20 * NS_PER_S)
    told = run_status(node.runs["llama"], at(50))
    low, high = told["ceiling_between_s"]
    assert high - low == pytest.approx(8.0)
    assert told["ceiling_in_s"] == pytest.approx((low + high) / 2)
    run.last_good_at = at(24)  # Overdue by more than a quarter: whether one comes nobody knows.
    told = run_status(node.runs["llama"], at(50))
    assert told["ceiling_between_s"] == [told["ceiling_in_s"], pytest.approx(told["ceiling_in_s"] + 59)]


def test_the_least_that_a_run_may_cost_is_of_its_last_step_where_the_open_window_is_quick() -> None:
    """Windows of 4 s, and three steps of 0.25 s in the one that is open: the 2.25 s that it gains are not to come."""
    node = ceiling.started("0.30")
    ceiling.trained(node, range(1, 17), 0)
    ceiling.trained(node, range(17, 20), 16.25, step_s=0.25)
    managed, now = node.runs["llama"], 17.25
    bound, goal = ceiling.bound_of(node, now)
    left, landing = outlook(managed, at(now)).left, run_forecast._landing(managed, bound, goal)
    assert left is not None
    assert left.hours_left.low is not None
    assert landing is not None
    assert landing.low == pytest.approx(bound.cap.spend_usd_micros + left.hours_left.low * 3_600_000)


def test_time_for_which_nobody_paid_is_no_progress_towards_the_goal() -> None:
    """The first launch ends with its 16th step. The next begins 100 s later: 96M tokens are left, which take 384 s.

    It has paid for 16.25 s and for 2.25 s, at a tenth of a cent. Two steps of the 384 s are gone; of the 2.25 s those
    until the first of them had ended are a start.
    """
    node = ceiling.started("0.60")
    assert ceiling.trained(node, range(1, 17), 0) == []
    play(node, TrainerExited(at(16.25), "llama", 0))
    before = node.ledger.spend("llama")
    play(node, *(ceiling.a_tick(second) for second in range(17, 117)))
    assert node.ledger.spend("llama") == before
    play(node, hello(0, 116, world_size=1, tokens_per_step=None, attempt="a2", connection=ConnectionId(2)))
    for number in (17, 18):
        told = {"tokens": MTOK // 4, "tokens_total": number * MTOK // 4, "connection": ConnectionId(2)}
        when = 100 + number
        play(node, ceiling.a_tick(when), a_step(number, when=when, attempt_step=number - 16, step_s=1.0, **told))
    ceiling.with_ceiling(node, "0.30")
    [text] = ceiling.said(play(node, ceiling.a_tick(118.25)))
    assert text.endswith("by which $0.4005 would be spent")
