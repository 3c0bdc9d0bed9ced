"""Budgets of several runs, through the engine: whom they halt and warn, what a person may set, what a restart keeps.

$98.32/h; two runs of one rank each pay $49.16/h. A halt that can save nothing is bounded by 1 s of grace, 20 s of
ending, 60 s of the provider and 1 s of ticks: 82 s, of which the two together would cost $2.2396.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.findings import Response
from governor.core.base.policy import Budget, Mode, Policy, PolicySet
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, WallNs, usd
from governor.core.engine import budgeting
from governor.core.engine import step as engine
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node, new_node
from governor.core.engine.run_forecast import binding_ceiling
from governor.core.events.effects import Alarm, Effect, PersistRuns, Record
from governor.core.events.inputs import BillingAnswer, BillingRead, ProcessesSeen, StopAnswer, StopReplied
from governor.core.events.operators import OperatorBudget
from governor.core.money.budgets import ScopedBudget, parse_scope
from governor.core.money.charges import UNALLOCATED
from governor.core.money.ledger import reserve
from governor.core.runs.life import LifeFact
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import budgets_status, run_status
from governor.text.moments import moments
from tests.unit.core.engine.test_step import PRICE, at, hello, make_node, peer, play, rule, tick

ONE = "llama"
OTHER = "mistral"
BOTH_HALTS = reserve(PRICE, 82 * NS_PER_S)


def budget(scope: str, ceiling_usd: float, **more: object) -> ScopedBudget:
    made = ScopedBudget(parse_scope(scope), usd(ceiling_usd), "costgov.toml")
    return replace(made, **more)  # type: ignore[arg-type]


def make(*budgets: ScopedBudget, policy: Policy | None = None, **facts: object) -> Node:
    node = make_node(stop_bound_ns=DurationNs(60 * NS_PER_S), **facts)
    policies = node.policies if policy is None else PolicySet((policy,), "digest")
    return new_node(node.facts, policies, BootNs(0), WallNs(0), budgets)


def join(node: Node, when: float = 0.0) -> list[Effect]:
    """Both runs, of one stage and of two teams; nobody can be asked for a checkpoint."""
    told = {"world_size": 1, "stage": "stage1", "capabilities": frozenset(), "when": when}
    one = hello(0, connection=1, labels={"team": "nlp"}, **told)
    other = hello(0, connection=2, labels={"team": "vision"}, run=OTHER, peer=peer(200), **told)
    return play(node, one, other)


def set_live(node: Node, when: float, scope: str, ceiling_usd: float, **more: object) -> list[Effect]:
    made = budget(scope, ceiling_usd, uid=0, source="set by uid 0", reason="q4", set_wall=WallNs(1), **more)
    return play(node, OperatorBudget(at(when), made.scope, made, "q4", 0))


def halted(node: Node) -> list[str]:
    return [name for name, managed in node.runs.items() if managed.incident is not None]


def alarms(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Alarm)]


def reached_at(ceiling_usd: float, reserve_usd_micros: int = BOTH_HALTS) -> float:
    """The second at which what the whole node costs since 0 and the reserve make this ceiling, rounded up to a tick."""
    seconds = (usd(ceiling_usd) - reserve_usd_micros) * 3600 / PRICE
    return -(-seconds // 0.25) * 0.25


@pytest.mark.parametrize("scope", ["stage:stage1", "node", "day"])
def test_a_groups_budget_halts_every_member_and_not_a_tick_early(scope: str) -> None:
    node = make(budget(scope, 10))
    play(node, tick(0))
    join(node)
    due = reached_at(10)
    play(node, tick(1), tick(due - 0.25))
    assert halted(node) == []
    play(node, tick(due))
    assert halted(node) == [ONE, OTHER]
    incident = node.runs[ONE].incident
    assert incident is not None
    assert incident.reason == "ceiling_reached"
    assert incident.evidence["scope"] == scope
    assert incident.evidence["spend_usd_micros"] == node.ledger.total()
    assert incident.text.startswith(f"{scope}: spend $7.")
    assert incident.text.endswith("plus $2.24 reserved for the halt reaches the ceiling $10.00")


def test_a_day_that_ends_below_its_ceiling_halts_nobody_for_what_the_next_one_would_pay() -> None:
    """The day has 80,000 s left at 0, which cost $2,184.89; the halt's $2.24 would fall behind midnight."""
    node = make(budget("day", 2185))
    play(node, tick(0))
    join(node)
    play(node, tick(1), tick(79_900))
    assert binding_ceiling(node.runs[ONE], at(0)) is None
    play(node, *(tick(second) for second in range(79_901, 80_100)))
    assert halted(node) == []
    assert node.budgets.caps[0].spend_usd_micros == PRICE * 80_099 // 3600 - PRICE * 80_000 // 3600
    assert node.budgets.caps[0].reserve_usd_micros == BOTH_HALTS


