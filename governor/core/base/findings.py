"""Findings of triggers, and the verdicts that rules make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any


class Reading(Enum):
    QUIET = "quiet"
    FIRING = "firing"
    # Data is missing: neither healthy nor a reason to halt by itself.
    UNKNOWN = "unknown"


class Response(Enum):
    """What a rule does when it fires, mildest first."""

    WATCH = "watch"
    WARN = "warn"
    CHECKPOINT = "checkpoint"
    HALT = "halt"


@dataclass(frozen=True, slots=True)
class Finding:
    """One trigger's finding at one instant.

    `reason` is a stable name ("loss_nan"), `text` one sentence for a person, `evidence` the numbers behind it.
    """

    reading: Reading
    reason: str = ""
    text: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    # Read for every rule at every step. Up to Python 3.11 an enum member's look-up costs ten times an attribute's.
    is_firing: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_firing", self.reading is Reading.FIRING)


QUIET = Finding(Reading.QUIET)


def firing(reason: str, text: str, evidence: Mapping[str, Any]) -> Finding:
    return Finding(Reading.FIRING, reason, text, evidence)


# There are few reasons, and while one lasts every frame gets the same finding.
@cache
def unknown(reason: str) -> Finding:
    return Finding(Reading.UNKNOWN, reason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of a rule. `enforced` is False in observe mode: recorded, without effect."""

    run: str
    policy: str
    rule: str
    trigger: str
    response: Response
    enforced: bool
    finding: Finding
    step: int | None
    # good | suspect | none: the kind of checkpoint to request, if the rule halts or checkpoints.
    checkpoint: str
