from __future__ import annotations

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, NO_POLICY, Budget, Mode, Policy, PolicySet, Rule
from governor.core.base.units import UsdMicros

HALT = Rule("budget", "budget", {}, AT_ONCE, Response.HALT, Mode.OBSERVE, "good")
WARN = Rule("budget-50pct", "budget", {"at_frac": 0.5}, AT_ONCE, Response.WARN, Mode.ENFORCE, "none")


def test_the_most_specific_policy_wins_then_the_first_name_and_the_default_comes_last() -> None:
    policies = PolicySet(
        (
            Policy("default"),
            Policy("b", match={"stage": ("s1",)}),
            Policy("a", match={"team": ("red", "blue")}),
            Policy("z", match={"stage": ("s1",), "team": ("red",)}),
        ),
        "digest",
    )
    assert policies.for_run({"team": "red"}, "s1").name == "z"
    assert policies.for_run({"team": "blue"}, "s1").name == "a"
    assert policies.for_run({}, "s1").name == "b"
    assert policies.for_run({"stage": "s1"}, None).name == "b"
    assert policies.for_run({}, None).name == "default"


def test_without_a_match_a_run_is_only_watched() -> None:
    policy = PolicySet((Policy("a", match={"stage": ("s1",)}),), "digest").for_run({}, "s2")
    assert policy is NO_POLICY
    assert (policy.mode, policy.rules) == (Mode.OBSERVE, ())


def test_observing_touches_nothing() -> None:
    policy = Policy("p", rules=(WARN,)).observing()
    assert policy.mode is Mode.OBSERVE
    assert all(rule.mode is Mode.OBSERVE for rule in policy.rules)


def test_a_ceiling_from_the_command_line_is_enforced_over_an_observing_rule() -> None:
    policies = PolicySet((Policy("p", budget=Budget(tokens=9), rules=(HALT, WARN)),), "d").with_ceiling(UsdMicros(5))
    (policy,) = policies.policies
    assert policy.budget == Budget(UsdMicros(5), 9)
    halting = [rule for rule in policy.rules if rule.response is Response.HALT]
    assert [(rule.name, rule.mode, rule.params) for rule in halting] == [("budget", Mode.ENFORCE, {})]
    assert WARN in policy.rules


def test_a_ceiling_alone_is_a_policy_for_every_run() -> None:
    policy = PolicySet((), "none").with_ceiling(UsdMicros(5)).for_run({}, None)
    assert policy.budget.ceiling_usd_micros == 5
    assert [rule.trigger for rule in policy.rules] == ["budget"]


def test_a_typed_ceiling_holds_for_a_run_that_no_policy_matches() -> None:
    only = Policy("p", match={"stage": ("stage1",)}, budget=Budget(tokens=9), rules=(HALT,))
    policy = PolicySet((only,), "d").with_ceiling(UsdMicros(5)).for_run({}, None)
    assert policy.budget.ceiling_usd_micros == 5
    assert [(rule.trigger, rule.response) for rule in policy.rules] == [("budget", Response.HALT)]
