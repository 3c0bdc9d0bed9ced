"""Which halts are the end of the command of `costgov run`: its exit code is 86 after these, and its own otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.cli.run.own_runs import (
    ends_it,
    is_halt_of_command,
    is_left_to_job,
    is_of_earlier_launch,
    may_end,
    trains_on,
)
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.node import Node
from governor.core.halt.state import GivenUp

# `sudo` and `runuser` end their session when what they wait for has ended. PAM's modules may take a second.
LEAVES_NS: Final = 3 * NS_PER_S
LEFT_TO_JOB: Final = "LEFT_TO_JOB"  # Where a halt's stage stands: its job is cancelled, and we end with it.


@dataclass(slots=True)
class Outcome:
    """`ports.Observer`: remembers how the halts of this command ended.

    Another run of this user may use our socket. Its halt does not end our command and does not set its exit code. Nor
    does the halt of an earlier launch, which may end now, or one that the command outlives: of one of two runs below
    it, whatever its name.
    """

    run: str
    processes: tuple[ProcessId, ...] = ()  # Of the command.
    began_at: MonoNs = MonoNs(0)  # The command.
    lives: Callable[[], bool] = lambda: False  # The command.
    stages: dict[str, str] = field(default_factory=dict)
    outlived: set[str] = field(default_factory=set)  # Halts of runs below the command that have spared it.
    waits: dict[str, MonoNs | None] = field(default_factory=dict)  # Likewise, if it lives on: since when that is asked.
    leaves_training: bool = False  # We leave, and what the command has left trains on.

    @property
    def is_unfinished(self) -> bool:
        """A halt was decided, and we did not see it end."""
        return any(stage not in ("HALTED", LEFT_TO_JOB) for stage in self.stages.values())

    def tick(self, node: Node, at: MonoNs) -> None:
        """Look whether a command that is another user's (`sudo`) trains on behind the run that it has waited for.

        However long it takes to leave, what else it does (an upload) makes no success of that run.
        """
        for incident_id, since in list(self.waits.items()):
            self.waits[incident_id] = since if since is not None else at
            if since is not None and at - since >= LEAVES_NS and self.lives() and trains_on(node, since):
                self._outlive(incident_id)

    def _outlive(self, incident_id: str) -> None:
        self.outlived.add(incident_id)
        self.stages.pop(incident_id, None)
        self.waits.pop(incident_id, None)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        incident_id, stage = str(snapshot["incident_id"]), str(snapshot["halt_stage"])
        is_ours = is_halt_of_command(snapshot, self.run, self.processes)
        given_up = GivenUp.of(stage)
        is_before = given_up is not None and given_up.is_by_next
        if is_before or not is_ours or is_of_earlier_launch(snapshot, self.processes, self.began_at):
            return
        may_outlive = snapshot["run"] != self.run or not ends_it(snapshot, self.processes)
        if stage == "HALTED" and may_outlive and self.lives():
            if may_end(snapshot, self.processes):
                self.waits.setdefault(incident_id)
            else:
                self._outlive(incident_id)
        if incident_id not in self.outlived:
            is_left = is_left_to_job(stage, str((snapshot.get("plan") or {}).get("stop")))
            self.stages[incident_id] = LEFT_TO_JOB if is_left else stage
