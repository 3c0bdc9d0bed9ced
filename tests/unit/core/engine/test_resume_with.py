"""`resume_with`: the halt's own words name what to go on with."""

from __future__ import annotations

import json

import pytest

from governor.core.base.findings import Verdict
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step
from governor.core.rules.evaluate import Rules
from governor.core.runs.state import Run
from governor.policies.check import doubts
from governor.policies.parse import load_policies, read_policies
from governor.policies.words import explain
from governor.reports.incident import incident_markdown
from tests.golden.report_cases import nan_halt
from tests.paths import ROOT

HEAD = '[policy]\nname = "p"\n'
LOW = 'resume_with = "configs/bf16.json"\nmatch = { precision = "nvfp4" }\n'


def rule(name: str, more: str = "", response: str = "halt", hold: str = "1 step") -> str:
    return f'[[rule]]\nname = "{name}"\ntrigger = "nonfinite"\nfor = "{hold}"\nresponse = "{response}"\n{more}'


def policy_of(text: str) -> Policy:
    policies, errors = load_policies([("p.toml", HEAD + text)])
    assert policies is not None, errors
    return policies.policies[0]


def verdicts(text: str, **labels: str) -> list[Verdict]:
    run = Run("r", 0, MonoNs(0))
    run.labels = labels
    book = Rules(policy_of(text), run)
    for number, loss in enumerate((2.0, float("nan"))):
        step = Step(MonoNs(number * NS_PER_S), None, "r", 0, number, loss=loss)
        book.observe(step)
        told = book.judge(step.at, step)
    return told


def test_the_verdict_says_what_happened_and_then_what_to_go_on_with() -> None:
    low, plain = verdicts(rule("low", LOW) + rule("any"), precision="nvfp4")
    assert low.finding.text == f"{plain.finding.text}; resume with configs/bf16.json"
    assert low.finding.evidence == {**plain.finding.evidence, "resume_with": "configs/bf16.json"}
    assert "resume" not in plain.finding.text
    assert [one.rule for one in verdicts(rule("low", LOW) + rule("any"), precision="bf16")] == ["any"]


def test_the_report_says_that_it_does_not_go_on_as_it_was_started() -> None:
    told = incident_markdown(nan_halt() | {"evidence": {"resume_with": "configs/`bf16`.json"}})
    assert "Not as it was started: the rule says to resume with configs/'bf16'.json." in told
    assert "Not as it was started" not in incident_markdown(nan_halt())


def test_the_policy_read_back_says_it() -> None:
    told = " ".join(" ".join(explain(policy_of(rule("low", LOW)))).split())
    assert "Its text says to resume with configs/bf16.json." in told


@pytest.mark.parametrize(
    ("more", "response", "words"),
    [
        ('resume_with = ""', "halt", "is not one line of 1 to 200 characters"),
        ('resume_with = "  "', "halt", "is not one line of 1 to 200 characters"),
        ('resume_with = "a\\nb"', "halt", "is not one line of 1 to 200 characters"),
        (f'resume_with = "{"a" * 201}"', "halt", "is not one line of 1 to 200 characters"),
        ("resume_with = 3", "halt", "is not one line of 1 to 200 characters"),
        ('resume_with = "a"', "warn", 'has no effect: response = "warn" halts nothing'),
    ],
)
def test_what_could_not_be_said_is_refused(more: str, response: str, words: str) -> None:
    policies, errors = load_policies([("p.toml", HEAD + rule("r", more, response))])
    assert policies is None
    assert [error.key for error in errors] == ["rule[1].resume_with"]
    assert words in errors[0].message


@pytest.mark.parametrize(
    ("text", "are_doubted"),
    [
        (rule("low", LOW) + rule("any"), False),  # Both halt at that step, and the first is the halt's own.
        (rule("any") + rule("low", LOW), True),  # Its words are never said.
        (rule("low", LOW, hold="2 steps") + rule("any"), True),
    ],
)
def test_a_rule_whose_words_come_first_is_not_doubted(text: str, are_doubted: bool) -> None:
    ((policy, reader),) = read_policies([("p.toml", HEAD + text)])
    assert policy is not None
    assert bool(doubts(policy, reader)) is are_doubted


def test_each_shipped_rule_names_the_plan_that_its_own_plan_falls_back_on() -> None:
    files = [(str(path), path.read_text()) for path in sorted((ROOT / "policies").glob("*.toml"))]
    policies, errors = load_policies(files)
    assert policies is not None, errors
    seen = set()
    for named in (rule for policy in policies.policies for rule in policy.rules if rule.resume_with):
        after = json.loads((ROOT / named.resume_with).read_text())
        for precision in named.match["precision"]:
            plan = json.loads((ROOT / f"configs/precision/stage4-{precision}.json").read_text())
            assert plan["fallback"] == named.resume_with, named.name
            assert plan["labels"] == {"precision": precision}
            assert after["precision"] != precision
            seen.add(precision)
    assert seen == {"nvfp4", "mxfp8", "fp8"}
