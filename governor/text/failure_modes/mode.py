"""One failure mode of a training: how it shows, what finds it, what is done about it, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

PAGE: Final = "docs/reference/failure_modes.md"


@dataclass(frozen=True, slots=True)
class FailureMode:
    """An entry of the catalogue. The texts are Markdown without links: reports and the page have them as they stand."""

    name: str  # The heading of the page, and so its anchor.
    title: str  # Completes "failure mode: …", without a full stop.
    symptom: str
    evidence: str  # What an incident has of it.
    action: str  # What costgov does without being asked.
    recovery: tuple[str, ...]  # For a person, in this order.
    at_risk: str  # Which dollars are lost, and until when.
    triggers: tuple[str, ...] = ()  # KINDs in governor/core/rules/triggers.
    alarms: tuple[str, ...] = ()  # Names in governor/core/alerts/catalogue.py.

    @property
    def advice(self) -> str:
        """What an incident's report says of it, as Markdown."""
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.recovery, 1))
        title = self.title[0].upper() + self.title[1:]
        return f"{title}. {self.symptom}\n\n{steps}\n\nAt risk: {self.at_risk}\n\nIn full: `{self.place}`."

    def row(self) -> dict[str, Any]:
        """What an incident's JSON has of it."""
        return {"name": self.name, "title": self.title, "page": self.place, "recovery": list(self.recovery)}

    @property
    def place(self) -> str:
        return f"{PAGE}#{self.name}"
