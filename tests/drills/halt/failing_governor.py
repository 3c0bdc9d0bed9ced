"""`costgov run` with a terminal that fails: stands for any fault of the governor's own, at a moment of our choice.

    python failing_governor.py DIRECTORY TIMES CONFIG POLICY -- COMMAND...

Fails TIMES times: each time once the run has trained a step, and while a halt is under way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from governor.command import run_command
from governor.console import Console
from governor.core.node import Node
from governor.core.units import MonoNs
from governor.settings import load_settings


class FailingConsole(Console):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def fail(self) -> None:
        if self.times:
            self.times -= 1
            raise RuntimeError("a planted fault")

    def tick(self, node: Node, at: MonoNs) -> None:
        if any(tracked.run.step_at is not None for tracked in node.runs.values()):  # Heard by this governor itself.
            self.fail()

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        super().incident(snapshot)
        self.fail()


if __name__ == "__main__":
    times, config, policy = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    console = FailingConsole(times)
    settings, problems = load_settings(config)
    assert settings is not None, problems
    sys.exit(run_command(settings, [policy], sys.argv[5:], name="drill", console=console))
