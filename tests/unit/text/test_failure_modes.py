"""Which failure mode an incident names."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.alerts.catalogue import Alert, OfIncident, Severity, State, of_test
from governor.core.base.units import WallNs
from governor.core.engine.idle_state import NODE
from governor.text.failure_modes import mode_of_alert, modes_of


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


def alert(name: str, of: OfIncident | None = None) -> Alert:
    return Alert(
        "msg_1", name, Severity.CRITICAL, State.EVENT, WallNs(1), "node-a", "text", "see", "llama", incident=of
    )


@pytest.mark.parametrize(
    ("told", "mode"),
    [
        (alert("checkpoint_torn"), "bad-checkpoint"),
        (alert("halt", OfIncident("i", "ASKED", "no_progress", "hang")), "hang"),
        (alert("halt", OfIncident("i", "NEEDS_HUMAN", "no_progress", "hang")), "halt-not-finished"),
        (alert("halt", OfIncident("i", "HALTED", "tokens_reached", "budget")), None),
        (alert("halt", OfIncident("i", "ASKED", "operator", "operator")), None),
        (alert("rule_of_my_own"), None),
        (of_test("node-a", WallNs(1)), None),
    ],
)
def test_an_alert_names_what_to_do_now(told: Alert, mode: str | None) -> None:
    found = mode_of_alert(told)
    assert (found.name if found is not None else None) == mode
