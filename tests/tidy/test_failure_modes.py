"""Whatever can halt a run has its page, and the page names what exists."""

from __future__ import annotations

import re
from collections import Counter

import click
import pytest

from docs.generators.failure_modes_page import SHIPPED, rules_of
from governor.cli.main import cli
from governor.core.alerts.catalogue import SEVERITIES
from governor.core.attribution.rows import ADVICE
from governor.core.base.policy import ALL
from governor.core.rules.triggers import load
from governor.policies.files import PACKAGED_POLICY
from governor.text.failure_modes import MODES
from governor.text.failure_modes.mode import PAGE
from tests.tidy.sources import ROOT


def test_every_trigger_has_one_mode() -> None:
    """Any trigger may stand in a rule that halts."""
    owned = Counter(trigger for mode in MODES for trigger in mode.triggers)
    missing, strange = sorted(set(load()) - set(owned)), sorted(set(owned) - set(load()))
    assert not missing, f"no mode in governor/text/failure_modes has these triggers: {missing}"
    assert not strange, f"there is no such trigger: {strange}"
    assert not [trigger for trigger, count in owned.items() if count > 1]
    assert ALL not in owned


def test_every_alarm_of_a_mode_exists() -> None:
    strange = {name for mode in MODES for name in mode.alarms} - set(SEVERITIES)
    assert not strange, f"there is no such alarm: {sorted(strange)}"


def test_every_mode_can_be_found_and_says_what_to_do() -> None:
    assert len({mode.name for mode in MODES}) == len(MODES)
    for mode in MODES:
        assert mode.triggers or mode.alarms, mode.name
        assert mode.recovery, mode.name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", mode.name), "the anchor of its heading"
        texts = (mode.symptom, mode.evidence, mode.action, mode.at_risk, *mode.recovery)
        assert not [text for text in texts if not text.endswith((".", "`."))], mode.name


def test_the_rules_of_every_shipped_policy_are_on_the_page() -> None:
    assert PACKAGED_POLICY.read_text() == (ROOT / "policies/default.toml").read_text()
    assert {path.stem for path in (ROOT / "policies").glob("*.toml")} == {*SHIPPED, "demo"}
    assert rules_of("nonfinite")[0].startswith("`nonfinite` halts in all shipped policies")
    assert rules_of("hang") == ["`hang` halts in all shipped policies"]
    assert rules_of("expression") == []
    page = (ROOT / PAGE).read_text()
    for trigger in load():
        assert all(rule in page for rule in rules_of(trigger))


NEXT_STEPS = "\n".join(advice.next_step or "" for advice in ADVICE.values())


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"`costgov ([^`]+)`", (ROOT / PAGE).read_text() + NEXT_STEPS)))
)
def test_every_command_of_the_page_and_of_a_cause_exists(command: str) -> None:
    """Names of commands come first, then what they are asked: in capitals, an option, a number, or `last`."""
    found: click.Command | None = cli
    named = command.split()
    while isinstance(found, click.Group) and named and named[0].islower():
        found = found.get_command(click.Context(found), named.pop(0))
    assert found is not None, command
    options = {name for option in found.params for name in option.opts}
    assert {word for word in named if word.startswith("--")} <= options, command
