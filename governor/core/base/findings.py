"""What a trigger answers, and what a rule makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any


class Reading(Enum):
    QUIET = "quiet"
    FIRING = "firing"
    UNKNOWN = "unknown"  # Data is missing. Never healthy, never a reason to halt by itself.


class Response(Enum):
    """What a rule does when it fires, mildest first."""

    WATCH = "watch"
    WARN = "warn"
    CHECKPOINT = "checkpoint"
    HALT = "halt"


@dataclass(frozen=True, slots=True)
class Finding:
    """One trigger's answer at one instant.

    `reason` is a stable name ("loss_nan"), `text` one sentence for a person, `evidence` the numbers behind it.
    """

    reading: Reading
    reason: str = ""
    text: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    # Asked of every rule at every step. Up to Python 3.11 a member looked up on its enum costs ten times an attribute.
    is_firing: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_firing", self.reading is Reading.FIRING)


QUIET = Finding(Reading.QUIET)


def firing(reason: str, text: str, evidence: Mapping[str, Any]) -> Finding:
    return Finding(Reading.FIRING, reason, text, evidence)


@cache  # A handful of reasons, each the answer to every frame while it lasts.
def unknown(reason: str) -> Finding:
    return Finding(Reading.UNKNOWN, reason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule decided. `enforced` is False in observe mode: recorded, nothing touched."""

    run: str
    policy: str
    rule: str
    trigger: str
    response: Response
    enforced: bool
    finding: Finding
    step: int | None
    checkpoint: str  # good | suspect | none: which kind to ask for, if it halts or checkpoints.
