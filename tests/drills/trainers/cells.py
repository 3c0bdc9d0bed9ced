"""A cell of the table: its four fields, read from how the broken run ended and from its report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RULES = {"nan": "nonfinite", "ceiling": "budget", "hang": "hang"}  # Trigger of the verdict.
HALTED = 86


@dataclass(frozen=True)
class Held:
    """One field of the table. `why` says in a user's words what it lacks."""

    ok: bool
    text: str
    why: str = ""


@dataclass
class Cell:
    trainer: str
    fault: str
    halted: Held
    saved: Held
    last_good: Held
    resumed: Held
    incident: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # Of the faulted run, and of the resumed one.
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(held.ok for held in (self.halted, self.saved, self.last_good, self.resumed))

    def as_json(self) -> dict[str, Any]:
        kept = {key: value for key, value in asdict(self).items() if key not in ("incident", "outputs")}
        return {**kept, "ok": self.ok}


@dataclass(frozen=True)
class Played:
    code: int | None  # None: it did not end.
    losses: dict[int, str]
    first_loss_s: float
    output: str
    left: tuple[str, ...]  # Command lines of what outlived it.


def halted_of(broken: Played, incident: Mapping[str, Any], fault: str) -> Held:
    if broken.code != HALTED:
        return Held(False, "no", f"exit code {broken.code}: {last_line(broken.output)}")
    if incident["trigger"] != RULES[fault]:
        return Held(False, "no", f"the verdict is {incident['trigger']}'s: {incident['text']}")
    if incident["halt_stage"] != "HALTED":
        return Held(False, "no", f"the halt ended as {incident['halt_stage']}")
    if broken.left:
        return Held(False, "no", f"{len(broken.left)} processes live on: {broken.left[0]:.60}")
    return Held(True, f"at {incident['step']}")


def saved_of(incident: Mapping[str, Any], fault: str, fault_at: int) -> Held:
    checkpoint = incident.get("checkpoint") or {}
    kind = checkpoint.get("kind", "none")
    by = checkpoint.get("verified_by") or "nobody"
    text = kind if kind == "none" else f"{kind}, {by}"
    why = checkpoint.get("fault") or next((line for line in incident["not_observed"] if "heckpoint" in line), "")
    if fault == "nan":
        is_earlier = kind == "good" and by == "governor" and checkpoint.get("step", fault_at) < fault_at
        return Held(kind == "none" or (kind == "suspect" and by != "nobody") or is_earlier, text, why)
    if fault == "ceiling":
        return Held(kind == "good" and by == "governor", text, why)
    return Held(True, text, why)


def last_good_of(incident: Mapping[str, Any], look: Callable[[Path], str | None]) -> Held:
    found = incident.get("last_good") or {}
    if not found.get("path"):
        return Held(False, "no", "the report names no last good checkpoint")
    path = Path(found["path"])
    if not path.exists():
        return Held(False, "no", f"{path.name} does not exist")
    if (harm := look(path)) is not None:
        return Held(False, "no", f"{path.name}: {harm}")
    return Held(True, f"{path.name}"[:18])


def last_line(output: str) -> str:
    """The last line that says something: a traceback's end, or ours."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("loss ")]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?\w+(\.\w+)*(Error|Exception)\b", line)]
    return ((errors or lines or ["nothing was printed"])[-1])[:200]