def test_a_day_s_ceiling_is_met_before_midnight_where_the_day_would_end_above_it() -> None:
    node = make(budget("day", 2184))
    play(node, tick(0))
    join(node)
    due = reached_at(2184)
    play(node, tick(1), tick(due - 0.25))
    assert halted(node) == []
    assert binding_ceiling(node.runs[ONE], at(0)) is not None
    play(node, tick(due))
    assert halted(node) == [ONE, OTHER]


def test_a_labels_budget_halts_those_who_bear_it() -> None:
    node = make(budget("label:team=nlp", 5))
    play(node, tick(0))
    join(node)
    play(node, tick(1), tick(400))
    assert halted(node) == [ONE]


def test_a_group_counts_what_its_ended_members_spent() -> None:
    node = make(budget("stage:stage1", 10))
    play(node, tick(0))
    join(node)
    play(node, tick(60))
    node.runs[OTHER].run.move(LifeFact.GONE, at(60))
    play(node, tick(61))
    [cap] = node.runs[ONE].run.caps
    assert cap.spend_usd_micros == node.ledger.total() == PRICE * 61 // 3600
    assert cap.reserve_usd_micros == reserve(PRICE, 82 * NS_PER_S), "it pays the whole node now"


def test_a_node_that_only_observes_touches_nothing() -> None:
    node = make(budget("node", 5), budget("run:llama", 4), observe=True)
    play(node, tick(0))
    join(node)
    effects = play(node, tick(1), tick(400))
    assert halted(node) == []
    assert [text for text in alarms(effects) if "observe mode: would halt" in text]


def test_a_person_s_ceiling_halts_where_the_policy_only_observes() -> None:
    watching = Policy("watching", mode=Mode.OBSERVE, budget=Budget(ceiling_usd_micros=usd(3)), rules=(
        rule("budget", mode=Mode.OBSERVE, params={}),
    ))  # fmt: skip
    node = make(budget("node", 10), policy=watching)
    play(node, tick(0))
    join(node)
    due = reached_at(10)
    effects = play(node, tick(1), tick(due - 0.25))
    assert [text for text in alarms(effects) if "observe mode: would halt" in text], "its own $3 are the file's"
    assert halted(node) == []
    play(node, tick(due))
    assert halted(node) == [ONE, OTHER]


def test_a_policy_that_enforces_a_budget_of_its_own_gets_no_second_rule() -> None:
    own = Policy("own", budget=Budget(ceiling_usd_micros=usd(50)), rules=(rule("budget"),))
    late = Policy("late", budget=own.budget, rules=(rule("budget", params={"at_frac": 0.9}, response=Response.WARN),))
    for policy, rules in ((own, 1), (late, 2)):
        node = make(budget("node", 10), policy=policy)
        join(node)
        assert len(node.runs[ONE].policy.rules) == rules
        play(node, tick(0), tick(1), tick(400))
        assert halted(node) == [ONE, OTHER]


def test_a_live_ceiling_stands_over_the_file_and_the_policy_and_clearing_it_brings_them_back() -> None:
    policy = Policy("p", budget=Budget(ceiling_usd_micros=usd(100)), rules=(rule("budget"),))
    node = make(budget("run:mistral", 50), policy=policy)
    join(node)

    def ceilings() -> list[int | None]:
        return [node.runs[name].policy.budget.ceiling_usd_micros for name in (ONE, OTHER)]

    assert ceilings() == [usd(100), usd(50)]
    set_live(node, 1, "run:mistral", 70, tokens=1_000_000)
    set_live(node, 1, "run:llama", 60)
    assert ceilings() == [usd(60), usd(70)]
    assert node.runs[OTHER].policy.budget.tokens == 1_000_000
    engine.reload(node, PolicySet((replace(policy, budget=Budget(ceiling_usd_micros=usd(90))),), "new"))
    assert ceilings() == [usd(60), usd(70)], "a reload is of files"
    for name in (ONE, OTHER):
        play(node, OperatorBudget(at(2), parse_scope(f"run:{name}"), None, "done", 0))
    assert ceilings() == [usd(90), usd(50)]


