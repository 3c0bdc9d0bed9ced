"""Which halts the next attempt would meet again at once, by the trigger: what the resume line says that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.rules.triggers import load
from governor.reports.incident import incident_document, incident_markdown, timeline_lines
from governor.reports.resume_text import resume_with
from tests.golden.report_cases import ceiling_of_a_trainer, nan_halt

CEILING = ceiling_of_a_trainer()["evidence"]
COMMAND = "costgov run --policy p.toml -- python t.py"

# Trigger, reason, evidence -> a part of what its resume needs.
NEEDS: list[tuple[str, str, dict[str, Any], str]] = [
    ("budget", "ceiling_reached", CEILING, "a higher ceiling of run:"),
    ("budget", "ceiling_reached", CEILING | {"scope": "day"}, "a higher ceiling of day than $"),
    (
        "budget",
        "ceiling_reached",
        CEILING | {"scope": "shared:label:team=nlp", "whole_usd_micros": 1_010_000_000},
        "room in the shared budget label:team=nlp: this run was granted $",
    ),
    ("budget", "tokens_reached", {"tokens_total": 10_100_000, "tokens": 10_000_000}, "a goal above 10,100,000 tokens"),
    (
        "gate",
        "gate",
        {"ceiling_usd_micros": 8, "reserve_usd_micros": 1, "enough_usd_micros": 10_300_000},
        "a ceiling from $10.30 on",
    ),
    ("gate", "gate", {"ceiling_usd_micros": None, "landing_usd_micros": 9}, "a plan ([expected]) that allows for"),
    ("runtime", "run_overdue", {"age_s": 7_300.0, "limit_s": 7_200.0}, "a longer `run` of the rule than 2h 1m"),
    ("restart_loop", "restart_loop", {"attempts": 3}, "another --name, or a wait until its attempts are older"),
    ("expression", "expression_true", {"spend_usd": 51.2}, "a rule that allows for spend_usd 51.2"),
]
# All that these look at begins anew with an attempt.
GO_ON = {
    "data_starvation", "gpu_fault", "gpu_starvation", "gpu_throttled", "grad_norm", "hang", "log_stalled",
    "loss_divergence", "loss_frozen",
    "loss_spike", "loss_stall", "loss_vanished", "memory_pressure", "node_idle", "nonfinite", "overflow_storm",
    "silence", "slower_than_planned", "spot_notice", "straggler", "throughput_collapse", "unsaved_work", "usd_per_mtok",
}  # fmt: skip


def halted_by(trigger: str, reason: str, evidence: dict[str, Any]) -> dict[str, Any]:
    return nan_halt() | {"trigger": trigger, "reason": reason, "evidence": evidence, "resume": COMMAND}


@pytest.mark.parametrize(("trigger", "reason", "evidence", "needed"), NEEDS)
def test_what_would_be_halted_at_once_says_what_it_needs(
    trigger: str, reason: str, evidence: dict[str, Any], needed: str
) -> None:
    halted = halted_by(trigger, reason, evidence)
    assert incident_document(halted)["resume_needs"].startswith(needed)
    [line] = [line for line in timeline_lines(halted) if line.startswith("resume with")]
    assert needed in line
    assert f"It needs {needed[:8]}" in incident_markdown(halted).replace("`", "")


@pytest.mark.parametrize(
    ("trigger", "reason", "evidence"),
    [
        ("runtime", "attempt_overdue", {"age_s": 9.0, "limit_s": 8.0}),
        ("expression", "expression_true", {"spend_usd": 51.2, "loss": 9.1}),
        ("budget", "tokens_reached", {}),
        *((trigger, trigger, {}) for trigger in sorted(GO_ON)),
    ],
)
def test_what_an_attempt_begins_without_needs_nothing(trigger: str, reason: str, evidence: dict[str, Any]) -> None:
    assert resume_with(halted_by(trigger, reason, evidence)) is None


def test_every_trigger_has_its_place_in_these_tables() -> None:
    assert {trigger for trigger, *_ in NEEDS} | GO_ON == set(load())


@pytest.mark.parametrize("command", [COMMAND, "costgov run --ceiling 25 -- python t.py"])
def test_what_was_granted_is_never_told_as_the_ceiling_of_all(command: str) -> None:
    """Whoever set a team's ceiling to one run's grant would halt the team."""
    shared = {"scope": "shared:label:team=a b", "ceiling_usd_micros": 2_000_000, "whole_usd_micros": 1_010_000_000}
    halted = halted_by("budget", "ceiling_reached", CEILING | shared) | {"resume": command}
    told = resume_with(halted)
    assert told is not None
    assert "was granted $2.00 of its ceiling $1,010.00" in told
    assert "costgov fleet budget 'label:team=a b' USD" in told
    assert "--ceiling" not in told
    assert "ceiling of shared" not in told
    older = resume_with(halted_by("budget", "ceiling_reached", {**CEILING, "scope": "shared:day:2026-11-30"}))
    assert older is not None
    assert "of its ceiling" not in older, "an incident of before has no whole"
