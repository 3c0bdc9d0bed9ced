"""What a person may set live, and what is refused with the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.policy import Budget, Policy, PolicySet
from governor.core.base.units import BootNs, WallNs
from governor.core.engine import budgeting
from governor.core.engine.node import Node, new_node
from governor.core.events.operators import OperatorBudget
from governor.core.money.budgets import parse_scope
from governor.core.money.group_totals import KEYS_MAX, GroupSpend
from governor.core.runs.life import LifeFact
from tests.unit.core.engine.test_budgeting import ONE, OTHER, alarms, budget, halted, join, make, set_live
from tests.unit.core.engine.test_step import a_step, at, play, rule, tick


def refused(node: Node, when: float, scope: str, ceiling_usd: float) -> str | None:
    return budgeting.refusal(node, budget(scope, ceiling_usd, uid=0), at(when))


def test_what_would_halt_now_is_refused_with_the_numbers() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    play(node, tick(1), tick(100))
    for scope in ("stage:stage1", "node", "day"):
        # 62 s, and a sixteenth of the 109 s that $3 last; of $4.71, the least that will do, a sixteenth are 10 s.
        assert refused(node, 100, scope, 3) == (
            f"{scope} has spent $2.73 and its halt is reserved $1.98: a ceiling of $3.00 would halt it now; set more "
            "than $4.71, or say `costgov halt RUN --reason …`"
        )
        assert refused(node, 100, scope, 4.70) is not None
        assert refused(node, 100, scope, 4.71) is None
    assert refused(node, 100, "run:llama", 2.3) is not None
    assert refused(node, 100, "run:llama", 2.5) is None


def test_a_ceiling_below_its_own_halt_is_refused_with_the_numbers() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    play(node, tick(1))
    told = refused(node, 1, "node", 1.7)
    assert told is not None
    assert told.startswith("budget node: the ceiling $1.70 is not above $1.80, which its halt may itself cost here")
    play(node, tick(79_999))
    node.ledger.book.groups = GroupSpend()  # As if the day had cost nothing.
    told = refused(node, 79_999, "day", 1.7)
    assert told is not None, "a second before midnight: tomorrow it would be halted at once"
    assert told.startswith("budget day: the ceiling $1.70 is not above $1.80, which its halt may itself cost here")
    nobody = make()
    assert refused(nobody, 0, "node", 1.8) is not None, "who comes will be halted likewise"
    assert refused(nobody, 0, "node", 1.81) is None


def test_fewer_tokens_than_are_trained_are_refused_and_would_have_ended_the_run() -> None:
    node = make(budget("run:llama", 50, tokens=9_000))
    play(node, tick(0))
    join(node)
    play(node, tick(1), a_step(5, when=1, tokens=1_000, tokens_total=5_000), tick(2))
    mistyped = budget("run:llama", 50, uid=0, tokens=20)
    assert budgeting.refusal(node, mistyped, at(2)) == (
        "run:llama has trained 5,000 tokens: with a budget of 20 it would be complete, and halted now; set more "
        "tokens, or say `costgov halt RUN --reason …`"
    )
    assert budgeting.refusal(node, replace(mistyped, tokens=5_001), at(2)) is None
    assert budgeting.refusal(node, replace(mistyped, tokens=None), at(2)) is None
    set_live(node, 2, "run:llama", 50, tokens=20)
    play(node, tick(3))
    assert halted(node) == [ONE], "what is refused is what would have halted"


@pytest.mark.parametrize("in_file", [True, False])
def test_the_tokens_that_would_count_again_are_those_of_the_file_or_of_the_policy(in_file: bool) -> None:
    policy = Policy("p", budget=Budget(tokens=4_000), rules=(rule("budget"),))
    node = make(*([budget("run:llama", 50, tokens=3_000)] if in_file else []), policy=policy)
    play(node, tick(0))
    join(node)
    set_live(node, 1, "run:llama", 50, tokens=9_000)
    play(node, tick(1), a_step(5, when=1, tokens=1_000, tokens_total=5_000), tick(2))
    scope = parse_scope("run:llama")
    left = budgeting.tokens_after_clearing(node, scope)
    assert left == (3_000 if in_file else 4_000)
    assert "has trained 5,000 tokens" in str(budgeting.would_complete(node, scope, left))
    play(node, OperatorBudget(at(2), scope, None, "done", 0), tick(3))
    assert halted(node) == [ONE], "what would be refused is what would have halted"


def test_no_ceiling_is_set_at_an_unknown_price() -> None:
    told = refused(make(price_usd_micros_per_hour=None), 0, "node", 1000)
    assert told is not None
    assert told.startswith("the price of this node is unknown")


def test_live_budgets_are_bounded() -> None:
    node = make()
    for number in range(budgeting.BUDGETS_MAX):
        set_live(node, 0, f"stage:{number}", 100)
    assert "set live already" in str(refused(node, 0, "node", 100))
    assert refused(node, 0, "stage:1", 100) is None, "one that is there may be changed"


def test_the_counter_of_a_live_budget_is_kept_however_many_others_come() -> None:
    node = make()
    play(node, tick(0))
    join(node)
    play(node, tick(60))
    set_live(node, 60, "stage:stage1", 500)
    node.runs[ONE].run.move(LifeFact.GONE, at(60))
    node.runs[OTHER].run.move(LifeFact.GONE, at(60))
    spent = node.ledger.groups.of_key("stage:stage1")
    for number in range(KEYS_MAX + 1):
        node.ledger.groups.allot(f"other{number}", (), 1)
    assert node.ledger.groups.of_key("stage:stage1") == spent > 0
    play(node, OperatorBudget(at(61), parse_scope("stage:stage1"), None, "done", 0))
    node.ledger.groups.allot("one more", (), 1)
    assert node.ledger.groups.of_key("stage:stage1") == 0, "and no longer"


def test_who_matches_no_policy_is_said_to_be_held_by_budgets_alone() -> None:
    empty = PolicySet((), "digest")
    for budgets, fate in (((), "never halted"), ((budget("day", 500),), "halted by its budgets alone")):
        node = new_node(make().facts, empty, BootNs(0), WallNs(0), budgets)
        texts = alarms(join(node))
        assert len([text for text in texts if text.endswith(f"it is metered and {fate}")]) == 2