def test_a_command_lines_ceiling_stands_over_the_file_and_below_what_is_set_live() -> None:
    typed = PolicySet((Policy("p"),), "d").with_ceiling(usd(30))
    node = make(budget("run:llama", 50), policy=typed.policies[0])
    join(node)
    assert node.runs[ONE].policy.budget.ceiling_usd_micros == usd(30)
    play(node, tick(0))
    rows = {row["scope"]: row for row in budgets_status(node, at(0))}
    assert (rows["run:llama"]["ceiling_usd"], rows["run:llama"]["source"]) == (30, "command line")
    counts_again = budgeting.after_clearing(node, parse_scope("run:llama"))
    assert counts_again is not None
    assert counts_again.ceiling_usd_micros == usd(30)
    set_live(node, 1, "run:llama", 60)
    assert node.runs[ONE].policy.budget.ceiling_usd_micros == usd(60)


def test_a_raised_ceiling_keeps_alive_whom_the_old_one_would_have_halted() -> None:
    node = make(budget("stage:stage1", 10))
    play(node, tick(0))
    join(node)
    due = reached_at(10)
    play(node, tick(1), tick(due - 0.25))
    set_live(node, due, "stage:stage1", 12)
    play(node, tick(due), tick(reached_at(12) - 0.25))
    assert halted(node) == []
    play(node, tick(reached_at(12)))
    assert halted(node) == [ONE, OTHER]


def test_what_is_set_is_recorded_durably_with_who_why_before_and_after() -> None:
    node = make(budget("stage:stage1", 10))
    [kept, record] = set_live(node, 1, "stage:stage1", 12)
    assert isinstance(record, Record)
    assert record.durable
    assert isinstance(kept, PersistRuns), "before the record that tells of it"
    assert kept.durable
    assert [row["ceiling_usd_micros"] for row in kept.runs[UNALLOCATED]["budgets"]["live"]] == [usd(12)]
    assert dict(record.data) == {
        "act": "budget_set", "scope": "stage:stage1", "uid": 0, "reason": "q4", "before_usd_micros": usd(10),
        "after_usd_micros": usd(12), "tokens": None,
    }  # fmt: skip
    [kept, record] = play(node, OperatorBudget(at(2), parse_scope("stage:stage1"), None, "done", 7))
    assert isinstance(kept, PersistRuns)
    assert kept.runs[UNALLOCATED]["budgets"]["live"] == []
    assert isinstance(record, Record)
    told = {name: record.data[name] for name in ("act", "uid", "reason", "before_usd_micros", "after_usd_micros")}
    assert told == {"act": "budget_clear", "uid": 7, "reason": "done", "before_usd_micros": usd(12),
                    "after_usd_micros": usd(10)}  # fmt: skip


def test_a_run_that_comes_with_other_labels_comes_under_their_budgets() -> None:
    node = make(budget("label:team=nlp", 5))
    play(node, tick(0), hello(0, world_size=1, connection=1, capabilities=frozenset(), labels={"team": "vision"}))
    play(node, tick(1))
    assert node.runs[ONE].run.caps == ()
    assert [r.trigger for r in node.runs[ONE].policy.rules] == ["nonfinite"]
    play(node, hello(0, 2, world_size=1, connection=1, capabilities=frozenset(), labels={"team": "nlp"}), tick(2))
    assert [cap.scope for cap in node.runs[ONE].run.caps] == ["label:team=nlp"]
    play(node, tick(400))
    assert halted(node) == [ONE]


def test_of_several_ceilings_that_are_reached_at_once_the_first_is_named_whatever_the_hashes() -> None:
    scopes = ["stage:stage1", "node", "label:team=nlp", "day", "label:a=b", "stage:b"]
    node = make(*(budget(scope, 5) for scope in scopes))
    play(node, tick(0))
    join(node)
    play(node, tick(1))
    assert [cap.scope for cap in node.runs[ONE].run.caps] == scopes[:4]
    play(node, tick(400))
    incident = node.runs[ONE].incident
    assert incident is not None
    assert incident.evidence["scope"] == "stage:stage1"


