"""What stands in a rule: several triggers, its warm-up, its cool-down, the runs that it is for."""

from __future__ import annotations

import pytest

from governor.core.base.policy import Member, PersistenceKind, Policy, WarmUp
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S
from governor.policies.keys import parse_warmup
from governor.policies.parse import load_policies

HEAD = '[policy]\nname = "p"\n'
RULE = HEAD + '[[rule]]\nname = "r"\nresponse = "warn"\n'


def loaded(text: str) -> Policy:
    policies, errors = load_policies([("p.toml", text)])
    assert policies is not None, [str(error) for error in errors]
    return policies.policies[0]


def refused(text: str) -> list[str]:
    policies, errors = load_policies([("p.toml", text)])
    assert policies is None
    return [str(error) for error in errors]


def test_several_triggers_each_with_its_own_keys() -> None:
    (rule,) = loaded(RULE + 'all = [\n{ trigger = "nonfinite", skipped_streak = 9 },\n{ trigger = "hang" },\n]').rules
    assert (rule.trigger, rule.params) == ("all", {})
    assert [member.trigger for member in rule.members] == ["nonfinite", "hang"]
    assert rule.members[0].params["skipped_streak"] == 9
    assert rule.members[1].params["tight_min"] == 30 * NS_PER_S, "what is not given has its default"
    assert rule.conditions == rule.members


def test_one_trigger_is_its_own_condition() -> None:
    (rule,) = loaded(RULE + 'trigger = "nonfinite"').rules
    assert rule.members == ()
    assert rule.conditions == (Member("nonfinite", rule.params),)


def test_when_a_rule_may_speak() -> None:
    (rule,) = loaded(RULE + 'trigger = "hang"\nwarmup = "10m"\ncooldown = "1h"\nmatch = { stage = ["a", "b"] }').rules
    assert rule.warmup == WarmUp(PersistenceKind.DURATION, 10 * NS_PER_MINUTE)
    assert (rule.cooldown_ns, rule.match) == (60 * NS_PER_MINUTE, {"stage": ("a", "b")})


@pytest.mark.parametrize(
    ("text", "warmup"),
    [
        ("200 steps", WarmUp(PersistenceKind.STEPS, 200)),
        ("20000 steps", WarmUp(PersistenceKind.STEPS, 20_000)),
        ("1 step", WarmUp(PersistenceKind.STEPS, 1)),
        ("5M tokens", WarmUp(PersistenceKind.TOKENS, 5_000_000)),
        ("90s", WarmUp(PersistenceKind.DURATION, 90 * NS_PER_S)),
    ],
)
def test_warm_ups(text: str, warmup: WarmUp) -> None:
    assert parse_warmup(text) == warmup


@pytest.mark.parametrize("text", ["0 steps", "0s", "3 of 5 steps", "200", "5 stepz", "x tokens", 200, None, ""])
def test_impossible_warm_ups(text: object) -> None:
    with pytest.raises(ValueError, match=r"warm"):
        parse_warmup(text)


TWO = 'all = [{ trigger = "nonfinite" }, { trigger = "hang" }]\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (RULE, "p.toml:3: rule[1].trigger: is missing"),
        (RULE + TWO + 'trigger = "hang"', "p.toml:7: rule[1].trigger: stands beside `all`"),
        (RULE + TWO + "skipped_streak = 9", "p.toml:7: rule[1].skipped_streak: belongs to one trigger"),
        (
            RULE + 'all = [{ trigger = "nonfinite" }, { trigger = "hang", for = "9s" }]',
            'p.toml:6: rule[1].all[2].for: unknown key for trigger "hang"; it is a key of the rule: write it',
        ),
        (RULE + 'any = [{ trigger = "hang" }]', "p.toml:6: rule[1].any: unknown key; any one rule is enough"),
        (RULE + 'all = "hang"', "p.toml:6: rule[1].all: is not a list of triggers"),
        (RULE + 'all = ["hang", "nonfinite"]', "p.toml:6: rule[1].all: is not a list of triggers"),
        (RULE + 'all = [{ trigger = "hang" }]', "p.toml:6: rule[1].all: has 1: one trigger needs no `all`"),
        (RULE + "all = [" + '{ trigger = "hang" },' * 9 + "]", "p.toml:6: rule[1].all: has 9: takes 2 to 8 triggers"),
        (
            RULE + 'all = [\n  { trigger = "hang" },\n  { trigger = "hnag" },\n]',
            "p.toml:8: rule[1].all[2].trigger: 'hnag' is not a trigger; did you mean \"hang\"?",
        ),
        (
            RULE + 'all = [\n  { trigger = "hang" },\n  # Why.\n  { trigger = "nonfinite", tight_min = 3 },\n]',
            'p.toml:9: rule[1].all[2].tight_min: unknown key for trigger "nonfinite"',
        ),
        (
            RULE + 'all = [{ trigger = "hang" }, { trigger = "hang" }]',
            'p.toml:6: rule[1].all[2]: says the same as all[1]: "hang"',
        ),
        (
            RULE + TWO + 'for = "3 steps"',
            'p.toml:7: rule[1].for: "3 steps" can never be reached: "hang" fires while no',
        ),
        (RULE + 'trigger = "hang"\nwarmup = "soon"', 'p.toml:7: rule[1].warmup: "soon" is not a warm-up'),
        (RULE + 'trigger = "budget"\nwarmup = "5m"', "p.toml:7: rule[1].warmup: is nothing for a budget"),
        (RULE + 'trigger = "hang"\ncooldown = 90', "p.toml:7: rule[1].cooldown: 90 is not a duration"),
        (RULE + 'trigger = "hang"\ncooldown = "0s"', "p.toml:7: rule[1].cooldown: is no time"),
        (
            RULE.replace("warn", "halt") + 'trigger = "hang"\ncooldown = "1h"',
            "p.toml:7: rule[1].cooldown: has no place in a rule that halts",
        ),
        (RULE + 'trigger = "hang"\nmatch = "s1"', "p.toml:7: rule[1].match: is not a table of labels"),
        (
            RULE.replace("[[rule]]", 'match = { stage = "s1" }\n[[rule]]')
            + 'trigger = "hang"\nmatch = { stage = "s2" }',
            "p.toml:8: rule[1].match: never holds: the policy takes only runs with stage = s1",
        ),
        (
            RULE + 'trigger = "hang"\nwarmup = "9M tokens"\n[budget]\ntokens = "9M"\n'
            '[[rule]]\nname = "b"\ntrigger = "budget"\nresponse = "halt"',
            "p.toml:7: rule[1].warmup: is never over: the run is complete at 9,000,000 tokens",
        ),
    ],
)
def test_each_mistake_names_its_line_and_key(text: str, error: str) -> None:
    errors = refused(text)
    assert any(error in line for line in errors), errors


def test_a_checkpoint_rule_in_a_policy_that_saves_nothing_is_refused() -> None:
    text = RULE.replace("warn", "checkpoint") + 'trigger = "hang"\n[halt]\ncheckpoint = "none"'
    (error,) = refused(text)
    assert error.startswith('p.toml:5: rule[1].response: saves nothing: [halt] has checkpoint = "none"; give the rule')
