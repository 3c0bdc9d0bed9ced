"""What of budgets outlives a governor: live ceilings, counters, and what has been said; each warning comes once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from governor.core.alerts.catalogue import TEXT_CHARS_MAX
from governor.core.base.policy import Policy, PolicySet
from governor.core.base.units import NS_PER_DAY, NS_PER_S, BootNs, WallNs, usd
from governor.core.engine.node import RUNS_MAX, Node, new_node
from governor.core.engine.node_journal import persist
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Alarm, PersistRuns
from governor.core.events.operators import OperatorBudget
from governor.core.money.budgets import BUDGETS_MAX, ScopedBudget, parse_scope
from tests.unit.core.engine.test_budgeting import ONE, OTHER, alarms, budget, halted, join, make, reached_at, set_live
from tests.unit.core.engine.test_step import PRICE, at, play, tick

WALL_AT_0 = 10**18  # Of `tick`.


def reborn(node: Node, when: float, *budgets: ScopedBudget, boot_id: str = "boot-1") -> Node:
    kept = persist(node, at(when))
    assert isinstance(kept, PersistRuns)
    rows = json.loads(json.dumps(list(kept.runs.values())))
    facts = replace(node.facts, boot_id=boot_id)
    new = new_node(facts, node.policies, BootNs(at(when)), WallNs(at(when)), budgets)
    restore_runs(new, rows, BootNs(at(when)), at(when))
    return new


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_live_budgets_and_what_was_spent_survive_a_restart(boot_id: str) -> None:
    node = make(budget("day", 500))
    play(node, tick(0))
    join(node)
    set_live(node, 1, "stage:stage1", 10)
    set_live(node, 1, "run:mistral", 60)
    play(node, tick(100))
    spent = node.ledger.groups.of_key("stage:stage1")
    new = reborn(node, 100, budget("day", 500), boot_id=boot_id)
    assert new.budgets.live == node.budgets.live
    assert new.ledger.groups.of_key("stage:stage1") == spent == PRICE * 100 // 3600
    assert new.ledger.groups.of_day(WALL_AT_0) == spent
    assert new.runs[OTHER].policy.budget.ceiling_usd_micros == usd(60)


def test_a_journal_of_before_has_no_counters_and_its_runs_give_them() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    play(node, tick(100))
    kept = persist(node, at(100))
    rows = [dict(row) for row in kept.runs.values()]
    for row in rows:
        row.pop("groups", None)
        row.pop("budgets", None)
    new = new_node(node.facts, node.policies, BootNs(at(100)), WallNs(at(100)))
    assert alarms(restore_runs(new, rows, BootNs(at(100)), at(100))) == []
    groups = new.ledger.groups
    assert groups.of_key("stage:stage1") == node.ledger.spend(ONE) + node.ledger.spend(OTHER)
    assert groups.of_key("label:team=nlp") == node.ledger.spend(ONE)
    assert groups.node_usd_micros == node.ledger.total()


def test_runs_that_are_tracked_no_longer_count_too_where_the_journal_is_one_of_before() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    play(node, tick(100))
    [row] = [dict(row) for name, row in persist(node, at(100)).runs.items() if name == ONE]
    rows = [{**row, "run": f"old{number}", "alive": False} for number in range(RUNS_MAX + 6)]
    new = new_node(node.facts, node.policies, BootNs(at(100)), WallNs(at(100)))
    restore_runs(new, rows, BootNs(at(100)), at(100))
    assert len(new.runs) == RUNS_MAX
    assert new.ledger.groups.of_key("stage:stage1") == len(rows) * node.ledger.spend(ONE)


def test_counters_that_cannot_be_read_are_said_and_cost_no_start() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    rows = [dict(row) for row in persist(node, at(0)).runs.values()]
    for row in rows:
        if "budgets" in row:
            row["budgets"] = {"live": [{"scope": "month"}], "said": {}}
    new = new_node(node.facts, node.policies, BootNs(0), WallNs(0))
    [text] = alarms(restore_runs(new, rows, BootNs(0), at(0)))
    assert text.startswith("1 live budget of the journal cannot be taken up")


@pytest.mark.parametrize(
    "torn",
    [
        {"scope": "mon"},
        {"ceiling_usd_micros": -1},
        {"ceiling_usd_micros": float("inf")},  # As JSON has 1e999.
        {"alert_at": None},
        {"uid": "root"},
    ],
)
def test_one_live_budget_that_cannot_be_read_costs_itself_alone(torn: dict[str, object]) -> None:
    node = make()
    play(node, tick(0))
    join(node)
    for scope, dollars in (("stage:stage1", 10), ("day", 500), ("run:mistral", 60)):
        set_live(node, 1, scope, dollars)
    rows = [dict(row) for row in persist(node, at(0)).runs.values()]
    [own] = [row for row in rows if "budgets" in row]
    for row in own["budgets"]["live"]:
        row.update(torn if row["scope"] == "day" else {})
    own["budgets"]["said"] = {"run:mistral": [float("inf")], "stage:stage1": [0.5, 10_000_000, None]}
    new = new_node(node.facts, node.policies, BootNs(0), WallNs(0))
    [text] = alarms(restore_runs(new, rows, BootNs(0), at(0)))
    assert new.budgets.live == {scope: one for scope, one in node.budgets.live.items() if scope != "day"}
    assert new.runs[OTHER].policy.budget.ceiling_usd_micros == usd(60), "and holds"
    assert set(new.budgets.reports) == {"stage:stage1"}
    assert "cannot be taken up and hold nothing, set them again: " in text
    assert f"{torn.get('scope', 'day')} of {torn.get('ceiling_usd_micros', 500_000_000)} micro-dollars: " in text


def test_many_live_budgets_that_cannot_be_read_are_one_bounded_alarm() -> None:
    node = make()
    play(node, tick(0))
    rows = [dict(row) for row in persist(node, at(0)).runs.values()]
    [own] = [row for row in rows if "budgets" in row]
    own["budgets"]["live"] = [{"scope": f"{number}" * 500} for number in range(BUDGETS_MAX)] + [5]
    [text] = alarms(restore_runs(new_node(node.facts, node.policies, BootNs(0), WallNs(0)), rows, BootNs(0), at(0)))
    assert text.startswith(f"{BUDGETS_MAX + 1} live budgets ")
    assert text.endswith(f"; and {BUDGETS_MAX + 1 - 5} more")
    assert len(text) < TEXT_CHARS_MAX


def test_counters_stand_where_the_live_budgets_beside_them_cannot_be_read() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    play(node, tick(100))
    rows = [dict(row) for row in persist(node, at(100)).runs.values()]
    for row in rows:
        if "budgets" in row:
            row["budgets"] = {"live": [{"scope": "month"}], "said": {}}
    new = new_node(node.facts, node.policies, BootNs(at(100)), WallNs(at(100)))
    restore_runs(new, rows, BootNs(at(100)), at(100))
    assert new.ledger.groups.snapshot() == node.ledger.groups.snapshot(), "nothing is counted twice"


# --- warnings -----------------------------------------------------------------------------------------------


def warned(node: Node, *seconds: float) -> list[str]:
    return [text for second in seconds for text in alarms(play(node, tick(second))) if "has used" in text]


def test_what_was_said_of_a_budget_goes_with_it() -> None:
    """Each snapshot has it, every ten seconds: names of runs come for ever."""
    node = make(budget("day", 10, alert_at=(0.5,)))
    play(node, tick(0))
    join(node)
    set_live(node, 1, "stage:stage1", 10, alert_at=(0.5,))
    assert len(warned(node, reached_at(5))) == 2
    assert set(node.budgets.reports) == {"day", "stage:stage1"}
    assert set(reborn(node, reached_at(5)).budgets.reports) == {"stage:stage1"}, "the file has it no longer"
    play(node, OperatorBudget(at(reached_at(5)), parse_scope("stage:stage1"), None, "done", 0))
    assert set(node.budgets.reports) == {"day"}


def test_each_part_of_a_groups_budget_is_alarmed_once_also_over_a_restart() -> None:
    mine = budget("stage:stage1", 10, alert_at=(0.5, 0.8))
    node = make(mine)
    play(node, tick(0))
    join(node)
    half = reached_at(5)
    assert warned(node, 1, half - 0.25) == []
    [text] = warned(node, half)
    kept = [effect for effect in play(node, tick(half + 0.25)) if isinstance(effect, PersistRuns)]
    assert len(kept) == 1, "at once: a governor after us must not say it again"
    assert warned(node, half + 0.5, half + 10) == []
    assert text == (
        "stage:stage1 has used 50% of its ceiling $10.00: spent $2.77, $2.24 reserved for its halt (costgov.toml)"
    )
    node = reborn(node, half + 11, mine)
    join(node, half + 11)
    assert warned(node, half + 12) == []
    assert [text[:25] for text in warned(node, reached_at(8))] == ["stage:stage1 has used 80%"]
    assert [text[:31] for text in warned(node, reached_at(10))] == ["stage:stage1 has used the whole"]


def test_a_raised_ceiling_is_alarmed_anew_and_one_that_is_still_crossed_is_not() -> None:
    node = make(budget("stage:stage1", 10, alert_at=(0.5,)))
    play(node, tick(0))
    join(node)
    half = reached_at(5)
    assert len(warned(node, 1, half)) == 1
    set_live(node, half, "stage:stage1", 9.9, alert_at=(0.5,))
    assert warned(node, half + 1) == []
    set_live(node, half, "stage:stage1", 20, alert_at=(0.5,))
    assert warned(node, half + 2) == []
    assert len(warned(node, reached_at(10), reached_at(10) + 1)) == 1


def test_a_days_budget_is_alarmed_anew_the_next_day_and_halts_for_that_day_alone() -> None:
    node = make(budget("day", 3000, alert_at=(0.5,)))
    midnight = (NS_PER_DAY - WALL_AT_0 % NS_PER_DAY) // NS_PER_S
    play(node, tick(0))
    join(node)
    assert len(warned(node, 1, 16 * 3600, midnight - 1)) == 1
    play(node, tick(midnight + 1))
    [cap] = node.runs[ONE].run.caps
    assert 0 < cap.spend_usd_micros <= PRICE // 3600 + 1
    assert halted(node) == []
    assert len(warned(node, midnight + 16 * 3600)) == 1


def test_a_runs_own_budget_warns_under_its_name() -> None:
    node = make(budget("run:mistral", 10, alert_at=(0.5,)))
    play(node, tick(0))
    join(node)
    play(node, tick(1))
    told = [
        effect for effect in play(node, tick(reached_at(10))) if isinstance(effect, Alarm) and "used" in effect.text
    ]
    assert [(alarm.name, alarm.run) for alarm in told] == [("budget_run:mistral", OTHER)]
    assert told[0].text.startswith("run:mistral has used 50% of its ceiling $10.00")


def test_a_ceiling_typed_anew_is_a_newer_word_than_one_that_was_set_live() -> None:
    def started(ceiling: float, *kept: PersistRuns) -> tuple[Node, list[str]]:
        policies = PolicySet((Policy("p"),), "d").with_ceiling(usd(ceiling))
        node = new_node(make().facts, policies, BootNs(0), WallNs(0))
        rows = [row for one in kept for row in json.loads(json.dumps(list(one.runs.values())))]
        return node, alarms(restore_runs(node, rows, BootNs(0), at(0)))

    node, _ = started(300)
    play(node, tick(0))
    join(node)
    set_live(node, 0, "run:llama", 45, over_usd_micros=usd(300))
    set_live(node, 0, "node", 500)
    kept = persist(node, at(0))
    requeued, told = started(300, kept)
    assert told == []
    assert requeued.runs[ONE].policy.budget.ceiling_usd_micros == usd(45)
    typed, [told_once] = started(60, kept)
    assert told_once == "run:llama: --ceiling $60.00 counts from now on, and not the $45.00 set by uid 0: q4"
    assert typed.runs[ONE].policy.budget.ceiling_usd_micros == usd(60)
    assert list(typed.budgets.live) == ["node"]