def test_a_relaunch_that_says_no_stage_is_judged_as_of_the_one_that_it_is_charged_as() -> None:
    node = make(budget("stage:stage1", 5), budget("label:team=nlp", 500))
    play(node, tick(0))
    join(node)
    silent = {"world_size": 1, "stage": None, "labels": {}, "capabilities": frozenset()}
    play(node, tick(1), hello(0, 2, connection=3, attempt="a2", peer=peer(300), **silent), tick(3))
    assert [cap.scope for cap in node.runs[ONE].run.caps] == ["stage:stage1", "label:team=nlp"]
    play(node, tick(400))
    assert halted(node) == [ONE, OTHER]


# --- what is shown ------------------------------------------------------------------------------------------


def test_the_ceiling_that_is_hit_first_is_the_one_that_binds() -> None:
    node = make(budget("run:llama", 8), budget("stage:stage1", 20), budget("node", 1000))
    play(node, tick(0))
    join(node)
    play(node, tick(1), tick(30))
    cap = binding_ceiling(node.runs[ONE], at(0))
    assert cap is not None
    assert cap.cap.scope == "run:llama"
    assert run_status(node.runs[ONE], at(30))["binding"]["scope"] == "run:llama"
    other = run_status(node.runs[OTHER], at(30))
    assert other["binding"] == {
        "scope": "stage:stage1", "ceiling_usd": 20.0, "spend_usd": PRICE * 30 // 3600 / 1e6,
        "reserve_usd": BOTH_HALTS / 1e6,
    }  # fmt: skip
    assert other["ceiling_usd"] is None
    until_ceiling_s = (20e6 - PRICE * 30 // 3600) / PRICE * 3600
    assert other["runway_s"] == pytest.approx(until_ceiling_s - 82 - 59, abs=0.001), "until its halt, as it grows"
    assert other["ceiling_in_s"] == pytest.approx(other["runway_s"], abs=0.001)


def test_what_is_listed_has_the_ceilings_of_policies_too() -> None:
    policy = Policy("p", budget=Budget(ceiling_usd_micros=usd(100)), rules=(rule("budget"),))
    node = make(budget("day", 500), policy=policy)
    play(node, tick(0))
    join(node)
    set_live(node, 1, "run:mistral", 60)
    play(node, tick(36))
    rows = {row["scope"]: row for row in budgets_status(node, at(36))}
    assert {scope: (row["ceiling_usd"], row["source"]) for scope, row in rows.items()} == {
        "day": (500, "costgov.toml"), "run:mistral": (60, "set by uid 0"), "run:llama": (100, "policy p"),
    }  # fmt: skip
    assert rows["day"]["spend_usd"] == pytest.approx(0.9832)
    assert rows["run:llama"]["spend_usd"] == pytest.approx(0.4916)
    snapshot = take_snapshot(node, at(36), GovernorHealth(), LagReading(), "")
    assert {reading.scope: reading.ceiling_usd_micros for reading in snapshot.budgets} == {
        "day": usd(500), "run:mistral": usd(60),
    }  # fmt: skip


def test_a_halt_that_ends_above_a_groups_ceiling_names_it() -> None:
    node = make(budget("stage:stage1", 10))
    play(node, tick(0))
    join(node)
    play(node, tick(1), tick(reached_at(10)))
    late = reached_at(10) + 200
    incident_id = "mistral.node-a.1"
    play(node, ProcessesSeen(at(late), incident_id, ()), tick(late))
    play(node, StopReplied(at(late), incident_id, StopAnswer.ACCEPTED, False, "accepted"))
    play(node, BillingRead(at(late), incident_id, BillingAnswer.ENDED, "stopped"))
    incident = node.runs[OTHER].incident
    assert incident is not None
    assert incident.is_closed
    [line] = [moment.text for moment in moments(incident_snapshot(node, incident), None) if moment.label == "OVER"]
    over = PRICE * late / 3600 / 1e6 - 10
    assert line.startswith(f"${over:.2f} above $10.00 of stage:stage1: ")


def test_of_a_group_the_growth_of_a_shorter_halt_is_seen_once_it_is_the_longest() -> None:
    """One has 5 s of unsaved work, the other 20: a halt of both takes as long as the other's, 15 s longer than its."""
    node = make(budget("node", 5_000))
    join(node)
    for name, since in ((ONE, 0), (OTHER, 15)):
        run = node.runs[name].run
        run.working_since = run.first_step_at = at(since)
    growths = budgeting.standing(node, budget("node", 5_000), at(20)).growths
    assert [growth.behind_ns // NS_PER_S for growth in growths] == [0, 15]
