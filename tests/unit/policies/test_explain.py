"""Whole sentences about rules: what a person reads before trusting them."""

from __future__ import annotations

from typing import ClassVar

import pytest

from governor.core.base.policy import Budget, Policy
from governor.core.rules.trigger import Key
from governor.policies.parse import load_policies
from governor.policies.words import condition_of, explain, explain_rules, meanings

HEAD = '[policy]\nname = "p"\n[budget]\nceiling_usd = 90\n[halt]\ngrace = "90s"\n'
BUDGET = '[[rule]]\nname = "budget"\ntrigger = "budget"\nresponse = "halt"\n'
STARVED = '[[rule]]\nname = "starved"\ntrigger = "data_starvation"\nshare_frac = 0.4\n'


def policy_of(rules: str) -> Policy:
    policies, errors = load_policies([("p.toml", HEAD + BUDGET + rules)])
    assert policies is not None, errors
    return policies.policies[0]


def said(rule: str) -> str:
    explained = explain_rules(policy_of(STARVED + rule))[1]
    return " ".join((explained.says, *explained.more))


WHEN = "a rank waits for data during 40% of its step time or more, over its last 20 steps"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ('response = "watch"', f"Notes it when {WHEN}. The first 20 steps of each rank are left out."),
        (
            'response = "halt"\ncheckpoint = "none"\nfor = "3 steps"',
            f"Halts when {WHEN}, in 3 reported steps in a row. The first 20 steps of each rank are left out. "
            "Nothing is saved.",
        ),
        (
            'response = "checkpoint"\ncheckpoint = "suspect"\nfor = "3 of 5 steps"',
            f"Saves a checkpoint when {WHEN}, in 3 of 5 reported steps. The first 20 steps of each rank are left out. "
            "A suspect checkpoint (kept beside the good ones, never their latest) is asked for, for up to 1m30s.",
        ),
        (
            'response = "halt"\nmode = "observe"\nfor = "2M tokens"',
            f"Would halt when {WHEN}, while 2,000,000 tokens are trained on end. "
            "The first 20 steps of each rank are left out. A checkpoint would be asked for first, for up to 1m30s. "
            "It only observes: an alarm says so, and nothing is touched.",
        ),
    ],
)
def test_a_rule_is_said_with_its_values_its_hold_and_what_follows(rule: str, expected: str) -> None:
    assert said(rule) == expected


def test_the_whole_policy_stands_around_its_rules() -> None:
    lines = explain(policy_of(""))
    assert lines[0] == 'p.toml: policy "p" (enforce) for every run that no other policy matches'
    assert lines[2] == "  budget  (p.toml:7)"
    text = " ".join(line.strip() for line in lines[3:-1])
    assert text.startswith(
        "Halts when what is spent, with the price of the halt itself, reaches 100% of the ceiling ($90"
    )
    assert lines[-1].startswith("  on halt: ask for a checkpoint (up to 1m30s)")


def test_a_trigger_without_words_of_its_own_is_said_by_its_file_and_its_keys() -> None:
    class Wordless:
        KIND: ClassVar[str] = "wordless"
        KEYS: ClassVar[tuple[Key, ...]] = (Key("least", "count", 3, "At least so many."),)

    assert meanings(Wordless) == (
        "whole sentences about rules: what a person reads before trusting them",
        "Its limits: least = {least}.",
    )


def test_a_budget_that_is_not_set_is_said_to_be_none() -> None:
    assert "of the ceiling (none is set)" in condition_of("budget", {}, Budget())[0]


def test_several_triggers_and_when_a_rule_may_speak() -> None:
    rule = (
        '[[rule]]\nname = "both"\n'
        'all = [{ trigger = "data_starvation" }, { trigger = "data_starvation", share_frac = 0.9 }]\n'
        'warmup = "200 steps"\ncooldown = "1h"\nmatch = { stage = "s1" }\nresponse = "warn"\n'
    )
    both = explain_rules(policy_of(rule))[-1]
    assert both.says.startswith("Warns when a rank waits for data during 50% of its step time or more")
    assert ", and at the same time a rank waits for data during 90% of" in both.says
    assert both.more[-3:] == (
        "It is only for runs with stage = s1.",
        "It decides nothing in the first 200 steps of an attempt.",
        "Once it has, it does not again for 1h.",
    )
