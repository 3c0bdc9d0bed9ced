"""The catalogue of failure modes. The page is drawn from it, and incidents name their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.policy import ALL
from governor.core.engine.idle_state import NODE
from governor.core.halt.state import HaltState
from governor.text.failure_modes import of_machine, of_numbers, of_progress
from governor.text.failure_modes.mode import FailureMode

MODES: Final = (*of_numbers.MODES, *of_progress.MODES, *of_machine.MODES)
BY_TRIGGER: Final = {trigger: mode for mode in MODES for trigger in mode.triggers}
_UNFINISHED: Final = next(mode for mode in MODES if mode.name == "halt-not-finished")
_COMPLETE: Final = "tokens_reached"  # A run that has trained its tokens has not failed.


def modes_of(incident: Mapping[str, Any]) -> tuple[FailureMode, ...]:
    """The failure modes of an incident's snapshot: why the run was halted, then that its halt needs a person.

    There is none where a person asked for the halt, the node was unused, or the run was complete.
    """
    needs_human = incident["halt_stage"] == HaltState.NEEDS_HUMAN.name
    found = (_cause(incident), _UNFINISHED if needs_human else None)
    return tuple(mode for mode in found if mode is not None)


def _cause(incident: Mapping[str, Any]) -> FailureMode | None:
    """Of several triggers that fired together it is the first one's. A trigger of a newer version has none here."""
    if incident["run"] == NODE or incident.get("reason") == _COMPLETE:
        return None
    trigger = incident.get("trigger")
    if trigger == ALL:
        evidence = incident.get("evidence")
        members = evidence.get(ALL) if isinstance(evidence, Mapping) else None
        first = members[0] if isinstance(members, list) and members else None
        trigger = first.get("trigger") if isinstance(first, Mapping) else None
    return BY_TRIGGER.get(str(trigger))
