"""The catalogue of failure modes. The page is drawn from it, and incidents name their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.alerts.catalogue import Alert
from governor.core.base.policy import first_trigger
from governor.core.engine.idle_state import NODE
from governor.core.halt.state import HaltState
from governor.text.failure_modes import of_machine, of_numbers, of_progress
from governor.text.failure_modes.mode import FailureMode

MODES: Final = (*of_numbers.MODES, *of_progress.MODES, *of_machine.MODES)
BY_TRIGGER: Final = {trigger: mode for mode in MODES for trigger in mode.triggers}
BY_ALARM: Final = {alarm: mode for mode in MODES for alarm in mode.alarms}
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
    return BY_TRIGGER.get(first_trigger(incident))


def mode_of_alert(alert: Alert) -> FailureMode | None:
    """The mode of a halt, or of an alarm. An unfinished halt's comes first: it is what a person has to do now."""
    of = alert.incident
    if of is None:
        return BY_ALARM.get(alert.name)
    told = {"run": alert.run, "reason": of.reason, "trigger": of.trigger, "halt_stage": of.halt_stage}
    found = modes_of(told)
    return found[-1] if found else None
