"""Which failure mode an incident names."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.engine.idle_state import NODE
from governor.text.failure_modes import modes_of


def names(**changes: Any) -> list[str]:
    incident = {"run": "llama", "trigger": "hang", "reason": "no_progress", "halt_stage": "HALTED", "evidence": {}}
    return [mode.name for mode in modes_of(incident | changes)]


def test_the_triggers_mode() -> None:
    assert names() == ["hang"]
    assert names(trigger="silence") == ["hang"]
    assert names(trigger="loss_vanished") == ["loss-not-a-number"]


def test_of_triggers_that_fired_together_the_first_ones() -> None:
    members = [{"trigger": "loss_divergence", "reason": "loss_diverged"}, {"trigger": "grad_norm"}]
    assert names(trigger="all", evidence={"all": members}) == ["loss-spike"]


def test_a_halt_that_needs_a_person_has_that_mode_too() -> None:
    assert names(halt_stage="NEEDS_HUMAN") == ["hang", "halt-not-finished"]
    assert names(trigger="operator", halt_stage="NEEDS_HUMAN") == ["halt-not-finished"]
    assert names(run=NODE, trigger="node_idle", halt_stage="NEEDS_HUMAN") == ["halt-not-finished"]


def test_no_failure_has_no_mode() -> None:
    assert names(trigger="operator") == []
    assert names(trigger="budget", reason="tokens_reached") == []
    assert names(trigger="budget", reason="ceiling_reached") == ["money-used-up"]
    assert names(run=NODE, trigger="node_idle") == [], "the trigger of that name is of runs"


@pytest.mark.parametrize("evidence", [None, [], {}, {"all": []}, {"all": {}}, {"all": [1]}, {"all": [{}]}])
def test_an_incident_of_another_version_has_none(evidence: Any) -> None:
    assert names(trigger="all", evidence=evidence) == []
    assert names(trigger="of_tomorrow", evidence=evidence) == []
