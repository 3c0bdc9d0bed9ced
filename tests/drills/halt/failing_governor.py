"""`costgov run` with a fault of the governor's own, planted at a moment of our choice.

    python failing_governor.py TIMES CONFIG POLICY WHERE COMMAND...

Fails TIMES times: each time once the run has trained a step, and while a halt is under way. WHERE is `engine`, where it
decides and acts, or `console`, which only watches. With LOG_FORMAT in the environment the command is watched by what
it prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from governor.app.settings_file import load_settings
from governor.cli.run.console import Console
from governor.cli.run.own_log import LogOptions, with_log
from governor.cli.run.supervise import run_command
from governor.core.base.units import MonoNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node
from governor.core.events.effects import Effect, PersistIncident
from governor.core.events.inputs import Event, Tick
from governor.daemon.perform import Performer


class Fault:
    def __init__(self, times: int) -> None:
        self.times = times

    def happen(self) -> None:
        if self.times:
            self.times -= 1
            raise RuntimeError("a planted fault")

    def happen_in(self, node: Node) -> None:
        if any(
            managed.run.step_at is not None for managed in node.runs.values()
        ):  # ReceivedFrame by this governor itself.
            self.happen()


class FailingConsole(Console):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def tick(self, node: Node, at: MonoNs) -> None:
        self.fault.happen_in(node)

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        super().incident(snapshot)
        self.fault.happen()


def plant(fault: Fault, step: Callable[[Node, Event], list[Effect]], perform: Callable[..., None]) -> None:
    """Into what decides and what acts, behind what they do."""

    def failing_step(node: Node, event: Event) -> list[Effect]:
        effects = step(node, event)
        if isinstance(event, Tick):
            fault.happen_in(node)
        return effects

    def failing_perform(performer: Performer, effects: Iterable[Effect]) -> None:
        done = list(effects)
        perform(performer, done)
        if any(isinstance(effect, PersistIncident) for effect in done):
            fault.happen()

    engine.step = failing_step
    Performer.perform = failing_perform  # type: ignore[method-assign]


if __name__ == "__main__":
    fault, config, policy = Fault(int(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
    if sys.argv[4] == "engine":
        plant(fault, engine.step, Performer.perform)
    console = FailingConsole(fault) if sys.argv[4] == "console" else None
    settings, problems = load_settings(config)
    assert settings is not None, problems
    printed = os.environ.get("LOG_FORMAT")
    settings, own_log = with_log(settings, "drill", LogOptions(((printed, "-"),) if printed else ()), None)
    sys.exit(run_command(settings, [policy], sys.argv[5:], name="drill", console=console, own_log=own_log))
