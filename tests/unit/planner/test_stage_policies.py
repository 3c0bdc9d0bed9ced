"""The stages' policies expect what the planner predicts of their primary, and their arithmetic is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.adapters.journal.db import Limits
from governor.core.base.policy import Policy
from governor.core.base.units import MICROS_PER_USD, MTOK
from governor.planner.stage_plans import Costed, StagePlan, stage_plans
from governor.policies.parse import load_policies

POLICIES = Path(__file__).parents[3] / "policies"
# A plan moves a little whenever one of its constants is measured better; so far off, a policy is out of date.
MOVED = 0.15
PLANS = {plan.stage.name: plan for plan in stage_plans()}
EACH = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


@EACH
def test_a_policy_expects_the_steady_state_of_the_primary_on_each_of_its_nodes(plan: StagePlan) -> None:
    one, expected = plan.primary, policy_of(plan).expected
    assert one.cost.mtok_usd is not None
    assert expected.tokens_per_s == pytest.approx(one.prediction.tokens_per_s.mid, rel=MOVED)
    planned = MICROS_PER_USD * one.cost.mtok_usd.mid / nodes(one)
    assert expected.usd_micros_per_mtok == pytest.approx(planned, rel=MOVED)


@EACH
def test_its_two_expectations_agree_at_the_listed_price(plan: StagePlan) -> None:
    expected = policy_of(plan).expected
    assert expected.usd_micros_per_mtok is not None
    assert expected.tokens_per_s is not None
    node_usd_per_hour = plan.primary.setup.gpu.gpus_per_node * plan.primary.price.gpu_hour_usd
    usd_per_mtok = node_usd_per_hour / 3600 / (expected.tokens_per_s / MTOK)
    assert expected.usd_micros_per_mtok == pytest.approx(MICROS_PER_USD * usd_per_mtok, abs=1)


@EACH
def test_its_ceiling_is_the_slow_end_of_the_interval(plan: StagePlan) -> None:
    one, policy = plan.primary, policy_of(plan)
    assert one.cost.steady_usd is not None
    assert policy.budget.tokens == plan.stage.tokens
    slow = MICROS_PER_USD * one.cost.steady_usd.high / nodes(one)
    assert policy.budget.ceiling_usd_micros == pytest.approx(slow, rel=MOVED)


@EACH
def test_the_journal_keeps_every_window_of_the_run(plan: StagePlan) -> None:
    policy = policy_of(plan)
    assert policy.budget.tokens is not None
    assert policy.budget.tokens <= Limits().rows_of_kind["window"] * policy.budget.window_tokens


def policy_of(plan: StagePlan) -> Policy:
    (path,) = POLICIES.glob(f"{plan.stage.name}-*.toml")
    policies, errors = load_policies([(path.name, path.read_text(encoding="utf-8"))])
    assert policies is not None, [str(error) for error in errors]
    return policies.policies[0]


def nodes(one: Costed) -> int:
    """Each meters itself: its own dollars beside the whole run's tokens."""
    return one.setup.gpus // one.setup.gpu.gpus_per_node
